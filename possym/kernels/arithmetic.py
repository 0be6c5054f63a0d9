"""Triton where there is one, and what its kernels compute with: `jit` compiles them, `device_context` says where.

PyTorch's CUDA builds bring Triton along; it needs a C compiler once. With TRITON_INTERPRET=1 Triton interprets kernels
on a CPU (numpy below 2.4 alone), so that every test of what has a kernel can run it there.
"""

from __future__ import annotations

import contextlib
import os

import torch
from torch import Tensor

try:
    import triton
    from triton import language as tl

    PTX = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1" and torch.version.cuda is not None)
    LOG2_E = tl.constexpr(1.4426950408889634)
except ImportError:  # PyTorch for CPUs comes without it
    triton = tl = PTX = LOG2_E = None


def jit(function):
    """Compile a kernel where there is Triton; it is not specialised on sizes, so that one compilation serves all."""
    sizes = "count width padded parts rows tiles every heads first_head groups tokens query"
    return function if triton is None else triton.jit(do_not_specialize=sizes.split())(function)


def device_context(x: Tensor):
    """Return a context in which kernels run on the device of ``x``."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


@jit
def instruction(x, TEXT: tl.constexpr):
    """Return what one instruction of PTX makes of numbers of float32."""
    return tl.inline_asm_elementwise(TEXT, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@jit
def exp2(x):
    """Return 2ˣ, 0 where that is not a normal number, for which a GPU takes one instruction and not four."""
    if PTX:
        return instruction(x, "ex2.approx.ftz.f32 $0, $1;")
    return tl.exp2(x)


@jit
def log2(x):
    """Return log₂ of a normal number, as `exp2` does."""
    if PTX:
        return instruction(x, "lg2.approx.ftz.f32 $0, $1;")
    return tl.log2(x)


@jit
def rsqrt(x):
    """Return 1/√x of a normal number, as `exp2` does."""
    if PTX:
        return instruction(x, "rsqrt.approx.ftz.f32 $0, $1;")
    return tl.rsqrt(x)


@jit
def reciprocal(x):
    """Return 1/x of a normal number, as `exp2` does."""
    if PTX:
        return instruction(x, "rcp.approx.ftz.f32 $0, $1;")
    return 1.0 / x


@jit
def tanh(x):
    """Return tanh x: near 0 by a polynomial, since the difference of two numbers near 1 has fewer digits."""
    square = x * x
    series = 0.0211507 - 0.00632121 * square
    series = -0.05388374 + square * series
    series = 0.13332999 + square * series
    series = -0.33333332 + square * series
    size = tl.minimum(tl.abs(x), 15.0, propagate_nan=tl.PropagateNan.ALL)  # a GPU's own minimum drops what is no number
    far = 1.0 - 2.0 * reciprocal(exp2(size * (2.0 * LOG2_E)) + 1.0)
    return tl.where(square < 0.36, x + x * (square * series), tl.where(x < 0, -far, far))
