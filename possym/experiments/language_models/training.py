"""How one language model of the study is trained: the same steps whether it was interrupted or not.

Which windows a step reads depends on seed and step alone, and all that a step changes is in the checkpoint, so a run
that goes on takes the steps it would have taken.
"""

import math
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from possym.experiments.language_models.model import LanguageModel, Sizes
from possym.results import atomic_write
from possym.results.progress import tqdm


def learning_rate(step: int, steps: int, peak: float, warm_up: int) -> float:
    """Return the rate of one step: a linear rise to ``peak``, then a cosine down to a tenth of it.

    >>> [round(learning_rate(step, 100, 1.0, 10), 2) for step in (0, 9, 55, 100)]
    [0.1, 1.0, 0.55, 0.1]
    """
    if step < warm_up:
        return peak * (step + 1) / warm_up
    done = (step - warm_up) / max(1, steps - warm_up)
    return peak * (0.55 + 0.45 * math.cos(math.pi * done))


def windows(tokens: Tensor, count: int, length: int, seed: int) -> Tensor:
    """Return ``count`` windows (count, length) of tokens from random starts, as int64 on the tokens' device."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(tokens) - length + 1, (count, 1), generator=generator)
    return tokens[(starts + torch.arange(length)).to(tokens.device)].long()


def step_seed(seed: int, step: int) -> int:
    """Return the seed of one step's windows, another for every run and step.

    >>> len({step_seed(seed, step) for seed in range(10) for step in range(1000)})
    10000
    """
    return (seed + 1) * 1_000_003 + step * 7_919_999_981


def make_optimizer(model: LanguageModel, device: torch.device) -> torch.optim.AdamW:
    """Return AdamW with weight decay 0.1 on matrices alone, its state there from the start."""
    matrices = [weight for weight in model.parameters() if weight.ndim == 2]
    others = [weight for weight in model.parameters() if weight.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=device.type == "cuda")


def train(
    sizes: Sizes,
    tokens: Tensor,
    *,
    steps: int,
    batch: int,
    length: int,
    peak: float,
    warm_up: int,
    points: list[int],
    seed: int,
    device: torch.device,
    measure: Callable[[LanguageModel, int], None],
    checkpoint: Path | None = None,
    label: str = "training",
) -> tuple[LanguageModel, list[float]]:
    """Train one model and hand it to ``measure`` after each of the updates ``points``, 0 for the start.

    Args:
        tokens: (N,) token ids on ``device``.
        steps: updates; each reads ``batch`` windows of ``length`` tokens and predicts every next one.
        peak, warm_up: see `learning_rate`.
        seed: of weights and windows.
        checkpoint: a file without suffix that keeps the state at the last point; a run that finds it goes on from
            there, and does not measure again what was measured before.

    Returns:
        The model, and the training loss of every update.
    """
    model = LanguageModel(sizes, torch.Generator().manual_seed(seed)).to(device)
    optimizer = make_optimizer(model, device)
    before = restore(checkpoint, model, optimizer) if checkpoint else None
    fast = torch.compile(model) if device.type == "cuda" else model
    turns, losses = model.turns(length), [*before] if before is not None else []
    start = len(losses)
    if before is None and 0 in points:
        measure(model, 0)
    bar = tqdm(total=steps, initial=start, desc=label, unit="update", leave=False)
    for step in range(start, steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak, warm_up)
        read = windows(tokens, batch, length + 1, step_seed(seed, step))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = fast(read[:, :-1], turns)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), read[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
        bar.update()
        if step + 1 in points:
            bar.set_postfix(loss=f"{float(losses[-1]):.2f}")
            measure(model, step + 1)
            if checkpoint:
                store(checkpoint, model, optimizer, torch.stack(losses))
    bar.close()
    return model, torch.stack(losses).tolist() if losses else []


def store(path: Path, model: LanguageModel, optimizer: torch.optim.AdamW, losses: Tensor) -> None:
    """Write weights, moments and the loss of every update as one safetensors file, whole or not at all."""
    kept = {"/losses": losses}
    for name, weight in model.named_parameters():
        state = optimizer.state[weight]
        kept |= {name: weight, f"{name}/first": state["exp_avg"], f"{name}/second": state["exp_avg_sq"]}
    with atomic_write(path.with_suffix(".safetensors")) as part:
        save_file({name: value.detach().contiguous() for name, value in kept.items()}, part)


@torch.no_grad()
def restore(path: Path, model: LanguageModel, optimizer: torch.optim.AdamW) -> Tensor | None:
    """Put a stored state into model and optimizer; the loss of every update so far, or None without a whole state."""
    file = path.with_suffix(".safetensors")
    try:
        stored = load_file(file)
        losses = stored["/losses"]
    except (OSError, SafetensorError, KeyError):
        return None
    for name, weight in model.named_parameters():
        weight.copy_(stored[name])
        optimizer.state[weight] = {
            "step": torch.tensor(float(len(losses)), device=weight.device if optimizer.defaults["fused"] else "cpu"),
            "exp_avg": stored[f"{name}/first"].to(weight.device),
            "exp_avg_sq": stored[f"{name}/second"].to(weight.device),
        }
    return losses.to(model.embedding.weight.device)
