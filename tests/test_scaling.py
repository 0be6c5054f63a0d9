"""RoPE scaling against transformers' own functions, and against the ends of each formula."""

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from possym import scaling
from possym.errors import InputError
from possym.rope import frequencies


def transformers_angles(kind, dim, base, length=None, trained=2048, **parameters):
    """What transformers computes, float32."""
    parameters |= {"rope_type": kind, "rope_theta": base}
    config = LlamaConfig(
        hidden_size=2 * dim,
        num_attention_heads=2,
        head_dim=dim,
        max_position_embeddings=trained,
        rope_parameters=parameters,
    )
    angles, _ = ROPE_INIT_FUNCTIONS[kind](config, device="cpu", seq_len=length)
    return angles


@pytest.mark.parametrize("dim", [8, 64, 128])
@pytest.mark.parametrize("base", [10000.0, 500000.0])
@pytest.mark.parametrize("factor", [1.0, 4.0, 8.0])
def test_scaled_angles_are_transformers(dim, base, factor):
    factors = torch.linspace(1, 30, dim // 2)
    expected = {
        "linear": (scaling.linear(dim, base, factor), {"factor": factor}),
        "llama3": (
            scaling.llama3(dim, base, factor),
            {
                "factor": factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        ),
        "yarn": (
            scaling.yarn(dim, base, factor, trained=2048),
            {"factor": factor, "original_max_position_embeddings": 2048},
        ),
        "longrope": (
            scaling.longrope(dim, base, factors),
            {
                "factor": factor,
                "short_factor": factors.tolist(),
                "long_factor": factors.tolist(),
                "original_max_position_embeddings": 2048,
            },
        ),
        "proportional": (scaling.proportional(dim, base, 0.25), {"partial_rotary_factor": 0.25}),
    }
    for kind, (got, parameters) in expected.items():
        trained = 65536 if kind in ("llama3", "yarn", "longrope") else 2048
        reference = transformers_angles(kind, dim, base, trained=trained, **parameters)
        torch.testing.assert_close(got.float(), reference, rtol=2e-5, atol=1e-9, msg=kind)
    for length in (100, 2048, 5000, 20000):
        got = scaling.dynamic(dim, base, factor, trained=2048, length=length)
        reference = transformers_angles("dynamic", dim, base, length=length, factor=factor)
        torch.testing.assert_close(got.float(), reference, rtol=2e-5, atol=1e-9)


def test_scaling_ends():
    plain = frequencies(128)
    turns = 2048 * plain / (2 * math.pi)
    assert torch.allclose(scaling.yarn(128, factor=4.0)[turns > 40], plain[turns > 40])
    assert torch.allclose(scaling.yarn(128, factor=4.0)[turns < 0.5], plain[turns < 0.5] / 4)
    assert scaling.proportional(128, proportion=1.0).equal(plain)
    assert scaling.proportional(128, proportion=0.0).count_nonzero() == 0
    raised = scaling.dynamic(128, factor=8.0, trained=2048, length=16384)
    assert raised[0] == plain[0]
    # The slowest plane slows by exactly s·length/trained − (s − 1) = 57.
    assert raised[-1].item() == pytest.approx(plain[-1].item() / 57)


@pytest.mark.parametrize(
    "call",
    [
        lambda: scaling.linear(8, factor=0.5),
        lambda: scaling.linear(8, factor="8"),
        lambda: scaling.dynamic(2),
        lambda: scaling.dynamic(8, length=0),
        lambda: scaling.yarn(8, trained=-1),
        lambda: scaling.llama3(8, low=4.0, high=4.0),
        lambda: scaling.longrope(8, factors=torch.ones(3)),
        lambda: scaling.longrope(8, factors=-torch.ones(4)),
        lambda: scaling.proportional(8, proportion=1.5),
        lambda: scaling.proportional(8, proportion=True),
        lambda: scaling.linear(7),
    ],
)
def test_bad_scaling_is_refused(call):
    with pytest.raises(InputError, match=r"give|RoPE pairs"):
        call()
