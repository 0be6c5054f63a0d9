"""The canonical tasks: Index, Retrieval and Partial induction, each solvable by one head at the last token.

All have one hop. The answers' positions are balanced over all positions before the query, and so are their values:
counts differ by at most one.
"""

import torch
from torch import Tensor

from possym.tasks.batch import (
    Batch,
    Task,
    balanced,
    check_count,
    check_sequences,
    letter_names,
    refuse_rows,
    uniform,
)

NAMES, A_NAME_EACH = 2**20, "the vocabulary is a list with a name for each token"


def _draw_answers(
    n: int, length: int, values: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw the answers' values (n,) and positions (n, 1); return hops (n,) and path (n, 2) with them."""
    one_group = torch.zeros(n, dtype=torch.int64, device=generator.device)
    value = balanced(one_group, 1, values, generator)
    position = balanced(one_group, 1, length - 1, generator)[:, None]
    return value, position, one_group + 1, torch.cat([torch.full_like(position, length - 1), position], 1)


class IndexTask(Task):
    """Output the symbol that stands σ positions before the last token, where σ is the last token's number.

    With n = length − 1 symbols x_1 … x_n and last token σ the answer is x_j, j = length − σ. A RoPE head sees a
    key's position only as its distance from the query, so a head that solves Index by itself (Theorem 3; T_Index
    of 2605.31558) turns its query by the distance that the last token names, and one head then serves every
    length. At one fixed length, naming j instead of σ renames the index tokens and changes nothing; over
    several lengths the token j would not fix the distance, and no such head could follow it.

    Symbols are uniform and may repeat. Vocabulary: ``symbols`` symbols (a, b, …), then the integers from 1 to
    ``max_length`` − 1.

    Args:
        symbols: number of symbols, at least 2.
        max_length: the longest input that has index tokens, at least 2.

    Raises:
        InputError: not such whole numbers.

    Source: 2511.11579, canonical tasks and Theorems 2 and 3.

    >>> task = IndexTask()
    >>> ids = [task.vocabulary.index(token) for token in ["d", "a", "c", "2"]]
    >>> task.decode(task.solve(torch.tensor([ids])))
    ['a']
    """

    why = "for more, make the task with a larger max_length"

    def __init__(self, symbols: int = 32, max_length: int = 128) -> None:
        self.symbols = check_count("symbols", symbols, 2, NAMES, A_NAME_EACH)
        self.longest = check_count("max_length", max_length, 2, NAMES, A_NAME_EACH)
        self.vocabulary = letter_names(symbols) + [str(i) for i in range(1, max_length)]

    def draw(self, n: int, hops: int | None, length: int, generator: torch.Generator) -> Batch:
        """Draw what `sample` has checked."""
        answer, position, hops, path = _draw_answers(n, length, self.symbols, generator)
        tokens = torch.randint(self.symbols, (n, length), generator=generator, device=generator.device)
        tokens.scatter_(1, position, answer[:, None])
        tokens[:, -1:] = self.symbols - 1 + (length - 1 - position)
        return Batch(tokens, answer, hops, path)

    def solve(self, tokens: Tensor) -> Tensor:
        """Return the answers (n,) of ``tokens`` (n, length) by counting back from the last token.

        Raises:
            InputError: not (n, length) token ids, a last token that is no index or points out of the
                sequence, or an index at any other position.

        >>> task = IndexTask()
        >>> batch = task.sample(4)
        >>> (task.solve(batch.tokens) == batch.answer).all()
        tensor(True)
        """
        tokens = check_sequences(tokens, len(self.vocabulary))
        index = tokens[:, -1] - self.symbols + 1
        position = tokens.shape[1] - 1 - index
        refuse_rows(
            {
                "the last token is no index": index < 1,
                "the index points out of the sequence": position < 0,
                "an index stands before the last position": (tokens[:, :-1] >= self.symbols).any(1),
            }
        )
        return tokens[torch.arange(len(tokens), device=tokens.device), position]


class _PairTask(Task):
    """Symbol–attribute pairs, then a symbol: the vocabulary and reading of both tasks made of pairs.

    Vocabulary: the pairs ("a1", "a2", …; id symbol · attributes + attribute), the symbols that ask ("a", …),
    the attributes that answer ("1", …).
    """

    def __init__(self, symbols: int, attributes: int) -> None:
        self.symbols = check_count("symbols", symbols, 2, NAMES, A_NAME_EACH)
        self.attributes = check_count("attributes", attributes, 2, NAMES // self.symbols, A_NAME_EACH)
        names, values = letter_names(symbols), [str(i + 1) for i in range(attributes)]
        self.vocabulary = [name + value for name in names for value in values] + names + values

    def _batch(self, symbols: Tensor, generator: torch.Generator, drawn: tuple) -> Batch:
        """Bind random attributes to ``symbols`` (n, length − 1), the drawn one at the answer's position, and ask."""
        value, position, hops, path = drawn
        attributes = torch.randint(self.attributes, symbols.shape, generator=generator, device=generator.device)
        attributes.scatter_(1, position, value[:, None])
        pairs = self.symbols * self.attributes
        tokens = torch.cat([symbols * self.attributes + attributes, pairs + symbols.gather(1, position)], 1)
        return Batch(tokens, pairs + self.symbols + value, hops, path)

    def _read(self, tokens: Tensor, *, once: bool) -> tuple[Tensor, Tensor]:
        """Check tokens; return matches (n, length − 1) with the query's symbol and the attributes' ids there."""
        tokens = check_sequences(tokens, len(self.vocabulary))
        pairs = self.symbols * self.attributes
        asked, keys = tokens[:, -1:] - pairs, tokens[:, :-1]
        matches = keys // self.attributes == asked
        refuse_rows(
            {
                "the last token is no symbol": ((asked < 0) | (asked >= self.symbols))[:, 0],
                "a token before the last is no symbol–attribute pair": (keys >= pairs).any(1),
                "the symbol asked for does not occur": ~matches.any(1),
                "the symbol asked for occurs more than once": (matches.sum(1) > 1) & once,
            }
        )
        return matches, pairs + self.symbols + keys % self.attributes


class RetrievalTask(_PairTask):
    """Given symbol–attribute pairs, one token each, and a symbol, output the symbol's attribute.

    The symbols of a sequence are distinct, every choice and order of them being equally likely; attributes are
    uniform. Vocabulary: all pairs ("a1", …), the symbols that ask ("a", …), the attributes that answer ("1", …).

    Args:
        symbols: number of symbols, at least 2; a sequence can have that many pairs, so 128 serve inputs up
            to 129 tokens and 32 those up to 33.
        attributes: number of attributes, at least 2.

    Raises:
        InputError: not such whole numbers.

    Source: 2511.11579, canonical tasks and Theorems 4 and 5.

    >>> task = RetrievalTask()
    >>> ids = [task.vocabulary.index(token) for token in ["d3", "a1", "c2", "a"]]
    >>> task.decode(task.solve(torch.tensor([ids])))
    ['1']
    """

    why = "symbols do not repeat; for more, make the task with more"

    def __init__(self, symbols: int = 128, attributes: int = 8) -> None:
        super().__init__(symbols, attributes)
        self.longest = self.symbols + 1

    def draw(self, n: int, hops: int | None, length: int, generator: torch.Generator) -> Batch:
        """Draw what `sample` has checked."""
        drawn = _draw_answers(n, length, self.attributes, generator)
        keys = torch.rand(n, self.symbols, generator=generator, device=generator.device)
        return self._batch(keys.topk(length - 1).indices, generator, drawn)

    def solve(self, tokens: Tensor) -> Tensor:
        """Return the answers (n,) of ``tokens`` (n, length) by looking for the last token's symbol.

        Raises:
            InputError: not (n, length) token ids, tokens that are not pairs followed by a symbol, or a symbol
                that occurs not once.

        >>> task = RetrievalTask()
        >>> batch = task.sample(4)
        >>> (task.solve(batch.tokens) == batch.answer).all()
        tensor(True)
        """
        matches, attributes = self._read(tokens, once=True)
        return (attributes * matches).sum(1)


class PartialInductionTask(_PairTask):
    """Given symbol–attribute pairs with repeated symbols, and a symbol, output the symbol's last attribute.

    Symbols are uniform, given where the symbol asked for occurs last; attributes are uniform and independent,
    so that earlier occurrences say nothing about the answer. With 8 symbols and length 32 the symbol occurs
    earlier too in three sequences of four, and the attribute most often bound to it is the answer in 60 % of
    them all (38 % at length 128): as far as content alone can go. Vocabulary as in `RetrievalTask`.

    Args:
        symbols: number of symbols, at least 2; the fewer, the more they repeat.
        attributes: number of attributes, at least 2.

    Raises:
        InputError: not such whole numbers.

    Source: 2511.11579, canonical tasks, Corollary 1 and Theorem 6.

    >>> task = PartialInductionTask()
    >>> ids = [task.vocabulary.index(token) for token in ["a3", "a1", "c2", "a"]]
    >>> task.decode(task.solve(torch.tensor([ids])))
    ['1']
    """

    def __init__(self, symbols: int = 8, attributes: int = 8) -> None:
        super().__init__(symbols, attributes)

    def draw(self, n: int, hops: int | None, length: int, generator: torch.Generator) -> Batch:
        """Draw what `sample` has checked."""
        device = generator.device
        drawn = _draw_answers(n, length, self.attributes, generator)
        position = drawn[1]
        asked = torch.randint(self.symbols, (n, 1), generator=generator, device=device)
        # Symbols as distances from the one asked for: 0 is excluded after the answer's position.
        after = (torch.arange(length - 1, device=device) > position).long()
        distance = after + uniform(self.symbols - after, (n, length - 1), generator)
        symbols = (asked + distance.scatter_(1, position, 0)) % self.symbols
        return self._batch(symbols, generator, drawn)

    def solve(self, tokens: Tensor) -> Tensor:
        """Return the answers (n,) of ``tokens`` (n, length) by looking for the symbol's last occurrence.

        Raises:
            InputError: not (n, length) token ids, tokens that are not pairs followed by a symbol, or a symbol
                that does not occur.

        >>> task = PartialInductionTask()
        >>> batch = task.sample(4)
        >>> (task.solve(batch.tokens) == batch.answer).all()
        tensor(True)
        """
        matches, attributes = self._read(tokens, once=False)
        position = matches.shape[1] - 1 - matches.flip(1).int().argmax(1)
        return attributes[torch.arange(len(attributes), device=attributes.device), position]
