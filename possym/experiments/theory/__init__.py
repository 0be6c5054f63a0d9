"""The theory of both papers in numbers: audit, discrepancies, temperatures, shapes, tightness, compositions.

Everything but ``composition`` and the random heads of ``tightness`` is exact, over all inputs.

Tables of the study (n counts the positions that the query sees, its own included; distances are in positions):
- ``audit``: statement by statement, the columns of `possym.theory.check.Verdict`
- ``index``: theta, n, smallest, largest, bound, beta, beta_lemma, beta_measured; discrepancies over inputs, β of
  the softmax (measured up to ``measured`` positions, else NaN)
- ``retrieval``: theta, alphabet, n, smallest, largest, smallest_with_copies, bound, margin, integer_margin, error_rate,
  beta, beta_lemma, beta_measured, integer_beta
- ``floating_point``: theta, type, length (first length with an error, NaN where none was found), nearest_turn,
  error_rate (share of query values with an error at `SEARCHED` positions)
- ``shapes``: construction, n, turns (nθ/2π), beta, shape
- ``two_angle``: n, theta, limit, accuracy
- ``tightness``: head, n, ratio: variance / bound of single heads
- ``disagreement``: example, a, b, logit: relocated logits of the smallest heads on which scores and definition part
- ``composition``: task, hops, layers, sequences, correct

Source: 2511.11579, section 3 to 5; 2605.31558, sections 3 to 5 and appendix F.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from possym.errors import ConfigError
from possym.experiments import learning_dynamics
from possym.results import ExperimentConfig, Study, choose_device
from possym.rope import frequencies
from possym.scores import exclusion, relocated_logits
from possym.tasks import LetterTask, NumberTask
from possym.theory import (
    first_error,
    index_beta,
    index_bound,
    index_error_rate,
    index_gaps,
    lemma_beta,
    letter_head,
    measured_beta,
    mixed_head,
    nearest_turn,
    number_head,
    positional_weight,
    retrieval_beta,
    retrieval_bound,
    retrieval_error_rate,
    retrieval_gaps,
    retrieval_margin,
    shape,
    smallest_contradiction,
    smallest_unseen_deviation,
    stack,
    symbolic_weight,
    t_index,
    t_retrieval,
    tightness,
    two_angle,
)
from possym.theory.audit import audit
from possym.theory.inputs import (
    letter_vocabulary,
    number_vocabulary,
    retrieval_inputs,
    worst_index_inputs,
    worst_retrieval_inputs,
)

NAME = "theory"
SEARCHED = 2048
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class Config(ExperimentConfig):
    """Settings of the study; θ = 0.8, θ = 0.0027 and eight letters are those of 2605.31558, figure 5A.

    Raises:
        ConfigError: lengths below 3, or no heads or sequences.

    >>> Config.preset_named("paper").longest
    200
    """

    index_thetas: tuple[float, ...] = (0.8, 0.0027, 0.1, 0.5, 1.0, 2.0)
    retrieval_thetas: tuple[float, ...] = (0.0027, 0.0, 0.001, 0.01)
    alphabets: tuple[int, ...] = (8, 4, 26)
    longest: int = 200
    measured: int = 64
    turn_steps: int = 60
    betas: tuple[float, ...] = (1.0, 5.0)
    shape_lengths: tuple[int, ...] = (8, 16, 64)
    random_heads: int = 500
    sequences: int = 4000

    PRESETS: ClassVar = {
        "smoke": {
            "index_thetas": (0.8,),
            "retrieval_thetas": (0.0027,),
            "alphabets": (8,),
            "longest": 24,
            "measured": 8,
            "turn_steps": 15,
            "shape_lengths": (8,),
            "random_heads": 50,
            "sequences": 64,
        },
        "paper": {},
    }

    def __post_init__(self) -> None:
        """Refuse sizes that leave nothing to compute."""
        super().__post_init__()
        if empty := [entry.name for entry in fields(self) if getattr(self, entry.name) == ()]:
            raise ConfigError(f"{empty[0]} = (): give at least one")
        self.each_at_least(1, "turn_steps", "random_heads", "sequences")
        self.each_at_least(2, "alphabets")
        self.each_at_least(3, "longest", "measured", "shape_lengths")


def run(config: Config) -> Study:
    """Compute every table."""
    device = choose_device(config.device)
    tables = {
        "audit": pd.DataFrame([asdict(verdict) for verdict in audit()]),
        "index": index_table(config),
        "retrieval": retrieval_table(config),
        "floating_point": floating_point_table(),
        "shapes": shape_table(config),
        "two_angle": two_angle_table(),
        "tightness": tightness_table(config),
        "disagreement": disagreement_table(),
        "composition": composition_table(config, device),
    }
    return Study(tables)


def lengths(config: Config) -> list[int]:
    """Return the lengths of the discrepancy tables: all up to 150, then every tenth.

    >>> lengths(Config.preset_named("paper"))[-6:]
    [150, 160, 170, 180, 190, 200]
    """
    return [n for n in range(2, config.longest + 1) if n <= 150 or n % 10 == 0]


def index_table(config: Config) -> pd.DataFrame:
    """Return T_Index's discrepancies and temperatures for every θ and length."""
    rows = []
    for theta in config.index_thetas:
        for n in lengths(config):
            gaps = index_gaps(n, theta)
            smallest = float(gaps.min())
            lemma, measured = lemma_beta(n, smallest), math.nan
            if n <= config.measured and theta == config.index_thetas[0]:
                values = number_vocabulary(2, n - 1)
                measured = measured_beta(t_index(values, theta), *worst_index_inputs(n, values), lemma + 1)
            rows.append(
                {
                    "theta": theta,
                    "n": n,
                    "smallest": smallest,
                    "largest": float(gaps.max()),
                    "bound": index_bound(n, theta),
                    "beta": index_beta(n, theta),
                    "beta_lemma": lemma,
                    "beta_measured": measured,
                }
            )
    return pd.DataFrame(rows)


