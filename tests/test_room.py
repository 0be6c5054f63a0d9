"""Sizes beyond what memory holds are refused by name before anything of that size is made, wherever users give one."""

import functools
import itertools

import pandas as pd
import pytest
import torch

from possym import ConfigError, InputError, errors, theory
from possym.capture.known_heads import repeated_tokens
from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.experiments.__main__ import studies
from possym.experiments.canonical import one_angle_limits
from possym.profiling import statistics
from possym.profiling.monitor import HeadScoreCallback
from possym.tasks import IndexTask, LetterTask, NumberTask, PartialInductionTask, RetrievalTask
from possym.tasks.counterfactual import KINDS, conflicts
from possym.tasks.mixed import MixedTask
from possym.tasks.onehop import OneHopTask

MODEL = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0])
HEADS = pd.DataFrame({"layer": range(8), "positional": 0.5, "symbolic": 0.1}).assign(
    positional=lambda t: t["layer"] / 8
)
TASKS = (NumberTask, LetterTask, MixedTask, IndexTask, RetrievalTask, PartialInductionTask)
HUGE = (2**40, 2**62)
SOURCE = torch.Generator()
CIRCLE = {"length": 8, "theta": 0.01, "alphabet": 4}

CALLS = {
    **{f"{task.__name__}, n": (lambda size, task=task: task().sample(size), "n") for task in TASKS},
    **{
        f"{task.__name__}, length": (lambda size, task=task: task().sample(1, length=size), "length")
        for task in (NumberTask, LetterTask, MixedTask, PartialInductionTask)
    },
    "IndexTask, symbols": (lambda size: IndexTask(symbols=size), "symbols"),
    "IndexTask, max_length": (lambda size: IndexTask(max_length=size), "max_length"),
    "RetrievalTask, symbols": (lambda size: RetrievalTask(symbols=size), "symbols"),
    "PartialInductionTask, attributes": (lambda size: PartialInductionTask(attributes=size), "attributes"),
    "conflicts": (lambda size: conflicts(size, next(iter(KINDS)), hops=2), "n"),
    "one hop, n": (lambda size: OneHopTask("letter").sample(size), "n"),
    "one hop, length": (lambda size: OneHopTask("number").sample(1, length=size), "length"),
    "repeated tokens": (lambda size: repeated_tokens(size, 3, 10), "n"),
    "vocabulary": (lambda size: repeated_tokens(1, 3, size), "vocabulary"),
    "correlation": (lambda size: statistics.correlation(HEADS, draws=size), "draws"),
    "early and late": (lambda size: statistics.early_late(HEADS, "positional", draws=size), "draws"),
    "monitor": (lambda size: HeadScoreCallback([[3, 14, 15]], steps=range(size)), "the number of steps"),
    "margins": (lambda size: one_angle_limits.one_plane_induction(size, 8), "symbols"),
    "induction": (lambda size: one_angle_limits.induction_logits("many", size, 8), "symbols"),
    "index gaps": (lambda size: theory.index_gaps(size, 0.8), "length"),
    "index beta": (lambda size: theory.index_beta(size, 0.8), "length"),
    **{
        f"{call.__name__}, {name}": (lambda size, call=call, name=name: call(**CIRCLE | {name: size}), name)
        for call in (theory.retrieval_logits, theory.retrieval_gaps, theory.retrieval_margin, theory.retrieval_beta)
        for name in ("length", "alphabet")
    },
    "first error": (lambda size: theory.first_error(0.8, torch.float32, size), "longest"),
    "positional weight": (lambda size: theory.positional_weight(size, 0.5), "length"),
    "symbolic weight": (lambda size: theory.symbolic_weight(size, 0.5), "length"),
    "slope": (lambda size: theory.positional_slope(size, 0.5), "length"),
    "H_POS, symbols": (lambda size: theory.h_pos(size, 4, 0.3), "symbols"),
    "H_POS, length": (lambda size: theory.h_pos(4, size, 0.3), "length"),
    "H_SYM": (lambda size: theory.h_sym(size, 4), "symbols"),
    "two angles": (lambda size: theory.two_angle(4, size, 0.3), "attributes"),
    "T_Reflexive": (lambda size: theory.t_reflexive(size), "vocabulary"),
    "layers": (lambda size: theory.stack(theory.t_reflexive(4), 1, size), "layers"),
}  # fmt: skip


