"""An atlas of known heads: the heads of a model that match kinds from the literature, and where they lie in the plane.

- `possym.profiling.known_kinds.DEFINITIONS` holds each measure with its kind, its prompts and its source.
- `atlas` measures all of them in one forward pass per prompt, and scores the same heads on other prompts.
- `Atlas` says how well definitions agree, how stable they are over prompts, and where the heads lie.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import scipy
import torch
from torch import Tensor, nn

from possym.capture.attention_call import AttentionCall
from possym.capture.capture import Capture
from possym.capture.known_heads import repeated_tokens
from possym.errors import InputError
from possym.profiling.identity import model_identity, tokenizer_identity
from possym.profiling.known_kinds import DEFINITIONS, NEEDLE, RECENT, REPEATED, TEXT, Prompt, measured
from possym.profiling.profile import counted, profile
from possym.profiling.saved import save_tables, saved_tables
from possym.profiling.statistics import Estimate, area_under_curve
from possym.tasks.batch import check_count
from possym.tasks.needle import NeedleTask
from possym.tasks.text import beginning_token, text_tokens

TABLES = ("heads", "scores")
COUNT = 10  # heads that a definition names, in a model of four times as many or more
QUERIES = 8  # of a prompt, at most, where heads are scored
HEAD = ["layer", "head"]


def heads_of(model: nn.Module, material: str, prompts: list[Prompt]) -> tuple[pd.DataFrame, Tensor]:
    """Return what each definition of a material measures of each head: definition, prompt, layer, head, value.

    Also the token (P,) lists that the model would say after each position, for needle prompts.
    """
    capture, said = Capture(model), []
    rows: list[tuple] = []
    chosen = {name: one for name, one in DEFINITIONS.items() if one.material == material}
    for number, prompt in enumerate(prompts):
        targets = {name: one.targets(prompt).to(capture.device) for name, one in chosen.items()}

        def on_call(call: AttentionCall, number: int = number, targets: dict[str, Tensor] = targets) -> None:
            weights = call.attention()[0]
            for name, one in chosen.items():
                values = measured(one, weights, targets[name].to(weights.device)).tolist()
                rows.extend((name, number, call.layer, head, value) for head, value in enumerate(values))

        asked = [len(prompt.tokens) - 1]
        if prompt.needle is not None:
            asked = list(range(prompt.needle.answer[0] - 1, prompt.needle.answer[1] - 1))
        logits = capture.forward(prompt.tokens[None].to(capture.device), on_call, asked)
        if prompt.needle is not None and logits is not None:
            guesses = logits[0].argmax(-1).cpu()
            said.append((guesses == prompt.tokens[slice(*prompt.needle.answer)]).float().mean())
    return pd.DataFrame(rows, columns=["definition", "prompt", *HEAD, "value"]), torch.tensor(said)


def draw(tokenizer: Any, vocabulary: int, prompts: int, length: int, generator: torch.Generator) -> dict:
    """Return twice as many prompts as asked for of every material: one half to know heads by, one to score them on."""
    beginning = beginning_token(tokenizer)
    start = int(beginning is not None)
    twice = repeated_tokens(2 * prompts, length, vocabulary, generator, beginning=beginning)
    text = text_tokens(tokenizer, 2 * prompts, 2 * length)
    needles = NeedleTask(tokenizer).sample(2 * prompts, generator=generator)
    return {
        REPEATED: [Prompt(tokens, start) for tokens in twice],
        TEXT: [Prompt(tokens, start) for tokens in text],
        NEEDLE: [Prompt(needle.tokens, start, needle) for needle in needles],
    }


def queries_of(material: str, prompt: Prompt) -> list[int]:
    """Return where heads are scored: positions of the second saying, of text, or those that the answer follows."""
    count = len(prompt.tokens)
    if prompt.needle is not None:
        return list(range(prompt.needle.answer[0] - 1, prompt.needle.answer[1] - 1))[:QUERIES]
    low = (count - prompt.start) // 2 + prompt.start if material == REPEATED else min(RECENT, count - 1)
    return sorted({round(position) for position in np.linspace(low, count - 2, QUERIES)})


def scores_of(model: nn.Module, material: str, prompts: list[Prompt]) -> pd.DataFrame:
    """Return layer, head, positional, symbolic: means over prompts and queries, the first token held in place."""
    ids = [prompt.tokens.tolist() for prompt in prompts]
    found = profile(
        model,
        {"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids]},  # no token drawn is padding
        query=[queries_of(material, prompt) for prompt in prompts],
        hold="first",
        progress=False,
    )
    return found.summary()[[*HEAD, "positional", "symbolic", "attention_moved"]].assign(material=material)


@dataclass(repr=False)
class Atlas:
    """Known heads of one model.

    Attributes:
        heads: definition, prompt, layer, head, value: what each definition of `DEFINITIONS` measures.
        scores: material, layer, head, positional, symbolic, attention_moved: means over other prompts of each material.
        settings: prompts, length, seed, and said, the share of the needles' tokens that the model answers by itself;
            what the model and its tokenizer are, as in `possym.profiling.profile.Profile`.

    Of each definition, methods take the first ``count`` heads: 10 unless told otherwise, or a quarter of all in a model
    that has fewer than 40.
    """

    heads: pd.DataFrame
    scores: pd.DataFrame
    settings: dict[str, Any] = field(default_factory=dict)

    def summary(self) -> pd.DataFrame:
        """Return layer, head and the mean over prompts of every definition, a column each."""
        means = self.heads.groupby(["definition", *HEAD])["value"].mean().unstack("definition")
        return means[[name for name in DEFINITIONS if name in means]].rename_axis(columns=None).reset_index()

    def ranked(self) -> pd.DataFrame:
        """Return `summary` by (layer, head) with the sign of distances turned, so that much is always much."""
        table = self.summary().set_index(HEAD)
        return table * [DEFINITIONS[name].sign for name in table]

    def first(self, count: int | None = None) -> int:
        """Return how many heads a definition names.

        Raises:
            InputError: as many heads as there are, or more, unless there is one alone.
        """
        heads = len(self.scores[HEAD].drop_duplicates())
        if count is None:
            return max(1, min(COUNT, heads // 4))
        return check_count("count", count, 1, max(1, heads - 1), f"the model has {counted(heads, 'head')}")

    def known(self, definition: str, count: int | None = None) -> pd.Index:
        """Return the (layer, head) of the ``count`` heads that a definition ranks first, in order.

        Raises:
            InputError: no such definition, or as many heads as there are or more.
        """
        table = self.ranked()
        if definition not in table:
            raise InputError(f"definition = {definition!r}: known definitions are {', '.join(table)}")
        return table[definition].nlargest(self.first(count), keep="first").index

    def agreement(self, count: int | None = None) -> pd.DataFrame:
        """Return how far every two definitions agree on heads.

        Returns:
            DataFrame: first, second, rank_correlation (Spearman's, over all heads), overlap (the share of the first
            ``count`` heads of one that are among those of the other), by_chance (the share expected of ``count`` heads
            drawn at random); every pair in both orders, and each with itself. A model of one head has no ranks: NaN.
        """
        table, count = self.ranked(), self.first(count)
        best = {name: set(self.known(name, count)) for name in table}
        ranked = table.corr(method="spearman").rename_axis(index="first", columns="second").stack(future_stack=True)
        rows = ranked.rename("rank_correlation").reset_index()
        pairs = zip(rows["first"], rows["second"], strict=True)
        return rows.assign(
            overlap=[len(best[a] & best[b]) / count for a, b in pairs], by_chance=count / len(table)
        )  # fmt: skip

    def stability(self, count: int | None = None) -> pd.DataFrame:
        """Return how stable each definition is over prompts.

        Returns:
            DataFrame: definition, prompts, icc (how much of the variance of one prompt's values lies between heads:
            ICC(C,1), with the ends of its 95 % interval, low and high), split_half (Spearman's rank correlation of
            heads between even and odd prompts) and overlap (of the first ``count`` heads of both halves).

        Raises:
            InputError: a single prompt.

        Source: McGraw and Wong 1996, Forming inferences about some intraclass correlation coefficients, table 4.
        """
        rows, count = [], self.first(count)
        for name in self.ranked():
            one = self.heads[self.heads["definition"] == name]
            values = one.pivot(index=HEAD, columns="prompt", values="value").dropna(axis=1)
            if values.shape[1] < 2:
                raise InputError(f"{name}: {values.shape[1]} prompts; how stable it is takes two or more")
            halves = [values.iloc[:, part::2].mean(axis=1) for part in (0, 1)]
            best = [set((DEFINITIONS[name].sign * half).nlargest(count, keep="first").index) for half in halves]
            rows.append(
                {
                    "definition": name,
                    "prompts": values.shape[1],
                    **dict(zip(("icc", "low", "high"), consistency(values.to_numpy()), strict=True)),
                    "split_half": float(pd.concat(halves, axis=1).corr(method="spearman").iloc[0, 1]),
                    "overlap": len(best[0] & best[1]) / count,
                }
            )
        return pd.DataFrame(rows)

    def placed(self, definition: str, material: str = REPEATED, count: int | None = None) -> pd.DataFrame:
        """Return the scores of all heads on one material with ``known``, whether a definition names the head."""
        rows = self.scores[self.scores["material"] == material]
        if rows.empty:
            raise InputError(f"material = {material!r}: known materials are {', '.join(self.scores.material.unique())}")
        inside = pd.MultiIndex.from_frame(rows[HEAD]).isin(self.known(definition, count))
        return rows.assign(known=inside, lead=rows["symbolic"] - rows["positional"])

    def places(self, material: str = REPEATED, count: int | None = None, draws: int = 10_000) -> pd.DataFrame:
        """Return where the heads of each definition lie in the plane of both scores.

        Returns:
            DataFrame: definition, positional, symbolic (medians over its first ``count`` heads), symbolic_lead (the
            probability that one of them leads further toward symbolic than any other head of the model does; 0.5 by
            chance, NaN in a model of one head) and low, high, its 95 % interval over draws of whole layers.
        """
        rows = []
        for name in self.ranked():
            table = self.placed(name, material, count)
            found = Estimate(np.nan, np.nan, np.nan)
            if not table["known"].all():
                found = area_under_curve(table["lead"], table["known"], table["layer"], draws=draws)
            medians = table.loc[table["known"], ["positional", "symbolic"]].median()
            rows.append(
                {"definition": name, **medians, "symbolic_lead": found.value, "low": found.low, "high": found.high}
            )
        return pd.DataFrame(rows)

    def plane(self, count: int | None = None, material: str = REPEATED):
        """Draw all heads in the plane of both scores, those of a kind, chosen from a menu, in colour (Altair)."""
        from possym.profiling.atlas_charts import known_plane

        return known_plane(self, count, material)

    def save(self, path: str | os.PathLike) -> Path:
        """Write the atlas as a folder of Parquet tables and ``atlas.json``, whole or not at all.

        An earlier atlas at ``path`` is replaced; anything else there is left alone.

        Raises:
            InputError: ``path`` holds something that is not an atlas.
            ResultsError: it cannot be written, as for want of room.
        """
        tables = {name: getattr(self, name) for name in TABLES}
        return save_tables(path, "atlas", tables, {"format": 1, "settings": self.settings})

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Read an atlas that `save` wrote.

        Raises:
            ResultsError: no atlas there, or one that is incomplete, was changed, or is of another format.
        """
        with saved_tables(path, "atlas", (1,)) as (folder, manifest):
            heads, scores = (pd.read_parquet(folder / f"{name}.parquet") for name in TABLES)
            return cls(heads, scores, manifest["settings"])

    def __repr__(self) -> str:
        """Return a few lines: of each definition the first heads, and on which side of the plane they lie."""
        count = self.first()
        places = self.places(draws=1).set_index("definition")["symbolic_lead"]
        lines = []
        for name, lead in places.items():
            heads = ", ".join(f"{layer}.{head}" for layer, head in self.known(str(name))[:3])
            lines.append(f"  {DEFINITIONS[str(name)].label}: {heads}" + ("" if np.isnan(lead) else f"; {lead:.2f}"))
        about = f" of {self.settings['model']}" if "model" in self.settings else ""
        return (
            f"Atlas{about}: {counted(len(self.ranked()), 'head')}; of each kind the first three (layer.head), and how "
            f"likely one of its first {count} leads further toward symbolic than another head\n" + "\n".join(lines)
        )