def retrieval_table(config: Config) -> pd.DataFrame:
    """Return T_Retrieval's discrepancies, margins and temperatures for every θ, alphabet and length.

    The first alphabet gets every length, the others and further angles every tenth.
    """
    rows = []
    for alphabet in config.alphabets:
        left, right = letter_vocabulary(alphabet, 1)
        for theta in config.retrieval_thetas:
            main = alphabet == config.alphabets[0] and theta == config.retrieval_thetas[0]
            for n in lengths(config):
                if not main and n % 10 and n != 2:
                    continue
                gaps = retrieval_gaps(n, theta, alphabet)
                margin = retrieval_margin(n, theta, alphabet)
                lemma, measured = lemma_beta(n, margin), math.nan
                if main and n <= config.measured:
                    inputs = worst_retrieval_inputs(n, alphabet)
                    measured = measured_beta(t_retrieval(left, right, theta), *inputs, lemma + 1)
                rows.append(
                    {
                        "theta": theta,
                        "alphabet": alphabet,
                        "n": n,
                        "smallest": gaps.smallest,
                        "largest": gaps.largest,
                        "smallest_with_copies": retrieval_gaps(n, theta, alphabet, single=False).smallest,
                        "bound": retrieval_bound(n, theta, alphabet),
                        "margin": margin,
                        "integer_margin": retrieval_margin(n, theta, alphabet, integer_query=True),
                        "error_rate": retrieval_error_rate(n, theta, alphabet),
                        "beta": retrieval_beta(n, theta, alphabet),
                        "beta_lemma": lemma,
                        "beta_measured": measured,
                        "integer_beta": retrieval_beta(n, theta, alphabet, integer_query=True),
                    }
                )
    return pd.DataFrame(rows)


def floating_point_table() -> pd.DataFrame:
    """Return the first length with an error for angles and floating-point types, and the first near-turn."""
    rows = []
    for theta in (0.0027, 0.5, 0.8, 1.0):
        for name, dtype in TYPES.items():
            found, rate = first_error(theta, dtype, SEARCHED), index_error_rate(theta, dtype, SEARCHED)
            turn = nearest_turn(theta, math.sqrt(torch.finfo(dtype).eps / 2))
            rows.append({"theta": theta, "type": name, "length": found, "nearest_turn": turn, "error_rate": rate})
    return pd.DataFrame(rows).astype({"length": "Int64"})


def shape_table(config: Config) -> pd.DataFrame:
    """Return the shape of w_max(j) of both constructions over a grid of nθ up to three turns."""
    rows = []
    for name, weight in (("positional", positional_weight), ("symbolic", symbolic_weight)):
        for n in config.shape_lengths:
            for beta in config.betas:
                for step in range(1, config.turn_steps + 1):
                    turns = 3 * (step - 0.5) / config.turn_steps
                    curve = weight(n, 2 * math.pi * turns / n, float(beta))
                    rows.append(
                        {"construction": name, "n": n, "turns": turns, "beta": float(beta), "shape": shape(curve)}
                    )
    return pd.DataFrame(rows)


def two_angle_table() -> pd.DataFrame:
    """Return the two-angle head's share of right answers over every input of Partial induction, by θ₂."""
    rows = []
    for n in (2, 3, 4, 5):
        tokens, answer = retrieval_inputs(2, 2, n, last=True)
        for step in range(64):
            theta = (step + 0.5) / 64 * math.pi
            right = two_angle(2, 2, theta)(tokens)[:, -1] == answer
            rows.append(
                {"n": n, "theta": theta, "limit": 2 * math.pi / (2 * n - 1), "accuracy": right.double().mean().item()}
            )
    return pd.DataFrame(rows)


