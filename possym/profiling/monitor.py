"""Scores of every head while a model trains: a callback for the Trainer of transformers.

- `HeadScoreCallback(prompts)` scores the heads on fixed prompts before the first update, after some of the updates
  and after the last one. The scores are in its `table`, in a Parquet file, and in TensorBoard where the Trainer
  reports to it.
- `Schedule` says when, so that scoring costs no more than its share of the time of training.
- `scoring(model)` is the context for it: whatever happens inside, training continues as if nothing had.

Only the decoder runs, not its head, in eval mode and in the precision of its weights, outside autocast: logits are
those of float32 also where training mixes precisions.
"""

import os
import statistics
import sys
import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from possym.capture import Capture
from possym.capture.model_state import attends_by_others
from possym.errors import (
    ConfigError,
    InputError,
    PossymError,
    ResultsError,
    UnsupportedModelError,
    needed,
    require_type,
)
from possym.profiling.identity import hash_of
from possym.profiling.profile import summarize
from possym.profiling.prompts import (
    check_holds,
    check_number,
    check_prompts,
    read_blocks,
    read_holds,
    read_prompts,
    read_queries,
)
from possym.profiling.scoring import HEAD_VALUES, Scoring, score_prompts
from possym.results import atomic_write, writing
from possym.results.evaluation_steps import evaluation_steps
from possym.scores import DEFAULT_RELATIVE, DEFAULT_TEMPERATURE

with needed("possym.monitor needs", "models"):
    import accelerate  # noqa: F401  without it a Trainer trains nothing
    from transformers import PreTrainedModel, TrainerCallback

POINTS = 100
FILE = "head_scores.parquet"
COLUMNS = (
    "step", "layer", "head", "positional", "symbolic", "entropy", "positional_sd", "symbolic_sd", "entropy_sd",
    "purity", *(name for name in HEAD_VALUES if name not in ("positional", "symbolic", "entropy", "moved")),
)  # fmt: skip

_owners: weakref.WeakValueDictionary[Path, "HeadScoreCallback"] = weakref.WeakValueDictionary()  # who wrote a file last


class Schedule:
    """Says after which updates to score: at `POINTS` points, denser early, or at fewer where these cost too much.

    The points are those of `possym.results.evaluation_steps.evaluation_steps`. While what is still to come would
    cost more than what remains of the share, every second point is left out, then every second of the rest, and so
    on. What an update and a scoring take is the median over the latest of them. The first and the last point always
    stay.

    Args:
        last: number of updates of the run.
        share: how much of the time of the updates scoring may take.

    Attributes:
        points: numbers of updates, ascending, from 0 to ``last``.
        training, scoring: seconds that updates and scorings took so far.

    >>> schedule, steps = Schedule(100, 0.05), []
    >>> for step in range(101):
    ...     if schedule.due(step):
    ...         steps.append(step)
    ...         schedule.scored(0.5)
    ...     schedule.updated(1.0)
    >>> steps
    [0, 16, 32, 48, 64, 72, 80, 88, 96, 100]
    """

    def __init__(self, last: int, share: float):
        self.last, self.share = last, share
        self.points = evaluation_steps(last, min(POINTS, last + 1))
        self.training = self.scoring = 0.0
        self._updates: deque[float] = deque(maxlen=100)
        self._scorings: deque[float] = deque(maxlen=9)

    def updated(self, seconds: float) -> None:
        """Count an update."""
        self._updates.append(seconds)
        self.training += seconds

    def scored(self, seconds: float) -> None:
        """Count a scoring."""
        self._scorings.append(seconds)
        self.scoring += seconds

    def due(self, step: int) -> bool:
        """Return whether to score after ``step`` updates."""
        if step not in self.points or step in (0, self.last):
            return step in (0, self.last)
        left = statistics.median(self._updates) * (self.last - step)
        affordable = (self.share * (self.training + left) - self.scoring) / statistics.median(self._scorings)
        rank, stride = self.points.index(step), 1
        while stride < len(self.points) and self._remaining(rank, stride) > affordable:
            stride *= 2
        return rank % stride == 0

    def _remaining(self, rank: int, stride: int) -> int:
        """Return how many points from a rank on are left if only every ``stride``-th one and the last stay."""
        final = len(self.points) - 1
        return len({*(k for k in range(rank, final) if k % stride == 0), final})


