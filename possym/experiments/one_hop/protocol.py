"""The protocol of one-hop prompts: drawing data sets, grading replies, accuracy by length, the two screens.

`draw` gives the prompts, any runner of `possym.models` the replies, `collect` puts them side by side and grades them.
"""

from typing import NamedTuple

import pandas as pd
import scipy
import torch

from possym.errors import InputError
from possym.models.runners import Reply
from possym.results.published import published
from possym.tasks.onehop import DIGITS, EXAMPLES, KINDS, LENGTHS, LETTERS, OneHopTask

SCREEN_KIND, SCREEN_LENGTH, SCREEN_ACCURACY = "letter", 16, 0.85
SCREEN_ONE_ITEM = 0.95
GUESSING = {"number": 1 / len(LETTERS), "letter": 1 / len(DIGITS)}
AROUND = "\"'`*.,:;!?()[]"
KEYS = ["kind", "length", "run", "prompt"]


def draw(prompts: int, *, lengths: tuple[int, ...] = LENGTHS, runs: int = 5, seed: int = 0) -> pd.DataFrame:
    """Draw the data sets of the protocol: for every kind, length and run, so many prompts.

    The number of a run, counted from ``seed``, is the seed of its data sets.

    Returns:
        DataFrame: kind, length, run, prompt (number in its data set), answer, place (of the answer, from 0), items and
        examples (the sequence, and the answers of the worked examples, with spaces between), text (the whole prompt).

    Source: 2605.31558, Appendix H: these eleven lengths and five runs; the number of prompts is not stated.

    >>> draw(2, lengths=(12,), runs=1)[["kind", "answer", "place"]].values.tolist()[0]
    ['number', 't', 5]
    """
    cells = []
    for kind in KINDS:
        for length in lengths:
            for run in range(seed, seed + runs):
                drawn = OneHopTask(kind).sample(prompts, length=length, generator=torch.Generator().manual_seed(run))
                shown = [text.split("Answer: ")[1 : EXAMPLES + 1] for text in drawn.texts]
                cell = {
                    "kind": kind,
                    "length": length,
                    "run": run,
                    "prompt": range(prompts),
                    "answer": drawn.answers,
                    "place": drawn.places.tolist(),
                    "items": [" ".join(items) for items in drawn.items],
                    "examples": [" ".join(part.split()[0] for part in parts) for parts in shown],
                    "text": drawn.texts,
                }
                cells.append(pd.DataFrame(cell))
    return pd.concat(cells, ignore_index=True)


def collect(prompts: pd.DataFrame, replies: list[Reply | None]) -> pd.DataFrame:
    """Return the prompts that were answered with their replies, graded.

    Args:
        prompts: as `draw` returns them.
        replies: one a row, None for a prompt that was not answered; such rows are left out.

    Returns:
        The rows of ``prompts`` with reply, tokens, ended, first (as `possym.models.runners.Reply` has them) and what
        `graded` adds.

    Raises:
        InputError: another number of replies, or none that was answered.

    >>> prompts = draw(1, lengths=(12,), runs=1)
    >>> collect(prompts, [Reply(f" {answer}.", 1, True) for answer in prompts["answer"]])["correct"].all()
    np.True_
    """
    rows = [tuple(reply) if reply is not None else (None, -1, False, None) for reply in replies]
    said = pd.DataFrame(rows, columns=["reply", "tokens", "ended", "first"], index=prompts.index)
    both = pd.concat([prompts, said], axis=1)
    answered = both[both["reply"].notna()]
    if answered.empty:
        raise InputError("none of the prompts was answered")
    return graded(answered)


def item_of(reply: str) -> str | None:
    """Return the one item that a reply consists of, punctuation around it left out; None if it says more or nothing.

    >>> item_of(' "k3".'), item_of("The answer is k3")
    ('k3', None)
    """
    words = reply.split()
    return (words[0].strip(AROUND) or None) if len(words) == 1 else None


def graded(answers: pd.DataFrame) -> pd.DataFrame:
    """Return a table of answers with ``item``, ``one_item`` and ``correct``.

    A reply is correct if the answer is all it says, capitals aside. Rows without a reply (NA) are refused: a prompt
    that was never answered is not a wrong answer.

    >>> row = {"kind": "letter", "length": 16, "run": 0, "prompt": 0, "answer": "k3", "reply": " K3"}
    >>> graded(pd.DataFrame([row]))["correct"].tolist()
    [True]
    """
    item = pd.Series([item_of(reply) for reply in answers["reply"]], index=answers.index, dtype="object")
    correct = [
        said is not None and said.lower() == answer.lower()
        for said, answer in zip(item, answers["answer"], strict=True)
    ]
    return answers.assign(item=item, one_item=item.notna(), correct=correct)


