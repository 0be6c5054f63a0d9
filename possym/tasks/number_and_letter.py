"""The number task and the letter task: follow a path of 1 to 4 hops from the last token to the answer.

Both have a window of 17 tokens: 8 target tokens (positions 0–7, the answer is one of them), 8 pre-target tokens
(positions 8–15) and the query (position 16). A path of h hops starts at the query, visits h − 1 pre-target positions in
strictly decreasing order, every choice of positions being equally likely, and ends at a target position. Longer
inputs get extra target tokens before the window, which the answer never needs.
"""

from functools import lru_cache
from itertools import combinations
from string import ascii_lowercase
from typing import NamedTuple

import torch
from torch import Tensor

from possym.errors import InputError
from possym.tasks.batch import (
    Batch,
    Task,
    balanced,
    balanced_pairs,
    check_sequences,
    letter_names,
    refuse_rows,
    uniform,
)

TARGETS, PRE_TARGETS, WINDOW, MAX_HOPS = 8, 8, 17, 4


@lru_cache
def _stopovers(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return all choices of pre-target positions (93, 3), −1 where there are fewer, first row and count by hops − 1.

    Kept for each device, because copying a table to a GPU makes the host wait.
    """
    choices = [list(combinations(range(WINDOW - 2, TARGETS - 1, -1), stops)) for stops in range(MAX_HOPS)]
    table = [list(positions) + [-1] * (MAX_HOPS - 1 - len(positions)) for group in choices for positions in group]
    count = torch.tensor([len(group) for group in choices])
    return torch.tensor(table).to(device), (count.cumsum(0) - count).to(device), count.to(device)


class Paths(NamedTuple):
    """Hops (n,), kind (n,) of the first hop, positions (n, 5) the answer's repeated, answer labels (n,)."""

    hops: Tensor
    kind: Tensor
    places: Tensor
    label: Tensor


def draw_paths(
    n: int,
    hops: int | None,
    length: int,
    labels: int,
    generator: torch.Generator,
    *,
    kinds: int = 1,
    together: bool = False,
) -> Paths:
    """Draw paths; answers' positions and labels are balanced within each number of hops and kind of the first hop.

    ``together``: so are the pairs of position and label.
    """
    device = generator.device
    one_group = torch.zeros(n, dtype=torch.int64, device=device)
    hop_class = balanced(one_group, 1, MAX_HOPS, generator) if hops is None else one_group + hops - 1
    kind = one_group if kinds == 1 else balanced(hop_class, MAX_HOPS, kinds, generator)
    group, groups = hop_class * kinds + kind, MAX_HOPS * kinds
    if together:
        target, label = balanced_pairs(group, groups, (TARGETS, labels), generator)
    else:
        target = balanced(group, groups, TARGETS, generator)
        label = balanced(group, groups, labels, generator)
    target = target[:, None]
    table, first, count = _stopovers(device)
    stops = table[first[hop_class] + uniform(count[hop_class], (n,), generator)]
    positions = torch.cat([torch.full_like(target, WINDOW - 1), torch.where(stops < 0, target, stops), target], 1)
    return Paths(hop_class + 1, kind, positions + (length - WINDOW), label)


def public_path(positions: Tensor, hops: Tensor) -> Tensor:
    """Return the path of a `Batch`: positions (n, 5) with −1 after the answer's."""
    return positions.masked_fill(torch.arange(MAX_HOPS + 1, device=hops.device) > hops[:, None], -1)


class MultiHopTask(Task):
    """A task of paths with 1 to 4 hops in a window of 17 tokens, longer inputs with more target tokens before it.

    Within each hop class, the counts of the answer's 8 positions, and of its values, differ by at most one, each in a
    random order of its own. A batch's path is (n, 5).
    """

    max_hops = MAX_HOPS
    shortest = WINDOW
    why = "8 target tokens, 8 pre-target tokens and the query"


class NumberTask(MultiHopTask):
    """Starting at the last token, jump back by the integer found until a letter is reached: the answer.

    120 letters (a…z, aa…dp; ids 0–119) and the integers 1–16 (ids 120–135). Target tokens are letters,
    pre-target tokens and the query integers. Integers off the path are uniform over those that point inside
    the window, letters off the path are uniform. Longer inputs get extra letters before the window.

    Source: 2605.31558, appendix B.1.

    >>> task = NumberTask()
    >>> batch = task.sample(4, hops=2)
    >>> (task.solve(batch.tokens) == batch.answer).all()
    tensor(True)
    """

    LETTERS = 120

    def __init__(self) -> None:
        self.vocabulary = letter_names(self.LETTERS) + [str(i) for i in range(1, WINDOW)]

    def draw(self, n: int, hops: int | None, length: int, generator: torch.Generator) -> Batch:
        """Draw what `sample` has checked."""
        device = generator.device
        hops, _, positions, answer = draw_paths(n, hops, length, self.LETTERS, generator)
        targets = torch.randint(self.LETTERS, (n, length - PRE_TARGETS - 1), generator=generator, device=device)
        window_positions = torch.arange(TARGETS, WINDOW, device=device)
        integers = 1 + uniform(window_positions, (n, PRE_TARGETS + 1), generator)
        tokens = torch.cat([targets, self.LETTERS - 1 + integers], 1)
        tokens.scatter_(1, positions[:, :-1], self.LETTERS - 1 + positions[:, :-1] - positions[:, 1:])
        tokens.scatter_(1, positions[:, -1:], answer[:, None])
        return Batch(tokens, answer, hops, public_path(positions, hops))

    def solve(self, tokens: Tensor) -> Tensor:
        """Return the answers (n,) of ``tokens`` (n, length), of any length and number of hops, by jumping.

        Raises:
            InputError: not (n, length) token ids, a last token that is no integer, or a jump out of the sequence.

        >>> task = NumberTask()
        >>> ids = [task.vocabulary.index(token) for token in ["b", "q", "1", "2"]]
        >>> task.decode(task.solve(torch.tensor([ids])))
        ['q']
        """
        tokens = check_sequences(tokens, len(self.vocabulary))
        jump = (tokens - self.LETTERS + 1).clamp(min=0)
        position = torch.full_like(tokens[:, :1], tokens.shape[1] - 1)
        while (step := jump.gather(1, position.clamp(min=0)).masked_fill(position < 0, 0)).any():
            position = position - step
        refuse_rows(
            {
                "the last token is no integer": jump[:, -1] == 0,
                "the path jumps out of the sequence": position[:, 0] < 0,
            }
        )
        return tokens.gather(1, position)[:, 0]


class LetterTask(MultiHopTask):
    """The second letter of the current pair names the first letter of the next, until a letter–integer pair.

    Letters a–h, integers 1–8, each pair one token: target tokens are the 64 letter–integer pairs ("c2"; ids
    0–63), pre-target tokens and the query the 64 letter–letter pairs ("dh"; ids 64–127). The letters that the
    path follows are distinct, and each is the first letter of one token only, the next one on the path.

    What tokens off the path hold is ``off_path``:

    - ``"excluded"``, as the authors' released code draws them: no letter of a token on the path, the query's first
      letter included, is in a token off the path, so that nothing off the path points at it. Integers off the path
      are uniform. Within each hop class the 512 pairs of the answer's position and value are balanced too.
    - ``"any"``: they start with letters that the path does not follow and end in any letter; the query starts as
      they do. The pairs of the answer's position and value are not balanced.

    Args:
        off_path: one of `OFF_PATH`.

    Raises:
        InputError: another rule.

    Source: 2605.31558, appendix B.2.

    >>> task = LetterTask()
    >>> batch = task.sample(4, hops=3)
    >>> (task.solve(batch.tokens) == batch.answer).all()
    tensor(True)
    """

    LETTERS = 8
    OFF_PATH = ("excluded", "any")

    def __init__(self, off_path: str = "excluded") -> None:
        if off_path not in self.OFF_PATH:
            raise InputError(f"off_path = {off_path!r}: known rules are {', '.join(self.OFF_PATH)}")
        self.off_path = off_path
        letters = ascii_lowercase[: self.LETTERS]
        self.vocabulary = [a + b for seconds in ("12345678", letters) for a in letters for b in seconds]

    def draw(self, n: int, hops: int | None, length: int, generator: torch.Generator) -> Batch:
        """Draw what `sample` has checked."""
        device, size = generator.device, self.LETTERS
        excluded = self.off_path == "excluded"
        hops, _, positions, answer = draw_paths(n, hops, length, size * size, generator, together=excluded)
        # A random order of the letters, shifted so that the answer's comes first, then those that lead to it, then,
        # under "excluded", the one that the query starts with. The rest are the letters off the path.
        letters = torch.rand(n, size, generator=generator, device=device).argsort(1)
        letters = (letters + (answer // size)[:, None] - letters[:, :1]) % size
        back = hops[:, None] - 1 - torch.arange(MAX_HOPS, device=device)
        followed = letters.gather(1, back.clamp(min=0))
        on_path = hops[:, None] + excluded
        first = letters.gather(1, on_path + uniform(size - on_path, (n, length), generator))
        if excluded:
            first[:, -1] = letters.gather(1, hops[:, None])[:, 0]
        first.scatter_(1, positions[:, 1:], followed)
        second = torch.randint(size, (n, length), generator=generator, device=device)
        if excluded:
            ending = on_path + uniform(size - on_path, (n, PRE_TARGETS + 1), generator)
            second[:, -PRE_TARGETS - 1 :] = letters.gather(1, ending)
        second.scatter_(1, positions[:, :-1], followed)
        second.scatter_(1, positions[:, -1:], answer[:, None] % size)
        tokens = size * first + second
        tokens[:, -PRE_TARGETS - 1 :] += size * size
        return Batch(tokens, answer, hops, public_path(positions, hops))

    def solve(self, tokens: Tensor) -> Tensor:
        """Return the answers (n,) of ``tokens`` (n, length), of any length and number of hops, by following letters.

        Raises:
            InputError: not (n, length) token ids, a last token that is no letter–letter pair, or a letter on
                the path that starts no earlier token or more than one token.

        >>> task = LetterTask()
        >>> ids = [task.vocabulary.index(token) for token in ["b3", "c2", "ab", "da"]]
        >>> task.decode(task.solve(torch.tensor([ids])))
        ['b3']
        """
        tokens = check_sequences(tokens, len(self.vocabulary))
        pairs = self.LETTERS**2
        first, second = tokens % pairs // self.LETTERS, tokens % self.LETTERS
        position = torch.full_like(tokens[:, :1], tokens.shape[1] - 1)
        going = tokens[:, -1] >= pairs
        no_query = ~going
        missing, ambiguous = torch.zeros_like(going), torch.zeros_like(going)
        while going.any():
            matches = first == second.gather(1, position)
            target = matches.int().argmax(1, keepdim=True)
            ambiguous |= going & (matches.sum(1) > 1)
            missing |= going & ~(matches.any(1) & (target < position)[:, 0])
            going = going & ~missing & ~ambiguous
            position = torch.where(going[:, None], target, position)
            going = going & (tokens.gather(1, position)[:, 0] >= pairs)
        refuse_rows(
            {
                "the last token is no letter–letter pair": no_query,
                "a letter on the path starts no earlier token": missing,
                "a letter on the path starts more than one token": ambiguous,
            }
        )
        return tokens.gather(1, position)[:, 0]
