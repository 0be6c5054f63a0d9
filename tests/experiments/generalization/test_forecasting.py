"""The forecast against long inputs that are really run, and where it puts which contents."""

import itertools

import pytest
import torch

from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.errors import InputError
from possym.experiments.generalization import forecasting
from possym.experiments.generalization.forecasting import (
    TargetContents,
    admissible,
    by_tokens_before,
    choose_one_per_stratum,
    forecast,
    relocated,
    steps_outwards,
    strata_of,
    target_contents,
)
from possym.experiments.generalization.long_inputs import WINDOW, sample_members
from possym.tasks import Batch, LetterTask, NumberTask

from .sequences import self_taught, source

TASKS = {"number": NumberTask(), "letter": LetterTask(), "letter_any": LetterTask("any")}


def brute_force(model, task, length, count):
    """Accuracy (E,) of real longer inputs, by the plain model."""
    long = self_taught(model, sample_members(task, model.members, count, length, source(3)))
    with torch.no_grad():
        return (model(long.tokens).argmax(-1) == long.answer).float().mean(1)


def forecast_of(model, task, length, count, contents=None, **options):
    windows = self_taught(model, sample_members(task, model.members, count, WINDOW, source(1)))
    contents = contents or target_contents(model, task, length, source(2))
    return forecast(model, task, length, windows, contents, source(4), **options)


def counted(members=1, longest=300):
    """Contents whose keys say how many tokens stand before them, and whose values say which window they are from."""
    before = torch.tensor(steps_outwards(longest - WINDOW))
    shape = (members, len(before), 3, 8, 1, 1)
    keys = (before[:, None, None] + torch.arange(8))[None, ..., None, None].expand(shape)
    values = torch.arange(3)[:, None, None, None].expand(shape)
    return TargetContents(before, torch.zeros(shape[:4], dtype=torch.int64), [keys], [values])


@pytest.mark.parametrize("extra", [1, 5, 40, 64])
def test_every_extra_position_gets_one_content_with_as_many_tokens_before_it(extra):
    windows = sample_members(NumberTask(), 2, 6, WINDOW, source())
    prefix = relocated(counted(members=2), NumberTask(), windows, extra, source(1))(0)
    assert prefix.key.shape == prefix.value.shape == (2, 1, len(prefix.positions), 1, 1)
    assert torch.equal(prefix.key.flatten(2)[0, 0], extra + prefix.positions)
    for weights in prefix.log_weight.exp().flatten(0, 1):
        seen = weights > 0
        assert sorted(prefix.positions[seen].tolist()) == list(range(-extra, 0))
        torch.testing.assert_close(weights[seen], torch.ones(extra))
    assert len(prefix.value.unique()) > 1 or extra == 1
    alike = relocated(counted(members=2), NumberTask(), windows, extra, source(1), alike=True)(0)
    assert torch.equal(alike.positions, prefix.positions) and alike.key.unique().tolist() == [extra]


def test_where_positions_are_many_each_content_stands_for_a_stretch_of_them():
    extra = 5000
    windows = sample_members(NumberTask(), 1, 4, WINDOW, source())
    prefix = relocated(counted(longest=extra + WINDOW), NumberTask(), windows, extra, source(1))(0)
    depth, before = extra + prefix.positions, prefix.key.flatten()
    assert depth.min() >= 0 and depth.max() < extra and prefix.positions.max() > -20
    assert ((before - depth).abs() <= depth / 8 + 8).all() and (before - depth).float().mean().abs() < 20
    for weights in prefix.log_weight.exp()[0]:
        assert (weights > 0).sum() == 512 and weights.sum() == pytest.approx(extra, rel=1e-4)
        stretch = prefix.positions[weights > 0].sort().values.diff()
        assert stretch.min() >= 0 and stretch.max() <= 20  # neighbours are in neighbouring stretches of 9.8 positions


