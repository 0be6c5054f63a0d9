"""Ensembles that learn the number, letter and other tasks: what the studies on trained models share.

- `EnsembleConfig`: how members are built, fed and trained; a study's own Config adds to it;
- `train`: one task's members, with evaluations on the way, side by side on all visible GPUs;
- `trained`: the same members at the end, or each at its best validation, from the cache if they have been trained on
  this machine before.

Members are seeded ``seed``, ``seed`` + 1, …, in weights, data and dropout.
"""

import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from filelock import FileLock
from torch import Tensor

from possym import ensembles
from possym.ensembles.checkpoints import Training, is_finished, merge_checkpoints
from possym.ensembles.ensemble import Ensemble, Sizes
from possym.ensembles.gptj import GPTJEnsemble
from possym.ensembles.llama import LlamaEnsemble
from possym.ensembles.schedule import TrainingConfig
from possym.ensembles.streams import generator
from possym.ensembles.token_table import TokenTable
from possym.ensembles.training import Trainer, training_dtype
from possym.errors import ConfigError, InputError, ResultsError
from possym.results import ExperimentConfig, cache_root, writing
from possym.results.devices import devices_of, side_by_side
from possym.tasks import Batch, LetterTask, MixedTask, NumberTask
from possym.tasks.positions import answers_by_position

TASKS = {
    "number": NumberTask,
    "letter": LetterTask,
    "letter_any": partial(LetterTask, off_path="any"),
    "mixed": MixedTask,
}
ARCHITECTURES = {"gptj": GPTJEnsemble, "llama": LlamaEnsemble}
SUPERVISED = ("last", "every")
CHECKPOINTS = ("last", "best")
VALIDATIONS = 27  # of a training, evenly spaced: every 250 updates of the paper's 6,750
VALIDATED = 180  # training sequences for each validation sequence: 90 % and 0.5 % of all, as in the paper
VARIED = ("architecture", "supervise", "hop_shares")
MEMORY = 2 * 2**30
Evaluation = Callable[[Sequence[int], torch.device], Callable[[Ensemble, int], dict[str, Tensor]]]
# Of a smoke preset: two small members that learn paths of one and two hops within seconds.
SMOKE = {
    "members": 2,
    "layers": 2,
    "width": 48,
    "dropout": 0.0,
    "hops": (1, 2),
    "training_sequences": 25_600,
    "steps": 400,
    "learning_rate": 3e-3,
    "warmup": 40,
}


@dataclass(frozen=True, kw_only=True)
class EnsembleConfig(ExperimentConfig):
    """How members are built, fed and trained; the defaults are the papers' setting where they state one.

    Sequences are counted per member; each is read once. A study that varies how members are built (`architecture`),
    which positions are graded in training (`supervise`: the last, or every position that has an answer) or how often
    each number of hops is among its training sequences (`hop_shares`, () for equally) makes these fields of its own.

    Raises:
        ConfigError: an unknown task, hops outside 1 to 4, or sizes that cannot be trained.

    Source: 2605.31558, appendices B and C.2.
    """

    tasks: tuple[str, ...] = ("number", "letter")
    members: int = 32
    layers: int = 12
    heads: int = 1
    width: int = 128
    dropout: float = 0.1
    hops: tuple[int, ...] = (1, 2, 3, 4)
    training_sequences: int = 432_000
    steps: int = 6_750
    batch: int = 64
    learning_rate: float = 1e-4
    warmup: int = 750

    architecture: ClassVar[str] = "gptj"
    supervise: ClassVar[str] = "last"
    hop_shares: ClassVar[tuple[float, ...]] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot run, before it runs."""
        super().__post_init__()
        self.each_once("tasks", known=TASKS)
        self.each_once("hops", known=(1, 2, 3, 4))
        self.ascending(1, "hops")
        if self.architecture not in ARCHITECTURES:
            raise ConfigError(f"architecture = {self.architecture!r}: known are {', '.join(ARCHITECTURES)}")
        if self.supervise not in SUPERVISED:
            raise ConfigError(f"supervise = {self.supervise!r}: known are {', '.join(SUPERVISED)}")
        if self.hop_shares and (
            len(self.hop_shares) != len(self.hops) or min(self.hop_shares) <= 0 or abs(sum(self.hop_shares) - 1) > 1e-9
        ):
            raise ConfigError(
                f"hop_shares = {self.hop_shares!r}: give one share above 0 for each of {self.hops} hops, 1 together"
            )
        self.each_at_least(1, "members")
        self.model(vocabulary_size=1)
        self.training()
        if self.steps * self.batch > self.training_sequences:
            raise ConfigError(
                f"steps = {self.steps} with batch = {self.batch} need {self.steps * self.batch} training sequences, "
                f"training_sequences = {self.training_sequences}: each is read once"
            )

    def need_sequences(self, *names: str) -> None:
        """Raise a ConfigError unless each of these fields gives every number of hops at least one sequence."""
        for name in names:
            if getattr(self, name) < len(self.hops):
                raise ConfigError(f"{name} = {getattr(self, name)}: give at least one for each of {self.hops} hops")

    def model(self, vocabulary_size: int) -> Sizes:
        """Return the sizes of the models."""
        kind = ARCHITECTURES[self.architecture].Config
        return kind(vocabulary_size, self.layers, self.heads, self.width, dropout=self.dropout)

    def training(self) -> TrainingConfig:
        """Return how they are trained."""
        return TrainingConfig(self.steps, self.batch, self.learning_rate, warmup=self.warmup)

    def validation_steps(self) -> list[int]:
        """Return the updates after which members are validated to find each one's best weights."""
        return sorted({round(self.steps * (k + 1) / VALIDATIONS) for k in range(VALIDATIONS)} - {0})

    def seeds(self) -> list[int]:
        """Return the members' seeds."""
        return list(range(self.seed, self.seed + self.members))