class HeadScoreCallback(TrainerCallback):
    """Scores every head of a RoPE model on fixed prompts while a transformers `Trainer` trains it.

    Training with and without it gives the same weights, bit for bit. If a scoring fails during training, for instance
    on weights that are no longer finite, it warns and training continues; wrong arguments are refused before the first
    update. Under torch.compile and DistributedDataParallel the first process scores the unwrapped model.

    Args:
        prompts: as for `possym.profile`, of at least three tokens each. Held-out ones, the same for all points.
        tokenizer: needed for strings and chats.
        blocks, hold, query: as for `possym.profile`.
        temperature, relative: τ of the weights of swaps and its unit, as for `possym.profile`.
        gamma: tolerance of purity, see `possym.scores.purity`.
        steps: numbers of updates after which to score, 0 for before the first; None for the schedule of this module.
        share: how much of the time of the updates the schedule may cost, between 0 and 1. The first and the last point
            are always scored. Ignored where ``steps`` is given.
        path: the Parquet file; None for ``head_scores.parquet`` in the Trainer's ``output_dir``. A run that begins anew
            replaces it. A run that resumes from a checkpoint keeps the rows up to that checkpoint. Two callbacks of one
            Trainer need two files.

    Raises:
        InputError: prompts, blocks, query, steps or numbers that do not fit; ``steps`` and token ids that do not fit
            the run or the model are refused when training begins, before the first update.
        UnsupportedModelError: when training begins: a model without RoPE, not causal, or cut into shards.
        ResultsError: when training begins: the file cannot be written, or a resumed run finds one of other settings.

    Source: 2605.31558, section 3.1 and appendix D, on any model.

    >>> import tempfile
    >>> from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainingArguments
    >>> config = LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
    ...                      num_attention_heads=2)
    >>> data = [{"input_ids": list(range(k, k + 8)), "labels": list(range(k, k + 8))} for k in range(40)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     monitor = HeadScoreCallback([[3, 14, 15, 9, 2], [6, 5, 35]], steps=[0, 2, 4])
    ...     arguments = TrainingArguments(folder, max_steps=4, save_strategy="no", disable_tqdm=True, use_cpu=True)
    ...     trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=data, callbacks=[monitor])
    ...     trainer.remove_callback(PrinterCallback)
    ...     _ = trainer.train()
    >>> monitor.table.groupby("step").size().to_dict()
    {0: 4, 2: 4, 4: 4}
    """

    def __init__(
        self,
        prompts: Any,
        *,
        tokenizer: Any = None,
        blocks: Any = "tokens",
        hold: Any = None,
        query: Any = -1,
        temperature: float = DEFAULT_TEMPERATURE,
        relative: bool = DEFAULT_RELATIVE,
        gamma: float = 0.1,
        steps: Sequence[int] | None = None,
        share: float = 0.05,
        path: str | os.PathLike | None = None,
    ):
        """Read the prompts and refuse what cannot be scored on any model."""
        check_number("temperature", temperature, 0.0, float("inf"))
        check_number("gamma", gamma, 0.0, 0.5)
        check_number("share", share, 0.0, 1.0)
        require_type(path, (str, os.PathLike, type(None)), "path")
        require_type(relative, bool, "relative")
        self.tokenizer = tokenizer
        self.prompts = read_prompts(prompts, tokenizer)
        queries = read_queries(query, self.prompts)
        spans, holds = read_blocks(blocks, self.prompts, queries), read_holds(hold, self.prompts)
        check_holds(holds, spans, queries, hold)
        self._given = self.prompts, queries, spans, holds
        self.how = Scoring(float(temperature), relative)
        self.gamma, self.share = float(gamma), float(share)
        self._identity = hash_of([prompt.ids for prompt in self.prompts], queries, spans, holds)
        self.steps = None if steps is None else read_steps(steps)
        self.path = None if path is None else Path(os.path.expanduser(path))
        self._schedule: Any = None
        self._points: dict[int, pd.DataFrame] = {}
        self._settings: dict[str, Any] = {}
        self._writer: Any = None
        self._run: Any = None  # the Trainer's state, which all callbacks of one run are given

    @property
    def table(self) -> pd.DataFrame:
        """One row per scored update, layer and head.

        Columns: step (updates done), layer, head, mean and standard deviation over prompts of positional, symbolic and
        entropy (nats), purity of the mean scores (1 positional, −1 symbolic, 0 neither), and the means of what else
        `possym.profiling.profile.Profile.heads` holds.
        """
        points = [self._points[step] for step in sorted(self._points)]
        table = pd.concat(points, ignore_index=True) if points else pd.DataFrame(columns=COLUMNS)
        table.attrs = dict(self._settings)
        return table

    @property
    def seconds(self) -> dict[str, float]:
        """What ``"training"``, the updates alone, and ``"scoring"`` took since this process began to train."""
        if self._schedule is None:
            return {"training": 0.0, "scoring": 0.0}
        return {"training": self._schedule.training, "scoring": self._schedule.scoring}

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        """Check the model and the place to write, score before the first update, and time it."""
        if not state.is_world_process_zero:
            return
        step, last = state.global_step, state.max_steps
        if self.steps is not None and self.steps[-1] > last:
            raise InputError(f"steps go up to {self.steps[-1]}, but this run ends after update {last}: leave those out")
        start = time.perf_counter()
        self._schedule = Schedule(last, self.share)
        self._decoder = decoder(model)
        with scoring(self._decoder):
            self._capture = Capture(self._decoder)
        check_prompts(self.prompts, self._decoder, self.tokenizer)
        self._settings = {
            "model": type(self._decoder).__name__,
            "prompts": self._identity,
            "temperature": self.how.temperature,
            "relative": self.how.relative,
            "gamma": self.gamma,
        }
        self._target = self.path or Path(args.output_dir) / FILE
        place, self._run = self._target.resolve(), state
        if (other := _owners.get(place)) is not None and other is not self and other._run is state:
            raise InputError(f"two HeadScoreCallbacks of this Trainer write {self._target}: give each its own path")
        _owners[place] = self
        self._points = self._stored(step) if step else {}
        self._score(step)  # the first pass on a device takes longer: its time would mislead the schedule
        self._open(args, step)
        with self._timed():
            scores = self._score(step)
            if step in (self.steps or self._schedule.points) and step not in self._points:
                self._keep(scores)
            self._write()
        self._schedule.scoring = time.perf_counter() - start  # all of it counts

    def on_step_begin(self, args, state, control, **kwargs):
        """Start the clock of an update."""
        self._clock = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        """Score if this update is on the schedule."""
        if not state.is_world_process_zero:
            return
        step, seconds = state.global_step, time.perf_counter() - self._clock
        self._schedule.updated(seconds)
        if step in self.steps if self.steps else self._schedule.due(step):
            self._record(step)

    def on_epoch_end(self, args, state, control, **kwargs):
        """Score the last update of a run that is stopped early."""
        step = state.global_step
        early = control.should_training_stop and step < state.max_steps and self.steps is None
        if state.is_world_process_zero and early and step not in self._points:
            self._record(step)

    def on_train_end(self, args, state, control, **kwargs):
        """Close TensorBoard's file and let go of the model."""
        if self._writer is not None:
            self._writer.close()
        self._writer = self._capture = self._decoder = self._run = None

    def _record(self, step: int) -> None:
        """Score, keep and write; what fails is said, and training goes on."""
        with self._timed():
            try:
                self._keep(self._score(step))
                self._write()
            except (PossymError, torch.OutOfMemoryError) as error:
                message = f"head scores after update {step} are not complete: {error}"
                warnings.warn(message, RuntimeWarning, stacklevel=2)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count what a scoring takes."""
        self._synchronize()
        start = time.perf_counter()
        yield
        self._schedule.scored(time.perf_counter() - start)

    def _synchronize(self) -> None:
        if self._capture.device.type == "cuda":
            torch.cuda.synchronize(self._capture.device)

    def _score(self, step: int) -> pd.DataFrame:
        """Return the scores of every head, mean and spread over prompts."""
        rotations = [layer.rope_layout for layer in self._capture.layers.values() if layer.rope_layout is not None]
        gains = any(r.query_weight is not None or r.key_weight is not None for r in rotations)  # after the rotation
        with scoring(self._decoder):
            if gains or attends_by_others(self._capture.parts):  # gains and factors of logits may train
                self._capture = Capture(self._decoder)
            heads, _, _ = score_prompts(self._capture, *self._given, self.how)
        table = summarize(heads, "head", self.gamma)
        table.insert(0, "step", step)
        return table[["step", "layer", *(["pass"] if "pass" in table else []), *COLUMNS[2:]]]

    def _keep(self, scores: pd.DataFrame) -> None:
        """Add a point to the table and to TensorBoard."""
        step = int(scores.step.iloc[0])
        self._points[step] = scores
        if self._writer is None:
            return
        for row in scores.itertuples():
            for score in ("positional", "symbolic", "entropy"):
                self._writer.add_scalar(f"{score}/layer_{row.layer}/head_{row.head}", getattr(row, score), step)
        for kind, sign in (("positional", 1), ("symbolic", -1)):
            self._writer.add_scalar(f"pure_heads/{kind}", int((scores.purity == sign).sum()), step)
        self._writer.flush()

    def _write(self) -> None:
        with writing(self._target.parent):
            self._target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(self._target) as path:
            self.table.to_parquet(path, index=False)

    def _stored(self, step: int) -> dict[int, pd.DataFrame]:
        """Return the points up to a step that an earlier part of this run left, or raise a ResultsError."""
        if not self._target.exists():
            return {}
        try:
            table = pd.read_parquet(self._target)
            table[list(COLUMNS)]  # a table that lacks one is none of ours
            points = {int(at): rows.reset_index(drop=True) for at, rows in table.groupby("step")}
        except (OSError, ValueError, KeyError) as error:
            message = f"{self._target} holds no head scores ({error}): move it, or give another path"
            raise ResultsError(message) from error
        if differing := [key for key in self._settings if table.attrs.get(key) != self._settings[key]]:
            raise ResultsError(
                f"{self._target} was written with another setting ({', '.join(differing)}): this run goes on from a "
                "checkpoint, so give the same ones, move the file, or give another path"
            )
        return {at: rows for at, rows in points.items() if at <= step}

    def _open(self, args: Any, step: int) -> None:
        """Open TensorBoard's file if the Trainer reports to it; what a resumed run does again replaces what it did."""
        if "tensorboard" not in args.report_to:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError("report_to names tensorboard, which is not installed: pip install tensorboard") from None
        root = os.environ.get("TENSORBOARD_LOGGING_DIR") or Path(args.output_dir) / "runs"
        self._writer = SummaryWriter(str(Path(root) / "head_scores"), purge_step=step + 1 if step else 0)


