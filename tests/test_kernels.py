"""What profiles are summed with, kernels included where they run, against moving keys and attending again."""

import itertools
import math
import os
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from possym import kernels
from possym.capture import LayerInputs
from possym.errors import InputError
from possym.profiling.scoring import Batch, ScoreCollector, Scoring
from possym.scores import effective_swaps, exclusion, head_scores, plane_scores, scores_and_exclusion, swap_scores

COUNTS = pytest.mark.parametrize("count", [2, 17, 65, 130])
OVERFLOWS = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, by which Triton interprets kernels


def one_by_one(relocated, own, temperature, relative=False):
    """Scores, entropy and deviations of one float64 head, each swap by itself, from attention and cosine alone."""
    count = len(relocated)
    logits = relocated.diagonal()
    attention = torch.cat([logits, own]).softmax(0)
    stakes = logits.softmax(0) if relative else attention
    i, j = torch.combinations(torch.arange(count)).T
    before = torch.stack([logits[i], logits[j]]).softmax(0)
    after = torch.stack([relocated[j, i], relocated[i, j]]).softmax(0)
    same = torch.cosine_similarity(after, before, 0)
    crossed = torch.cosine_similarity(after, before.flip(0), 0)
    gaps = (stakes[i] - stakes[j]).abs()
    if relative:
        gaps = gaps.clamp(min=1e-300).log()  # where all are 0, all count alike
    alpha = (gaps / temperature).softmax(0)
    positional = sum((relocated[:, b] - logits[b]).square().sum() for b in range(count))
    symbolic = sum((relocated[a] - logits[a]).square().sum() for a in range(count))
    entropy = torch.special.entr(attention).sum()
    return [float(x) for x in (alpha @ same, alpha @ crossed, entropy, positional, symbolic)]


def drawn(*shape, seed=0, size=3.0):
    return size * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@COUNTS
@pytest.mark.parametrize("temperature, relative", [(1e-2, False), (10.0, False), (0.3, True)])
def test_heads_agree_with_swapping_one_by_one(device, count, temperature, relative):
    relocated, own = drawn(2, count, count + 5)[..., :count], drawn(2, 2, seed=1, size=12.0 if relative else 3.0)
    scores, found, _ = scores_and_exclusion(relocated.to(device), own.to(device), None, temperature, relative)
    for head in range(2):
        expected = one_by_one(relocated[head].double(), own[head].double(), temperature, relative)
        got = [x[head].item() for x in (*scores, found.positional_deviation, found.symbolic_deviation)]
        assert got[:3] == pytest.approx(expected[:3], abs=1e-5)
        assert got[3:] == pytest.approx(expected[3:], rel=1e-5)
        assert found.bound[head].item() == pytest.approx(sum(expected[3:]) / count**2, rel=1e-5)


@COUNTS
@pytest.mark.parametrize("entries, relative", [(1, False), (10**9, True)])
def test_heads_made_as_products_agree_with_swapping_one_by_one(device, count, entries, relative):
    contents, places, own = drawn(2, 3, count, 5), drawn(count, 5, seed=1, size=0.7), drawn(2, 3, 2, seed=2)
    given = (x.to(device) for x in (contents, places, own))
    scores, found, swaps, observed = head_scores(*given, 0.1, 4.0, entries, relative)
    relocated = (contents.double() @ places.double().mT / 4).tanh() * 4
    logits = relocated.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(observed.cpu().double(), logits, atol=1e-5, rtol=1e-5)
    variance = logits.var(-1, correction=0)
    torch.testing.assert_close(found.variance.cpu().double(), variance, atol=1e-5, rtol=1e-5)
    for row, head in itertools.product(range(2), range(3)):
        expected = one_by_one(relocated[row, head], own[row, head].double(), 0.1, relative)
        got = [x[row, head].item() for x in (*scores, found.positional_deviation, found.symbolic_deviation)]
        assert got[:3] == pytest.approx(expected[:3], abs=1e-5)
        assert got[3:] == pytest.approx(expected[3:], rel=1e-5)
        assert found.bound[row, head].item() == pytest.approx(sum(expected[3:]) / count**2, rel=1e-5)
    counted = effective_swaps(logits, extra_logits=own.double(), temperature=0.1, relative=relative)
    torch.testing.assert_close(swaps.cpu().double(), counted, atol=1e-5, rtol=2e-5)


