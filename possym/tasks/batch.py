"""The parts that all tasks share: batches, checks of arguments and tokens, balanced labels, names.

A task has a ``vocabulary`` (a token's id is its index in it), draws with ``sample``, finds answers from the
tokens alone with ``solve`` and turns ids into strings with ``decode``. The query is the last token.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from possym.errors import InputError, to_int


class Batch(NamedTuple):
    """Sequences with their answers and the positions that lead to them; every tensor is int64 and on one device.

    ``tokens`` (n, length) token ids; ``answer`` (n,) token ids; ``hops`` (n,); ``path`` (n, max_hops + 1)
    positions counted from 0: the query's, then those visited, the answer's last, −1 after it.
    """

    tokens: Tensor
    answer: Tensor
    hops: Tensor
    path: Tensor


class Task:
    """The base class of all tasks: it checks arguments and turns ids into strings.

    A task defines ``draw``, its largest number of hops and its longest sequence.
    """

    vocabulary: list[str]
    max_hops: int = 1
    shortest: int = 2
    longest: int | None = None
    why: str = "at least one token and the query"

    def sample(
        self, n: int, *, hops: int | None = None, length: int = 17, generator: torch.Generator | None = None
    ) -> Batch:
        """Draw ``n`` sequences on the generator's device.

        The answers' positions and values are balanced as the task's own text states.

        Args:
            n: number of sequences.
            hops: number of hops; None draws all hop counts of the task in equal shares (counts differ by at most one).
            length: number of tokens, the query included.
            generator: source of randomness; None is a fresh CPU generator seeded 0.

        Raises:
            InputError: an argument of the wrong type or out of the task's range.

        >>> from possym.tasks import IndexTask, NumberTask
        >>> NumberTask().sample(3, hops=2).path.shape, IndexTask().sample(3, length=20).tokens.shape
        (torch.Size([3, 5]), torch.Size([3, 20]))
        """
        if hops is not None:
            hops = check_count("hops", hops, 1, self.max_hops, "or None for all in equal share")
        length = check_count("length", length, self.shortest, self.longest, self.why)
        return self.draw(check_count("n", n, 1), hops, length, check_generator(generator))

    def draw(self, n: int, hops: int | None, length: int, generator: torch.Generator) -> Batch:
        """Draw what `sample` has checked."""
        raise NotImplementedError

    def decode(self, tokens: Tensor) -> list | str:
        """Return the strings of token ids, as lists nested like ``tokens`` (any shape).

        Raises:
            InputError: not an integer tensor, or an id outside the vocabulary.

        >>> from possym.tasks import LetterTask
        >>> LetterTask().decode(torch.tensor([17, 95]))
        ['c2', 'dh']
        """
        check_ids(tokens, len(self.vocabulary))

        def strings(ids):
            return [strings(i) for i in ids] if isinstance(ids, list) else self.vocabulary[ids]

        return strings(tokens.tolist())


def check_count(name: str, value: int, low: int, high: int | None = None, why: str = "") -> int:
    """Return a whole number from ``low`` to ``high`` (None: no limit) as an int, or raise an InputError."""
    found = to_int(value)
    if found is None or found < low or (high is not None and found > high):
        limits = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise InputError(f"{name} = {value!r:.40}: give a whole number {limits}{why and f' ({why})'}")
    return found


def check_generator(generator: torch.Generator | None) -> torch.Generator:
    """Return ``generator``, or a fresh CPU generator seeded 0 for None."""
    if generator is None:
        return torch.Generator().manual_seed(0)
    if not isinstance(generator, torch.Generator):
        raise InputError(f"generator = {generator!r}: give a torch.Generator, or None for a fresh one seeded 0")
    return generator


def check_ids(tokens: Tensor, vocabulary_size: int) -> None:
    """Raise an InputError unless ``tokens`` is an integer tensor of ids below ``vocabulary_size``."""
    if not isinstance(tokens, Tensor):
        raise InputError(f"tokens is a {type(tokens).__name__}: give a torch.Tensor of token ids")
    if tokens.dtype == torch.bool or tokens.is_floating_point() or tokens.is_complex():
        raise InputError(f"tokens is {tokens.dtype}: token ids are whole numbers, give torch.int64")
    wrong = (tokens < 0) | (tokens >= vocabulary_size)
    if wrong.any():
        where = wrong.nonzero()[0]
        position = f"row {where[0]}, position {where[1]}" if len(where) == 2 else f"index {where.tolist()}"
        token = tokens[tuple(where)].item()
        raise InputError(f"tokens: id {token} at {position}, but this vocabulary has ids 0 to {vocabulary_size - 1}")


def check_sequences(tokens: Tensor, vocabulary_size: int) -> Tensor:
    """Return ``tokens`` as int64 if they are (n, length) ids with at least one row and one position."""
    check_ids(tokens, vocabulary_size)
    if tokens.ndim != 2 or 0 in tokens.shape:
        raise InputError(f"tokens {tuple(tokens.shape)}: expected (n, length), one sequence a row, none of them 0")
    return tokens.long()


def refuse_rows(faults: dict[str, Tensor]) -> None:
    """Raise an InputError about the first row for which a fault, {what is wrong: (n,) bool}, holds."""
    rows = torch.stack(list(faults.values()), 1)
    if rows.any():
        row, fault = rows.nonzero()[0].tolist()
        raise InputError(f"tokens, row {row}: {list(faults)[fault]}; give sequences as sample() draws them")


def balanced(groups: Tensor, group_count: int, labels: int, generator: torch.Generator) -> Tensor:
    """Give each row a label from 0 to ``labels`` − 1, in random order and as evenly as possible.

    Within a group no two labels' counts differ by more than one; which labels get the extra row is random,
    and so is which row gets which label.

    Args:
        groups: (n,) int64, each row's group, below ``group_count``.
        group_count: number of groups.
        labels: number of labels.
        generator: on the device of ``groups``.

    Returns:
        (n,) int64 labels.

    >>> generator = torch.Generator().manual_seed(0)
    >>> balanced(torch.zeros(7, dtype=torch.int64), 1, 3, generator).bincount().sort().values
    tensor([2, 2, 3])
    """
    rank = ranks(groups, group_count, generator)
    names = torch.rand(group_count, labels, generator=generator, device=groups.device).argsort(1)
    return names[groups, rank % labels]


def balanced_pairs(
    groups: Tensor, group_count: int, counts: tuple[int, int], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Give each row two labels, each alone balanced as `balanced` does, and their pairs too.

    Args:
        groups: (n,) int64, each row's group, below ``group_count``.
        group_count: number of groups.
        counts: numbers of labels of both kinds; the first divides the second.
        generator: on the device of ``groups``.

    Returns:
        Labels (n,) of the first kind and (n,) of the second.

    >>> first, second = balanced_pairs(torch.zeros(16, dtype=torch.int64), 1, (2, 4), torch.Generator().manual_seed(0))
    >>> (4 * first + second).bincount().tolist()
    [2, 2, 2, 2, 2, 2, 2, 2]
    """
    few, many = counts
    rank = ranks(groups, group_count, generator)
    first, second = (
        torch.rand(group_count, labels, generator=generator, device=groups.device).argsort(1) for labels in counts
    )
    # Each run of `many` ranks takes every label of the second kind once, and those of the first kind many / few times;
    # the next run is shifted by one, so that `few` runs take every pair once.
    return first[groups, (rank + rank // many) % few], second[groups, rank % many]


def ranks(groups: Tensor, group_count: int, generator: torch.Generator) -> Tensor:
    """Number the rows of each group (n,), from 0 and in random order."""
    device = groups.device
    keys = groups + torch.rand(len(groups), dtype=torch.float64, generator=generator, device=device)
    rows = keys.argsort()
    group = groups[rows]
    start = torch.searchsorted(group, torch.arange(group_count, device=device))
    rank = torch.arange(len(groups), device=device) - start[group]
    return torch.empty_like(groups).scatter_(0, rows, rank)


def uniform(high: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw whole numbers, uniform from 0 to ``high`` − 1, for bounds ``high`` that broadcast to ``shape``."""
    return (torch.rand(shape, dtype=torch.float64, generator=generator, device=high.device) * high).long()


def letter_names(count: int) -> list[str]:
    """Return the first ``count`` of a, b, …, z, aa, ab, …, zz, aaa, ….

    >>> letter_names(28)[-3:]
    ['z', 'aa', 'ab']
    """
    names = []
    for i in range(count):
        name = ""
        while i >= 0:
            i, letter = divmod(i, 26)
            name = chr(ord("a") + letter) + name
            i -= 1
        names.append(name)
    return names