def accuracy(answers: pd.DataFrame, what: str = "correct") -> pd.DataFrame:
    """Return the accuracy of graded answers by kind and length, as the paper reports it and with an interval.

    Args:
        answers: graded answers of one model.
        what: the column of True and False to average.

    Returns:
        DataFrame: kind, length, mean and sd over runs (sd NA with one run), prompts, and the 95 % Wilson interval
        low to high over all prompts of the cell.

    >>> rows = [dict(kind="number", length=12, run=r, correct=r < 3) for r in range(4)]
    >>> accuracy(pd.DataFrame(rows))[["mean", "prompts"]].values.tolist()
    [[0.75, 4.0]]
    """
    rows = []
    for (kind, length), cell in answers.groupby(["kind", "length"], sort=True):
        runs = cell.groupby("run")[what].mean()
        low, high = wilson(int(cell[what].sum()), len(cell))
        rows.append((kind, length, runs.mean(), runs.std(), len(cell), low, high))
    return pd.DataFrame(rows, columns=["kind", "length", "mean", "sd", "prompts", "low", "high"])


def wilson(right: int, total: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share.

    >>> [round(limit, 3) for limit in wilson(0, 100)]
    [0.0, 0.037]
    """
    interval = scipy.stats.binomtest(right, total).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


class Screen(NamedTuple):
    """The two screens: accuracy on letters at 16 with its 95 % interval, and the share of replies of one item there."""

    accuracy: float
    low: float
    high: float
    one_item: float
    prompts: int

    @property
    def passed(self) -> bool:
        """Whether the model takes part: at least 85 % right, and at least 95 % of replies are one item."""
        return self.accuracy >= SCREEN_ACCURACY and self.one_item >= SCREEN_ONE_ITEM


def screen(answers: pd.DataFrame) -> Screen:
    """Return how a model does on both screens of 2605.31558, Appendix H: letters at 16, and one item as answer.

    The paper asks for one token as answer and states no share; an item of the sequence counts as one token here,
    however a tokenizer cuts it, and 95 % of replies must be one.
    """
    cell = answers[(answers["kind"] == SCREEN_KIND) & (answers["length"] == SCREEN_LENGTH)]
    low, high = wilson(int(cell["correct"].sum()), len(cell))
    return Screen(float(cell["correct"].mean()), low, high, float(cell["one_item"].mean()), len(cell))


def table3() -> pd.DataFrame:
    """Return Table 3 of 2605.31558: model, kind, length, mean, sd. It has no row for length 150.

    >>> table3().query("length == 300 and kind == 'letter'")["mean"].tolist()
    [0.4, 0.5, 0.8]
    """
    return pd.DataFrame(published("P2.table3").value).rename(columns={"task": "kind"})


def reach(table: pd.DataFrame, level: float = 0.5) -> pd.DataFrame:
    """Return for every model and kind the last length up to which every measured accuracy is at least ``level``.

    Args:
        table: model, kind, length, mean.
        level: from 0 to 1.

    Returns:
        DataFrame: model, kind, reach (0 if already the first length is below), lost (the first length below the level,
        NA if there is none).

    >>> reach(table3()).query("model == 'GPT 5.4'")[["kind", "reach", "lost"]].values.tolist()
    [['number', 24, 32], ['letter', 200, 300]]
    """
    rows = []
    for (model, kind), cells in table.groupby(["model", "kind"], sort=False):
        cells = cells.sort_values("length")
        below = cells.loc[cells["mean"] < level, "length"]
        lost = int(below.iloc[0]) if len(below) else pd.NA
        kept = cells.loc[cells["length"] < lost, "length"] if len(below) else cells["length"]
        rows.append((model, kind, int(kept.max()) if len(kept) else 0, lost))
    found = pd.DataFrame(rows, columns=["model", "kind", "reach", "lost"])
    return found.astype({"lost": "Int64"})


def habits(answers: pd.DataFrame) -> pd.DataFrame:
    """Return what a model says instead: shares of replies by kind and length, from graded answers with ``items``.

    Returns:
        DataFrame: kind, length, and shares that add up to 1: right; other item (another item of the sequence);
        query (the last item, repeated); example (the answer of a worked example that is none of these); other word;
        more or nothing (not one item).
    """
    said = [
        habit(row.item, row.correct, row.items.split(), row.examples.split()) for row in answers.itertuples(index=False)
    ]
    shares = pd.crosstab([answers["kind"], answers["length"]], pd.Series(said, index=answers.index), normalize="index")
    return shares.reindex(columns=list(HABITS), fill_value=0.0).rename_axis(columns=None).reset_index()


HABITS = ("right", "other item", "query", "example", "other word", "more or nothing")


def habit(item: str | None, correct: bool, items: list[str], examples: list[str]) -> str:
    """Return the name of what one reply does.

    >>> habit("b", False, ["a", "b", "1"], ["q"])
    'other item'
    """
    if correct:
        return "right"
    if item is None or pd.isna(item):
        return "more or nothing"
    if item in items[:-1]:
        return "other item"
    if item == items[-1]:
        return "query"
    return "example" if item in examples else "other word"