def decoder(model: nn.Module) -> nn.Module:
    """Return the decoder of a model: what transformers calls its base model, out of every wrapper.

    Raises:
        UnsupportedModelError: its weights are cut into shards.
    """
    marks = ("device_mesh", "ds_id")  # of a parameter that is a DTensor, or that DeepSpeed's ZeRO-3 has taken apart
    sharded = any(type(m).__name__ == "FullyShardedDataParallel" for m in model.modules())
    if sharded or any(hasattr(p, mark) for p in model.parameters() for mark in marks):
        raise UnsupportedModelError(
            f"{type(model).__name__}: its weights are cut into shards (FSDP, tensor parallelism or ZeRO-3), so no "
            "process can score it alone. Score saved checkpoints with possym.profile instead"
        )
    inner = next((m.base_model for m in model.modules() if isinstance(m, PreTrainedModel)), model)
    return getattr(inner, "_orig_mod", inner)


@contextmanager
def scoring(model: nn.Module) -> Iterator[None]:
    """Run a model on the side of its training: random numbers are put back, autocast and compiled code are left out.

    >>> model = nn.Linear(2, 2)
    >>> before = torch.get_rng_state()
    >>> with scoring(model):
    ...     _ = torch.rand(3)
    >>> bool((torch.get_rng_state() == before).all())
    True
    """
    devices = {p.device for p in model.parameters()}
    with ExitStack() as stack:
        cards = [device.index for device in devices if device.type == "cuda"]
        stack.enter_context(torch.random.fork_rng(devices=cards))
        for kind in {device.type for device in devices}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled, and loading it takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


def read_steps(steps: Sequence[int]) -> list[int]:
    """Return numbers of updates, or raise an InputError.

    >>> read_steps(range(0, 30, 10))
    [0, 10, 20]
    """
    require_type(steps, (list, tuple, range), "steps")
    if steps[2**24 :]:  # len() knows no more than 2**63
        raise InputError(f"steps = {steps!r:.80}: give at most {2**24:,}")
    for step in steps:
        require_type(step, int, "a step of steps")
    if not len(steps) or list(steps) != sorted(set(steps)) or steps[0] < 0:
        raise InputError(f"steps = {list(steps)!r:.80}: give one or more ascending whole numbers from 0")
    return list(steps)