def test_strata_in_which_nothing_fits_are_stood_for_by_the_others():
    """Contents from three windows: one whose tokens all start with a, one with c, one with h."""
    task, windows = LetterTask(), sample_members(LetterTask(), 1, 60, WINDOW, source())
    contents = counted()
    contents.tokens[:] = torch.tensor([0, 16, 56])[:, None]
    prefix = relocated(contents, task, windows, 283, source(1))(0)
    letters = admissible(task, windows, contents.tokens[:, 0, :, 0])[0]  # which of the three each window lets in
    assert letters.sum(1).unique().tolist() == [0, 1, 2, 3]
    for weights, fits in zip(prefix.log_weight.exp()[0], letters, strict=True):
        seen = prefix.value.flatten()[weights > 0]
        assert fits[seen].all() and weights.sum() == pytest.approx(283 if fits.any() else 0, rel=1e-4)
        assert not fits.any() or len(seen) > 200
        assert len(weights[weights > 0].unique()) == fits.any()


def test_steps_leave_no_number_of_tokens_far_from_a_content():
    for extra in (1, 8, 9, 70, 4983):
        steps = steps_outwards(extra)
        have = torch.tensor([step + k for step in steps for k in range(8)])
        apart = (torch.arange(extra)[:, None] - have).abs().amin(1)
        assert (apart <= torch.arange(extra) / 16).all() and len(steps) < 60
        assert len(steps) == 1 or steps[-2] + 8 < extra


def test_between_two_groups_the_nearer_one_is_drawn_more_often():
    before = torch.tensor([0, 8, 48])
    for count, share in ((20, 8.5 / 40), (40, 28.5 / 40), (47, 35.5 / 40)):
        group, target = by_tokens_before(before, torch.full((4000,), count), source())
        assert (group == 2).double().mean() == pytest.approx(share, abs=0.03) and (group > 0).all()
        assert target.bincount(minlength=8).double().std() < 50 and target.max() == 7
    group, target = by_tokens_before(before, torch.arange(48, 70), source())
    assert (group == 2).all() and torch.equal(target[:8], torch.arange(8)) and target.max() < 8
    assert torch.equal(
        sum(by_tokens_before(before, torch.arange(16), source())), torch.tensor([*range(8), *range(1, 9)])
    )


def test_strata_share_the_contents_out():
    for extra, strata, each in ((0, 1, 8), (1, 1, 8), (100, 100, 8), (300, 300, 6), (512, 512, 4), (9000, 512, 4)):
        stratum, found = strata_of(extra, torch.device("cpu"))
        assert found == strata and stratum.bincount().tolist() == [each] * strata


def test_choices_are_even_among_what_fits():
    fits = torch.ones(1, 3000, 6, dtype=torch.bool)
    fits[..., 4] = False
    chosen = choose_one_per_stratum(fits, torch.tensor([0, 0, 0, 1, 1, 1]), 2, source())
    shares = chosen[0].double().mean(0)
    torch.testing.assert_close(shares, torch.tensor([1 / 3] * 3 + [0.5, 0, 0.5]).double(), atol=0.03, rtol=0)
    assert torch.equal(chosen.sum(-1), torch.full((1, 3000), 2))


@pytest.mark.parametrize("rule", LetterTask.OFF_PATH)
def test_tokens_are_admitted_where_the_task_could_have_put_them(rule):
    task = LetterTask(rule)
    drawn = sample_members(task, 1, 300, WINDOW, source())
    from_first = (drawn.path[0, :, 1:] == 0).any(-1).nonzero()[:6, 0]  # paths that visit the window's first position
    assert len(from_first)
    windows = Batch(*(field[:, torch.cat([torch.arange(12), from_first])] for field in drawn))
    starts = [name[0] for name in task.decode(windows.tokens[0, :, -1])]
    tokens = torch.arange(64)[None]
    found = admissible(task, windows, tokens)[0]
    for row, token in itertools.product(range(len(starts)), range(64)):
        longer = torch.cat([torch.tensor([token]), windows.tokens[0, row]])[None]
        try:
            could = bool(task.solve(longer) == windows.answer[0, row])
        except InputError:
            could = False
        assert bool(found[row, token]) == (could and (rule == "any" or task.vocabulary[token][0] != starts[row]))
    assert admissible(NumberTask(), sample_members(NumberTask(), 1, 3, 17, source()), tokens).all()


