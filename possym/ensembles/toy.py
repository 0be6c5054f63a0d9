"""One-layer, one-head attention-only transformers whose head sees only the RoPE angles it is given.

- `Member` is the recipe of one transformer: its angles, its planes per angle, its seed.
- `ToyEnsemble` trains any number of them at once, along an explicit leading axis E.

The head reads from the last token, attends to every token up to and including itself, and sees the turn
(i − j)·θ between a query at i and a key at j in every plane of angle θ. Angle 0 is NoPE. There is no
residual stream, layer norm or MLP: what the head reads is all there is.

All planes of one angle θ act through two numbers for each pair of contents, q·k and q⊥·k (q⊥ is q a quarter
turn ahead), because k·R(x)q = cos(x)·(q·k) + sin(x)·(q⊥·k). The ensemble computes these two for every
content in the vocabulary, then looks up the ones that stand in the sequence; so a head with many planes costs
hardly more than a head with one.

Sizes: E members, B sequences, T tokens, V vocabulary, O answers, W embedding width, A angles a member, P planes
an angle.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

TINY = 1e-30  # added to attention mass before its logarithm, far below any mass that float32 attention resolves


class Member(NamedTuple):
    """One transformer of an ensemble: its angles in radians per position, planes per angle, and seed."""

    angles: tuple[float, ...]
    planes: int
    seed: int


class Trace(NamedTuple):
    """Contents of a head before rotation: query (E, B, D), keys (E, B, T, D), angles of their planes (E, D/2)."""

    query: Tensor
    keys: Tensor
    frequencies: Tensor


class ToyEnsemble(nn.Module):
    """E one-layer attention-only transformers as one module, parameters with a leading axis E.

    A member starts from its own seed and shape, whatever the rest of the ensemble. Members with fewer planes
    or angles than others are padded with planes of zeros; those get no gradient, so they stay zero.

    Args:
        members: the recipes. Members that share sequences are neighbours, see `forward`.
        vocabulary: number V of tokens.
        width: W of the learnt embedding.
        deviation: standard deviation of every table's entries at the start.
        embedding: ``"learnt"``, or ``"one-hot"`` as the theorems of 2511.11579 assume.
        values: ``"learnt"`` puts one matrix W × O after the head (value, output and readout maps multiplied
            into one); ``"fixed"`` uses identity values, and ``answers`` as readout.
        outputs: number O of answers; None means V.
        answers: (V,) which answer a token gives when it is attended, −1 for none; with fixed values only.

    Source: 2511.11579, section 5 (one head, chosen angles); 2605.31558, theorem 3.1 (one-hot constructions).

    >>> model = ToyEnsemble([Member((0.1,), 1, 0), Member((0.0, 0.1), 4, 0)], vocabulary=10)
    >>> model(torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])).shape
    torch.Size([2, 2, 10])
    """

    dropout = 0.0

    def __init__(
        self,
        members: Sequence[Member],
        vocabulary: int,
        *,
        width: int = 64,
        deviation: float = 0.1,
        embedding: str = "learnt",
        values: str = "learnt",
        outputs: int | None = None,
        answers: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.recipes = [Member(tuple(angles), planes, seed) for angles, planes, seed in members]
        self.members = len(self.recipes)
        outputs = vocabulary if outputs is None else outputs
        self.vocabulary, self.embedding_kind, self.values_kind = vocabulary, embedding, values
        width = width if embedding == "learnt" else vocabulary
        angles = max(len(member.angles) for member in self.recipes)
        planes = max(member.planes for member in self.recipes)
        shapes = {"query": (width, angles, 2 * planes), "key": (width, angles, 2 * planes)}
        if embedding == "learnt":
            shapes["embedding"] = (vocabulary, width)
        if values == "learnt":
            shapes["readout"] = (width, outputs)
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(self.members, *shape)))
        with torch.no_grad():
            for index, member in enumerate(self.recipes):
                self._draw(index, member, width, deviation)
        table = torch.zeros(self.members, angles, dtype=torch.float64)
        for index, member in enumerate(self.recipes):
            table[index, : len(member.angles)] = torch.tensor(member.angles, dtype=torch.float64)
        self.register_buffer("angles", table)
        scale = [1 / math.sqrt(2 * member.planes * len(member.angles)) for member in self.recipes]
        self.register_buffer("scale", torch.tensor(scale))
        if answers is not None:
            self.register_buffer("answer_table", one_hot(answers, outputs))

    def _draw(self, index: int, member: Member, width: int, deviation: float) -> None:
        """Fill one member's parameters, all entries with one standard deviation."""
        generator = torch.Generator().manual_seed(member.seed)
        for name in ("embedding", "readout"):
            if hasattr(self, name):
                parameter = getattr(self, name)[index]
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * deviation)
        shape = (width, len(member.angles), 2 * member.planes)
        for name in ("query", "key"):
            own = getattr(self, name)[index, :, : len(member.angles), : 2 * member.planes]
            own.copy_(torch.randn(shape, generator=generator) * deviation)

    def contents(self) -> tuple[Tensor, Tensor]:
        """Return query and key content of every token before rotation, both (E, V, A, 2P), the query scaled.

        Dimensions 2k and 2k+1 of an angle are one plane. The product of the two is the logit: the factor
        1/√(member's own width) is in the query.
        """
        query, key = self.query, self.key
        if self.embedding_kind == "learnt":
            query, key = (torch.einsum("evw,ewad->evad", self.embedding, table) for table in (query, key))
        return query * self.scale[:, None, None, None], key

    def forward(self, tokens: Tensor, *, dropout_keys: None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return each member's answer logits at the last token, (E, B, O).

        Args:
            tokens: (G, B, T) token ids in G streams, G a divisor of E; the first E/G members read the first
                stream, and so on. (B, T) is one stream for all. With G = E every member has its own.
            dropout_keys, dtype: what `possym.ensembles.training.Trainer` offers; there is no dropout, and all is
            float32.
        """
        tokens = tokens if tokens.ndim == 3 else tokens[None]
        spread = one_hot(tokens, self.vocabulary)
        attention = self._logits(tokens, spread).softmax(-1)  # (G, B, M, T)
        mass = (attention @ spread).transpose(1, 2).flatten(0, 1)  # (E, B, V)
        if self.values_kind == "fixed":
            return (mass @ self.answer_table + TINY).log()
        table = self.readout if self.embedding_kind == "one-hot" else self.embedding @ self.readout
        return mass @ table

    def attention(self, tokens: Tensor) -> Tensor:
        """Return the attention of the last token over all tokens, (E, B, T), for ``tokens`` as in `forward`."""
        tokens = tokens if tokens.ndim == 3 else tokens[None]
        logits = self._logits(tokens, one_hot(tokens, self.vocabulary))
        return logits.softmax(-1).transpose(1, 2).flatten(0, 1)

    def relocated(self, tokens: Tensor) -> Tensor:
        """Return the relocated logits (E, B, T, T) of the last token over all tokens, itself included.

        Entry [a, b] is the logit of token a's content at position b, see `possym.scores.relocated_logits`.
        """
        tokens = tokens if tokens.ndim == 3 else tokens[None]
        products = self._products(tokens, one_hot(tokens, self.vocabulary))  # (G, B, M, A, 2, T)
        return torch.einsum("gbmact,gmacs->gmbts", products, self._turns(tokens)).flatten(0, 1)

    def trace(self, tokens: Tensor) -> Trace:
        """Return what `possym.scores.relocated_logits` needs, layout ``"interleaved"`` and scale 1.

        Every angle is repeated once for each of its planes, padding included.
        """
        tokens = tokens if tokens.ndim == 3 else tokens[None]
        streams = tokens.repeat_interleave(self.members // tokens.shape[0], 0)  # (E, B, T)
        query, key = (table.flatten(2) for table in self.contents())
        member = torch.arange(self.members, device=tokens.device)[:, None]
        keys = key[member[..., None], streams]
        return Trace(query[member, streams[..., -1]], keys, self.angles.repeat_interleave(self.query.shape[-1] // 2, 1))

    def set_angles(self, angles: Sequence[Sequence[float]] | Tensor) -> None:
        """Replace the angles of all members, (E, A), in radians per position, and leave the weights as they are."""
        angles = torch.as_tensor(angles, dtype=torch.float64, device=self.angles.device)
        self.angles.copy_(angles)

    def _turns(self, tokens: Tensor) -> Tensor:
        """Cosine and sine of (i − j)·θ for the last token i and every position j, (G, M, A, 2, T) float32."""
        length = tokens.shape[-1]
        distance = torch.arange(length - 1, -1, -1, dtype=torch.float64, device=tokens.device)
        turn = (self.angles[..., None] * distance).remainder(2 * math.pi)
        return torch.stack([turn.cos(), turn.sin()], 2).float().unflatten(0, (tokens.shape[0], -1))

    def _products(self, tokens: Tensor, spread: Tensor) -> Tensor:
        """q·k and q⊥·k of the last token with every token, (G, B, M, A, 2, T)."""
        streams, batch, _ = tokens.shape
        query, key = self.contents()
        per_stream = query.unflatten(0, (streams, -1))
        last = torch.einsum("gbv,gmvad->gmabd", spread[:, :, -1], per_stream).flatten(0, 1)  # (E, A, B, 2P)
        first, second = last.unflatten(-1, (-1, 2)).unbind(-1)
        quarter = torch.stack([-second, first], -1).flatten(-2)
        both = torch.stack([last, quarter], 2).flatten(2, 3)  # (E, A, 2B, 2P)
        every = both @ key.permute(0, 2, 3, 1)  # (E, A, 2B, V)
        every = every.unflatten(2, (2, batch)).unflatten(0, (streams, -1)).permute(0, 4, 1, 2, 3, 5)
        standing = every.flatten(2, 4) @ spread.transpose(-1, -2)  # (G, B, M·A·2, T)
        return standing.unflatten(2, (-1, key.shape[2], 2))

    def _logits(self, tokens: Tensor, spread: Tensor) -> Tensor:
        """Logits of the last token over all tokens, (G, B, M, T)."""
        return (self._products(tokens, spread) * self._turns(tokens)[:, None]).sum((3, 4))


def one_hot(tokens: Tensor, vocabulary: int) -> Tensor:
    """Return float32 one-hot vectors (..., V) of token ids, all zero for an id that is none."""
    return (tokens[..., None] == torch.arange(vocabulary, device=tokens.device)).float()
