import dataclasses
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import get_linear_schedule_with_warmup

from possym import ConfigError, InputError, ResultsError
from possym.ensembles.adamw import clip_factor
from possym.ensembles.checkpoints import is_finished, merge_checkpoints
from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.llama import LlamaEnsemble
from possym.ensembles.schedule import TrainingConfig, learning_rates
from possym.ensembles.streams import STREAMS, generator
from possym.ensembles.token_table import TokenTable
from possym.ensembles.training import Trainer
from possym.results.evaluation_steps import evaluation_steps

torch.set_num_threads(1)  # on models this small, threads mostly wait for each other

SIZES = GPTJConfig(12, layers=2, width=16, dropout=0.1, init_std=0.1)
PLAN = TrainingConfig(steps=8, batch=4, learning_rate=1e-2, clip=0.5, warmup=3)


def sequences(seeds, steps=8, length=6, device="cpu"):
    """Tokens whose answer is the first token of each sequence."""
    tokens = torch.stack(
        [torch.randint(12, (steps * 4, length), generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    ).to(device)
    return tokens, tokens[..., 0]


def trainer(seeds, *, config=SIZES, plan=PLAN, device="cpu", data=None, **options):
    tokens, answers = sequences(data or seeds, plan.steps, device=device)
    return Trainer(
        GPTJEnsemble(config, seeds).to(device), TokenTable(tokens, answers, plan.batch), plan, seeds, **options
    )


def weights(run):
    return {name: parameter.detach().clone() for name, parameter in run.model.named_parameters()}


def test_training_is_what_torch_and_transformers_do_one_model_at_a_time(device):
    plan, sizes = dataclasses.replace(PLAN, clip=3.5), dataclasses.replace(SIZES, dropout=0.0)
    run = trainer([5, 6], config=sizes, plan=plan, device=device)
    theirs = run.model.member_to_transformers(1).train()
    losses = run.run().losses[:, 1]

    optimizer = torch.optim.AdamW(
        theirs.parameters(), lr=plan.learning_rate, betas=plan.betas, eps=plan.epsilon, weight_decay=plan.weight_decay
    )
    schedule = get_linear_schedule_with_warmup(optimizer, plan.warmup, plan.steps)
    tokens, answers = sequences([6])
    expected, norms = [], []
    for step in range(plan.steps):
        rows = slice(4 * step, 4 * step + 4)
        loss = torch.nn.functional.cross_entropy(theirs(tokens[0, rows]).logits[:, -1], answers[0, rows])
        expected.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(theirs.parameters(), plan.clip).item())
        optimizer.step()
        schedule.step()
    assert min(norms) < plan.clip < max(norms)
    tolerance = 1e-5 if device == "cpu" else 3e-2  # bfloat16 on CUDA
    torch.testing.assert_close(losses, torch.tensor(expected), atol=tolerance, rtol=0)
    if device == "cpu":
        trained = GPTJEnsemble.from_transformers(theirs)
        for (name, ours), reference in zip(run.model.named_parameters(), trained.parameters(), strict=True):
            torch.testing.assert_close(ours[1:], reference, atol=2e-4, rtol=0, msg=name)


def every_place(seeds):
    """Tokens whose answer at a place is the token before it, none at the first place and where the token is even."""
    tokens, _ = sequences(seeds)
    answers = tokens.roll(1, -1).masked_fill(tokens % 2 == 0, -1)
    answers[..., 0] = -1
    answers[..., -1] = tokens[..., -2]
    return tokens, answers


@pytest.mark.parametrize("kind", [GPTJEnsemble, LlamaEnsemble])
def test_every_place_with_an_answer_counts_alike_in_the_loss(device, kind):
    plan = dataclasses.replace(PLAN, clip=1e6)
    tokens, answers = (each.to(device) for each in every_place([5, 6]))
    sizes = kind.Config(12, layers=2, width=16, dropout=0.0, init_std=0.1)
    run = Trainer(kind(sizes, [5, 6]).to(device), TokenTable(tokens, answers, plan.batch), plan, [5, 6])
    theirs = run.model.member_to_transformers(1).train()
    training = run.run()
    optimizer = torch.optim.AdamW(
        theirs.parameters(), lr=plan.learning_rate, betas=plan.betas, eps=plan.epsilon, weight_decay=plan.weight_decay
    )
    schedule = get_linear_schedule_with_warmup(optimizer, plan.warmup, plan.steps)
    losses, right = [], []
    for step in range(plan.steps):
        rows = slice(4 * step, 4 * step + 4)
        mine, asked = tokens[1, rows].cpu(), answers[1, rows].cpu()
        logits = theirs(mine).logits
        terms = [logits[b, t].log_softmax(-1)[asked[b, t]] for b in range(4) for t in range(6) if asked[b, t] >= 0]
        loss = -torch.stack(terms).mean()
        losses.append(loss.item())
        right.append((logits[:, -1].argmax(-1) == asked[:, -1]).float().mean().item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    tolerance = 1e-5 if device == "cpu" else 3e-2  # bfloat16 on CUDA
    torch.testing.assert_close(training.losses[:, 1], torch.tensor(losses), atol=tolerance, rtol=0)
    if device == "cpu":
        assert training.accuracies[:, 1].tolist() == right


def test_a_member_trains_as_it_would_alone(device):
    together, alone = trainer([2, 7, 4], device=device).run(), trainer([7], device=device).run()
    tolerance = 1e-5 if device == "cpu" else 3e-2
    torch.testing.assert_close(together.losses[:, 1:2], alone.losses, atol=tolerance, rtol=0)
    torch.testing.assert_close(together.accuracies[:, 1:2], alone.accuracies, atol=0.25 * (device == "cuda"), rtol=0)
    assert (together.losses[:, 0] - together.losses[:, 1]).abs().max() > 0.01


def test_members_do_not_feel_each_other(device):
    one, other = trainer([2, 7], device=device), trainer([2, 7], device=device, data=[2, 8])
    first, second = one.run(), other.run()
    assert torch.equal(first.losses[:, 0], second.losses[:, 0])
    assert not torch.equal(first.losses[:, 1], second.losses[:, 1])
    for name, value in weights(one).items():
        assert torch.equal(value[0], weights(other)[name][0]), name


def test_training_leaves_the_global_generator_alone_and_repeats():
    before = torch.random.get_rng_state()
    first, second = trainer([0]).run(), trainer([0]).run()
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first.losses, second.losses)


def test_dropout_reaches_the_training_and_only_the_training(device):
    dry = dataclasses.replace(SIZES, dropout=0.0)
    wet_run, dry_run = (trainer([0], config=config, device=device).run() for config in (SIZES, dry))
    assert not torch.equal(wet_run.losses, dry_run.losses)

    def evaluate(model, step):
        return {"same": (model(tokens) == model(tokens)).all(), "wet": model(tokens)[0, 0, :3]}

    tokens = sequences([3], device=device)[0][0]
    runs = [
        trainer([0], config=config, device=device, evaluate=evaluate, evaluate_at=[0]).run() for config in (SIZES, dry)
    ]
    assert torch.equal(runs[0].evaluations["wet"], runs[1].evaluations["wet"])
    assert runs[0].evaluations["same"].all()


def test_training_learns():
    plan = dataclasses.replace(PLAN, steps=300, learning_rate=3e-3, clip=1.0)
    result = trainer([0, 1], plan=plan).run()
    assert (result.accuracies[-30:].mean(0) > 0.4).all()
    assert (result.accuracies[:10].mean(0) < 0.2).all()


def test_clipping_is_torchs_for_each_member():
    source = torch.Generator().manual_seed(0)
    gradients = [torch.randn(3, 4, 5, generator=source), torch.randn(3, 7, generator=source)]
    for gradient in gradients:
        gradient[2] *= 0.01
    factor = clip_factor(gradients, 1.0)
    for member in range(3):
        parameters = [torch.nn.Parameter(torch.zeros_like(g[member])) for g in gradients]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient[member].clone()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            torch.testing.assert_close(parameter.grad, gradient[member] * factor[member])
    assert factor[0] < 0.5 and factor[2] == 1


@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_the_learning_rate_is_transformers_linear_schedule(warmup):
    plan = TrainingConfig(steps=20, batch=1, learning_rate=0.5, warmup=warmup)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = get_linear_schedule_with_warmup(optimizer, warmup, 20)
    expected = []
    for _ in range(20):
        expected.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    torch.testing.assert_close(learning_rates(plan), torch.tensor(expected))


@pytest.mark.parametrize(("steps", "points"), [(6750, 64), (6750, 100), (400, 9), (10, 11), (1, 2), (100, 2), (30, 20)])
def test_evaluation_steps_are_as_many_as_asked_with_both_ends(steps, points):
    chosen = evaluation_steps(steps, points)
    assert chosen == sorted(set(chosen)) and len(chosen) == points
    assert chosen[0] == 0 and chosen[-1] == steps


def test_evaluation_steps_are_denser_early():
    chosen = evaluation_steps(6750, 64)
    assert sum(step < 675 for step in chosen) > 20
    assert max(b - a for a, b in itertools.pairwise(chosen)) < 250


class Stop(Exception):
    pass


def evaluation(stop_at=None, kill=False):
    """An evaluation that reads the weights, and stops the run when it is called for the nth time."""
    calls = []

    def evaluate(model, step):
        calls.append(1)
        if len(calls) == stop_at:
            if kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise Stop
        return {"size": model.query.square().sum((1, 2, 3)), "head": model.head[:, 0]}

    return evaluate


def compare(ours, theirs, our_run, their_run):
    assert torch.equal(ours.losses, theirs.losses)
    assert torch.equal(ours.accuracies, theirs.accuracies)
    assert ours.evaluations.keys() == theirs.evaluations.keys() and len(ours.evaluations["size"]) == 4
    for name in ours.evaluations:
        assert torch.equal(ours.evaluations[name], theirs.evaluations[name]), name
    for name, value in weights(our_run).items():
        assert torch.equal(value, weights(their_run)[name]), name


@pytest.mark.parametrize("stop_at", [1, 2, 3, 4])
@pytest.mark.parametrize("checkpoint_seconds", [0, 3600], ids=["every step", "none but the last"])
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(tmp_path, device, stop_at, checkpoint_seconds):
    at = [0, 2, 5, 8]
    whole = trainer([1, 2], device=device, evaluate=evaluation(), evaluate_at=at)
    expected = whole.run()
    options = {"evaluate_at": at, "checkpoint": tmp_path / "state.safetensors", "device": device}
    stopped = trainer([1, 2], evaluate=evaluation(stop_at), checkpoint_seconds=checkpoint_seconds, **options)
    with pytest.raises(Stop):
        stopped.run()
    resumed = trainer([1, 2], evaluate=evaluation(), **options)
    # The checkpoint of the update at hand comes after its evaluation, so the last one is of the update before.
    assert resumed.step == (0 if checkpoint_seconds else max(at[stop_at - 1] - 1, 0))
    compare(resumed.run(), expected, resumed, whole)
    again = trainer([1, 2], evaluate=evaluation(stop_at=1), **options)  # evaluates no more
    compare(again.run(), expected, again, whole)


KILLED = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from test_training import evaluation, trainer
trainer([1, 2], evaluate=evaluation(3, kill=True), evaluate_at=[0, 2, 5, 8], checkpoint=Path({path!r}),
        checkpoint_seconds=0).run()
"""


def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path):
    path, here = tmp_path / "state.safetensors", Path(__file__).parent
    script = KILLED.format(paths=[str(here), str(here.parent)], path=str(path))
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert process.returncode == -signal.SIGKILL, process.stderr
    whole = trainer([1, 2], evaluate=evaluation(), evaluate_at=[0, 2, 5, 8])
    expected = whole.run()
    resumed = trainer([1, 2], evaluate=evaluation(), evaluate_at=[0, 2, 5, 8], checkpoint=path)
    assert resumed.step == 4
    compare(resumed.run(), expected, resumed, whole)


def validation(values, weights, stop_at=None):
    """A validation that gives members these accuracies (points, E), and keeps the weights that it sees."""
    calls = iter(values)

    def validate(model):
        if len(weights) + 1 == stop_at:
            raise Stop
        weights.append({name: parameter.detach().clone() for name, parameter in model.named_parameters()})
        return torch.tensor(next(calls))

    return validate


def test_each_member_keeps_the_weights_of_its_first_highest_validation(tmp_path, device):
    """Of a run that is whole, and of one that is stopped before its third validation and goes on."""
    values, at = [[0.2, 0.5, 0.0], [0.9, 0.5, 0.0], [0.9, 0.1, 0.0], [0.3, 0.4, 0.0]], [1, 3, 4, 8]
    seen, file = [], tmp_path / "state.safetensors"
    options = {"validate_at": at, "device": device}
    whole = trainer([1, 2, 3], validate=validation(values, seen), **options)
    result = whole.run()
    with pytest.raises(Stop):
        trainer(
            [1, 2, 3], validate=validation(values, [], stop_at=3), checkpoint=file, checkpoint_seconds=0, **options
        ).run()
    resumed = trainer([1, 2, 3], validate=validation(values[2:], []), checkpoint=file, **options)
    assert len(resumed.validations) == 2
    for run, found in ((whole, result), (resumed, resumed.run())):
        assert found.best_steps.tolist() == [3, 1, 1]
        torch.testing.assert_close(found.validations, torch.tensor(values))
        for name, best in run.best.items():
            for member, point in enumerate((1, 0, 0)):
                assert torch.equal(best[member], seen[point][name][member]), name
    last, best, training = merge_checkpoints([file])
    assert training.best_steps.tolist() == [3, 1, 1] and last.keys() == best.keys()
    assert torch.equal(best["head"].to(device), whole.best["head"]) and not torch.equal(best["head"], last["head"])


def test_checkpoints_of_finished_trainings_are_joined_member_by_member(tmp_path):
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    assert not is_finished(files[0])
    options = {"evaluate_at": [0, 2, 5, 8], "checkpoint_seconds": 0}
    with pytest.raises(Stop):
        trainer([1, 2], evaluate=evaluation(3), checkpoint=files[0], **options).run()
    assert not is_finished(files[0])
    runs = [
        trainer(seeds, evaluate=evaluation(), checkpoint=file, **options)
        for seeds, file in zip(([1, 2], [7]), files, strict=True)
    ]
    first, second = (run.run() for run in runs)
    assert all(map(is_finished, files))
    found, best, training = merge_checkpoints(files)
    assert not best and len(training.validations) == 0 and training.best_steps.tolist() == [-1] * 3
    for name, value in weights(runs[0]).items():
        assert torch.equal(found[name], torch.cat([value, weights(runs[1])[name]])), name
    assert torch.equal(training.losses, torch.cat([first.losses, second.losses], 1))
    assert torch.equal(training.accuracies, torch.cat([first.accuracies, second.accuracies], 1))
    assert training.evaluations.keys() == first.evaluations.keys()
    for name, value in training.evaluations.items():
        assert torch.equal(value, torch.cat([first.evaluations[name], second.evaluations[name]], 1)), name
    assert 0 < training.seconds_training <= max(first.seconds_training, second.seconds_training)
    files[0].write_bytes(b"damaged")
    for read in (lambda: is_finished(files[0]), lambda: merge_checkpoints(files)):
        with pytest.raises(ResultsError, match="cannot be read"):
            read()


def test_a_checkpoint_of_another_run_or_a_damaged_one_is_refused(tmp_path):
    path = tmp_path / "state.safetensors"
    trainer([1, 2], checkpoint=path).run()
    with pytest.raises(ResultsError, match=r"another run \(seeds"):
        trainer([1, 3], checkpoint=path)
    with pytest.raises(ResultsError, match=r"another run \(training"):
        trainer([1, 2], plan=dataclasses.replace(PLAN, clip=2.0), checkpoint=path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ResultsError, match="cannot be read"):
        trainer([1, 2], checkpoint=path)


def test_a_checkpoint_is_replaced_in_one_step(tmp_path, monkeypatch):
    path = tmp_path / "state.safetensors"
    run = trainer([1, 2], checkpoint=path)
    run.run()
    before = path.read_bytes()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run._write_checkpoint()
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_generators_of_different_purposes_and_seeds_differ():
    seeds = {generator(seed, stream).initial_seed() for seed in range(5) for stream in STREAMS}
    assert len(seeds) == 5 * len(STREAMS)
    with pytest.raises(InputError, match="stream"):
        generator(0, "noise")
    with pytest.raises(InputError, match="seed"):
        generator(-1, "data")


def test_a_table_gives_its_rows_in_order_and_not_twice():
    tokens, answers = sequences([0, 1])
    table = TokenTable(tokens, answers, 4)
    batch = table.batch(2)
    assert torch.equal(batch[0], tokens[:, 8:12]) and torch.equal(batch[1], answers[:, 8:12])
    with pytest.raises(InputError, match="sequences a member"):
        table.batch(8)


def test_impossible_plans_are_refused():
    for changes in [
        {"steps": 0},
        {"steps": 2.5},
        {"batch": True},
        {"warmup": 8},
        {"warmup": -1},
        {"learning_rate": 0.0},
        {"learning_rate": "fast"},
        {"clip": float("nan")},
        {"weight_decay": -0.1},
        {"betas": (0.9, 1.0)},
        {"betas": 0.9},
    ]:
        with pytest.raises(ConfigError, match=next(iter(changes))):
            dataclasses.replace(PLAN, **changes)


def test_impossible_schedules_are_refused():
    for steps, points in [(0, 2), (10, 12), (10, 1), (10, 2.0), (True, 2)]:
        with pytest.raises(ConfigError, match="points|steps"):
            evaluation_steps(steps, points)
