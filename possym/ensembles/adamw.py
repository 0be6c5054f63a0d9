"""Clipping and AdamW of every member: on a GPU in one pass over its parameters, as Triton kernels.

- `AdamW` holds what `torch.optim.AdamW` does. To make one of those loads PyTorch's compiler, which takes seconds of
  every process that trains on a CPU and does nothing there.
- `norms` is `torch.linalg.vector_norm` of all gradients of a member, `update` the step of `torch.optim.AdamW` after
  each gradient is multiplied by its member's `clip_factor`. By kernels weights, both moments and the gradient are read
  once, and nothing between is stored.
- Where a gradient's kernel left sums of squares with it (`possym.ensembles.squares`), the norm does not read it again.
- Gradients may be slices of a wider tensor, as those of stacked weights are.
- Nothing waits for the GPU, so a CUDA graph holds both.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from possym.ensembles import squares
from possym.ensembles.branches import branch
from possym.kernels import device_context, jit, tl, triton, triton_available

BLOCK = 1024  # values a program works on
FEW = 2**15  # values of a member whose kernels leave most of a GPU idle


class AdamW:
    """Parameters, and what AdamW keeps of each: ``step``, and ``exp_avg`` and ``exp_avg_sq``, its two moments.

    Args:
        parameters: contiguous (E, …), all on one device.
        betas: the moments' rates of decay.
        eps: what is added to the root of the second moment.
        weight_decay: of the parameters themselves, times the learning rate.

    Attributes:
        rate: the learning rate, a tensor () on the device; 0 at first.
    """

    def __init__(self, parameters: Iterable[Tensor], *, betas: tuple[float, float], eps: float, weight_decay: float):
        """Start with moments of 0."""
        self.parameters = list(parameters)
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.rate = torch.zeros((), device=self.parameters[0].device)
        self.state = [
            {"step": torch.zeros_like(self.rate), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            for p in self.parameters
        ]


@jit
def squares_kernel(gradient, sums, length, apart, row, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Sum the squares of one block of a member's gradient, whose members lie ``apart`` and whose rows ``row``."""
    member, blocks = tl.program_id(1).to(tl.int64), tl.num_programs(0)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gradient + member * apart + (n // WIDTH) * row + n % WIDTH, mask=n < length, other=0.0)
    tl.store(sums + member * blocks + tl.program_id(0), tl.sum(g * g, 0))


@jit
def update_kernel(
    parameter, average, square, gradient, factor, rate, corrections, length, apart, row,
    new1, new2, epsilon, decay, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Take AdamW's step on one block of a member's values."""
    member = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = n < length
    place = member * length + n
    g = tl.load(gradient + member * apart + (n // WIDTH) * row + n % WIDTH, mask=inside, other=0.0)
    g *= tl.load(factor + member)
    p = tl.load(parameter + place, mask=inside, other=0.0)
    m = tl.load(average + place, mask=inside, other=0.0)
    v = tl.load(square + place, mask=inside, other=0.0)
    step = tl.load(rate)
    m += new1 * (g - m)
    v += new2 * (g * g - v)
    p -= step * decay * p
    size = tl.sqrt(v) / tl.sqrt(tl.load(corrections + 1)) + epsilon
    p -= step / tl.load(corrections) * m / size
    tl.store(parameter + place, p, mask=inside)
    tl.store(average + place, m, mask=inside)
    tl.store(square + place, v, mask=inside)


def as_rows(gradient: Tensor) -> Tensor:
    """Return a gradient (E, …) as (E, R, W), a view where its values lie in rows some stride apart."""
    rows = gradient.reshape(len(gradient), -1, gradient.shape[-1])
    return rows if rows.stride(2) == 1 else rows.contiguous()


def norms(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of each member's gradients together (E,), from gradients (E, …)."""
    if not supported(gradients):
        each = [torch.linalg.vector_norm(g, dim=tuple(range(1, g.ndim))) for g in gradients]
        return torch.linalg.vector_norm(torch.stack(each), dim=0)
    views, found = [as_rows(gradient) for gradient in gradients], [squares.left(gradient) for gradient in gradients]
    parts = [
        rows.new_empty(len(rows), triton.cdiv(rows[0].numel(), BLOCK)) if sums is None else sums
        for rows, sums in zip(views, found, strict=True)
    ]

    def one(index: int) -> None:
        rows, sums = views[index], parts[index]
        if found[index] is None:
            squares_kernel[(sums.shape[1], len(rows))](
                rows, sums, rows[0].numel(), rows.stride(0), rows.stride(1), WIDTH=rows.shape[2], BLOCK=BLOCK
            )

    small_ones_beside(one, gradients)
    return torch.cat(parts, 1).sum(1).sqrt()


def clip_factor(gradients: Sequence[Tensor], limit: float) -> Tensor:
    """Return for each member what its gradients (E, …) are multiplied by so that their joint norm is at most ``limit``.

    >>> clip_factor([torch.tensor([[3.0], [0.3]]), torch.tensor([[4.0], [0.4]])], 1.0)
    tensor([0.2000, 1.0000])
    """
    return (limit / (norms(gradients) + 1e-6)).clamp(max=1.0)


@torch.no_grad()
def update(optimizer: AdamW, gradients: Sequence[Tensor], limit: float) -> None:
    """Take an optimiser's step, in place, with each member's gradients clipped to a norm of ``limit``.

    Args:
        optimizer: of the parameters.
        gradients: of their shapes.
        limit: see `clip_factor`.
    """
    parameters, states, (beta1, beta2) = optimizer.parameters, optimizer.state, optimizer.betas
    if not supported(gradients):
        factor = clip_factor(gradients, limit)
        clipped = [
            torch.mul(gradient, factor.view(-1, *[1] * (gradient.ndim - 1)), out=torch.empty_like(parameter))
            for parameter, gradient in zip(parameters, gradients, strict=True)
        ]
        first, second, steps = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
        adamw(
            parameters, clipped, first, second, [], steps, fused=True, amsgrad=False, beta1=beta1, beta2=beta2,
            lr=optimizer.rate, weight_decay=optimizer.weight_decay, eps=optimizer.eps, maximize=False,
        )  # fmt: skip
        return
    beside = branch(gradients[0].device, 1)
    with beside.forked():
        torch._foreach_add_([state["step"] for state in states], 1)
        step = states[0]["step"].double()
        corrections = torch.stack([1 - beta**step for beta in optimizer.betas]).float()
        corrected = beside.asked()
    factor = clip_factor(gradients, limit)
    beside.join(corrected)

    def one(index: int) -> None:
        rows, state = as_rows(gradients[index]), states[index]
        length = rows[0].numel()
        update_kernel[(triton.cdiv(length, BLOCK), len(rows))](
            parameters[index], state["exp_avg"], state["exp_avg_sq"], rows, factor, optimizer.rate, corrections,
            length, rows.stride(0), rows.stride(1), 1 - beta1, 1 - beta2, optimizer.eps, optimizer.weight_decay,
            WIDTH=rows.shape[2], BLOCK=BLOCK,
        )  # fmt: skip

    small_ones_beside(one, gradients)


def small_ones_beside(function: Callable[[int], None], gradients: Sequence[Tensor]) -> None:
    """Call a function that launches a kernel for each gradient by its index, those of few values beside the others."""
    beside = branch(gradients[0].device, 0)
    few = [gradient[0].numel() < FEW for gradient in gradients]
    with device_context(gradients[0]):
        with beside.forked():
            for index in itertools.compress(range(len(few)), few):
                function(index)
            mark = beside.asked()
        for index, small in enumerate(few):
            if not small:
                function(index)
        beside.join(mark)


def supported(gradients: Sequence[Tensor]) -> bool:
    """Return whether the kernels can take these gradients."""
    return all(g.dtype == torch.float32 and g.numel() > 0 for g in gradients) and triton_available(gradients[0].device)