@pytest.mark.parametrize("size", HUGE)
@pytest.mark.parametrize("name", CALLS)
def test_a_size_that_no_memory_holds_is_refused_by_name(name, size):
    call, given = CALLS[name]
    with pytest.raises(InputError, match=rf"{given} = {size:,}\b.*: this asks for .* GB .* has .* GB: give"):
        call(size)


@pytest.mark.parametrize("size", HUGE)
@pytest.mark.parametrize("study", studies())
def test_every_size_of_every_study_is_refused_when_it_is_configured(study, size):
    config = studies()[study].Config
    for name, value in vars(config.preset_named("smoke")).items():
        whole, many = type(value) is int and name != "seed", isinstance(value, tuple) and type((*value, "")[0]) is int
        if whole or many:
            given = (size,) if many else size
            with pytest.raises(ConfigError, match=f"{name} = {size:,}: this asks for"):
                config.preset_named("smoke", **{name: given})


def test_what_memory_holds_is_made_and_what_it_does_not_hold_is_not(monkeypatch):
    with monkeypatch.context() as small:
        small.setattr(errors, "memory", lambda: 4 * 10**8)
        with pytest.raises(InputError, match=r"asks for 0.64 GB of memory at once, and this machine has 0.4 GB"):
            errors.need_room(8 * 10**7, n=10**7)
    monkeypatch.setattr(errors, "memory", lambda: 8 * 2 * 17 * 100)
    assert len(NumberTask().sample(100).tokens) == 100
    with pytest.raises(InputError, match="n = 101, length = 17: .* smaller numbers"):
        NumberTask().sample(101)


def peak(call):
    """The most bytes of tensors at once while a call runs."""
    with torch.profiler.profile(profile_memory=True) as seen:
        found = call()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert found is not None and events
    return max(itertools.accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


BOUNDED = IndexTask, RetrievalTask  # whose sequences cannot be long


@pytest.mark.parametrize(
    "task, n, length", [(t, 5000, 17) for t in TASKS] + [(t, 1, 60_000) for t in TASKS if t not in BOUNDED]
)
def test_no_task_is_refused_that_memory_holds(task, n, length, monkeypatch):
    call = functools.partial(task().sample, n, length=length)
    most = peak(call)
    monkeypatch.setattr(errors, "memory", lambda: most)
    call()


def test_sequences_too_long_for_a_table_of_pairs_are_refused(monkeypatch):
    monkeypatch.setattr(errors, "memory", lambda: 8 * 2 * 40 * 40)
    tokens, tables = torch.zeros(41, dtype=torch.int64), [torch.tensor([0]), torch.tensor([-1])]
    for call in (theory.t_index(torch.tensor([0]), 0.8), lambda tokens: theory.retrieval(tokens, *tables)):
        call(tokens[1:])
        with pytest.raises(InputError, match="length of the sequences = 41"):
            call(tokens)


def test_a_range_of_steps_that_has_no_length_is_refused():
    with pytest.raises(InputError, match=r"steps = range\(0, 9223372036854775808\): give fewer"):
        HeadScoreCallback([[3, 14, 15]], steps=range(2**63))


def test_a_machine_that_does_not_say_its_memory_is_taken_to_have_enough(monkeypatch):
    monkeypatch.setattr(errors.os, "sysconf", lambda name: (_ for _ in ()).throw(ValueError(name)), raising=False)
    errors.need_room(2**30, length=2**30)
    with pytest.raises(InputError, match="give a smaller number"):
        errors.need_room(2**40, length=2**40)
