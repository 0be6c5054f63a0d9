"""Where a reader sees a claim: the labels in the chapters, and the claims that each shows."""

import html

FIGURES = {
    # 01-positional-and-symbolic
    "figure-columns-and-rows": ("one-content-positional", "nope-symbolic"),
    # 02-exclusion-principle
    "figure-between-the-kinds": ("p1-theorem-1",),
    "figure-room-in-the-bound": ("exclusion-tightness",),
    # 03-scoring-a-head
    "table-random-heads": ("positional-scores-one", "symbolic-scores-one", "uniform-scores-both"),
    "figure-behind-a-sink": ("scores-withstand-sinks",),
    "figure-errors-of-weights": ("profile-weights",),
    # 04-rope-geometry
    "figure-index-logits": ("p1-theorem-3",),
    "figure-retrieval-logits": ("p2-theorem-3-1-retrieval", "p2-theorem-3-1-symbolic"),
    "table-stacked-heads": ("p2-appendix-f-number", "p2-appendix-f-letter", "constructions-solve-the-tasks"),
    "figure-pairs-of-inputs": (
        "p1-theorem-2", "p1-theorem-4", "p1-theorem-5", "p1-corollary-1",
        "p2-remark-3-1-symbolic", "p2-remark-3-1-positional",
    ),
    "figure-two-angles": ("p1-theorem-6",),
    "figure-gap-of-index": ("p2-theorem-3-2", "p2-theorem-3-2-smallest"),
    "figure-gap-of-retrieval": ("p2-theorem-3-2-theta-zero", "p2-theorem-3-2-gap", "figure-5a"),
    "figure-sharpness-of-the-softmax": ("p2-lemma-f1",),
    "table-seventh-of-a-turn": ("p2-theorem-3-1-index",),
    "table-first-tie": ("p2-theorem-3-1-floating-point",),
    "figure-shapes": ("p1-theorem-7-positional", "p1-theorem-7-symbolic"),
    # 05-canonical-tasks
    "figure-accuracy-by-angle": ("canonical-index-fast", "canonical-retrieval-slow", "canonical-tension"),
    "figure-scores-by-angle": ("canonical-index-positional", "canonical-retrieval-symbolic"),
    "figure-bend-by-angle": ("canonical-index-u", "canonical-retrieval-inverse-u"),
    "figure-plane-in-training": ("canonical-plane",),
    "figure-pairs-of-angles": ("canonical-partial-two-angles", "canonical-moderate-angle"),
    "figure-planes-of-an-angle": ("canonical-partial-one-angle",),
    # 06-number-and-letter-tasks
    "figure-jumps": ("number-inside",),
    "figure-balance-of-numbers": ("number-balanced",),
    "figure-balance-of-letters": ("letter-balanced",),
    "table-solvers": ("number-answer", "letter-answer"),
    # 07-learning-dynamics
    "section-models": ("training-time",),
    "figure-accuracy-on-numbers": ("number-learnt", "number-best-step"),
    "figure-accuracy-on-letters": ("letter-learnt", "letter-best-step"),
    "figure-steps-to-learn": (
        "number-hop-order", "number-one-hop-step", "letter-hops-together", "letter-learnt-step", "number-one-hop-first",
    ),
    "figure-kinds-on-numbers": ("number-early-late", "number-positional-layers"),
    "figure-kinds-on-letters": ("letter-last-layer",),
    "figure-heads-in-the-plane": ("start-both-scores",),
    "figure-entropy": ("start-uniform",),
    "figure-pure-heads": (
        "number-positional-0.1", "number-symbolic-0.1", "number-positional-0.05", "number-symbolic-0.05",
        "letter-positional-0.1", "letter-symbolic-0.1",
    ),
    "figure-learning-against-purity": ("number-with-purity", "letter-with-purity"),
    "table-final-scores": ("number-layer-0",),
    # 08-what-the-heads-do
    "figure-functions-on-numbers": ("number-composition",),
    "figure-functions-on-letters": ("letter-composition", "pointer-doubling"),
    "figure-function-and-purity": ("no-symbolic-index", "no-positional-retrieval"),
    "figure-frequencies-on-numbers": ("number-table1", "number-fast-then-slow"),
    "figure-frequencies-on-letters": ("letter-table1", "letter-slow"),
    "figure-layers-replaced": ("no-layer-needed",),
    "figure-path-and-rule": ("path-not-rule", "rule-where-path-is-cut"),
    # 09-how-general-is-it
    "figure-accuracy-by-setting": ("general-mixed",),
    "figure-pure-heads-by-setting": (
        "general-heads", "general-layers", "general-llama", "general-every-place", "general-shares",
    ),
    "figure-purity-over-training": ("general-success",),
    "figure-kinds-by-setting": ("general-positional-first",),
    "table-hop-order": ("general-short-paths-first",),
    # 10-length-generalization
    "figure-accuracy-by-length": ("letter-above-90", "number-by-length", "letter-by-length"),
    "figure-90-percent-points": ("letter-goes-further",),
    "figure-best-and-last-checkpoint": ("letter-best-checkpoint",),
    "figure-leads": ("discrepancy-of-trained-heads",),
    "figure-forecast-by-level": ("forecast-number", "forecast-letter"),
    "table-forecast-or-one-number": ("forecast-or-one-number-number", "forecast-or-one-number-letter"),
    "figure-repairs": ("repair-sharper-logits", "repair-no-rotation", "repair-no-angles"),
    # 11-length-in-other-models
    "figure-accuracy-at-length-by-setting": ("length-elsewhere",),
    "table-ranks-within-settings": ("forecast-ranks-elsewhere",),
    # 12-a-language-model-is-born
    "figure-kinds-in-training": ("born-both-kinds", "born-positional-first", "born-with-induction"),
    "figure-jobs-in-the-plane": ("born-previous-token", "born-induction-symbolic", "born-trade"),
    "figure-kinds-by-encoding": ("born-slow-still", "born-fast-still", "born-nope-blind"),
    "figure-lead-by-frequency": ("born-fast-planes",),
    "figure-attention-on-code": ("born-early-positional",),
    "figure-loss-by-length": ("born-length-windows", "born-length-encoding", "born-length-planes"),
    "figure-forecast-from-short-windows": ("born-forecast-length", "born-length-angles", "born-length-number"),
    "figure-recall-by-distance": ("born-lost-in-the-middle",),
    "figure-heads-that-carry-recall": ("born-recall-symbolic", "born-recall-quarter", "born-recall-depth"),
    "figure-kinds-on-other-texts": ("born-same-on-docstrings", "born-same-on-repeated", "born-same-on-binding"),
    "table-other-models": ("born-other-sizes",),
    # 13-profiling-real-models
    "section-models-out-of-reach": ("gemma-trade", "gemma-layers", "gemma-keys-gather", "real-other-families"),
    "figure-plane-of-heads": ("real-trade",),
    "figure-heads-by-layer": ("real-early-positional", "real-late-symbolic"),
    "figure-scores-by-frequency": ("real-slow-symbolic", "real-fast-positional", "real-fastest-both"),
    "figure-queries-and-keys": ("real-keys-gather",),
    "figure-choices": ("real-temperature",),
    "table-real-heads-and-the-bound": ("real-exclusion",),
    "figure-known-heads": ("known-induction-symbolic", "known-previous-token-positional"),
    "figure-two-models": ("other-gemma-trade", "other-gemma-early-positional", "other-gemma-late-symbolic"),
    "figure-swapped-bases": ("gemma-full-symbolic", "gemma-base-makes-it"),
    "figure-atlas": (
        "atlas-previous-token", "atlas-recent", "atlas-induction", "atlas-duplicate-token", "atlas-retrieval",
        "atlas-query-focused",
    ),
    "figure-definitions-agree": ("atlas-same-retrieval",),
    "figure-bands-in-known-heads": ("knob-induction", "knob-previous-token"),
    # 14-one-hop-prompts
    "figure-published-accuracy": (
        "prompts-letters-ahead", "prompts-numbers-first", "prompts-numbers-fall", "prompts-published-models",
    ),
    "table-screens": ("prompts-letters-ahead-here",),
    # 15-which-heads-may-forget
    "table-bargain": ("forget-positional", "forget-mass", "forget-smollm2", "forget-smollm2-mass"),
    "figure-rules-by-hand": (
        "forget-oracle", "forget-oracle-25", "forget-oracle-75", "forget-oracle-smollm2", "forget-best-25",
        "forget-best-50", "forget-best-75", "forget-best-smollm2-25", "forget-best-smollm2-50",
        "forget-best-smollm2-75", "forget-distance", "forget-fitted", "forget-combined", "forget-area",
    ),
    "figure-copying-under-plans": (
        "forget-copying", "forget-copying-smollm2", "forget-needle", "forget-needle-smollm2",
    ),
    "figure-recall-by-dose": (
        "P3-dose-planes", "P3-dose-planes-smollm2", "P3-dose-heads", "P3-dose-heads-smollm2", "forget-dose-symbolic",
        "forget-dose-symbolic-smollm2", "forget-corner", "forget-corner-smollm2",
    ),
    "figure-probes-without-heads": (
        "P3-retrieval-causal", "P3-retrieval-causal-smollm2", "forget-counting", "forget-counting-smollm2",
        "forget-look-up", "forget-look-up-smollm2",
    ),
    "section-your-own-model": ("forget-bytes",),
}  # fmt: skip
LABELS = {claim: label for label, claims in FIGURES.items() for claim in claims}


def link(claim: str, page: str = "") -> str:
    """Return the link to the figure, table or section that shows a claim.

    >>> link("letter-learnt")
    '<a href="#figure-accuracy-on-letters">Figure: accuracy on letters</a>'
    """
    label = LABELS[claim]
    kind, _, name = label.partition("-")
    return f'<a href="{html.escape(page)}#{label}">{kind.capitalize()}: {name.replace("-", " ")}</a>'
