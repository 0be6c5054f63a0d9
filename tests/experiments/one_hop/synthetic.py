"""A made-up study of one-hop prompts: replies are right as often as a test says."""

import pandas as pd

from possym.experiments import one_hop
from possym.experiments.one_hop import protocol as onehop
from possym.models.runners import Reply
from possym.results import Study

LENGTHS = (12, 16, 100)


def study(right=None, talks=0.0, forms=("chat", "plain"), prompts=40, model="made-up"):
    """Return a study; ``right`` maps (kind, length) to the share right, ``talks`` is the share of chatter."""
    right = {} if right is None else right
    drawn = onehop.draw(prompts, lengths=LENGTHS, runs=2)
    count = drawn.groupby(["kind", "length"]).cumcount() / (2 * prompts)
    replies = []
    for row, share in zip(drawn.itertuples(), count, strict=True):
        said = row.answer if share < right.get((row.kind, row.length), 0) else "-"
        said = "I do not know" if 1 - share <= talks else said
        replies.append(Reply(said, 1, True, row.answer[0] if share < 0.5 else None))
    table = onehop.collect(drawn, replies).assign(prompt_tokens=100)
    columns = [*onehop.KEYS, "prompt_tokens", *one_hop.SAID]
    answers = pd.concat([table[columns].assign(form=form) for form in forms], ignore_index=True)
    config = {"model": model, "forms": list(forms), "preset": "paper"}
    return Study({"prompts": drawn.drop(columns="text"), "answers": answers}, manifest={"config": config})
