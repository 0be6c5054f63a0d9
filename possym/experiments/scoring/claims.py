"""Claims on what makes a head positional or symbolic, and on its scores."""

import torch

from possym.experiments import scoring
from possym.experiments.claim import EXTENT, OWN, OWN_CODE, Measurement, claims_in, judge
from possym.experiments.scoring.summaries import choose, weighting_errors
from possym.results import Study
from possym.rope import frequencies
from possym.scores import DEFAULT_RELATIVE, DEFAULT_TEMPERATURE, exclusion, relocated_logits, swap_scores

KINDS, SCORING = "01-positional-and-symbolic", "03-scoring-a-head"
HEADS, KEYS, WIDTH = 1000, 16, 128


def random_logits(*, one_content: bool = False, rotating: bool = True, size: float = 1.0) -> torch.Tensor:
    """Return relocated logits (heads, keys, keys) of random queries and keys, float64."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(HEADS, WIDTH, generator=generator, dtype=torch.float64) * size
    keys = torch.randn(HEADS, 1 if one_content else KEYS, WIDTH, generator=generator, dtype=torch.float64)
    turning = frequencies(WIDTH) if rotating else torch.zeros(WIDTH // 2, dtype=torch.float64)
    return relocated_logits(
        query,
        keys.expand(HEADS, KEYS, WIDTH),
        query_position=KEYS,
        positions=torch.arange(KEYS),
        frequencies=turning,
        layout="interleaved",
    )


def one_content(relocated: torch.Tensor) -> Measurement:
    """Measure how far logits change when the keys are permuted."""
    found = exclusion(relocated)
    worst = (found.positional_deviation / found.symbolic_deviation).max().item()
    return Measurement(f"deviation A/B at most {worst:.2g}", f"{HEADS:,} random heads", judge(worst < 1e-20))


def no_rotation(relocated: torch.Tensor) -> Measurement:
    """Measure how far logits fail to follow their content."""
    found = exclusion(relocated)
    worst = (found.symbolic_deviation / found.positional_deviation).max().item()
    return Measurement(f"deviation B/A at most {worst:.2g}", f"{HEADS:,} random heads", judge(worst < 1e-20))


def own_score(kind: str, relocated: torch.Tensor) -> Measurement:
    """Measure the score of pure heads on their own kind, at both temperatures in use."""
    lowest = min(getattr(swap_scores(relocated, temperature=t), kind).min().item() for t in (1e-4, 0.1))
    return Measurement(
        f"lowest {kind} score {lowest:.6f}", f"{HEADS:,} random heads, τ = 1e-4 and 0.1", judge(lowest > 1 - 1e-9)
    )


def uniform_scores(relocated: torch.Tensor) -> Measurement:
    """Measure the lowest score of either kind."""
    found = swap_scores(relocated)
    lowest = min(found.positional.min().item(), found.symbolic.min().item())
    return Measurement(
        f"both at least {lowest:.6f}", f"{HEADS:,} random heads, logits near 0.001", judge(lowest > 0.999)
    )


def withstands_sinks(study: Study) -> Measurement:
    """Measure how far a growing sink moves the scores of one head at the two absolute temperatures in use."""
    errors = weighting_errors(study.tables["cells"])
    moved = errors[errors["weighting"].eq("absolute") & errors["temperature"].isin([1e-4, 0.1])]
    moved = moved.set_index("temperature")["moved"]
    sink = study.tables["cells"]["sink"].max()
    return Measurement(
        "largest change: " + ", ".join(f"{change:.2f} at τ = {tau:g}" for tau, change in moved.items()),
        f"sinks of 0 to {sink:.1%} of the attention",
        judge((moved <= scoring.STEADY).all(), in_part=(moved <= scoring.STEADY).any()),
    )


def chosen_weights(study: Study) -> Measurement:
    """Measure which weights the study's criteria choose, and how far they err."""
    errors = weighting_errors(study.tables["cells"])
    choice = choose(errors)
    others = errors[errors["withstands"] & (errors["weighting"] != choice.weighting)]["worst"].min()
    default = ("proportional" if DEFAULT_RELATIVE else "absolute", DEFAULT_TEMPERATURE)
    return Measurement(
        f"{choice.weighting}, τ = {choice.temperature:g}: error at most {choice.worst:.2f}; the best other form "
        f"that withstands sinks: {others:.2f}",
        f"{len(study.tables['cells'].drop_duplicates(['kind', 'keys', 'sink']))} combinations of kind, number of keys "
        "and sink",
        judge((choice.weighting, choice.temperature) == default),
    )


kinds = claims_in("P1", KINDS, kind=OWN_CODE)
first = claims_in("P1", SCORING, kind=OWN_CODE)
second = claims_in("P2", SCORING, kind=OWN_CODE)
own = claims_in(OWN, SCORING, "scoring")

CLAIMS = (
    kinds(
        "one-content-positional",
        "Theorem 3, construction",
        "A head whose keys all have one content is purely positional, whatever the query.",
        "A = 0",
        "holds if A < 1e-20·B for every random head, which allows for the rounding of float64",
        lambda: one_content(random_logits(one_content=True)),
        EXTENT,
    ),
    kinds(
        "nope-symbolic",
        "Theorem 5",
        "A head without rotation (NoPE) is purely symbolic, whatever its contents.",
        "B = 0",
        "holds if B < 1e-20·A for every random head, which allows for the rounding of float64",
        lambda: no_rotation(random_logits(rotating=False)),
        EXTENT,
    ),
    first(
        "positional-scores-one",
        "section 3",
        "A purely positional head has positional score 1.",
        "1",
        "holds if every random positional head scores 1 within 1e-9 at both temperatures",
        lambda: own_score("positional", random_logits(one_content=True)),
        EXTENT,
    ),
    first(
        "symbolic-scores-one",
        "section 3",
        "A purely symbolic head has symbolic score 1.",
        "1",
        "holds if every random symbolic head scores 1 within 1e-9 at both temperatures",
        lambda: own_score("symbolic", random_logits(rotating=False)),
        EXTENT,
    ),
    second(
        "uniform-scores-both",
        "Fig. 2",
        "A head with uniform attention scores 1 on both.",
        "≈ 1",
        "holds if both scores exceed 0.999 for every nearly uniform random head",
        lambda: uniform_scores(random_logits(size=1e-3)),
        EXTENT,
    ),
    own(
        "scores-withstand-sinks",
        "after 2605.31558, appendix D",
        "With the papers' weights, a head's scores do not depend on its attention to keys that never move.",
        "not studied",
        "holds if, as a sink grows, no score of a head of known kind moves by more than 0.01, neither at τ = 1e-4 nor "
        "at 0.1; in part if this is so at one of the two",
        withstands_sinks,
        EXTENT,
    ),
    own(
        "profile-weights",
        "after 2605.31558, appendix D",
        "The library weighs swaps in the way that errs least on heads of known kind.",
        "not studied",
        "holds if the default is the weighting chosen: of those that withstand sinks, and whose worst-case error is "
        "within 0.01 of the smallest, the one with the smallest mean error",
        chosen_weights,
        EXTENT,
        kind=OWN_CODE,
    ),
)
