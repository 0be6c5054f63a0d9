"""The mixed task: one path whose hops alternate between number and letter, so that a model needs both kinds of head.

The window is that of `possym.tasks.number_and_letter`: 8 target tokens, 8 pre-target tokens, the query. Every token
begins with a letter, its name; what follows says what it does.
"""

from string import ascii_lowercase, ascii_uppercase

import torch
from torch import Tensor

from possym.tasks.batch import Batch, check_sequences, refuse_rows, uniform
from possym.tasks.number_and_letter import MAX_HOPS, PRE_TARGETS, TARGETS, WINDOW, MultiHopTask, draw_paths, public_path


class MixedTask(MultiHopTask):
    """Alternately jump back by an integer and go to the token that a letter names, until a capital: the answer.

    Three kinds of token, each a name a–h and what it does: "cD" is a target (8 capitals A–H; ids 0–63), "ch" leads
    to the one token named h (ids 64–127), "c12" leads 12 positions back (1–16; ids 128–255). Targets stand in the
    target positions, the other two in the pre-target positions and at the query. Hops on the path alternate: half of
    the paths of each number of hops begin by number, half by letter (counts differ by at most one). Letters that
    the path follows are distinct, and each names one token only, the next one on the path; all other tokens have
    other names. Off the path both kinds are equally likely, integers uniform over those that point inside the window,
    letters uniform. Answers' positions and values are balanced within each number of hops and kind of the first hop.

    Source: this project's, after 2605.31558, appendices B.1 and B.2.

    >>> task = MixedTask()
    >>> batch = task.sample(4, hops=2)
    >>> (task.solve(batch.tokens) == batch.answer).all()
    tensor(True)
    """

    LETTERS = 8
    LEADS, JUMPS = 64, 128

    def __init__(self) -> None:
        names = ascii_lowercase[: self.LETTERS]
        endings = [ascii_uppercase[: self.LETTERS], names, [str(i) for i in range(1, WINDOW)]]
        self.vocabulary = [name + ending for kind in endings for name in names for ending in kind]

    def draw(self, n: int, hops: int | None, length: int, generator: torch.Generator) -> Batch:
        """Draw what `sample` has checked."""
        device, size = generator.device, self.LETTERS
        hops, first, positions, answer = draw_paths(n, hops, length, size * size, generator, kinds=2)
        step = torch.arange(MAX_HOPS, device=device)
        by_letter = (first[:, None] + step) % 2 == 1  # (n, 4): whether the hop from places[:, step] is by letter
        to_target = step >= hops[:, None] - 1
        # A random order of the letters, shifted so that the answer's name comes first. The hops by letter, the last
        # one first, take theirs from the start of it, after the answer's name where that is reached by number.
        letters = torch.rand(n, size, generator=generator, device=device).argsort(1)
        letters = (letters + (answer // size)[:, None] - letters[:, :1]) % size
        followed = letters.gather(1, ((hops[:, None] - step) // 2).clamp(min=0))
        count = (hops + first) // 2
        last_by_letter = (first + hops) % 2 == 0
        free = uniform(size - count[:, None], (n, length), generator)
        free = free + count[:, None] * (last_by_letter[:, None] | (free > 0))
        name = letters.gather(1, free)
        landed = torch.where(by_letter, followed, name.gather(1, positions[:, 1:]))
        name.scatter_(1, positions[:, 1:], torch.where(to_target, letters[:, :1], landed))

        window_positions = torch.arange(TARGETS, WINDOW, device=device)
        jump = uniform(window_positions, (n, PRE_TARGETS + 1), generator)  # one less than the integer
        letter = torch.randint(size, (n, length), generator=generator, device=device)  # or the capital of a target
        leads = torch.rand(n, PRE_TARGETS + 1, generator=generator, device=device) < 0.5
        tokens = size * name + letter
        asking = torch.where(
            leads, self.LEADS + tokens[:, -PRE_TARGETS - 1 :], self.JUMPS + 16 * name[:, -PRE_TARGETS - 1 :] + jump
        )
        tokens[:, -PRE_TARGETS - 1 :] = asking
        here = name.gather(1, positions[:, :-1])
        on_path = torch.where(
            by_letter,
            self.LEADS + size * here + followed,
            self.JUMPS + 16 * here + positions[:, :-1] - positions[:, 1:] - 1,
        )
        on_path = torch.where(step < hops[:, None], on_path, answer[:, None])
        tokens.scatter_(1, positions, torch.cat([on_path, answer[:, None]], 1))
        return Batch(tokens, answer, hops, public_path(positions, hops))

    def solve(self, tokens: Tensor) -> Tensor:
        """Return the answers (n,) of ``tokens`` (n, length), of any length, number and order of hops, by following.

        Raises:
            InputError: not (n, length) token ids, a last token that is a target, a jump out of the sequence, or a
                letter on the path that names no earlier token or more than one token.

        >>> task = MixedTask()
        >>> ids = [task.vocabulary.index(token) for token in ["aB", "cD", "ec", "b1"]]
        >>> task.decode(task.solve(torch.tensor([ids])))
        ['cD']
        """
        tokens = check_sequences(tokens, len(self.vocabulary))
        name = torch.where(tokens < self.JUMPS, tokens % 64 // self.LETTERS, (tokens - self.JUMPS) // 16)
        position = torch.full_like(tokens[:, :1], tokens.shape[1] - 1)
        going = tokens[:, -1] >= self.LEADS
        no_query = ~going
        outside, missing, ambiguous = (torch.zeros_like(going) for _ in range(3))
        while going.any():
            token = tokens.gather(1, position)
            jumps = (token >= self.JUMPS)[:, 0]
            back = position - 1 - (token - self.JUMPS) % 16
            matches = name == token % self.LETTERS
            found = matches.int().argmax(1, keepdim=True)
            outside |= going & jumps & (back < 0)[:, 0]
            ambiguous |= going & ~jumps & (matches.sum(1) > 1)
            missing |= going & ~jumps & ~(matches.any(1) & (found < position)[:, 0])
            going = going & ~(outside | missing | ambiguous)
            position = torch.where(going[:, None], torch.where(jumps[:, None], back, found), position)
            going = going & (tokens.gather(1, position)[:, 0] >= self.LEADS)
        refuse_rows(
            {
                "the last token is a target": no_query,
                "the path jumps out of the sequence": outside,
                "a letter on the path names no earlier token": missing,
                "a letter on the path names more than one token": ambiguous,
            }
        )
        return tokens.gather(1, position)[:, 0]
