"""Letter sequences in which a shortcut and the path give different answers, to test which one a model follows.

A letter on a path begins one token only (2605.31558, appendix B.2). So a guesser that follows no path can name a target
whose first letter begins no other token (`marked_targets`), and is often right (`possym.tasks.shortcuts`). These
sequences move the marks and keep the path:

- ``drawn``: sequences as the task draws them;
- ``decoys``: two more targets are marked, so that the rule is left with three to choose from;
- ``disagree``: the answer's token stands twice, so it is no longer marked, and exactly one other target is, the decoy.
  The path still leads to the answer's token, at either place;
- ``copied``: the answer's token stands twice and nothing is marked: the cost of ``disagree`` without a decoy;
- ``cut``: as ``drawn``, but the query's second letter begins no token, so the path cannot start. The rule still names
  the answer, and the rest of the path still leads to it;
- ``cut-disagree``: ``disagree`` with the query cut in the same way: the rest of the path leads to one target, the rule
  to another.

Sequences of the last four kinds do not occur in training, where no answer stands twice and no path breaks off.
"""

import torch
from torch import Tensor

from possym.errors import InputError, require_type
from possym.tasks.batch import Batch, check_count, check_generator
from possym.tasks.number_and_letter import PRE_TARGETS, TARGETS, LetterTask

KINDS = ("drawn", "decoys", "disagree", "copied", "cut", "cut-disagree")
MARKED = {"drawn": 1, "decoys": 3, "disagree": 1, "copied": 0, "cut": 1, "cut-disagree": 1}
DECOYS = {"decoys": 2, "disagree": 1, "cut-disagree": 1}
SIZE, PAIRS = LetterTask.LETTERS, LetterTask.LETTERS**2


def first_letters(tokens: Tensor) -> Tensor:
    """Return the numbers of the tokens' first letters, a = 0.

    >>> first_letters(torch.tensor([17, 95]))
    tensor([2, 3])
    """
    return tokens % PAIRS // SIZE


def marked_targets(tokens: Tensor) -> Tensor:
    """Return which targets (n, 8) begin with a letter that begins no other token of a sequence (n, 17).

    >>> marked_targets(LetterTask().sample(1).tokens).shape
    torch.Size([1, 8])
    """
    require_type(tokens, Tensor, "tokens")
    if tokens.shape[-1] != TARGETS + PRE_TARGETS + 1:
        raise InputError(f"tokens {tuple(tokens.shape)}: give sequences of {TARGETS + PRE_TARGETS + 1} tokens")
    first = first_letters(tokens)
    return (first[..., :TARGETS, None] == first[..., None, :]).sum(-1) == 1


def conflicts(n: int, kind: str, *, hops: int, generator: torch.Generator | None = None) -> tuple[Batch, Tensor]:
    """Return ``n`` letter sequences of one of `KINDS`, and the positions (n,) of the target that the rule names.

    The rule's position is the marked target's, under ``decoys`` that of the first marked one that is not the answer,
    and −1 under ``copied``. Answer and path of a cut sequence are those before the cut.

    Args:
        n: number of sequences.
        kind: one of `KINDS`.
        hops: 1–4.
        generator: source of randomness; None is a fresh CPU generator seeded 0.

    Raises:
        InputError: an unknown kind, or counts out of range.

    >>> batch, decoy = conflicts(3, "disagree", hops=2)
    >>> (batch.tokens.gather(1, decoy[:, None])[:, 0] != batch.answer).all()
    tensor(True)
    """
    if kind not in KINDS:
        raise InputError(f"kind = {kind!r}: known kinds are {', '.join(KINDS)}")
    n = check_count("n", n, 1)
    check_count("hops", hops, 1, 4)
    generator = check_generator(generator)
    parts: list[tuple[Batch, Tensor]] = []
    while sum(len(rule) for _, rule in parts) < n:
        batch, rule, good = attempt(2 * n + 64, kind, hops, generator)
        parts.append((Batch(*(column[good] for column in batch)), rule[good]))
    fields = zip(*(batch for batch, _ in parts), strict=True)
    return Batch(*(torch.cat(field)[:n] for field in fields)), torch.cat([rule for _, rule in parts])[:n]


def attempt(n: int, kind: str, hops: int, generator: torch.Generator) -> tuple[Batch, Tensor, Tensor]:
    """Draw ``n`` sequences, change them, and return batch, rule's positions and which sequences came out as meant."""
    batch = LetterTask().sample(n, hops=hops, generator=generator)
    device = generator.device
    tokens, answer_place = batch.tokens.clone(), batch.path[:, hops]
    letters = torch.rand(n, SIZE, generator=generator, device=device)
    on_path = first_letters(tokens.gather(1, batch.path[:, : hops + 1]))
    free = letters.scatter(1, on_path, 2.0).argsort(1)[:, : SIZE - hops - 1]  # letters off the path, in random order
    order = torch.rand(n, TARGETS, generator=generator, device=device)
    others = order.scatter(1, answer_place[:, None], 2.0).argsort(1)[:, :-1]  # other targets, in random order
    decoys, cut = DECOYS.get(kind, 0), kind.startswith("cut")
    copy = others[:, decoys : decoys + 1]
    if decoys:
        # The decoys' letters are taken from all other tokens, which get other letters off the path.
        first = first_letters(tokens)
        taken = (first[..., None] == free[:, None, :decoys]).any(-1)
        spare = torch.randint(decoys, SIZE - hops - 1, tokens.shape, generator=generator, device=device)
        replaced = torch.where(taken, free.gather(1, spare), first)
        replaced = replaced.scatter(1, others[:, :decoys], free[:, :decoys])
        tokens = tokens + SIZE * (replaced - first)
    if kind.endswith("disagree") or kind == "copied":
        tokens = tokens.scatter(1, copy, batch.answer[:, None])
    if cut:
        present = torch.nn.functional.one_hot(first_letters(tokens), SIZE).any(1)
        absent = letters.masked_fill(present, -1.0).argmax(1)
        tokens[:, -1] += absent - tokens[:, -1] % SIZE
    marked = marked_targets(tokens)
    good = marked.sum(1) == MARKED[kind]
    if cut:
        good &= ~present.all(1)
    is_answer = torch.arange(TARGETS, device=device) == answer_place[:, None]
    named = marked if kind in ("drawn", "cut") else marked & ~is_answer
    rule = torch.where(named.any(1), named.int().argmax(1), -1)
    return batch._replace(tokens=tokens), rule, good
