"""Verdicts on the tasks: they hold for what the tasks draw, and for nothing else."""

from possym.experiments.multihop_tasks import claims as tasks
from possym.tasks import Batch, LetterTask, NumberTask


def test_tasks_that_break_their_promise_fail_their_claims():
    number, letter = (tasks.drawn(task()) for task in (NumberTask, LetterTask))
    far = number.tokens.clone()
    far[:, 0] = NumberTask().vocabulary.index("16")
    assert tasks.integers_inside(number._replace(tokens=far)).verdict == "does not hold"
    for batch, values, answers in ((number, 120, tasks.number_answers), (letter, 64, tasks.letter_answers)):
        assert answers(batch).verdict == "holds"
        assert answers(batch._replace(answer=batch.answer.roll(1))).verdict == "does not hold"
        one_place = Batch(*(part[batch.path.gather(1, batch.hops[:, None])[:, 0] < 4] for part in batch))
        assert tasks.balanced(batch, values).verdict == "holds"
        assert tasks.balanced(one_place, values).verdict == "does not hold"
