"""The monitor against profiles of the weights at hand, and training with it against training without."""

import copy
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from transformers import (
    AttentionInterface,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.models.llama import modeling_llama

import possym
from possym.errors import ConfigError, InputError, ResultsError, UnsupportedModelError
from possym.profiling.monitor import COLUMNS, POINTS, HeadScoreCallback, Schedule, decoder, scoring

from ..capture import families
from .test_profiling import tokenizer

LENGTH, LAST = 12, 12
PROMPTS = [[3, 14, 15, 9, 2, 6], [5, 35, 8, 9], [7, 9, 3, 2, 3, 8]]
pytestmark = pytest.mark.filterwarnings(  # both of torch.compile itself
    "ignore:.*torch.jit.script_method:DeprecationWarning", "ignore:The .grad attribute:UserWarning"
)


def llama(**options):
    return families.build("llama", **dict(attention_dropout=0.3) | options).train()


def examples(count=64):
    ids = torch.randint(3, 64, (count, LENGTH), generator=torch.Generator().manual_seed(5))
    return [{"input_ids": row, "labels": row} for row in ids]


def trainer(folder, *callbacks, model=None, data=None, checkpointing=False, **options):
    """A Trainer whose run is 12 updates of 4 sequences, with dropout, on the CPU."""
    options = (
        dict(
            per_device_train_batch_size=4, max_steps=LAST, learning_rate=0.01, logging_steps=1, save_strategy="no",
            disable_tqdm=True, use_cpu=True, seed=3,
        )
        | options
    )  # fmt: skip
    model = llama() if model is None else model
    if checkpointing:
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable({"use_reentrant": False})
    return Trainer(
        model,
        TrainingArguments(str(folder), **options),
        train_dataset=data or examples(),
        eval_dataset=examples(4),
        callbacks=list(callbacks),
    )


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def alike(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


class Keep(TrainerCallback):
    """Keeps a copy of the model as it is after some updates."""

    def __init__(self, *steps):
        self.steps, self.models = steps, {}

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.on_step_end(args, state, control, model)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step in self.steps:
            twin = type(model)(copy.deepcopy(model.config))
            twin.load_state_dict(model.state_dict())
            self.models[state.global_step] = twin


class Do(TrainerCallback):
    """Does something to the model after one update."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.step:
            return self.action(model, control)


def stop(model, control):
    raise KeyboardInterrupt


def draw_always(model):
    """Make a model draw random numbers in eval mode too."""
    model.model.layers[0].register_forward_hook(lambda *_: torch.rand(1) and None)
    return model


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(bf16=True),
        dict(gradient_accumulation_steps=3),
        dict(checkpointing=True),
        dict(eval_strategy="steps", eval_steps=3),
        dict(torch_compile=True, torch_compile_backend="eager"),
    ],
    ids=lambda options: next(iter(options), "plain"),
)
def test_training_gives_the_same_weights_with_and_without(tmp_path, options):
    runs = []
    for callbacks in ([], [HeadScoreCallback(PROMPTS, steps=range(LAST + 1))]):
        run = trainer(tmp_path, *callbacks, model=draw_always(llama()), **options)
        run.train()
        losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
        runs.append((weights(run.model), losses, random.getstate(), np.random.get_state()[1].tolist()))
    assert not alike(runs[0][0], weights(llama()))
    assert alike(runs[0][0], runs[1][0])
    assert runs[0][1:] == runs[1][1:]
    assert callbacks[0].table.step.nunique() == LAST + 1


@pytest.mark.parametrize("options", [dict(), dict(bf16=True), dict(checkpointing=True)], ids=str)
def test_scores_are_those_of_a_profile_of_the_weights_at_hand(tmp_path, options):
    keep, places = Keep(0, 5, LAST), [-1, 3, 4]
    monitor = HeadScoreCallback(PROMPTS, steps=[0, 5, LAST], query=places, temperature=0.3, gamma=0.2)
    trainer(tmp_path, keep, monitor, **options).train()
    assert list(monitor.table.columns) == list(COLUMNS)
    for step, model in keep.models.items():
        truth = possym.profile(model, PROMPTS, query=places, temperature=0.3, gamma=0.2, progress=False).summary()
        ours = monitor.table[monitor.table.step == step].reset_index(drop=True)
        pd.testing.assert_frame_equal(ours[truth.columns], truth, check_exact=False, rtol=1e-6, atol=1e-7)
    table = monitor.table.set_index("step")
    assert (table.loc[0, "positional"].to_numpy() != table.loc[LAST, "positional"].to_numpy()).all()


def test_scores_do_not_lose_precision_where_everything_runs_under_autocast(tmp_path):
    keep, monitor = Keep(2), HeadScoreCallback(PROMPTS, steps=[2])
    with torch.autocast("cpu", torch.bfloat16):
        trainer(tmp_path, keep, monitor).train()
    truth = possym.profile(keep.models[2], PROMPTS, progress=False).summary()
    pd.testing.assert_frame_equal(monitor.table[truth.columns], truth, rtol=1e-6, atol=1e-7)


def test_text_is_cut_into_sentences_as_in_a_profile(tmp_path):
    texts = ["Alice likes red . Bob likes blue . Who likes", "Who likes red . Carol likes green . Who likes"]
    keep, options = Keep(3), dict(tokenizer=tokenizer(), blocks="sentences")
    monitor = HeadScoreCallback(texts, steps=[3], **options)
    trainer(tmp_path, keep, monitor).train()
    truth = possym.profile(keep.models[3], texts, progress=False, **options).summary()
    pd.testing.assert_frame_equal(monitor.table[truth.columns], truth, rtol=1e-6, atol=1e-7)


def test_gains_after_the_rotation_are_read_anew(tmp_path):
    """In bfloat16 they are copied when the model is probed, so an old probe would know old ones."""
    model = families.build("hunyuan_v1_dense").to(torch.bfloat16).train()
    keep, monitor = Keep(LAST), HeadScoreCallback(PROMPTS, steps=[LAST])
    trainer(tmp_path, keep, monitor, model=model, learning_rate=0.1).train()
    truth = possym.profile(keep.models[LAST].to(torch.bfloat16), PROMPTS, progress=False).summary()
    pd.testing.assert_frame_equal(monitor.table[truth.columns], truth, rtol=1e-6, atol=1e-7)


def heated(module, query, key, value, mask, **options):
    return modeling_llama.eager_attention_forward(module, query * module.heat, key, value, mask, **options)


def test_what_a_users_own_attention_multiplies_by_is_read_anew(tmp_path, monkeypatch):
    monkeypatch.setitem(AttentionInterface._global_mapping, "heated", heated)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "heated", eager_mask)
    model = llama()
    for layer in model.model.layers:
        layer.self_attn.heat = nn.Parameter(torch.ones(()))
    model.set_attn_implementation("heated")
    monitor = HeadScoreCallback(PROMPTS, steps=[LAST])
    trainer(tmp_path, monitor, model=model, learning_rate=0.1).train()
    assert all(abs(layer.self_attn.heat.item() - 1) > 0.1 for layer in model.model.layers)
    truth = possym.profile(model, PROMPTS, progress=False).summary()
    pd.testing.assert_frame_equal(monitor.table[truth.columns], truth, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ["qwen3", "gpt_neox", "gemma2", "gptj", "falcon"])
def test_other_families(tmp_path, family):
    model = families.build(family).train()
    monitor, keep = HeadScoreCallback(PROMPTS, steps=[0, 4]), Keep(4)
    trainer(tmp_path, keep, monitor, model=model, max_steps=4).train()
    truth = possym.profile(keep.models[4], PROMPTS, progress=False).summary()
    ours = monitor.table[monitor.table.step == 4].reset_index(drop=True)
    pd.testing.assert_frame_equal(ours[truth.columns], truth, rtol=1e-5, atol=1e-6)


def test_a_classifier_is_scored_like_its_decoder(tmp_path):
    model = LlamaForSequenceClassification(llama(num_labels=2, pad_token_id=0).config).train()
    data = [{"input_ids": row["input_ids"], "labels": k % 2} for k, row in enumerate(examples())]
    keep, monitor = Keep(4), HeadScoreCallback(PROMPTS, steps=[4])
    trainer(tmp_path, keep, monitor, model=model, data=data, max_steps=4).train()
    truth = possym.profile(keep.models[4].model, PROMPTS, progress=False).summary()
    pd.testing.assert_frame_equal(monitor.table[truth.columns], truth, rtol=1e-6, atol=1e-7)


def found(model):
    """Everything about a model and its process that a scoring could leave changed."""
    return (
        {name: module.training for name, module in model.named_modules()},
        [None if p.grad is None else p.grad.tolist() for p in model.parameters()],
        [p.requires_grad for p in model.parameters()],
        weights(model).keys(),
        {name: [len(h) for h in (m._forward_hooks, m._forward_pre_hooks)] for name, m in model.named_modules()},
        {name: sorted(vars(m)) for name, m in model.named_modules()},
        model.config._attn_implementation,
        torch.get_rng_state().tolist(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
    )


@pytest.mark.parametrize("broken", [False, True])
def test_the_model_is_left_as_it_was_found(tmp_path, broken):
    model = draw_always(llama())
    model.model.layers[1].eval()
    model(**{k: v[None] for k, v in examples(1)[0].items()}).loss.backward()
    if broken:  # layer 0 is captured, then layer 1 cannot be
        model.model.layers[1].self_attn.q_proj.weight.data.fill_(float("nan"))
    before, old = found(model), weights(model)
    monitor, arguments = HeadScoreCallback(PROMPTS), TrainingArguments(str(tmp_path), use_cpu=True)
    with pytest.raises(InputError, match="not finite") if broken else scoring(model):
        monitor.on_train_begin(arguments, TrainerState(max_steps=9), TrainerControl(), model=model)
    assert found(model) == before
    assert broken or alike(weights(model), old)


def test_what_goes_wrong_on_the_way_is_said_and_training_goes_on(tmp_path):
    def spoil(model, control):
        model.model.layers[1].self_attn.k_proj.weight.data.fill_(float("nan"))

    runs = []
    for callbacks in ([Do(5, spoil)], [Do(5, spoil), HeadScoreCallback(PROMPTS, steps=[0, 4, 5, 8])]):
        run = trainer(tmp_path, *callbacks, max_grad_norm=0)
        if len(callbacks) == 2:
            with (
                pytest.warns(RuntimeWarning, match="head scores after update 5 .*layer 1: .*not finite"),
                pytest.warns(RuntimeWarning, match="head scores after update 8 .*not finite"),
            ):
                run.train()
        else:
            run.train()
        assert run.state.global_step == LAST
        runs.append({name: p.nan_to_num(7.0) for name, p in weights(run.model).items()})
    assert alike(*runs)
    assert sorted(callbacks[1].table.step.unique()) == [0, 4]
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "head_scores.parquet"), callbacks[1].table)


def test_a_disk_that_cannot_be_written_loses_no_score_in_memory(tmp_path):
    target = tmp_path / "scores" / "table.parquet"

    def block(model, control):
        target.unlink()
        target.mkdir()

    monitor = HeadScoreCallback(PROMPTS, steps=[0, 4, 8], path=target)
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        trainer(tmp_path / "run", Do(3, block), monitor).train()
    assert sorted(monitor.table.step.unique()) == [0, 4, 8]


def test_a_resumed_run_ends_with_the_table_of_one_that_was_not_interrupted(tmp_path):
    steps = [0, 1, 4, 6, 7, 9, LAST]
    options = dict(save_strategy="steps", save_steps=6, report_to="tensorboard")
    whole = HeadScoreCallback(PROMPTS, steps=steps)
    run = trainer(tmp_path / "whole", whole, **options)
    run.train()
    with pytest.raises(KeyboardInterrupt):  # after update 7 was scored, so that it is scored twice
        trainer(tmp_path / "cut", HeadScoreCallback(PROMPTS, steps=steps), Do(8, stop), **options).train()
    assert sorted(pd.read_parquet(tmp_path / "cut/head_scores.parquet").step.unique()) == [0, 1, 4, 6, 7]
    cut = HeadScoreCallback(PROMPTS, steps=steps)
    again = trainer(tmp_path / "cut", cut, **options)
    again.train(resume_from_checkpoint=True)
    assert alike(weights(run.model), weights(again.model))
    pd.testing.assert_frame_equal(whole.table, cut.table)
    assert sorted(cut.table.step.unique()) == steps
    assert not cut.table.duplicated(["step", "layer", "head"]).any()
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "cut/head_scores.parquet"), cut.table)
    for folder in ("whole", "cut"):
        assert scalars(tmp_path / folder / "runs/head_scores", "positional/layer_1/head_2")[0] == steps


def scalars(folder, tag):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return [event.step for event in events.Scalars(tag)], [event.value for event in events.Scalars(tag)]


def test_tensorboard_shows_what_the_table_holds(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "elsewhere"))
    monitor = HeadScoreCallback(PROMPTS, steps=[0, 3, LAST], gamma=0.4)
    trainer(tmp_path, monitor, report_to="tensorboard", learning_rate=0.1).train()
    for score in ("positional", "symbolic", "entropy"):
        for (layer, head), rows in monitor.table.groupby(["layer", "head"]):
            steps, values = scalars(tmp_path / "elsewhere/head_scores", f"{score}/layer_{layer}/head_{head}")
            assert steps == rows.step.tolist()
            np.testing.assert_allclose(values, rows[score], rtol=1e-6)
    for kind, sign in (("positional", 1), ("symbolic", -1)):
        counts = (monitor.table.purity == sign).groupby(monitor.table.step).sum().tolist()
        assert scalars(tmp_path / "elsewhere/head_scores", f"pure_heads/{kind}") == ([0, 3, LAST], counts)


def test_tensorboard_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to="tensorboard")
    with pytest.raises(ConfigError, match="pip install tensorboard"):
        HeadScoreCallback(PROMPTS).on_train_begin(arguments, TrainerState(max_steps=9), TrainerControl(), llama())
    assert os.listdir(tmp_path) == []


def test_tensorboard_is_left_alone_where_the_trainer_does_not_report_to_it(tmp_path):
    trainer(tmp_path, HeadScoreCallback(PROMPTS), report_to="none").train()
    assert os.listdir(tmp_path) == ["head_scores.parquet"]


def test_a_run_that_begins_anew_replaces_the_table(tmp_path):
    monitor = HeadScoreCallback(PROMPTS, steps=[0, 9, LAST])
    run = trainer(tmp_path, monitor)
    run.train()
    first = monitor.table
    monitor.steps = [2]
    run.train()
    assert sorted(first.step.unique()) == [0, 9, LAST]
    assert monitor.table.step.unique().tolist() == [2]
    assert pd.read_parquet(tmp_path / "head_scores.parquet").step.unique().tolist() == [2]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (dict(prompts=PROMPTS[:2]), "prompts"),
        (dict(query=3), "prompts"),
        (dict(blocks=[(0, 1), (1, 3)]), "prompts"),
        (dict(temperature=0.2), "temperature"),
        (dict(gamma=0.2), "gamma"),
    ],
)
def test_a_resumed_run_refuses_a_table_of_other_settings(tmp_path, change, named):
    monitor = HeadScoreCallback(PROMPTS, steps=[0, 2])
    trainer(tmp_path, monitor, max_steps=4, save_strategy="steps", save_steps=2).train()
    other = HeadScoreCallback(**dict(prompts=PROMPTS) | change)
    run = trainer(tmp_path, other, max_steps=6)
    with pytest.raises(ResultsError, match=rf"another setting \({named}\)"):
        run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "head_scores.parquet"), monitor.table)


def test_a_resumed_run_refuses_a_file_that_is_no_table(tmp_path):
    trainer(tmp_path, max_steps=2, save_strategy="steps", save_steps=2).train()
    (tmp_path / "head_scores.parquet").write_text("no")
    with pytest.raises(ResultsError, match="holds no head scores"):
        trainer(tmp_path, HeadScoreCallback(PROMPTS)).train(resume_from_checkpoint=True)


def test_a_monitor_that_joins_a_resumed_run_begins_there(tmp_path):
    trainer(tmp_path, max_steps=2, save_strategy="steps", save_steps=2).train()
    monitor = HeadScoreCallback(PROMPTS)
    trainer(tmp_path, monitor).train(resume_from_checkpoint=True)
    assert monitor.table.step.min() >= 2
    assert monitor.table.step.max() == LAST


def test_a_resumed_run_drops_what_lies_after_its_checkpoint(tmp_path):
    trainer(tmp_path, HeadScoreCallback(PROMPTS, steps=[0, 3, 5]), save_strategy="steps", save_steps=4).train()
    monitor = HeadScoreCallback(PROMPTS, steps=[0, 4, 6])
    trainer(tmp_path, monitor).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert monitor.table.step.unique().tolist() == [0, 3, 4, 6]


def test_the_default_schedule_has_the_first_and_the_last_update(tmp_path):
    monitor = HeadScoreCallback(PROMPTS)
    trainer(tmp_path, monitor).train()
    assert {0, LAST} <= set(monitor.table.step) <= set(range(LAST + 1))
    assert min(monitor.seconds.values()) > 0


def test_the_last_update_of_a_run_that_is_stopped_early_is_scored(tmp_path):
    def end(model, control):
        control.should_training_stop = True
        return control

    monitor = HeadScoreCallback(PROMPTS, share=1e-9)
    trainer(tmp_path, Do(7, end), monitor).train()
    assert sorted(monitor.table.step.unique()) == [0, 7]


def simulate(last, cost, *, share=0.05, update=1.0):
    """Steps that the schedule takes, and the share of the time of the updates that they cost."""
    schedule, steps = Schedule(last, share), []
    for step in range(last + 1):
        if step:
            schedule.updated(update if np.isscalar(update) else update[step - 1])
        if schedule.due(step):
            steps.append(step)
            schedule.scored(cost)
    return steps, schedule.scoring / schedule.training, schedule.points


@pytest.mark.parametrize("last", [200, 20_000])
@pytest.mark.parametrize("share", [0.01, 0.3])
@pytest.mark.parametrize("cost", [0.001, 0.5, 40.0])
def test_the_schedule_keeps_its_share_and_makes_use_of_it(last, share, cost):
    steps, spent, points = simulate(last, cost, share=share)
    affordable = share * last / cost
    assert steps[0] == 0
    assert steps[-1] == last
    assert set(steps) <= set(points)
    assert len(points) == POINTS
    assert spent <= max(share, 2 * cost / last) * (1 + 1e-9)
    assert len(steps) >= min(POINTS, affordable / 2 - 2)
    if affordable > POINTS + 1:
        assert steps == points


def test_a_slow_first_update_does_not_mislead_the_schedule():
    """The first takes a hundred times as long, as under torch.compile."""
    updates = [100.0] + [1.0] * 1999
    _, spent, _ = simulate(2000, 20.0, update=updates)
    assert spent <= 0.05


REFUSED = {
    "text without tokenizer": (dict(prompts=["Alice likes red"]), "give tokenizer"),
    "query": (dict(query=1), "two keys"),
    "blocks": (dict(blocks="words"), "'tokens', 'sentences'"),
    "temperature": (dict(temperature=0), "temperature = 0"),
    "gamma": (dict(gamma=True), "gamma = True"),
    "share": (dict(share=1), "share = 1"),
    "share NaN": (dict(share=float("nan")), "share = nan"),
    "steps text": (dict(steps="all"), "steps is of type str"),
    "steps float": (dict(steps=[0, 2.0]), "a step of steps is of type float"),
    "steps negative": (dict(steps=[-1, 3]), "ascending whole numbers from 0"),
    "steps twice": (dict(steps=[1, 1]), "ascending whole numbers from 0"),
    "no steps": (dict(steps=[]), "one or more"),
    "steps without end": (dict(steps=range(2**63)), r"steps = range\(0, 9.*: give at most 16,777,216"),
    "path": (dict(path=3), "path is of type int"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_are_refused_at_once(name):
    arguments, said = REFUSED[name]
    with pytest.raises(InputError, match=said):
        HeadScoreCallback(**dict(prompts=PROMPTS) | arguments)


def sharded(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=init_device_mesh("cpu", (1,)))


@pytest.fixture
def one_process(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def refuses(folder, monitor, kind, said, model=None, **options):
    """Train, see the refusal, and see that no update was made."""
    run = trainer(folder, monitor, model=model, **options)
    before = weights(run.model)
    with pytest.raises(kind, match=said):
        run.train()
    assert run.state.global_step == 0
    assert alike(weights(run.model), before)


def test_what_does_not_fit_is_refused_before_the_first_update(tmp_path):
    refuses(tmp_path, HeadScoreCallback([[1, 2, 64]]), InputError, "from 0 to 63")
    refuses(tmp_path, HeadScoreCallback(PROMPTS, steps=[0, 13]), InputError, "steps go up to 13, but this run ends")
    learned_places = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=4))
    refuses(tmp_path, HeadScoreCallback(PROMPTS), UnsupportedModelError, "no layer rotates", learned_places)
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "table.parquet"
    refuses(tmp_path, HeadScoreCallback(PROMPTS, path=path), ResultsError, "cannot be written")


def test_two_callbacks_of_one_trainer_do_not_write_one_file(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    first, second = (HeadScoreCallback([prompt], steps=[0]) for prompt in PROMPTS[:2])
    run = trainer(tmp_path, first, second)
    with pytest.raises(InputError, match="two HeadScoreCallbacks .*head_scores.parquet: give each its own path"):
        run.train()
    second.path = HeadScoreCallback(PROMPTS, path="~/second.parquet").path
    trainer(tmp_path, first, second).train()
    for monitor, name in ((first, "head_scores.parquet"), (second, "second.parquet")):
        stored = pd.read_parquet(tmp_path / name)
        pd.testing.assert_frame_equal(stored, monitor.table)
    trainer(tmp_path, HeadScoreCallback(PROMPTS, steps=[0])).train()  # another run may replace it


def test_weights_in_shards_are_refused(one_process):
    with pytest.raises(UnsupportedModelError, match="cut into shards"):
        decoder(sharded(llama()))


@pytest.mark.parametrize("wrap", [nn.parallel.DistributedDataParallel, torch.compile, nn.DataParallel])
def test_the_decoder_is_taken_out_of_wrappers(one_process, wrap):
    model = llama()
    assert decoder(wrap(model)) is model.model
    model.model = torch.compile(inner := model.model)
    assert decoder(wrap(model)) is inner


def test_scoring_compiles_nothing_anew(tmp_path):
    torch.compiler.reset()  # a function that other tests had compiled too often is compiled no more
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    model = llama(attention_dropout=0.0)
    for part in (model, *model.model.layers):
        part.compile(backend=backend)
    counts = []
    count = [Do(step, lambda *_: counts.append(len(compiled))) for step in (1, 5)]
    trainer(tmp_path, HeadScoreCallback(PROMPTS, steps=[0, 1, 2, 3, 4]), *count, model=model).train()
    assert counts[0] == counts[1] > 0


def test_two_processes_train_as_one_does_not_disturb_them(tmp_path):
    """Two processes with DistributedDataParallel: the first one scores, both end with the weights of a plain run."""
    script = tmp_path / "run.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            import torch
            from tests.profiling.test_monitor import HeadScoreCallback, PROMPTS, trainer, weights

            kept = []
            for callbacks in ([], [HeadScoreCallback(PROMPTS, steps=[0, 3, 6])]):
                run = trainer(sys.argv[1], *callbacks, max_steps=6, ddp_backend="gloo")
                run.train()
                assert isinstance(run.model_wrapped, torch.nn.parallel.DistributedDataParallel)
                kept.append(weights(run.model))
            assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])
            rank = torch.distributed.get_rank()
            assert callbacks[0].table.step.nunique() == (3 if rank == 0 else 0)
            torch.distributed.destroy_process_group()
            """
        )
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(tmp_path / "out")], cwd=root, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert pd.read_parquet(tmp_path / "out/head_scores.parquet").step.unique().tolist() == [0, 3, 6]


def test_importing_possym_loads_no_transformers_until_the_monitor_is_asked_for():
    code = """
    import sys, possym
    assert "transformers" not in sys.modules and "torch" not in sys.modules
    assert possym.monitor.HeadScoreCallback.__name__ == "HeadScoreCallback"
    assert "transformers" in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
