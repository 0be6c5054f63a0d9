"""One trainer for every ensemble: all members take a step together, none feels the others.

What it does:
- AdamW, linear warm-up and linear decay, gradients clipped member by member, cross-entropy at the last place, or at
  every place that has an answer;
- on CUDA the whole step (forward, backward, clipping, update) is one CUDA graph; on the CPU it runs as it is;
- dropout keys come from one generator a member, so a member's run depends on its seed and not on E;
- evaluation on a schedule by a function that the study gives; what it returns is kept and checkpointed;
- a checkpoint is one safetensors file replaced in one step. It holds weights, optimiser, losses and
  evaluations, so an interrupted run ends with the same numbers, bit for bit, on the same device.

An ensemble fits if every parameter has the member axis first, `model(tokens, dropout_keys=..., dtype=...)`
returns the last place's logits (E, B, V), with `all_places=True` those of all places (E, B, T, V) if these are to be
learnt, and it has `members` and `dropout`, as `possym.ensembles.gptj.GPTJEnsemble` has.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm.auto import tqdm

from possym.ensembles import adamw
from possym.ensembles.dropout import keys_by_step
from possym.errors import ConfigError, InputError, ResultsError, require_type, to_int
from possym.results import atomic_write
from possym.results.config import SEEDS

STREAMS = ("weights", "data", "dropout", "held-out")
RESTART = "delete it to start from the beginning"


def generator(seed: int, stream: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a fresh generator for one purpose of one seed, so that purposes never share random numbers.

    Raises:
        InputError: unknown purpose, or a seed that is no whole number from 0.

    >>> generator(3, "data").initial_seed()
    13
    """
    if not isinstance(stream, str) or stream not in STREAMS:
        raise InputError(f"stream = {stream!r}: known streams are {', '.join(STREAMS)}")
    number = to_int(seed)
    if number is None or not 0 <= number < SEEDS:
        raise InputError(
            f"seed = {seed!r}: give a whole number from 0 to below 2**30: torch's CPU generator tells no more apart"
        )
    try:
        fresh = torch.Generator(device)
    except (RuntimeError, TypeError):
        raise InputError(f"device = {device!r}: give a device that is here, such as 'cpu' or 'cuda'") from None
    return fresh.manual_seed(len(STREAMS) * number + STREAMS.index(stream))


