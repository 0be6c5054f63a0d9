"""Claims on the number and letter tasks, checked on drawn sequences."""

import torch
from torch import Tensor

from possym.experiments.claim import EXTENT, OWN_CODE, Measurement, claims_in, judge
from possym.tasks import Batch, LetterTask, NumberTask

CHAPTER = "06-number-and-letter-tasks"
COUNT = 48_000
TARGETS = 8


def drawn(task: NumberTask | LetterTask) -> Batch:
    """Return the sequences that the claims look at."""
    return task.sample(COUNT, generator=torch.Generator().manual_seed(0))


def balanced(batch: Batch, values: int) -> Measurement:
    """Measure how far counts of hops, answer positions and answer values are from equal shares."""
    place = batch.path.gather(1, batch.hops[:, None])[:, 0]
    worst = int(spread(batch.hops - 1, 4))
    for hops in range(1, 5):
        rows = batch.hops == hops
        _, value = batch.answer[rows].unique(return_inverse=True)
        worst = max(worst, spread(place[rows], TARGETS), spread(value, values))
    return Measurement(f"counts differ by at most {worst}", f"{COUNT:,} sequences", judge(worst <= 1, worst <= 5))


def spread(labels: Tensor, count: int) -> int:
    """Return the difference between the most and the least frequent of ``count`` labels."""
    counts = labels.bincount(minlength=count)
    return int(counts.max() - counts.min())


def number_answers(batch: Batch) -> Measurement:
    """Apply Index to whole sequences, h times, and compare the last position with the answers of the number task."""
    jumps, places = number_jumps(), torch.arange(batch.tokens.shape[1])
    tokens = batch.tokens
    found = torch.zeros(len(tokens), dtype=torch.bool)
    for hops in range(1, 5):
        there = tokens.gather(1, (places - jumps[tokens]).clamp(min=0))
        tokens = torch.where((jumps[tokens] > 0) & (jumps[there] == 0), there, tokens)
        found |= (batch.hops == hops) & (tokens[:, -1] == batch.answer)
    share = found.double().mean().item()
    return Measurement(f"{share:.2%} of answers", f"{COUNT:,} sequences", judge(share == 1, share >= 0.99))


def letter_answers(batch: Batch) -> Measurement:
    """Follow letters by Retrieval, one character at a time, and compare with the answers of the letter task."""
    task = LetterTask()
    right = 0
    for names, answer, hops in zip(
        task.decode(batch.tokens[:4000]), batch.answer.tolist(), batch.hops.tolist(), strict=False
    ):
        token, steps = names[-1], 0
        while token[1].isalpha():
            matches = {name for name in names if name[0] == token[1]}
            if len(matches) != 1:
                break
            (token,), steps = matches, steps + 1
        right += token == task.vocabulary[answer] and steps == hops
    return Measurement(
        f"{right / 4000:.2%} of answers and hop counts, every match unique",
        "4,000 sequences",
        judge(right == 4000, right >= 3960),
    )


def number_jumps() -> Tensor:
    """Return how far each token of the number task jumps back, 0 for letters."""
    return torch.tensor([int(token) if token.isdigit() else 0 for token in NumberTask().vocabulary])


def integers_inside(batch: Batch) -> Measurement:
    """Measure how many integers of the number task point inside the sequence."""
    inside = (torch.arange(batch.tokens.shape[1]) - number_jumps()[batch.tokens] >= 0).double().mean().item()
    return Measurement(f"{inside:.2%} of tokens", f"{COUNT:,} sequences", judge(inside == 1, inside >= 0.99))


claim = claims_in("P2", CHAPTER, kind=OWN_CODE)


BALANCE = (
    "holds if the counts of hops, and within each hop count those of the answer's positions and values, differ by at "
    "most 1; "
    "in part if by at most 5"
)
CLAIMS = (
    claim(
        "number-balanced",
        "appendix B.1",
        "Number task: all hop counts are equally frequent; within each, the answer's value and position are balanced.",
        "balanced",
        BALANCE,
        lambda: balanced(drawn(NumberTask()), 120),
        EXTENT,
    ),
    claim(
        "letter-balanced",
        "appendix B.2",
        "Letter task: all hop counts are equally frequent; within each, the answer's value and position are balanced.",
        "balanced",
        BALANCE,
        lambda: balanced(drawn(LetterTask()), 64),
        EXTENT,
    ),
    claim(
        "number-inside",
        "appendix B.1",
        "Number task: every integer points inside the sequence.",
        "all",
        "holds if all do; in part if 99 % do",
        lambda: integers_inside(drawn(NumberTask())),
        EXTENT,
    ),
    claim(
        "number-answer",
        "appendix F",
        "Number task: the basic function Index, applied h times to the whole sequence, "
        "leaves the answer at the last position.",
        "Indexʰ",
        "holds if it does for every sequence; in part if for 99 %",
        lambda: number_answers(drawn(NumberTask())),
        EXTENT,
    ),
    claim(
        "letter-answer",
        "appendix F",
        "Letter task: following second letters to first letters, h times, reaches the "
        "answer, and every match on the way is unique.",
        "unique path",
        "holds if a solver written for this check finds every answer and hop count; in part if 99 %",
        lambda: letter_answers(drawn(LetterTask())),
        EXTENT,
    ),
)