def consistency(values: np.ndarray) -> tuple[float, float, float]:
    """Return ICC(C,1) of values (heads, prompts) and the ends of its 95 % interval; NaN for one head.

    >>> consistency(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))[0]
    1.0
    """
    heads, prompts = values.shape
    if heads < 2:
        return float("nan"), float("nan"), float("nan")
    overall = values.mean()
    between = prompts * ((values.mean(1) - overall) ** 2).sum() / (heads - 1)
    rest = values - values.mean(1, keepdims=True) - values.mean(0) + overall
    within = (rest**2).sum() / ((heads - 1) * (prompts - 1))
    if within < 1e-12 * max(between, 1e-30):
        return 1.0, 1.0, 1.0
    freedom = heads - 1, (heads - 1) * (prompts - 1)
    ratio = between / within
    low, high = ratio / scipy.stats.f.ppf(0.975, *freedom), ratio * scipy.stats.f.ppf(0.975, *freedom[::-1])
    icc, low, high = (float((r - 1) / (r + prompts - 1)) for r in (ratio, low, high))
    return icc, low, high


def atlas(model: nn.Module, tokenizer: Any, *, prompts: int = 16, length: int = 64, seed: int = 0) -> Atlas:
    """Measure the literature's kinds of heads in a model, and score all heads on other prompts.

    Kinds: previous token, duplicate token, induction, retrieval (needle copy), query-focused retrieval, first-token
    sink, local; `DEFINITIONS` has the source of each. The prompts are repeated random tokens, natural text that ships
    with Python, and needles in that text. The model is given the needle's answer token by token, so that heads are
    measured even if it would answer something else; ``settings["said"]`` is the share that it answers by itself.

    Args:
        model: a model that `possym.capture.Capture` reads.
        tokenizer: its tokenizer, any kind.
        prompts: of each material; as many others are scored.
        length: random tokens before the repetition; texts are twice as long.
        seed: of the draws.

    Returns:
        `Atlas`.

    Raises:
        InputError: numbers that do not fit, a vocabulary smaller than ``length``, too little text, or a tokenizer of
            another model.
        UnsupportedModelError: a model that cannot be read.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from possym.models import hub, random_llama
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model, tokenizer = hub.load(str(random_llama.save(Path(folder))), device="cpu")
    >>> found = atlas(model, tokenizer, prompts=2, length=12)
    >>> found.summary().shape, len(found.places(count=3))
    ((16, 12), 10)
    """
    prompts, length = check_count("prompts", prompts, 1), check_count("length", length, RECENT)
    seed = check_count("seed", seed, 0)
    embedding: Any = model.get_input_embeddings  # nn.Module does not tell what it is
    vocabulary = embedding().weight.shape[0]
    drawn = draw(tokenizer, vocabulary, prompts, length, torch.Generator().manual_seed(seed))
    most = max(int(prompt.tokens.max()) for material in drawn.values() for prompt in material)
    if most >= vocabulary:
        raise InputError(
            f"tokenizer gives token {most}, the model's vocabulary ends at {vocabulary - 1}: give the model's tokenizer"
        )
    heads, scores, said = [], [], []
    for material, all_prompts in drawn.items():
        found, right = heads_of(model, material, all_prompts[::2])
        heads.append(found)
        said.extend(right.tolist())
        scores.append(scores_of(model, material, all_prompts[1::2]))
    settings = dict(prompts=prompts, length=length, seed=seed, said=float(np.mean(said)) if said else None)
    settings |= model_identity(model) | tokenizer_identity(tokenizer)
    return Atlas(pd.concat(heads, ignore_index=True), pd.concat(scores, ignore_index=True), settings)
