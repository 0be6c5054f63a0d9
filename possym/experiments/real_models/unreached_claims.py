"""Claims on models that could be neither loaded nor asked where these results were made: stated, and not judged.

Other modules measure what of them carries over to a model that can be had.
"""

from possym.experiments.claim import claims_in, not_testable
from possym.results.published import published

CHAPTER, PROMPTS = "10-profiling-real-models", "11-one-hop-prompts"
WEIGHTS = not_testable("its weights could not be reached where these results were made")
BY_HAND = "not judged: give its hub id as this chapter's model, where its weights can be reached"

first, second = claims_in("P1", CHAPTER), claims_in("P2", PROMPTS)
R, P = (published(f"P1.binding.{name}").value for name in ("correlation", "correlation_p"))
EARLY, LATE = (published(f"P1.binding.median_positional_{half}").value for half in ("early", "late"))

CLAIMS = (
    first(
        "gemma-trade",
        "section 4, gemma-2-2b-it",
        "In gemma-2-2b-it, on 256 pairs, the positional and the symbolic score of heads trade off almost linearly.",
        f"r = {R}, p ≤ {P:g}",
        BY_HAND,
        WEIGHTS,
    ),
    first(
        "gemma-layers",
        "section 4, gemma-2-2b-it",
        "In gemma-2-2b-it, on 256 pairs, the heads of layers 1 to 13 are more positional than those of layers 14 to "
        "26, and less symbolic.",
        f"median positional score {EARLY} early, {LATE} late",
        BY_HAND,
        WEIGHTS,
    ),
    first(
        "gemma-keys-gather",
        "section 5, gemma-2-2b-it",
        "In a head of gemma-2-2b-it, queries spread by angle and keys gather in one direction.",
        "keys gather",
        BY_HAND,
        WEIGHTS,
    ),
    first(
        "real-other-families",
        "section 4",
        "Qwen-2 and Llama-3 show the same picture as gemma-2-2b-it.",
        "the same",
        "not judged: give their hub ids as this chapter's model, where their weights can be reached",
        not_testable("their weights could not be reached where these results were made"),
    ),
    second(
        "prompts-published-models",
        "Table 3, Appendix H",
        "GPT 5.4, GPT 5.5 and Claude Sonnet 3.7 answer one-hop prompts with the accuracies of Table 3.",
        "60 cells",
        "not judged: ask them with possym.models.endpoint, and compare cell by cell",
        not_testable("their endpoints could not be reached where these results were made"),
    ),
)