@pytest.mark.parametrize(
    ("task", "layers", "length"),
    [("number", 1, 200), ("number", 3, 60), ("number", 3, 200), ("letter", 1, 200), ("letter", 3, 90)],
)
def test_the_forecast_is_what_long_inputs_do(task, layers, length):
    task = TASKS[task]
    model = GPTJEnsemble(GPTJConfig(len(task.vocabulary), layers=layers, width=16, init_std=0.8), range(6))
    found, measured = forecast_of(model, task, length, 200), brute_force(model, task, length, 500)
    assert measured.min() < 0.6
    torch.testing.assert_close(found, measured, atol=0.16, rtol=0)
    assert (found - measured).abs().mean() < 0.05


def test_contents_depend_on_how_many_tokens_stand_before_them():
    """A content at a position is that of a token with as many before it: not so, the forecast is wrong.

    A layer that looks at all tokens alike gives each a content that fades with the number before it.
    """
    model = GPTJEnsemble(GPTJConfig(136, layers=3, width=16, init_std=0.8), range(8))
    with torch.no_grad():
        model.query[:, 0] = 0
    contents = target_contents(model, NumberTask(), 120, source(2))
    measured = brute_force(model, NumberTask(), 120, 400)
    right, wrong = (
        (forecast_of(model, NumberTask(), 120, 400, contents, alike=alike) - measured).abs().mean()
        for alike in (False, True)
    )
    assert right < 0.04 and wrong > 1.5 * right


def test_gathered_contents_are_those_of_real_inputs():
    """Means of keys and values by the number of tokens before, against plain inputs of that length."""
    model = GPTJEnsemble(GPTJConfig(136, layers=3, width=16, init_std=0.5), [0, 1])
    contents = target_contents(model, NumberTask(), 60, source(2), windows=400)
    real = NumberTask().sample(800, length=60, generator=source(5)).tokens.view(2, 400, 60)
    keys = []

    def attend(layer, query, key, value):
        keys.append(key)
        return forecasting.attention_with_prefix(query, key, value, model.config.frequencies, None)

    with torch.no_grad():
        model(real, attend=attend)
    for group, before in enumerate(contents.before.tolist()):
        for layer in range(3):
            found = contents.keys[layer][:, group].mean(1)
            expected = keys[layer][:, :, before : before + 8].mean(1)
            spread = keys[layer][:, :, before : before + 8].std()
            assert (found[:, : expected.shape[1]] - expected).abs().mean() < 0.1 * spread


def test_at_training_length_or_without_layers_nothing_changes():
    model = GPTJEnsemble(GPTJConfig(136, layers=2, width=16, init_std=0.8), [0, 1])
    windows = sample_members(NumberTask(), 2, 50, WINDOW, source())
    contents = target_contents(model, NumberTask(), 900, source())
    with torch.no_grad():
        windows = windows._replace(answer=model(windows.tokens).argmax(-1)[:1].expand(2, -1))
        right = (model(windows.tokens).argmax(-1) == windows.answer).float().mean(1)
    torch.testing.assert_close(forecast(model, NumberTask(), 17, windows, contents, source()), right)
    torch.testing.assert_close(forecast(model, NumberTask(), 900, windows, contents, source(), exposed=[]), right)
    every, first = (
        forecast(model, NumberTask(), 900, windows, contents, source(), exposed=layers) for layers in ([0, 1], [0])
    )
    torch.testing.assert_close(forecast(model, NumberTask(), 900, windows, contents, source()), every)
    assert (every[0] < 1).all() and not torch.equal(every, first)


def test_working_in_chunks_changes_only_which_contents_are_drawn(monkeypatch):
    model = GPTJEnsemble(GPTJConfig(136, layers=1, width=16, init_std=0.8), range(4))
    windows = self_taught(model, sample_members(NumberTask(), 4, 201, WINDOW, source(1)))
    contents = target_contents(model, NumberTask(), 200, source(2))
    whole = forecast(model, NumberTask(), 200, windows, contents, source(2))
    sizes = []
    monkeypatch.setattr(forecasting, "CHUNK", 4 * 17 * (17 + 8 * 183) * 50)
    run = forecasting.run_window
    monkeypatch.setattr(
        forecasting, "run_window", lambda m, tokens, *rest: sizes.append(tokens.shape[1]) or run(m, tokens, *rest)
    )
    torch.testing.assert_close(
        forecast(model, NumberTask(), 200, windows, contents, source(2)), whole, atol=0.1, rtol=0
    )
    assert sizes == [50, 50, 50, 50, 1]
