"""The ensemble against one transformer written plainly, and its members' independence from each other."""

import math

import pytest
import torch

from possym.ensembles.schedule import TrainingConfig
from possym.ensembles.token_table import TokenTable
from possym.ensembles.toy import Member, ToyEnsemble
from possym.ensembles.training import Trainer
from possym.rope import frequencies
from possym.scores import relocated_logits
from possym.tasks import IndexTask

MEMBERS = [
    Member((0.7,), 1, 0),
    Member((0.0, 0.2), 2, 1),
    Member((0.0,), 3, 2),
    Member((1.0, 0.05), 1, 0),
]
VOCABULARY, LENGTH = 9, 6


def draw_tokens(*shape, seed=0):
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def plain_logits(model, member, sequence):
    """One member on one sequence: embed, project, turn keys and query by their own places, attend, read out."""
    recipe = model.recipes[member]
    table = torch.eye(VOCABULARY) if model.embedding_kind == "one-hot" else model.embedding[member]
    answer_table = model.readout[member] if model.values_kind == "learnt" else model.answer_table
    dimensions = [(a, 2 * p, 2 * p + 1) for a in range(len(recipe.angles)) for p in range(recipe.planes)]

    def content(projection, token):
        return [(projection[member][:, a, [x, y]].T @ table[token]).double() for a, x, y in dimensions]

    def turned(vectors, place):
        out = []
        for (a, _, _), vector in zip(dimensions, vectors, strict=True):
            turn = place * recipe.angles[a]
            matrix = [[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]]
            out.append(torch.tensor(matrix, dtype=torch.float64) @ vector)
        return torch.cat(out)

    last = len(sequence) - 1
    # The query is turned by its place and each key by its own: their product sees the difference i − j.
    query = turned(content(model.query, sequence[last]), last)
    logits = torch.stack([turned(content(model.key, t), j) @ query for j, t in enumerate(sequence)])
    attention = (logits / math.sqrt(2 * len(dimensions))).softmax(0)
    values = torch.stack([table[t] if model.values_kind == "learnt" else torch.eye(VOCABULARY)[t] for t in sequence])
    read = attention @ values.double() @ answer_table.double()
    return ((read + 1e-30).log() if model.values_kind == "fixed" else read), attention


def answers_of_tokens():
    return torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, -1])


@pytest.mark.parametrize("embedding", ["learnt", "one-hot"])
@pytest.mark.parametrize("values", ["learnt", "fixed"])
def test_members_match_one_transformer_written_plainly(embedding, values):
    answers = answers_of_tokens() if values == "fixed" else None
    model = ToyEnsemble(MEMBERS, VOCABULARY, width=5, embedding=embedding, values=values, outputs=3, answers=answers)
    tokens = draw_tokens(4, 3, LENGTH)
    logits, attention = model(tokens), model.attention(tokens)
    for member in range(len(MEMBERS)):
        for row in range(3):
            expected, weights = plain_logits(model, member, tokens[member, row])
            torch.testing.assert_close(logits[member, row].double(), expected, atol=2e-5, rtol=1e-4)
            torch.testing.assert_close(attention[member, row].double(), weights, atol=1e-5, rtol=1e-4)


def test_shared_streams_equal_own_streams():
    model = ToyEnsemble(MEMBERS, VOCABULARY, width=5, deviation=0.7)
    streams = draw_tokens(2, 3, LENGTH)
    torch.testing.assert_close(model(streams), model(streams.repeat_interleave(2, 0)))
    torch.testing.assert_close(model(streams[0]), model(streams[:1].expand(4, -1, -1)))


def test_relocated_logits_agree_with_the_metric():
    model = ToyEnsemble(MEMBERS, VOCABULARY, width=5, deviation=0.7)
    tokens = draw_tokens(2, 3, LENGTH)
    relocated, trace = model.relocated(tokens), model.trace(tokens)
    for member in range(len(MEMBERS)):
        expected = relocated_logits(
            trace.query[member],
            trace.keys[member],
            query_position=LENGTH - 1,
            positions=torch.arange(LENGTH),
            frequencies=trace.frequencies[member],
            layout="interleaved",
            scale=1.0,
        )
        torch.testing.assert_close(relocated[member], expected, atol=1e-5, rtol=1e-4)
    observed = relocated.diagonal(dim1=-2, dim2=-1).softmax(-1)
    torch.testing.assert_close(observed, model.attention(tokens))


