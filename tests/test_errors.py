"""What counts as a number: numpy integers and single tensors do, flags do not, nor what 64 bits do not hold."""

import math

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import possym
from possym import rope, theory
from possym.capture.edits import ablate_frequencies
from possym.capture.known_heads import repeated_tokens
from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.streams import generator
from possym.errors import InputError, require_type, to_float, to_int
from possym.tasks import IndexTask, NumberTask, PartialInductionTask

HUGE = 10**30
BEYOND = 10**400  # more than a float holds
WHOLE = [3, np.int64(3), np.uint8(3), np.array(3), torch.tensor(3), torch.tensor(3, dtype=torch.int16)]
NOT_WHOLE = [3.0, "3", True, np.True_, torch.tensor(True), torch.tensor(3.0), torch.tensor([3]), HUGE, -HUGE]
NOT_REAL = ["0.5", True, torch.tensor(True), torch.tensor([0.5]), 1j, BEYOND]


@pytest.mark.parametrize("value", WHOLE, ids=repr)
def test_whole_numbers_come_as_int(value):
    assert type(to_int(value)) is int
    assert to_int(value) == require_type(value, int, "n") == 3


@pytest.mark.parametrize("value", NOT_WHOLE, ids=repr)
def test_what_is_no_whole_number(value):
    assert to_int(value) is None
    with pytest.raises(InputError, match="^n is "):
        require_type(value, int, "n")


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.float64(0.5), torch.tensor(0.5), np.array(0.5)], ids=repr)
def test_real_numbers_come_as_float(value):
    assert type(to_float(value)) is float
    assert to_float(value) == require_type(value, (int, float), "x") == 0.5


@pytest.mark.parametrize("value", NOT_REAL, ids=lambda v: str(v)[:12])
def test_what_is_no_real_number(value):
    assert to_float(value) is None
    with pytest.raises(InputError, match="^x is "):
        require_type(value, (int, float), "x")


def test_huge_numbers_are_real():
    assert to_float(HUGE) == 1e30
    assert math.isinf(to_float(math.inf))


REFUSED = {
    "dim": lambda: rope.frequencies(HUGE),
    "base": lambda: rope.frequencies(4, base=BEYOND),
    "symbols": lambda: theory.h_sym(HUGE, 2),
    "seed": lambda: generator(HUGE, "data"),
    "member": lambda: GPTJEnsemble(GPTJConfig(vocabulary_size=4, layers=1, width=8), [HUGE]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_absurdly_large_numbers_are_refused_by_name(name):
    with pytest.raises(InputError):
        REFUSED[name]()


SIZES = GPTJConfig(vocabulary_size=4, layers=1, width=8)
THREE, FOUR, LONG = np.uint8(3), np.uint8(4), np.uint8(20)
SAME = {
    "frequencies": (rope.frequencies, (FOUR,), (4,)),
    "index gaps": (theory.index_gaps, (FOUR, np.float32(0.5)), (4, 0.5)),
    "number": (lambda *a: NumberTask().sample(a[0], length=a[1], hops=a[2]).tokens, (FOUR, LONG, THREE), (4, 20, 3)),
    "index": (lambda n, size: IndexTask(size).sample(n, length=size).tokens, (THREE, FOUR), (3, 4)),
    "induction": (lambda n, size: PartialInductionTask(size, n).sample(n, length=size).tokens, (THREE, FOUR), (3, 4)),
    "repeated": (repeated_tokens, (THREE, FOUR, LONG), (3, 4, 20)),
    "stream": (lambda seed: torch.tensor(generator(seed, "held-out").initial_seed()), (np.uint8(200),), (200,)),
    "seeds": (lambda *seeds: next(GPTJEnsemble(SIZES, seeds).parameters()).detach(), (THREE, FOUR), (3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_numpy_numbers_do_as_well_as_pythons(name):
    """8-bit numbers too, which would overflow if they were reckoned with as they are."""
    function, theirs, ours = SAME[name]
    assert torch.equal(torch.as_tensor(function(*theirs)), torch.as_tensor(function(*ours)))


def test_a_profile_takes_numpy_numbers():
    sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=300, **sizes)).eval()
    ours, theirs = [260, 7, 9, 260, 7, 3, 8], np.array([260, 7, 9, 260, 7, 3, 8], dtype=np.int16)
    options = dict(progress=False, temperature=np.float32(0.5))
    plain = possym.profile(model, [ours], query=5, answers=[9], progress=False, temperature=0.5)
    found = possym.profile(model, [list(theirs)], query=np.uint8(5), answers=[np.uint8(9)], **options)
    assert found.heads.equals(plain.heads)
    assert found.prompts.equals(plain.prompts)
    tokens = torch.tensor([ours])
    with torch.no_grad():
        with ablate_frequencies(model, [1], heads={0: [1]}):
            edited = model(tokens).logits
        with ablate_frequencies(model, [np.uint8(1)], heads={0: [np.int64(1)]}):
            assert torch.equal(model(tokens).logits, edited)