def tightness_table(config: Config) -> pd.DataFrame:
    """Return variance / bound of random RoPE heads, of pure heads and of mixtures."""
    generator = torch.Generator().manual_seed(config.seed)
    rows = []
    for n in (2, 4, 8, 16, 64):
        for name, relocated in {
            "random RoPE head": random_heads(n, config.random_heads, generator),
            "positional": mixtures(n, config.random_heads, 1.0, generator),
            "symbolic": mixtures(n, config.random_heads, 0.0, generator),
            "three quarters positional": mixtures(n, config.random_heads, 0.75, generator),
            "half and half": mixtures(n, config.random_heads, 0.5, generator),
        }.items():
            rows += [{"head": name, "n": n, "ratio": ratio} for ratio in tightness(relocated).tolist()]
    return pd.DataFrame(rows)


def random_heads(n: int, count: int, generator: torch.Generator) -> Tensor:
    """Return relocated logits (count, n, n) of normal queries and keys of width 128 under RoPE."""
    query = torch.randn(count, 128, generator=generator, dtype=torch.float64)
    keys = torch.randn(count, n, 128, generator=generator, dtype=torch.float64)
    return relocated_logits(
        query,
        keys,
        query_position=n,
        positions=torch.arange(n),
        frequencies=frequencies(128),
        layout="interleaved",
    )


def mixtures(n: int, count: int, mix: float, generator: torch.Generator) -> Tensor:
    """Return `possym.theory.mixed_head` of normal logits, (count, n, n)."""
    logits = torch.randn(count, n, generator=generator, dtype=torch.float64)
    return torch.stack([mixed_head(row, mix) for row in logits])


def disagreement_table() -> pd.DataFrame:
    """Return the entries of the smallest heads on which scores and definition part."""
    heads = {"unseen deviation": smallest_unseen_deviation(), "contradiction": smallest_contradiction(3, 2)}
    return pd.DataFrame(
        [
            {"example": name, "a": a, "b": b, "logit": head[a, b].item()}
            for name, head in heads.items()
            for a in range(len(head))
            for b in range(len(head))
        ]
    )


def composition_table(config: Config, device: torch.device) -> pd.DataFrame:
    """Return how many sequences of the number and letter tasks the stacked heads answer, by hops and layers."""
    rows = []
    for name, task, head in (
        ("number", NumberTask(), number_head(NumberTask().vocabulary, 0.8)),
        ("letter", LetterTask(), letter_head(LetterTask().vocabulary, 0.0027)),
    ):
        for hops in (1, 2, 3, 4):
            generator = torch.Generator().manual_seed(config.seed)
            batch = task.sample(config.sequences, hops=hops, generator=generator)
            for layers in range(1, 7):
                model = stack(head, min(hops, layers), layers).to(device)
                right = model(batch.tokens.to(device))[:, -1].cpu() == batch.answer
                rows.append(
                    {
                        "task": name,
                        "hops": hops,
                        "layers": layers,
                        "sequences": config.sequences,
                        "correct": int(right.sum()),
                    }
                )
    return pd.DataFrame(rows)


def trained_tightness(study: Study, config: learning_dynamics.Config) -> pd.DataFrame:
    """Return how near the trained heads of `learning_dynamics` come to the exclusion bound.

    Args:
        study: that study's result, which holds a trained model of each task.
        config: its configuration.

    Returns:
        DataFrame task, layer, head, variance, bound, ratio, leaning: means over sequences, the ratio of the means,
        and leaning = A/(A + B), 0 for positional and 1 for symbolic heads.
    """
    rows = []
    for task in config.tasks:
        model = learning_dynamics.trained_model(study, config, task)
        draw = torch.Generator().manual_seed(config.seed)
        tokens = learning_dynamics.TASKS[task]().sample(200, generator=draw).tokens
        with torch.no_grad():
            queries, keys, _ = model.trace(tokens)
        own = tokens.shape[-1] - 1
        result = exclusion(
            relocated_logits(
                queries,
                keys[..., :own, :],
                query_position=own,
                positions=torch.arange(own),
                frequencies=model.config.frequencies,
                layout="interleaved",
            )
        )
        variance, positional, symbolic, bound = (value[0].mean(1).tolist() for value in result)  # each (L, H)
        rows += [
            {
                "task": task,
                "layer": layer,
                "head": head,
                "variance": variance[layer][head],
                "bound": bound[layer][head],
                "ratio": variance[layer][head] / bound[layer][head],
                "leaning": positional[layer][head] / (positional[layer][head] + symbolic[layer][head]),
            }
            for layer in range(len(variance))
            for head in range(len(variance[layer]))
        ]
    return pd.DataFrame(rows)