def sums_of_matrices(contents, positions, vectors, power):
    """The six sums of `possym.kernels.product_sums`, from matrices of logits and all pairs, in float64."""
    relocated = contents.double() @ positions.double().mT
    i, j = torch.combinations(torch.arange(len(positions))).T
    logits, first, second = (vector.double() for vector in vectors)
    gap = (first[:, i] - first[:, j]).abs().clamp(min=1e-30)
    weight, log = gap**power, gap.log() * gap**power
    if not power:
        weight, log = torch.maximum(first[:, i] * second[:, j], second[:, i] * first[:, j]), torch.zeros_like(gap)
    before = torch.stack([logits[:, i], logits[:, j]], -1).softmax(-1)
    after = torch.stack([relocated[:, j, i], relocated[:, i, j]], -1).softmax(-1)
    straight, crossed = (torch.cosine_similarity(after, x, -1) * weight for x in (before, before.flip(-1)))
    there, back = relocated[:, i, j], relocated[:, j, i]
    far = (there - logits[:, j]).square() + (back - logits[:, i]).square()
    near = (there - logits[:, i]).square() + (back - logits[:, j]).square()
    return torch.stack([x.sum(-1) for x in (straight, crossed, weight, log, far, near)], -1)


@pytest.mark.parametrize("count, width", [(2, 6), (70, 36), (150, 128)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("power", [0.0, 1.0, 0.5])
def test_sums_of_products_are_as_accurate_as_float32(device, count, width, dtype, power):
    contents = (drawn(3, count, width, size=0.3) * 10 ** drawn(width, seed=1, size=0.5)).to(device)
    if not (kernels.supported(contents) and kernels.takes_products(contents.device)):
        pytest.skip("no kernels here")
    positions = drawn(count, width, seed=2, size=0.7).to(device, dtype)
    products = kernels.as_products(contents, positions)
    logits = products.observed.cpu().double()
    torch.testing.assert_close(logits, (contents.cpu().double() * positions.cpu().double()).sum(-1), atol=1e-5, rtol=0)
    first, second = torch.rand(2, 3, count, generator=torch.Generator().manual_seed(3))
    vectors = (
        products.observed,
        first.to(device),
        second.to(device) if not power else torch.full_like(logits, 1e-30).float().to(device),
    )
    found = kernels.product_sums(products, vectors, power, None).cpu().double()
    expected = sums_of_matrices(contents.cpu(), positions.cpu(), [x.cpu() for x in vectors], power)
    torch.testing.assert_close(found, expected, rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("size", [1e-35, 1e-12, 1e12, 1e30])
def test_contents_of_any_size_keep_their_digits(device, size):
    contents, positions = (size * drawn(2, 40, 8)).to(device), drawn(40, 8, seed=1).to(device)
    if not (kernels.supported(contents) and kernels.takes_products(contents.device)):
        pytest.skip("no kernels here")
    products = kernels.as_products(contents, positions)
    for head in range(2):
        exponent = 14 - math.floor(math.log2(float(contents[head].abs().max())))
        parts = [x[head, :, :8].double().cpu() * 2.0 ** -min(exponent, 126) for x in products.contents]
        torch.testing.assert_close(sum(parts), contents[head].cpu().double(), rtol=2**-22, atol=2.0**-38 * size)


def layers_beside_each_other(device, heads, groups, width, count, seed=0):
    """The inputs of two layers whose dimensions all turn, some of whose keys are seen."""
    angles = torch.arange(count)[:, None] * 2.0 ** -torch.arange(width // 2)
    return LayerInputs(
        layers=[0, 1],
        query=drawn(2, heads, width, seed=seed).to(device),
        keys=drawn(2, groups, count, width, seed=seed + 1).to(device),
        cos=angles.cos().to(device),
        sin=angles.sin().to(device),
        query_position=count - 1,
        moved=torch.tensor([k for k in range(count - 1) if k % 5 != 3]).to(device),
        scale=width**-0.5,
    )


@pytest.mark.parametrize("heads, groups, width", [(6, 2, 24), (4, 4, 8), (4, 1, 128)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_contents_that_are_split_where_they_are_made_are_those_of_the_factors(device, heads, groups, width, dtype):
    inputs = layers_beside_each_other(device, heads, groups, width, 90)
    if not inputs.splits_keys:
        pytest.skip("no kernels here")
    half = slice(heads // 2, heads)
    for part, rows in itertools.product((slice(0, heads), half), (slice(0, 2), slice(1, 2))):
        positions = inputs.positions.to(dtype)
        ours = inputs.split_contents(part, rows, inputs.moved, positions)
        contents, _ = inputs.factors(part, rows)
        theirs = kernels.as_products(contents.flatten(0, 1), positions)
        assert ours.width == theirs.width
        torch.testing.assert_close(ours.observed, theirs.observed, atol=1e-5, rtol=1e-6)
        for one, other in zip(ours.most + ours.positions, theirs.most + theirs.positions, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=0)
        both = [(x[0].double() + x[1].double()) for x in (ours.contents, theirs.contents)]
        torch.testing.assert_close(*both, rtol=0, atol=2.0**-8)  # of numbers up to 2¹⁵
    inputs.keys[1, 0, 5, 3] = torch.nan
    ours = inputs.split_contents(slice(0, heads), slice(0, 2), inputs.moved, inputs.positions)
    most = ours.most[0].unflatten(0, (2, heads))
    assert most.isnan().tolist() == [[False] * heads, [head < heads // groups for head in range(heads)]]


PRESENT = {
    "plain": {},
    "a softcap": dict(softcap=2.0),
    "sinks": dict(layers=[0], sinks=drawn(6, seed=7)),
    "held": dict(held=torch.tensor([3, 8, 18])),
    "unseen by itself": dict(reads_itself=False),
    "all alike": dict(scale=0.0, softcap=2.0),
    "sharp": dict(scale=40.0),
    "two keys": dict(moved=torch.tensor([0, 7])),
}


@pytest.mark.parametrize(
    "case, temperature, relative",
    [*((case, 1.0, True) for case in PRESENT), ("a softcap", 0.3, True), ("a softcap", 0.1, False)],
)
def test_scores_are_the_same_however_contents_are_split(device, monkeypatch, case, temperature, relative):
    changes = {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in PRESENT[case].items()}
    inputs = replace(layers_beside_each_other(device, 6, 2, 16, 60), **changes)
    if not inputs.splits_keys:
        pytest.skip("no kernels here")
    whole, _ = inputs.scores(None, temperature, relative)
    entries = LayerInputs.entries_at_once.fget(inputs)
    monkeypatch.setattr(LayerInputs, "entries_at_once", (len(inputs.moved) * 16 * 2, *entries[1:]))
    parts, _ = inputs.scores(None, temperature, relative)
    monkeypatch.setattr(LayerInputs, "splits_keys", False)
    others, _ = inputs.scores(None, temperature, relative)
    for one, part, other in zip(whole, parts, others, strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(part, other, atol=2e-6, rtol=1e-5)


def test_what_is_one_number_a_key_is_that_of_float64(device):
    """More keys than a program has at once, logits from next to equal to far apart."""
    if not kernels.supported(torch.ones(1, device=device)):
        pytest.skip("no kernels here")
    observed = drawn(5, 1300) * torch.tensor([1e-5, 1e-2, 1.0, 10.0, 100.0])[:, None]
    places, count, query = torch.randperm(1998)[:1300] + 1, 1290, 1999
    places[1297], places[1298] = 0, query
    found = kernels.attend_keys(observed.to(device), places.to(device), count, query, None, None)
    x = observed.double()
    logits, shares = x[:, :count], x.softmax(-1)
    e = logits.softmax(-1)
    stakes = (e - e.amin(-1, keepdim=True)) / (e.amax(-1, keepdim=True) - e.amin(-1, keepdim=True))
    entropy, moved = torch.special.entr(shares).sum(-1), shares[:, :count].sum(-1)
    back = shares @ (query - places).double()
    values = [entropy, logits.var(-1, correction=0), moved, shares[:, 1297], shares[:, 1298], back]
    assert torch.equal(found.logits.cpu(), observed[:, :count])
    torch.testing.assert_close(found.first.cpu().double(), stakes, rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(found.values.cpu().double(), torch.stack(values, -1), rtol=2e-6, atol=1e-7)


@OVERFLOWS
def test_a_softcap_does_not_hide_logits_that_are_no_numbers(device):
    contents, positions, own = drawn(2, 40, 8), drawn(40, 8, seed=1).abs(), torch.zeros(2, 1)
    contents[1, 7, :2] = (
        torch.inf
    )  # inf + inf, which the softcap makes finite, at odd positions, inf − inf at even ones
    positions[::2, 1] *= -1
    _, found, *_ = head_scores(*(x.to(device) for x in (contents, positions, own)), 1.0, 30.0, 10**9, True)
    assert found.bound.isfinite().tolist() == [True, False]


def test_a_large_matrix_is_never_whole(device):
    contents, positions, own = (x.to(device) for x in (drawn(2, 192, 8), drawn(192, 8, seed=1), drawn(2, 1, seed=2)))
    whole, *others = (head_scores(contents, positions, own, 1.0, None, n, True) for n in (2**20, 192 * 64, 1))
    for other in others:
        for a, b in zip((*whole[0], *whole[1], whole[2]), (*other[0], *other[1], other[2]), strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=2e-6)
    with Largest() as seen:
        head_scores(contents, positions, own, 1.0, None, 192 * 64, True)
    assert seen.entries <= 192 * 64


class Largest(TorchDispatchMode):
    """Notes the entries of the largest tensor of floats that is made while it is on."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        floats = [x for x in tree_leaves(found) if isinstance(x, torch.Tensor) and x.is_floating_point()]
        self.entries = max([self.entries, *(x.numel() for x in floats)])
        return found


@COUNTS
@pytest.mark.parametrize("relative", [False, True])
def test_planes_agree_with_swapping_one_by_one(device, count, relative):
    keys, turned, own = drawn(3, 2, count, size=2.0), drawn(3, 2, count, seed=1), drawn(3, 1, seed=2)
    scores, logits = plane_scores(keys.to(device), turned.to(device), own.to(device), 0.1, relative)
    relocated = keys.double().mT @ turned.double()
    torch.testing.assert_close(logits.cpu().double(), relocated.diagonal(dim1=-2, dim2=-1), atol=1e-5, rtol=1e-5)
    for plane in range(3):
        expected = one_by_one(relocated[plane], own[plane].double(), 0.1, relative)[:3]
        assert [x[plane].item() for x in scores] == pytest.approx(expected, abs=1e-5)


def test_planes_of_several_heads_are_scored_each_alone(device):
    keys, turned, own = (x.to(device) for x in (drawn(2, 3, 2, 9), drawn(2, 3, 2, 9, seed=1), drawn(2, 3, 1, seed=2)))
    together, logits = plane_scores(keys, turned, own, 0.1)
    for row, head in itertools.product(range(2), range(3)):
        alone, own_logits = plane_scores(keys[row, head], turned[row, head], own[row, head], 0.1)
        torch.testing.assert_close(logits[row, head], own_logits)
        for a, b in zip(together, alone, strict=True):
            torch.testing.assert_close(a[row, head], b)


@pytest.mark.parametrize("size", [0.0, 1e4])
@pytest.mark.parametrize("kind", ["drawn", "ties", "by place", "by content"])
@pytest.mark.parametrize("relative", [False, True])
def test_large_equal_and_tied_logits(device, size, kind, relative):
    relocated = {
        "drawn": drawn(70, 70, size=size),
        "ties": drawn(70, 70).round() * size,
        "by place": drawn(70, size=size).expand(70, 70),
        "by content": drawn(70, 1, size=size).expand(70, 70),
    }[kind]
    own, temperature = torch.zeros(1), 1.0 if relative else 0.1
    scores, found, _ = scores_and_exclusion(relocated.to(device), own.to(device), None, temperature, relative)
    exact = one_by_one(relocated.double(), own.double(), temperature, relative)
    assert [x.item() for x in scores] == pytest.approx(exact[:3], abs=1e-5)
    assert found.bound.item() == pytest.approx(sum(exact[3:]) / 70**2, rel=1e-5, abs=1e-6)
    if size == 0:
        assert [x.item() for x in scores[:2]] == pytest.approx([1, 1], abs=1e-6)
    elif kind.startswith("by"):
        assert scores[kind == "by content"].item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("size", [1e2, 1e4])
def test_planes_with_large_logits(device, size):
    keys, turned = drawn(2, 90, size=size**0.5), drawn(2, 90, seed=1, size=size**0.5)
    scores, _ = plane_scores(keys.to(device), turned.to(device), torch.zeros(1, device=device), 0.1)
    # The factors are exact in float64; what float32 makes of logits of this size is part of the answer.
    exact = one_by_one(keys.double().mT @ turned.double(), torch.zeros(1).double(), 0.1)
    assert [x.item() for x in scores[:2]] == pytest.approx(exact[:2], abs=1e-7 * size + 1e-5)


def test_blocks_and_float64_are_those_of_the_public_functions(device):
    ways = itertools.product((torch.float32, torch.float64), (None, [(0, 2), (3, 6), (7, 9)]), (False, True))
    for dtype, blocks, relative in ways:
        relocated, own = drawn(2, 3, 9, 9).to(device, dtype), drawn(2, 3, 1, seed=1).to(device, dtype)
        scores, found, swaps = scores_and_exclusion(relocated, own, blocks, 0.1, relative)
        how = dict(extra_logits=own, blocks=blocks, temperature=0.1, relative=relative)
        expected = swap_scores(relocated, **how)
        counted = effective_swaps(relocated.diagonal(dim1=-2, dim2=-1), **how)
        torch.testing.assert_close(swaps.double(), counted, atol=1e-5, rtol=1e-5)
        for a, b in zip((*scores, *found), (*expected, *exclusion(relocated)), strict=True):
            assert a.dtype == dtype and a.shape == (2, 3)
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
        exact = exclusion(relocated.double().cpu())
        for a, b in zip(found, exact, strict=True):
            torch.testing.assert_close(a.cpu().double(), b, atol=1e-5, rtol=1e-5)


def test_gradients_are_asked_for_and_given(device):
    relocated = drawn(40, 40).to(device).requires_grad_()
    assert not kernels.supported(relocated)
    scores = swap_scores(relocated, temperature=0.1)
    (gradient,) = torch.autograd.grad(scores.positional + 2 * scores.symbolic, relocated)
    step = drawn(40, 40, seed=1, size=1e-4).double()
    with torch.no_grad():
        low, high = (swap_scores(relocated.cpu().double() + sign * step, temperature=0.1) for sign in (-1, 1))
    change = (high.positional + 2 * high.symbolic - low.positional - 2 * low.symbolic) / 2
    assert (gradient.cpu().double() * step).sum().item() == pytest.approx(change.item(), rel=1e-3)


def test_float32_goes_through_kernels_where_they_run_and_other_numbers_do_not(device):
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    assert kernels.supported(torch.ones(3, 3, device=device)) == (device == "cuda" or interpreted)
    assert not kernels.supported(torch.ones(3, 3, device=device, dtype=torch.float64))


@OVERFLOWS
def test_logits_that_overflow_are_reported_with_their_layer(device):
    size = torch.full((1, 1, 6, 2), 1e30, device=device)
    inputs = LayerInputs(
        layers=[4], query=size[:, :, 0], keys=size, cos=size[0, 0, :, :1] * 0 + 1, sin=size[0, 0, :, :1] * 0,
        query_position=5, moved=torch.arange(5, device=device), scale=1.0,
    )  # fmt: skip
    collector, batch = ScoreCollector(Scoring(0.1, False)), Batch((0,), (5,), None, ())
    collector.add(inputs, batch)
    with pytest.raises(InputError, match="layer 4: logits are not finite"):
        collector.tables()
    inputs.query = torch.zeros_like(inputs.query)
    collector, batch = ScoreCollector(Scoring(0.1, False)), Batch((0,), (5,), None, ())
    collector.add(inputs, batch)
    assert collector.tables()[0].entropy.item() == pytest.approx(math.log(6))