def test_angles_of_a_whole_head_turn_as_rope_does():
    """Four angles with one plane each are an ordinary RoPE head of width 8."""
    grid = frequencies(8)
    model = ToyEnsemble([Member(tuple(grid.tolist()), 1, 0)], VOCABULARY, width=5, deviation=0.7)
    tokens = draw_tokens(1, 2, LENGTH)
    trace = model.trace(tokens)
    expected = relocated_logits(
        trace.query[0],
        trace.keys[0],
        query_position=LENGTH - 1,
        positions=torch.arange(LENGTH),
        frequencies=grid,
        layout="interleaved",
        scale=1.0,
    )
    torch.testing.assert_close(model.relocated(tokens)[0], expected, atol=1e-5, rtol=1e-4)


def trained(members, steps=20, checkpoint=None, stop=None, seconds=60.0):
    """Train members, each with its own sequences by its seed, and return the model."""
    task = IndexTask(symbols=4, max_length=LENGTH)
    model = ToyEnsemble(members, len(task.vocabulary), width=5, outputs=4)
    drawn = [
        task.sample(steps * 8, length=LENGTH, generator=torch.Generator().manual_seed(member.seed))
        for member in members
    ]
    source = TokenTable(torch.stack([d.tokens for d in drawn]), torch.stack([d.answer for d in drawn]), 8)
    if stop is not None:
        whole = source.batch

        def batch(step):
            if step == stop:
                raise KeyboardInterrupt
            return whole(step)

        source.batch = batch
    config = TrainingConfig(steps, 8, 1e-2, warmup=2)
    seeds = [member.seed for member in members]
    trainer = Trainer(model, source, config, seeds, checkpoint=checkpoint, checkpoint_seconds=seconds)
    return model, trainer


def test_a_member_is_the_same_alone_and_among_others():
    crowd, trainer = trained(MEMBERS)
    trainer.run()
    for index, member in enumerate(MEMBERS):
        alone, trainer = trained([member])
        trainer.run()
        angles, planes = len(member.angles), 2 * member.planes
        for name in ("query", "key"):
            ours = getattr(crowd, name)[index, :, :angles, :planes]
            torch.testing.assert_close(ours, getattr(alone, name)[0], atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(crowd.embedding[index], alone.embedding[0], atol=1e-4, rtol=1e-3)


def test_padding_stays_zero_and_start_depends_on_the_recipe_alone():
    crowd, trainer = trained(MEMBERS)
    start = {name: value.clone() for name, value in crowd.named_parameters()}
    for index, member in enumerate(MEMBERS):
        alone, _ = trained([member])
        own = slice(None, len(member.angles)), slice(None, 2 * member.planes)
        assert torch.equal(start["query"][index][:, *own], alone.query[0])
        assert torch.equal(start["readout"][index], alone.readout[0])
    trainer.run()
    for index, member in enumerate(MEMBERS):
        for name in ("query", "key"):
            table = getattr(crowd, name)[index]
            assert not torch.equal(table, start[name][index])
            assert not table[:, len(member.angles) :].any()
            assert not table[:, :, 2 * member.planes :].any()


def test_interrupted_training_ends_with_the_same_bits(tmp_path):
    straight, trainer = trained(MEMBERS)
    trainer.run()
    file = tmp_path / "half.safetensors"
    _, trainer = trained(MEMBERS, checkpoint=file, stop=11, seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    resumed, trainer = trained(MEMBERS, checkpoint=file)
    assert trainer.step == 11
    trainer.run()
    for name, value in straight.named_parameters():
        assert torch.equal(value, dict(resumed.named_parameters())[name])


def test_set_angles_changes_the_turn_alone():
    model = ToyEnsemble(MEMBERS[:1], VOCABULARY, width=5, deviation=0.7)
    other = ToyEnsemble([Member((0.3,), 1, 0)], VOCABULARY, width=5, deviation=0.7)
    tokens = draw_tokens(2, LENGTH)
    assert not torch.allclose(model(tokens), other(tokens), atol=1e-4)
    model.set_angles([[0.3]])
    assert torch.equal(model(tokens), other(tokens))