def train(
    name: str,
    config: EnsembleConfig,
    device: torch.device,
    checkpoints: Path,
    *,
    evaluation: Evaluation | None = None,
    evaluate_at: Sequence[int] = (),
    devices: Sequence[torch.device] | None = None,
) -> tuple[Ensemble, Training]:
    """Train one task's members, in equal groups side by side on several devices; return them and what happened.

    Their weights at the end and at the best validation are left in the cache, where `trained` finds them. Each group
    has a checkpoint of its own. A group that was begun is finished as it was begun, on however many devices.

    Args:
        name: of the task.
        config: how.
        device: where the members come back to.
        checkpoints: a folder for this training alone; made if missing.
        evaluation: given the seeds of a group and its device, returns ``evaluate`` of
        `possym.ensembles.training.Trainer`, whose
            tensors have the members first; a function of a module, or a partial of one.
        evaluate_at: see `possym.ensembles.training.Trainer`.
        devices: where to train; None is all that ``device`` stands for, see `possym.results.devices.devices_of`.

    Raises:
        DeviceError: a process on one of several devices failed.
        ResultsError: a checkpoint is damaged, belongs to another run, or has members that another has too.
    """
    task = task_named(name)
    devices = devices_of(device) if devices is None else devices
    if not devices:
        raise InputError(f"devices = {devices!r}: give at least one device, or a device that is here")
    with writing(checkpoints):
        checkpoints.mkdir(parents=True, exist_ok=True)
    parts = groups(checkpoints, config.members, len(devices))
    files = {group: checkpoints / f"{group.start}-{group.stop - 1}.safetensors" for group in parts}
    missing = [group for group, file in files.items() if not is_finished(file)]
    side_by_side(partial(train_group, name, config, files, evaluation, list(evaluate_at)), missing, devices)
    last, best, training = merge_checkpoints(list(files.values()))
    kind, sizes = ARCHITECTURES[config.architecture], config.model(len(task.vocabulary))
    for checkpoint, weights in (("best", best), ("last", last)):
        model = kind.from_weights(sizes, weights)
        cache_model(model, cache_path(name, config, device, checkpoint))
    return model.to(device), training


