import dataclasses
from typing import ClassVar

import pytest
import torch

from possym import ConfigError, InputError
from possym.ensembles.gptj import GPTJEnsemble
from possym.ensembles.llama import LlamaEnsemble
from possym.ensembles.streams import generator
from possym.experiments import trained as ensembles
from possym.experiments.trained import EnsembleConfig, held_out, trained
from possym.tasks.positions import answers_by_position

torch.set_num_threads(1)  # on models this small, threads mostly wait for each other

CPU = torch.device("cpu")
VARIED = (
    {"architecture": "mamba"},
    {"supervise": "all"},
    {"hop_shares": (0.5, 0.5)},
    {"hop_shares": (0.4, 0.4, 0.2, 0.0)},
    {"hop_shares": (0.4, 0.4, 0.2, 0.2)},
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(EnsembleConfig):
    own: int = 1
    architecture: str = "gptj"
    supervise: str = "last"
    hop_shares: tuple[float, ...] = ()

    PRESETS: ClassVar = {"smoke": dict(members=2, layers=1, width=8, training_sequences=40, steps=8, batch=4, warmup=2)}


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("POSSYM_CACHE", str(tmp_path))
    return Config.preset_named("smoke")


def same(one, other):
    pairs = zip(one.named_parameters(), other.parameters(), strict=True)
    return all(torch.equal(ours, theirs) for (_, ours), theirs in pairs)


def test_trained_members_are_kept_and_come_back(config, monkeypatch):
    first = trained("number", config, CPU)
    assert not same(first, GPTJEnsemble(first.config, config.seeds()))
    calls = []
    monkeypatch.setattr(ensembles, "train", lambda *a, **k: calls.append(a))
    assert same(trained("number", config, CPU), first)
    assert same(trained("number", dataclasses.replace(config, own=2, tasks=("number",)), CPU), first)
    assert not calls


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"learning_rate": 1e-3},
        {"steps": 7},
        {"members": 1},
        {"hops": (1, 2)},
        {"architecture": "llama"},
        {"supervise": "every"},
        {"hop_shares": (0.1, 0.2, 0.3, 0.4)},
    ],
    ids=str,
)
def test_other_settings_are_other_members(config, changes):
    first, other = trained("number", config, CPU), trained("number", dataclasses.replace(config, **changes), CPU)
    alike = changes == {"members": 1}
    if "architecture" not in changes:
        assert same(first.member(0), other.member(0)) == alike
    assert ensembles.cache_path("number", config, CPU) != ensembles.cache_path(
        "number", dataclasses.replace(config, **changes), CPU
    )


def test_best_members_are_those_of_their_best_validation(config):
    config = dataclasses.replace(config, steps=40, training_sequences=36_000, learning_rate=0.03, members=3)
    assert config.validation_steps() == sorted({round(40 * k / 27) for k in range(1, 28)})
    last, best = (trained("letter", config, CPU, checkpoint) for checkpoint in ("last", "best"))
    (held,) = held_out("letter", config, CPU, 200)
    at = {}

    def evaluation(seeds, device):
        def evaluate(model, step):
            at[step] = {name: value.detach().clone() for name, value in model.named_parameters()}
            return ensembles.accuracy_by_hops(model, held, config.hops)

        return evaluate

    steps = config.validation_steps()
    _, training = ensembles.train(
        "letter", config, CPU, ensembles.cache_root() / "again", evaluation=evaluation, evaluate_at=steps
    )
    accuracy = training.evaluations["accuracy"][..., 0]
    for member in range(3):
        first = steps[accuracy[:, member].tolist().index(accuracy[:, member].max())]
        assert training.best_steps[member] == first
        for name, value in best.named_parameters():
            assert torch.equal(value[member], at[first][name][member]), name
            assert torch.equal(last.get_parameter(name)[member], at[40][name][member]), name
    assert len(set(training.best_steps.tolist())) > 1


def test_training_and_held_out_sequences_differ_between_members_and_sets(config, monkeypatch):
    read = []
    monkeypatch.setattr(ensembles, "TokenTable", lambda tokens, *rest: read.append(tokens) or TABLE(tokens, *rest))
    trained("letter", config, CPU)
    validation, test = held_out("letter", config, CPU, 12, 8)
    assert validation.tokens.shape == (2, 12, 17) and test.tokens.shape == (2, 8, 17)
    rows = torch.cat([read[0].flatten(0, 1), validation.tokens.flatten(0, 1), test.tokens.flatten(0, 1)])
    assert len(rows.unique(dim=0)) == len(rows)
    again = held_out("letter", dataclasses.replace(config, seed=1, members=1), CPU, 12, 8)
    assert torch.equal(again[1].tokens[0], test.tokens[1])
    for batch in (validation, test):
        assert (batch.hops[0].bincount(minlength=5)[1:] == batch.hops.shape[1] // 4).all()
    shared = ensembles.draw(ensembles.task_named("letter"), 12, config.hops, generator(config.seed, "held-out"))
    assert not torch.equal(shared.tokens, validation.tokens[0])


TABLE = ensembles.TokenTable


def test_llamas_are_trained_and_come_back_as_llamas(config):
    config = dataclasses.replace(config, architecture="llama")
    model = trained("number", config, CPU)
    assert isinstance(model, LlamaEnsemble) and model.config.width == 8
    again = trained("number", config, CPU)
    assert isinstance(again, LlamaEnsemble) and same(model, again)


@pytest.mark.parametrize("task", ["number", "letter", "mixed"])
def test_graded_at_every_place_members_read_the_answers_of_all_places(config, monkeypatch, task):
    read = {}
    for supervise in ("last", "every"):
        monkeypatch.setattr(
            ensembles, "TokenTable", lambda *given, key=supervise: read.update({key: given}) or TABLE(*given)
        )
        trained(task, dataclasses.replace(config, supervise=supervise), CPU)
    (tokens, last, _), (same_tokens, every, _) = read["last"], read["every"]
    assert torch.equal(tokens, same_tokens) and torch.equal(every[..., -1].long(), last)
    for member in range(2):
        expected = answers_by_position(ensembles.task_named(task), tokens[member])
        assert torch.equal(every[member].long(), expected) and (expected[:, :8] == -1).all()


def test_hops_come_in_the_shares_asked_for(config):
    task = ensembles.task_named("letter")
    batch = ensembles.draw(task, 41, (1, 2, 4), generator(0, "data"), (0.5, 0.3, 0.2))
    counts = batch.hops.bincount(minlength=5).tolist()
    assert sum(counts) == 41 and all(abs(counts[h] - 41 * share) < 1 for h, share in ((1, 0.5), (2, 0.3), (4, 0.2)))
    assert batch.hops.tolist() != sorted(batch.hops.tolist())
    equal = ensembles.draw(task, 41, (1, 2, 4), generator(0, "data"))
    assert equal.hops.bincount(minlength=5).tolist() == [0, 14, 14, 0, 13]


def test_held_out_sets_have_equal_shares_whatever_training_has(config):
    (batch,) = held_out("number", dataclasses.replace(config, hop_shares=(0.7, 0.1, 0.1, 0.1)), CPU, 8)
    assert (batch.hops[0].bincount(minlength=5)[1:] == 2).all()


def test_unknown_tasks_and_impossible_settings_are_refused(config):
    with pytest.raises(InputError, match="digits"):
        trained("digits", config, CPU)
    for changes in ({"tasks": ("digits",)}, {"members": 0}, {"batch": 1000}, {"hops": (5,)}, {"width": 7}, *VARIED):
        with pytest.raises(ConfigError, match=next(iter(changes))):
            dataclasses.replace(config, **changes)
