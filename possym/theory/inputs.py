"""Inputs that test heads: all of one length, pairs that differ only in order, the worst ones for a softmax.

Tokens are ids: those of `possym.theory.heads.h_pos` and `h_sym` for the tasks of 2511.11579, and of the vocabularies
here for those of 2605.31558.
"""

import torch
from torch import Tensor


def sequences(tokens: int, length: int) -> Tensor:
    """Return every sequence of a length over token ids 0 … tokens − 1, (tokens^length, length) int64.

    >>> sequences(2, 2)
    tensor([[0, 0],
            [0, 1],
            [1, 0],
            [1, 1]])
    """
    return torch.cartesian_prod(*[torch.arange(tokens)] * length).view(-1, length)


def index_pairs(symbols: int, length: int) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of Index inputs that hold the same keys in another order and have different answers.

    Tokens are those of `h_pos`; the question stands last.

    >>> index_pairs(2, 2)[0]
    (tensor([0, 1, 2]), tensor([1, 0, 2]))
    """
    keys = sequences(symbols, length)
    contents = keys.sort(-1).values
    pairs = []
    for position in range(length):
        for i, first in enumerate(keys):
            same = (contents == contents[i]).all(-1) & (keys[:, position] != first[position])
            same[: i + 1] = False
            question = torch.tensor([symbols + position])
            pairs += [(torch.cat([first, question]), torch.cat([other, question])) for other in keys[same]]
    return pairs


def one_answer_inputs(length: int) -> tuple[Tensor, Tensor]:
    """Return Retrieval inputs with the asked pair (0, 0) at each position in turn and (1, 1) at all others.

    Tokens are those of `h_sym` with two symbols and two attributes; all answers are attribute 0.

    >>> one_answer_inputs(2)
    (tensor([[0, 3, 4],
            [3, 0, 4]]), tensor([0, 0]))
    """
    keys = torch.full((length, length), 3).fill_diagonal_(0)
    return torch.cat([keys, torch.full((length, 1), 4)], 1), torch.zeros(length, dtype=torch.int64)


def retrieval_inputs(symbols: int, attributes: int, length: int, last: bool) -> tuple[Tensor, Tensor]:
    """Return every valid input of Retrieval, or with ``last`` of Partial induction, and its answer.

    Retrieval asks for a symbol that stands in the keys with one attribute only; Partial induction for the
    attribute at the symbol's last occurrence.
    """
    pairs = symbols * attributes
    keys, asked = sequences(pairs, length), torch.arange(symbols)
    tokens = torch.cat([keys.repeat_interleave(symbols, 0), (pairs + asked).repeat(len(keys))[:, None]], 1)
    match = tokens[:, :-1] // attributes == tokens[:, -1:] - pairs
    attribute = tokens[:, :-1] % attributes
    position = torch.where(match, torch.arange(length), -1).amax(-1)
    answer = attribute.gather(1, position.clamp(min=0)[:, None])[:, 0]
    valid = match.any(-1)
    if not last:
        valid &= (~match | (attribute == answer[:, None])).all(-1)
    return tokens[valid], answer[valid]


def number_vocabulary(letters: int, integers: int) -> Tensor:
    """Return the values of a vocabulary of letters (0) followed by the integers 1, 2, …

    >>> number_vocabulary(2, 3)
    tensor([0, 0, 1, 2, 3])
    """
    return torch.cat([torch.zeros(letters, dtype=torch.int64), torch.arange(1, integers + 1)])


def letter_vocabulary(alphabet: int, integers: int) -> tuple[Tensor, Tensor]:
    """Return left and right letters of all letter–letter tokens, then of all letter–integer tokens (right −1).

    >>> letter_vocabulary(2, 1)
    (tensor([0, 0, 1, 1, 0, 1]), tensor([ 0,  1,  0,  1, -1, -1]))
    """
    letters = torch.arange(alphabet)
    left = torch.cat([letters.repeat_interleave(alphabet), letters.repeat_interleave(integers)])
    return left, torch.cat([letters.repeat(alphabet), torch.full((alphabet * integers,), -1)])


def worst_index_inputs(length: int, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return one input per query value ≥ 1, with letter 0 at the position asked for and letter 1 at all others.

    The vocabulary starts with two letters; the answers are all 0.
    """
    value = torch.arange(1, length)
    tokens = torch.ones(length - 1, length, dtype=torch.int64)
    tokens[value - 1, length - 1 - value] = 0
    tokens[:, -1] = (values[None, :] == value[:, None]).int().argmax(-1)
    return tokens, torch.zeros(length - 1, dtype=torch.int64)


def worst_retrieval_inputs(length: int, alphabet: int) -> tuple[Tensor, Tensor]:
    """Return the inputs on which T_Retrieval's softmax needs the largest β, and their answers.

    One key has the sought first letter, every other token one wrong left letter, the last of the alphabet, ω
    before the sought one on the circle. One input for each distance 0 … n − 1 of the answer; at distance 0 the
    query seeks itself, else all wrong tokens are the query's own.

    >>> worst_retrieval_inputs(2, 2)  # "b1 aa" and "a1 ba"
    (tensor([[5, 0],
            [4, 2]]), tensor([0, 4]))
    """
    query, target = alphabet * (alphabet - 1), alphabet**2
    tokens = torch.full((length, length), query)
    tokens[1:, :-1] = tokens[1:, :-1].fill_diagonal_(target)
    tokens[0, :-1] = target + alphabet - 1
    tokens[0, -1] = 0
    answer = torch.full((length,), target)
    answer[0] = 0
    return tokens, answer