def groups(checkpoints: Path, members: int, count: int) -> list[range]:
    """Return the groups that members train in: those that have a checkpoint, and the others in equal parts.

    Args:
        checkpoints: folder of files first-last.safetensors.
        members: E, their number.
        count: into how many parts at most, one a device.

    Raises:
        ResultsError: two checkpoints have the same member.
    """
    bounds = [re.fullmatch(r"(\d+)-(\d+)", file.stem, re.ASCII) for file in checkpoints.glob("*.safetensors")]
    found = [range(int(named[1]), int(named[2]) + 1) for named in bounds if named]
    begun = {member for group in found for member in group}
    rest = [member for member in range(members) if member not in begun]
    share = -(-len(rest) // count)
    while rest:
        row = next((n for n, member in enumerate(rest) if member != rest[0] + n), len(rest))  # members in a row
        size = -(-row // -(-row // share))
        found.append(range(rest[0], rest[0] + size))
        rest = rest[size:]
    found.sort(key=lambda group: group.start)
    if [member for group in found for member in group] != list(range(members)):
        raise ResultsError(f"{checkpoints}: its checkpoints overlap, delete it to start from the beginning")
    return found


def train_group(
    name: str,
    config: EnsembleConfig,
    files: dict[range, Path],
    evaluation: Evaluation | None,
    evaluate_at: list[int],
    group: range,
    device: torch.device,
) -> None:
    """Train one group of a task's members on one device, and leave them in the group's checkpoint."""
    task = task_named(name)
    seeds = config.seeds()[group.start : group.stop]
    tokens, answers = zip(*(sequences(task, config, generator(s, "data", device)) for s in seeds), strict=True)
    source = TokenTable(torch.stack(tokens), torch.stack(answers), config.batch)
    del tokens, answers
    (held,) = held_out(name, config, device, validation_count(config), seeds=seeds)
    some = f"members {group.start} to {group.stop - 1} of " if len(group) < config.members else ""
    Trainer(
        ARCHITECTURES[config.architecture](config.model(len(task.vocabulary)), seeds).to(device),
        source,
        config.training(),
        seeds,
        evaluate=evaluation and evaluation(seeds, device),
        evaluate_at=evaluate_at,
        validate=lambda model: accuracy_by_hops(model, held, (), training_dtype(device))["accuracy"][:, 0],
        validate_at=config.validation_steps(),
        checkpoint=files[group],
        description=f"{name} task, {some}{config.members} members",
    ).run()


def validation_count(config: EnsembleConfig) -> int:
    """Return how many sequences each member is validated on."""
    return max(config.training_sequences // VALIDATED, len(config.hops))


def sequences(
    task: NumberTask | LetterTask | MixedTask, config: EnsembleConfig, source: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return what one member reads in training: tokens (N, T), and answers (N,) or, for every position, (N, T)."""
    batch = draw(task, config.training_sequences, config.hops, source, config.hop_shares)
    if config.supervise == "last":
        return batch.tokens, batch.answer
    return batch.tokens, answers_by_position(task, batch.tokens).to(torch.int16)


def trained(name: str, config: EnsembleConfig, device: torch.device, checkpoint: str = "last") -> Ensemble:
    """Return one task's members, from the cache or trained now, on ``device``.

    An ensemble is found again by its settings, its seeds, the kind of device and the code that made it.

    Args:
        name: of the task.
        config: how they are trained.
        device: where they come to.
        checkpoint: ``"last"`` is the end of the training, ``"best"`` each member where its validation accuracy was
            first highest, see `EnsembleConfig.validation_steps`.

    Raises:
        InputError: there is no such task.
    """
    last, path = (cache_path(name, config, device, each) for each in ("last", checkpoint))
    last.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(last.with_suffix(".lock")):
        if not path.exists():
            training = last.with_suffix(".training")
            model, _ = train(name, config, device, training)
            shutil.rmtree(training, ignore_errors=True)
            if checkpoint == "last":
                return model
        return ARCHITECTURES[config.architecture].load(path).to(device)


def cache_model(model: Ensemble, path: Path) -> None:
    """Put trained members into the cache."""
    path.parent.mkdir(parents=True, exist_ok=True)
    model.save(path)


def cache_path(name: str, config: EnsembleConfig, device: torch.device, checkpoint: str = "last") -> Path:
    """Return the cache's file for one task's members: by checkpoint, setting, kind of device and code."""
    fields = [*(field.name for field in dataclasses.fields(EnsembleConfig)), *VARIED]
    settings = {field: getattr(config, field) for field in fields if field not in ("preset", "device", "tasks")}
    told = json.dumps({"task": name, "device": device.type, **settings}, sort_keys=True)
    package = Path(ensembles.__file__).parents[1]
    files = [package / "rope.py", package / "experiments/trained.py"]
    files += [file for room in ("kernels", "ensembles", "tasks") for file in sorted((package / room).glob("*.py"))]
    code = b"".join(file.read_bytes() for file in files)
    digest = hashlib.sha256(told.encode() + code).hexdigest()[:16]
    return cache_root() / "ensembles" / f"{name}-{digest}{'' if checkpoint == 'last' else '-best'}.safetensors"


def task_named(name: str) -> NumberTask | LetterTask | MixedTask:
    """Return a task by its name.

    Raises:
        InputError: there is no such task.
    """
    if not isinstance(name, str) or name not in TASKS:
        raise InputError(f"task = {name!r}: known tasks are {', '.join(TASKS)}")
    return TASKS[name]()


def held_out(
    name: str, config: EnsembleConfig, device: torch.device, *counts: int, seeds: Sequence[int] | None = None
) -> list[Batch]:
    """Return each member's own held-out sets of these sizes, (E, count, …), none of them read in training.

    ``seeds`` are those of the members asked for; None is all.
    """
    task = task_named(name)
    # Far from the seeds of what members share, such as the sequences that all their heads are scored on.
    own = config.seeds() if seeds is None else seeds
    sources = [generator(10**6 + seed, "held-out", device) for seed in own]
    return [stack([draw(task, count, config.hops, source) for source in sources]) for count in counts]


def draw(
    task: NumberTask | LetterTask | MixedTask,
    count: int,
    hops: Sequence[int],
    source: torch.Generator,
    shares: Sequence[float] = (),
) -> Batch:
    """Draw sequences with these hops in these shares, shuffled.

    No shares given means equal ones (counts differ by at most one); given ones are rounded so that counts add up.
    """
    counts = [count // len(hops) + (index < count % len(hops)) for index in range(len(hops))]
    if shares:
        ends = [0, *(round(count * sum(shares[: index + 1])) for index in range(len(shares)))]
        counts = [end - start for start, end in pairwise(ends)]
    parts = [task.sample(part, hops=h, generator=source) for part, h in zip(counts, hops, strict=True) if part]
    order = torch.randperm(count, generator=source, device=source.device)
    return Batch(*(torch.cat([getattr(part, field) for part in parts])[order] for field in Batch._fields))


def stack(batches: Sequence[Batch]) -> Batch:
    """Put the members' batches behind one leading axis."""
    return Batch(*(torch.stack(tensors) for tensors in zip(*batches, strict=True)))


def memory_chunks(tokens: Tensor, bytes_each: int) -> Iterator[slice]:
    """Yield slices over the sequences that keep what each takes within `MEMORY`, or a quarter of the GPU's."""
    memory = torch.cuda.get_device_properties(tokens.device).total_memory // 4 if tokens.is_cuda else MEMORY
    step = max(1, memory // bytes_each)
    count = tokens.shape[-2]
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def accuracy_by_hops(
    model: Ensemble, batch: Batch, hops: Sequence[int], dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Return ``accuracy`` and ``loss`` (E, 1 + hops): all together first, then each number of hops.

    Args:
        model: the ensemble.
        batch: its fields with a leading member axis, (E, N, …).
        hops: which to tell apart.
        dtype: of the products with weights, such as that of the training (`training_dtype`).
    """
    length = batch.tokens.shape[-1]
    bytes_each = 4 * model.members * length * (40 * model.config.width + 4 * model.config.heads * length)
    losses, correct = [], []
    for rows in memory_chunks(batch.tokens, bytes_each):
        with torch.no_grad():
            logits = model(batch.tokens[:, rows], dtype=dtype)
        answer = batch.answer[:, rows]
        losses.append(F.cross_entropy(logits.flatten(0, 1), answer.flatten(), reduction="none").view_as(answer))
        correct.append((logits.argmax(-1) == answer).float())
    chosen = torch.stack([torch.ones_like(batch.hops, dtype=torch.bool), *(batch.hops == h for h in hops)], 1)
    chosen = chosen.double()  # (E, 1 + hops, N); in float32 a mean of 45,600 ones falls short of 1
    count = chosen.sum(-1)
    return {
        name: (chosen @ torch.cat(values, 1).double().unsqueeze(-1)).squeeze(-1) / count
        for name, values in (("accuracy", correct), ("loss", losses))
    }
