"""One trainer for all ensembles: the members take each step together, and none affects another.

It provides:
- AdamW, linear warm-up and linear decay, gradients clipped member by member, cross-entropy at the last position, or at
  every position that has an answer;
- on CUDA the whole step (forward, backward, clipping, update) is one CUDA graph; on the CPU it runs as it is;
- dropout keys from one generator per member, so a member's run depends on its seed and not on E;
- evaluation on a schedule by the study's own function, whose results are kept and checkpointed;
- validation on a schedule of its own: each member's weights at its best validation are kept beside the last ones;
- a checkpoint is one safetensors file replaced in one step. It holds weights, optimiser, losses, evaluations and best
  weights, so an interrupted run ends with the same numbers, bit for bit, on the same device.

An ensemble fits if every parameter has the member axis first, `model(tokens, dropout_keys=..., dtype=...)` returns the
last position's logits (E, B, V), with `all_positions=True` those of all positions (E, B, T, V) if these are to be
learnt, and it has `members` and `dropout`, as `possym.ensembles.gptj.GPTJEnsemble` has.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from possym.ensembles import adamw
from possym.ensembles.branches import branch
from possym.ensembles.checkpoints import RESTART, Training, of_kind, reading
from possym.ensembles.dropout import keys_by_step
from possym.ensembles.schedule import TrainingConfig, learning_rates
from possym.ensembles.streams import generator
from possym.ensembles.token_table import Source
from possym.errors import ResultsError
from possym.results import atomic_write
from possym.results.progress import tqdm


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
        validate: called as ``validate(model)``, returns accuracies (E,); each member's weights at its first highest one
            are kept in ``best``.
        validate_at: as ``evaluate_at``.
        checkpoint: the file to keep the state in; None keeps none. If it exists, the run goes on from it.
        checkpoint_seconds: how much time may pass between two checkpoints; 0 writes one after every update.
        description: what the progress bar says.

    Raises:
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
        validate: Callable[[nn.Module], Tensor] | None = None,
        validate_at: Sequence[int] = (),
        checkpoint: Path | None = None,
        checkpoint_seconds: float = 60.0,
        description: str = "training",
    ):
        """Set the optimiser up, and read the checkpoint if there is one."""
        seeds = list(seeds)
        self.model, self.source, self.config = model, source, config
        self.evaluate, self.evaluate_at = evaluate, list(evaluate_at) if evaluate else []
        self.validate, self.validate_at = validate, list(validate_at) if validate else []
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
                "validate_at": self.validate_at,
                "shapes": {name: list(p.shape) for name, p in self.parameters.items()},
                "device": self.device.type,
            },
            sort_keys=True,
        )
        self.step = 0
        self.losses = torch.zeros(config.steps, model.members, device=self.device)
        self.accuracies = torch.zeros_like(self.losses)
        self.evaluations: dict[str, list[Tensor]] = {}
        self.validations: list[Tensor] = []
        self.best = {name: torch.zeros_like(p) for name, p in self.parameters.items()} if self.validate_at else {}
        self.best_accuracy = torch.full((model.members,), -1.0, device=self.device)
        self.best_steps = torch.full((model.members,), -1)
        self.seconds = {"training": 0.0, "evaluation": 0.0}

        self.rates = learning_rates(config).to(self.device)
        self.optimizer = adamw.AdamW(
            self.parameters.values(), betas=config.betas, eps=config.epsilon, weight_decay=config.weight_decay
        )
        if checkpoint is not None and checkpoint.exists():
            self._read_checkpoint()

    def run(self) -> Training:
        """Train to the end, from the start or from the checkpoint, and return the results."""
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
                if self.step in self.validate_at[len(self.validations) :]:
                    clock = self._lap("training", clock)
                    self._validate()
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
            self._validated(),
            self.best_steps,
            self.seconds["training"],
            self.seconds["evaluation"],
        )

    def _load_batch(self) -> None:
        tokens, answers = self.source.batch(self.step)
        self.tokens.copy_(tokens)
        self.answers.copy_(answers)
        self.optimizer.rate.copy_(self.rates[self.step])
        if self.dropout_keys is not None:
            self.dropout_keys.copy_(self.keys[self.step])

    def _update(self) -> None:
        """Take one step on the tokens, answers, dropout keys and rate at hand; leave loss and accuracy (E,)."""
        beside = branch(self.device, 2)
        with beside.forked():
            answered = (self.answers >= 0).flatten(1).sum(1)
            share = (1 / answered)[:, None]  # of an answer in its member's loss
            counted = beside.asked()
        positions = {"all_positions": True} if self.answers.ndim == 3 else {}
        logits = self.model(self.tokens, dropout_keys=self.dropout_keys, dtype=self.dtype, **positions)
        losses = F.cross_entropy(logits.flatten(0, -2), self.answers.flatten(), reduction="none", ignore_index=-1)
        beside.join(counted)
        losses = losses.view(len(self.answers), -1)
        with torch.no_grad(), beside.forked():  # no gradient waits for what is reported
            self.loss = losses.sum(1) / answered
            right = logits.argmax(-1) == self.answers
            self.accuracy = (right[..., -1] if positions else right).float().mean(1)
            reported = beside.asked()
        gradients = torch.autograd.grad(losses, list(self.parameters.values()), share.expand_as(losses))
        adamw.update(self.optimizer, gradients, self.config.clip)
        beside.join(reported)

    def _capture(self) -> Callable[[], None]:
        """Capture the step as a CUDA graph. The learning rate is 0 meanwhile, so that the weights stay."""
        state = [tensor.clone() for tensor in self._optimizer_tensors().values()]
        self.optimizer.rate.zero_()
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

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        return {
            f"optimizer.{name}.{key}": tensor
            for name, state in zip(self.parameters, self.optimizer.state, strict=True)
            for key, tensor in state.items()
        }

    def _evaluate(self) -> None:
        with torch.no_grad():
            values = self.evaluate(self.model, self.step)
        for name, value in values.items():
            self.evaluations.setdefault(name, []).append(value.detach().to("cpu", copy=True))

    def _validate(self) -> None:
        """Keep the weights of members that have never been better."""
        with torch.no_grad():
            accuracy = self.validate(self.model).to(self.device, torch.float32)
            better = accuracy > self.best_accuracy
            for name, best in self.best.items():
                best.copy_(torch.where(better.view(-1, *[1] * (best.ndim - 1)), self.parameters[name], best))
            self.best_accuracy = torch.where(better, accuracy, self.best_accuracy)
        self.best_steps[better.cpu()] = self.step
        self.validations.append(accuracy.cpu())

    def _validated(self) -> Tensor:
        return torch.stack(self.validations) if self.validations else torch.zeros(0, self.model.members)

    def _lap(self, kind: str, clock: float) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds[kind] += now - clock
        return now

    def _write_checkpoint(self) -> None:
        tensors = {f"parameter.{name}": parameter.detach() for name, parameter in self.parameters.items()}
        tensors |= self._optimizer_tensors() | {f"best.{name}": best for name, best in self.best.items()}
        tensors |= {"losses": self.losses, "accuracies": self.accuracies}
        tensors |= {"validations": self._validated(), "best_steps": self.best_steps}
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
            for name, best in self.best.items():
                best.copy_(tensors[f"best.{name}"])
            self.validations, self.best_steps = list(tensors["validations"].unbind()), tensors["best_steps"]
            if self.validations:
                self.best_accuracy = tensors["validations"].amax(0).to(self.device)
            self.losses.copy_(tensors["losses"])
            self.accuracies.copy_(tensors["accuracies"])
            self.step, self.seconds = progress["step"], progress["seconds"]
        self.evaluations = {name: list(tensor.unbind()) for name, tensor in of_kind("evaluation", tensors).items()}


def training_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of products with weights in training: bfloat16 on a GPU, float32 elsewhere.

    >>> training_dtype(torch.device("cpu"))
    torch.float32
    """
    return torch.bfloat16 if device.type == "cuda" else torch.float32