@dataclass(frozen=True)
class TrainingConfig:
    """How to train: `steps` updates of `batch` sequences a member.

    Raises:
        ConfigError: a value of the wrong type or out of range.

    Source of the defaults: 2605.31558 does not state its optimiser; these are this project's.

    >>> TrainingConfig(steps=6750, batch=64).warmup
    750
    """

    steps: int
    batch: int
    learning_rate: float = 1e-4
    betas: tuple[float, float] = (0.95, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 1e-4
    clip: float = 1.0
    warmup: int = 750

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        for name, low in (("steps", 1), ("batch", 1), ("warmup", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ConfigError(f"{name} = {value!r}: give a whole number from {low}")
        if self.warmup >= self.steps:
            raise ConfigError(f"warmup = {self.warmup} leaves nothing of {self.steps} steps: give fewer")
        for name, zero in (("learning_rate", False), ("epsilon", False), ("clip", False), ("weight_decay", True)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ConfigError(f"{name} = {value!r}: give a finite number from 0")
            if value == 0 and not zero:
                raise ConfigError(f"{name} = {value!r}: give a number above 0")
        pair = self.betas
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(b, float) and 0 <= b < 1 for b in pair):
            raise ConfigError(f"betas = {pair!r}: give a pair of numbers from 0 to below 1")


def learning_rates(config: TrainingConfig) -> Tensor:
    """Return the learning rate of every update (steps,): linear from 0 over the warm-up, then linear to 0.

    >>> learning_rates(TrainingConfig(steps=4, batch=1, learning_rate=1.0, warmup=2))
    tensor([0.0000, 0.5000, 1.0000, 0.5000])
    """
    require_type(config, TrainingConfig, "config")
    step = torch.arange(config.steps, dtype=torch.float64)
    rising = step / max(config.warmup, 1)
    falling = (config.steps - step) / (config.steps - config.warmup)
    factor = torch.where(step < config.warmup, rising, falling)
    return (config.learning_rate * factor).float()


def evaluation_steps(steps: int, points: int) -> list[int]:
    """Return ``points`` numbers of updates after which to evaluate, denser early; 0 and ``steps`` are among them.

    Half of them are spaced evenly in the logarithm, half evenly; where these coincide the widest gaps are halved.

    Raises:
        ConfigError: fewer than two points, or more than there are steps.

    >>> evaluation_steps(100, 8)
    [0, 1, 5, 22, 25, 50, 75, 100]
    """
    for name, value in (("steps", steps), ("points", points)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{name} = {value!r}: give a whole number")
    if steps < 1 or not 2 <= points <= steps + 1:
        raise ConfigError(f"points = {points}, steps = {steps}: give from 2 points to one more than the steps")
    even = [round(steps * k / (points // 2)) for k in range(points // 2 + 1)]
    count = max(points - len(even), 1)
    logarithmic = [round(steps ** (k / count)) for k in range(count)]
    chosen = sorted({*even, *logarithmic})
    while len(chosen) > points:
        del chosen[-2]
    while len(chosen) < points:
        widest = max(range(len(chosen) - 1), key=lambda k: chosen[k + 1] - chosen[k])
        chosen.insert(widest + 1, (chosen[widest] + chosen[widest + 1]) // 2)
    return chosen


class Source(Protocol):
    """What the trainer reads: the same step always gives the same batch."""

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the tokens (E, B, T) and answers of an update, int64, on the model's device.

        Answers (E, B) are the last place's; (E, B, T) are every place's, −1 where there is none.
        """
        ...


class TokenTable:
    """Each member's own sequences, read once in order: update s reads rows s·B to (s + 1)·B.

    Args:
        tokens: (E, N, T) token ids; kept in int16.
        answers: (E, N) token ids of the last place's answers, or (E, N, T) of every place's, −1 where there is none.
        batch: B, sequences a member an update.

    Raises:
        InputError: shapes that do not fit, or ids beyond int16.
    """

    def __init__(self, tokens: Tensor, answers: Tensor, batch: int):
        """Keep both tensors compact, on their device."""
        for name, ids in (("tokens", tokens), ("answers", answers)):
            require_type(ids, Tensor, name)
            if ids.dtype not in (torch.int64, torch.int32, torch.int16):
                raise InputError(f"{name} is {ids.dtype}: give whole numbers, token ids")
        batch = require_type(batch, int, "batch")
        if tokens.ndim != 3 or answers.shape not in (tokens.shape[:2], tokens.shape):
            shapes = f"tokens {tuple(tokens.shape)}, answers {tuple(answers.shape)}"
            raise InputError(f"{shapes}: expected (E, N, T), and (E, N) or (E, N, T)")
        if tokens.numel() == 0 or not 1 <= batch <= tokens.shape[1]:
            raise InputError(f"tokens {tuple(tokens.shape)}, batch = {batch}: give a batch from 1 to N, and N from 1")
        none = -1 if answers.ndim == 3 else 0
        if tokens.min() < 0 or answers.min() < none or max(tokens.max(), answers.max()) > 32767:
            raise InputError("token ids lie from 0 to 32767, which int16 holds")
        if answers.ndim == 3 and (answers < 0).all(-1).any():
            raise InputError("answers: a sequence has no answer at any place")
        self.tokens, self.answers, self.size = tokens.to(torch.int16), answers.to(torch.int16), batch

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return tokens (E, B, T) and answers (E, B) or (E, B, T) of an update, int64.

        Raises:
            InputError: the sequences are used up.
        """
        step = require_type(step, int, "step")
        rows = slice(step * self.size, (step + 1) * self.size)
        if step < 0 or rows.stop > self.tokens.shape[1]:
            raise InputError(f"update {step} needs {rows.stop} sequences a member, there are {self.tokens.shape[1]}")
        return self.tokens[:, rows].long(), self.answers[:, rows].long()


@dataclass(frozen=True)
class Training:
    """What a run leaves: losses and accuracies of every update (steps, E), evaluations by name (points, …), seconds."""

    losses: Tensor
    accuracies: Tensor
    evaluations: dict[str, Tensor]
    seconds_training: float
    seconds_evaluation: float


class Trainer:
    """Train an ensemble in place; see `possym.ensembles.training`.

    Args:
        model: the ensemble, on its device.
        source: what to read, see `Source`.
        config: how to train.
        seeds: one a member, for the dropout.
        evaluate: called as ``evaluate(model, step)`` after the updates in ``evaluate_at``, gradients off, dropout off;
            returns tensors by name, of the same names and shapes each time.
        evaluate_at: numbers of updates, ascending, from 0 (before the first) to ``config.steps``.
        checkpoint: the file to keep the state in; None keeps none. If it exists, the run goes on from it.
        checkpoint_seconds: how much time may pass between two checkpoints; 0 writes one after every update.
        description: what the progress bar says.

    Raises:
        InputError: seeds or evaluation steps that do not fit.
        ResultsError: the checkpoint is damaged, or belongs to another run.
    """

    def __init__(
        self,
        model: nn.Module,
        source: Source,
        config: TrainingConfig,
        seeds: Sequence[int],
        *,
        evaluate: Callable[[nn.Module, int], dict[str, Tensor]] | None = None,
        evaluate_at: Sequence[int] = (),
        checkpoint: Path | None = None,
        checkpoint_seconds: float = 60.0,
        description: str = "training",
    ):
        """Set the optimiser up, and read the checkpoint if there is one."""
        require_type(config, TrainingConfig, "config")
        require_type(seeds, (list, tuple, range), "seeds")
        require_type(evaluate_at, (list, tuple, range), "evaluate_at")
        require_type(checkpoint, (Path, type(None)), "checkpoint")
        if not hasattr(model, "members"):
            raise InputError(f"model is a {type(model).__name__}: give an ensemble, such as GPTJEnsemble")
        if evaluate is not None and not callable(evaluate):
            raise InputError(f"evaluate is a {type(evaluate).__name__}: give a function of model and step, or None")
        seeds, evaluate_at = list(seeds), [require_type(step, int, "a step of evaluate_at") for step in evaluate_at]
        if len(seeds) != model.members:
            raise InputError(f"{len(seeds)} seeds for {model.members} members: give one a member")
        if evaluate_at != sorted(set(evaluate_at)) or (
            evaluate_at and not 0 <= evaluate_at[0] <= evaluate_at[-1] <= config.steps
        ):
            raise InputError(f"evaluate_at = {evaluate_at}: give ascending numbers from 0 to {config.steps}")
        self.model, self.source, self.config = model, source, config
        self.evaluate, self.evaluate_at = evaluate, evaluate_at if evaluate else []
        self.checkpoint, self.checkpoint_seconds = checkpoint, checkpoint_seconds
        self.description = description
        self.device = next(model.parameters()).device
        self.dtype = training_dtype(self.device)
        self.parameters = dict(model.named_parameters())
        self.keys = keys_by_step([generator(seed, "dropout") for seed in seeds], config.steps).to(self.device)
        self.identity = json.dumps(
            {
                "training": dataclasses.asdict(config),
                "seeds": seeds,
                "evaluate_at": self.evaluate_at,
                "shapes": {name: list(p.shape) for name, p in self.parameters.items()},
                "device": self.device.type,
            },
            sort_keys=True,
        )
        self.step = 0
        self.losses = torch.zeros(config.steps, model.members, device=self.device)
        self.accuracies = torch.zeros_like(self.losses)
        self.evaluations: dict[str, list[Tensor]] = {}
        self.seconds = {"training": 0.0, "evaluation": 0.0}

        self.rates = learning_rates(config).to(self.device)
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(),
            lr=torch.zeros((), device=self.device),
            betas=config.betas,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            fused=True,
            capturable=self.device.type == "cuda",
        )
        for parameter in self.parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        self._forget_update()
        if checkpoint is not None and checkpoint.exists():
            self._read_checkpoint()

    @property
    def rate(self) -> Tensor:
        """The learning rate as the tensor that the optimiser, and a captured graph, reads."""
        return self.optimizer.param_groups[0]["lr"]

    def run(self) -> Training:
        """Train to the end, from the start or from the checkpoint, and return what happened."""
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            return self._run()

    def _run(self) -> Training:
        tokens, answers = self.source.batch(min(self.step, self.config.steps - 1))
        self.tokens, self.answers = tokens.clone(), answers.clone()
        self.dropout_keys = self.keys[0].clone() if self.model.dropout else None
        replay = self._capture() if self.device.type == "cuda" else self._update
        clock, saved = time.perf_counter(), time.monotonic()
        with tqdm(total=self.config.steps, initial=self.step, desc=self.description, mininterval=1.0) as bar:
            while True:
                if self.step in self.evaluate_at[len(next(iter(self.evaluations.values()), [])) :]:
                    clock = self._lap("training", clock)
                    self._evaluate()
                    clock = self._lap("evaluation", clock)
                due = self.step == self.config.steps or time.monotonic() - saved >= self.checkpoint_seconds
                if self.checkpoint is not None and due:
                    clock = self._lap("training", clock)
                    self._write_checkpoint()
                    clock, saved = time.perf_counter(), time.monotonic()
                if self.step == self.config.steps:
                    break
                self._load_batch()
                replay()
                self.losses[self.step].copy_(self.loss)
                self.accuracies[self.step].copy_(self.accuracy)
                self.step += 1
                if bar.update():
                    recent = slice(max(self.step - 20, 0), self.step)
                    loss, accuracy = self.losses[recent].mean(), self.accuracies[recent].mean()
                    bar.set_postfix(loss=f"{loss:.3f}", accuracy=f"{accuracy:.3f}", refresh=False)
        self._lap("training", clock)
        return Training(
            self.losses.cpu(),
            self.accuracies.cpu(),
            {name: torch.stack(values) for name, values in self.evaluations.items()},
            self.seconds["training"],
            self.seconds["evaluation"],
        )

    def _load_batch(self) -> None:
        tokens, answers = self.source.batch(self.step)
        self.tokens.copy_(tokens)
        self.answers.copy_(answers)
        self.rate.copy_(self.rates[self.step])
        if self.dropout_keys is not None:
            self.dropout_keys.copy_(self.keys[self.step])

    def _update(self) -> None:
        """Take one step on the tokens, answers, dropout keys and rate at hand; leave loss and accuracy (E,)."""
        places = {"all_places": True} if self.answers.ndim == 3 else {}
        logits = self.model(self.tokens, dropout_keys=self.dropout_keys, dtype=self.dtype, **places)
        losses = F.cross_entropy(logits.flatten(0, -2), self.answers.flatten(), reduction="none", ignore_index=-1)
        loss = losses.view(len(self.answers), -1).sum(1) / (self.answers >= 0).flatten(1).sum(1)
        gradients = torch.autograd.grad(loss.sum(), list(self.parameters.values()))
        factor = clip_factor(gradients, self.config.clip)
        adamw.update(self.optimizer, gradients, factor)
        self.loss = loss.detach()
        right = logits.detach().argmax(-1) == self.answers
        self.accuracy = (right[..., -1] if places else right).float().mean(1)

    def _capture(self) -> Callable[[], None]:
        """Capture the step as a CUDA graph. The learning rate is 0 meanwhile, so that the weights stay."""
        state = [tensor.clone() for tensor in self._optimizer_tensors().values()]
        self.rate.zero_()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        # Float32 products take TF32 in training; scores and accuracies are measured without it.
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            # torch counts the sizes it compiles in a process, and past a limit of 8 runs uncompiled and goes on.
            with torch._dynamo.config.patch(recompile_limit=256), torch.cuda.stream(side):
                for _ in range(3):
                    self._update()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._update()
        finally:
            torch.set_float32_matmul_precision(precision)
        for tensor, before in zip(self._optimizer_tensors().values(), state, strict=True):
            tensor.copy_(before)
        return graph.replay

    def _forget_update(self) -> None:
        """Make the optimiser set up its state, by an update of rate 0 and gradient 0, and empty it again."""
        self.rate.zero_()
        self.optimizer.step()
        for tensor in self._optimizer_tensors().values():
            tensor.zero_()

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        return {
            f"optimizer.{name}.{key}": tensor
            for name, parameter in self.parameters.items()
            for key, tensor in self.optimizer.state[parameter].items()
        }

    def _evaluate(self) -> None:
        with torch.no_grad():
            values = self.evaluate(self.model, self.step)
        if self.evaluations and values.keys() != self.evaluations.keys():
            raise InputError(f"evaluate() returned {sorted(values)}, before {sorted(self.evaluations)}")
        for name, value in values.items():
            self.evaluations.setdefault(name, []).append(value.detach().to("cpu", copy=True))

    def _lap(self, kind: str, clock: float) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds[kind] += now - clock
        return now

    def _write_checkpoint(self) -> None:
        tensors = {f"parameter.{name}": parameter.detach() for name, parameter in self.parameters.items()}
        tensors |= self._optimizer_tensors()
        tensors |= {"losses": self.losses, "accuracies": self.accuracies}
        tensors |= {f"evaluation.{name}": torch.stack(values) for name, values in self.evaluations.items()}
        progress = {"step": self.step, "seconds": self.seconds}
        with atomic_write(self.checkpoint) as path:
            save_file(
                {name: tensor.cpu().contiguous() for name, tensor in tensors.items()},
                path,
                metadata={"identity": self.identity, "progress": json.dumps(progress)},
            )

    def _read_checkpoint(self) -> None:
        with reading(self.checkpoint) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            progress = json.loads(metadata["progress"])
            if metadata["identity"] != self.identity:
                stored, ours = json.loads(metadata["identity"]), json.loads(self.identity)
                differing = ", ".join(key for key in ours if stored.get(key) != ours[key])
                raise ResultsError(f"{self.checkpoint} belongs to another run ({differing} differ): {RESTART}")
            for name, parameter in self.parameters.items():
                parameter.data.copy_(tensors[f"parameter.{name}"])
            for name, tensor in self._optimizer_tensors().items():
                tensor.copy_(tensors[name])
            self.losses.copy_(tensors["losses"])
            self.accuracies.copy_(tensors["accuracies"])
            self.step, self.seconds = progress["step"], progress["seconds"]
        self.evaluations = {name: list(tensor.unbind()) for name, tensor in of_kind("evaluation", tensors).items()}


@contextmanager
def reading(checkpoint: Path) -> Iterator[safe_open]:
    """Open a checkpoint; what cannot be read of it becomes a ResultsError."""
    try:
        with safe_open(checkpoint, "pt") as file:
            yield file
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ResultsError(f"{checkpoint} cannot be read ({error}): {RESTART}") from None


def of_kind(kind: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint whose names start with a kind, by the rest of their names."""
    return {name.removeprefix(f"{kind}."): tensor for name, tensor in tensors.items() if name.startswith(f"{kind}.")}


def is_finished(checkpoint: Path) -> bool:
    """Return whether a checkpoint is there and its training has come to the end.

    Raises:
        ResultsError: the checkpoint is damaged.
    """
    if not checkpoint.exists():
        return False
    with reading(checkpoint) as file:
        metadata = file.metadata()
        return json.loads(metadata["progress"])["step"] == json.loads(metadata["identity"])["training"]["steps"]


def joined(checkpoints: Sequence[Path]) -> tuple[dict[str, Tensor], Training]:
    """Return the weights and the training of the members of several checkpoints as if they had trained together.

    The seconds are those of the slowest.

    Args:
        checkpoints: of finished trainings, whose evaluations return tensors with the members first.

    Raises:
        ResultsError: a checkpoint is missing or damaged.
    """
    parts: dict[str, list[Tensor]] = {}
    seconds = []
    for checkpoint in checkpoints:
        with reading(checkpoint) as file:
            for name in file.keys():
                if not name.startswith("optimizer."):
                    parts.setdefault(name, []).append(file.get_tensor(name))
            seconds.append(json.loads(file.metadata()["progress"])["seconds"])
    tensors = {name: torch.cat(tensors, 0 if name.startswith("parameter.") else 1) for name, tensors in parts.items()}
    training = Training(
        tensors["losses"],
        tensors["accuracies"],
        of_kind("evaluation", tensors),
        max(each["training"] for each in seconds),
        max(each["evaluation"] for each in seconds),
    )
    return of_kind("parameter", tensors), training


def training_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of products with weights in training: bfloat16 on a GPU, float32 elsewhere.

    >>> training_dtype(torch.device("cpu"))
    torch.float32
    """
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def clip_factor(gradients: Sequence[Tensor], limit: float) -> Tensor:
    """Return for each member what its gradients (E, …) are multiplied by so that their joint norm is at most ``limit``.

    >>> clip_factor([torch.tensor([[3.0], [0.3]]), torch.tensor([[4.0], [0.4]])], 1.0)
    tensor([0.2000, 1.0000])
    """
    limit = require_type(limit, (int, float), "limit")
    return (limit / (adamw.norms(gradients) + 1e-6)).clamp(max=1.0)
