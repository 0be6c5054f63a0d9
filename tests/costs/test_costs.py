"""Costs against what is really done: operations counted by PyTorch, memory by its tensors, sizes by transformers."""

import itertools
import json
import re
import weakref
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

import possym
from possym import costs
from possym.costs import Shape
from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.errors import InputError
from possym.scores import rows_of_a_band

ROOT = Path(__file__).resolve().parents[2]
SMALL = Shape(layers=3, width=64, inner=96, heads=4, key_heads=2, head_width=16, vocabulary=50)
KEYS = Shape(layers=6, width=64, inner=96, heads=4, key_heads=4, head_width=64, vocabulary=50)
WIDE = Shape(layers=2, width=256, inner=2048, heads=4, key_heads=2, head_width=64, vocabulary=50)


def llama(shape: Shape) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.width,
            intermediate_size=shape.inner,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.key_heads,
            head_dim=shape.head_width,
            max_position_embeddings=4096,
            tie_word_embeddings=False,
            attn_implementation="eager",
        )
    )


def counted(run) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", ["Llama-3-8B", "Llama-3-70B", "Llama-3-405B"])
def test_weights_are_those_of_the_model(name):
    shape = costs.shapes()[name]
    with torch.device("meta"):
        model = llama(shape)
    assert sum(weight.numel() for weight in model.parameters()) == shape.weights
    billions = float(re.search(r"(\d+)B", name)[1])
    assert shape.weights / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize("tokens", [12, 37])
def test_operations_of_a_profile_are_those_that_are_counted(tokens):
    model, ids = llama(SMALL), torch.arange(tokens) % SMALL.vocabulary
    forward = costs.forward_operations(SMALL, tokens)
    everything = 4 * tokens**2 * SMALL.layers * SMALL.heads * SMALL.head_width  # eager attention masks what it has made
    pairs = sum(1 for i, j in itertools.product(range(tokens), repeat=2) if j <= i)
    assert forward["attention"] * tokens**2 == everything * pairs
    plain = counted(lambda: model(ids[None], use_cache=False, logits_to_keep=1))
    assert plain == forward["weights"] + everything + forward["language head"]
    possym.profile(model, ids, progress=False)  # the model is asked how it rotates, once
    profiled = counted(lambda: possym.profile(model, ids, progress=False))
    head = 2 * SMALL.layers * SMALL.heads * SMALL.head_width
    twice = head * (tokens - 1) ** 2  # the logits of a swap's two keys are made apart
    assert profiled - plain == costs.relocated_operations(SMALL, tokens) + twice


def test_logits_and_swaps_are_those_one_can_list():
    heads = list(itertools.product(range(SMALL.layers), range(SMALL.heads)))
    keys = range(5)
    assert costs.logits(SMALL, 6) == len(list(itertools.product(heads, keys, keys)))
    planes = range(SMALL.head_width // 2)
    assert costs.swaps(SMALL, 6) == len(list(itertools.product(heads, planes, itertools.combinations(keys, 2))))


@pytest.mark.parametrize(("heads", "mlp_ratio"), [(1, 4), (2, 3)])
def test_operations_of_an_update_are_those_that_are_counted(heads, mlp_ratio):
    config = GPTJConfig(vocabulary_size=30, layers=3, width=16, heads=heads, mlp_ratio=mlp_ratio)
    model = GPTJEnsemble(config, seeds=[0, 1])
    tokens = torch.zeros(2, 5, 7, dtype=torch.int64)
    assert counted(lambda: model(tokens).sum().backward()) == 2 * costs.training_operations(config, 5, 7)


class Live(TorchDispatchMode):
    """The most bytes of tensors that were alive at once."""

    def __init__(self):
        super().__init__()
        self.sizes, self.now, self.peak = {}, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and (key := tensor.untyped_storage()._cdata) not in self.sizes:
                storage = tensor.untyped_storage()
                self.sizes[key] = storage.nbytes()
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.gone, key)
        return result

    def gone(self, key):
        self.now -= self.sizes.pop(key)


@pytest.mark.parametrize(("shape", "tokens"), [(SMALL, 1500), (WIDE, 900), (KEYS, 700)])
def test_memory_of_a_profile_is_that_of_its_tensors(shape, tokens, monkeypatch):
    """On a CPU nine bands are held beside contents: two of logits, and what is made of those."""
    monkeypatch.setattr(costs, "MATRIX_ENTRIES", 2**19)
    parts = costs.profile_bytes(shape, tokens)
    factors = min(shape.heads, 2**19 // (2 * (tokens - 1) * shape.head_width))
    rows = rows_of_a_band(tokens - 1, 2**16)
    parts["contents"] = 4 * (tokens - 1) * (9 * rows + 2 * (factors + 1) * shape.head_width)
    monkeypatch.setattr(costs, "profile_bytes", lambda *given: parts)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model, ids = llama(shape).bfloat16(), torch.arange(tokens) % shape.vocabulary
    model.set_attn_implementation("sdpa")
    possym.profile(model, ids[:20], progress=False)
    with Live() as live:
        possym.profile(model, ids, progress=False)
    torch.set_num_threads(threads)
    assert live.peak == pytest.approx(costs.peak_bytes(shape, tokens), rel=0.1)


@pytest.mark.parametrize(("name", "card", "cards"), [("Llama-3-70B", "H200", 4), ("Llama-3-8B", "H100", 1)])
def test_the_longest_prompt_fits_and_one_token_more_does_not(name, card, cards):
    shape, memory = costs.shapes()[name], costs.read()["cards"][card]["memory"]
    tokens = costs.longest(shape, memory, cards)
    assert costs.peak_bytes(shape, tokens, cards) <= memory < costs.peak_bytes(shape, tokens + 1, cards)


def test_measured_times_are_those_of_the_benchmark():
    measured = costs.read()["measured"]
    benchmark = json.loads((ROOT / measured["source"]).read_text())
    assert benchmark["date"].startswith(measured["date"]) and benchmark["commit"].startswith(measured["commit"])
    assert (benchmark["device"], benchmark["versions"]["torch"]) == (measured["device"], measured["torch"])
    parts = {"forward": "forward", "capture": "capture", "profile": "profile", "planes": "profile with frequencies"}
    rows = {(row["model"], row["tokens"], row["what"]): row.get("ms") for row in benchmark["rows"]}
    for name, times in measured["milliseconds"].items():
        found = {part: rows[f"{name} shape", measured["tokens"], what] for part, what in parts.items()}
        assert times == {part: float(f"{ms:.3g}") for part, ms in found.items()}


def test_rates_give_the_measured_times_back():
    for name, times in costs.read()["measured"]["milliseconds"].items():
        found = costs.profile_seconds(costs.shapes()[name], 2048, costs.rates(name))
        assert sum(found.values()) == pytest.approx(times["planes"] / 1000)
        assert found["forward"] == pytest.approx(times["forward"] / 1000)
        assert found["planes"] == pytest.approx((times["planes"] - times["profile"]) / 1000)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: costs.logits(SMALL, 2), "tokens = 2: give a whole number from 3"),
        (lambda: costs.rates("GPT-2"), r"name = 'GPT-2': measured shapes are gemma-2-2b, Llama-3-8B"),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_every_source_is_in_the_bibliography():
    known = (ROOT / "references.bib").read_text()
    data = json.loads((ROOT / "possym/data/costs.json").read_text())
    for entry in (*data["cards"].values(), *data["shapes"].values()):
        assert f"{{{entry['source']}," in known
