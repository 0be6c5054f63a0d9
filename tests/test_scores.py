"""The closed form against permuting keys and redoing the attention, and the exclusion bound against all N!."""

import itertools
import math

import numpy as np
import pytest
import torch

from possym.errors import InputError
from possym.rope import frequencies
from possym.scores import effective_swaps, exclusion, purity, relocated_logits, scores_by_temperature, swap_scores

from . import permutation

BLOCKS = {
    "tokens": None,
    "equal": [(0, 2), (2, 4), (4, 6)],
    "unequal": [(0, 1), (1, 4), (4, 6)],
    "gaps": [(1, 2), (3, 6)],
    "ends": [(0, 3), (6, 7)],
}


def random_head(keys, dim, rotating, layout, seed, size=1.0):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(dim, generator=generator, dtype=torch.float64) * size
    contents = torch.randn(keys, dim, generator=generator, dtype=torch.float64)
    extra = torch.randn(2, generator=generator, dtype=torch.float64)
    places = dict(query_position=keys, positions=torch.arange(keys), frequencies=frequencies(rotating), layout=layout)
    return query, contents, extra, places


def truth(query, keys, extra, places, blocks, temperature, relative=False):
    return permutation.swap_scores(
        query,
        keys,
        places["query_position"],
        places["positions"].tolist(),
        places["frequencies"],
        places["layout"],
        1 / math.sqrt(len(query)),
        extra.tolist(),
        blocks,
        temperature,
        relative,
    )


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("relative", [False, True])
def test_closed_form_agrees_with_permuting(blocks, relative):
    heads = [("interleaved", 8, 0.3), ("half", 4, 3.0), ("interleaved", 4, 30.0)]
    for seed, ((layout, rotating, size), temperature) in enumerate(itertools.product(heads, [1e-4, 0.1, 10.0])):
        options = dict(blocks=BLOCKS[blocks], temperature=temperature, relative=relative)
        query, keys, extra, places = random_head(7, 8, rotating, layout, seed, size)
        *expected, count = truth(query, keys, extra, places, **options)
        relocated = relocated_logits(query, keys, **places)
        exact = swap_scores(relocated, extra_logits=extra, **options)
        for got, wanted in zip(exact, expected, strict=True):
            assert got.dtype == torch.float64
            assert got.item() == pytest.approx(wanted, abs=1e-10)
        counted = effective_swaps(relocated.diagonal(), extra_logits=extra, **options)
        assert counted.item() == pytest.approx(count, rel=1e-8)


@pytest.mark.parametrize("temperature, tolerance", [(0.1, 1e-5), (1e-4, 5e-4)])
def test_float32_agrees_with_permuting(temperature, tolerance):
    for seed in range(2):
        query, keys, extra, places = random_head(16, 32, 32, "interleaved", seed, 2.0)
        *expected, _ = truth(query.float().double(), keys.float().double(), extra, places, None, temperature)
        relocated = relocated_logits(query.float(), keys.float(), **places)
        single = swap_scores(relocated, extra_logits=extra.float(), temperature=temperature)
        for got, wanted in zip(single, expected, strict=True):
            assert got.dtype == torch.float32
            assert got.item() == pytest.approx(wanted, abs=tolerance)


def test_queries_and_places_that_are_not_consecutive():
    query, keys, extra, places = random_head(5, 8, 8, "half", 1, 2.0)
    places |= dict(query_position=50, positions=torch.tensor([2, 3, 11, 12, 40]))
    got = swap_scores(relocated_logits(query, keys, **places), extra_logits=extra, temperature=0.1)
    assert [x.item() for x in got] == pytest.approx(truth(query, keys, extra, places, None, 0.1)[:3], abs=1e-10)


def test_leading_dimensions_are_independent():
    heads = [random_head(6, 8, 8, "half", seed) for seed in range(6)]
    places = heads[0][3]
    queries = torch.stack([head[0] for head in heads]).view(2, 3, 8)
    keys = torch.stack([head[1] for head in heads]).view(2, 3, 6, 8)
    extra = torch.stack([head[2] for head in heads]).view(2, 3, 2)
    for blocks in (None, [(0, 1), (2, 5)]):
        batched = swap_scores(relocated_logits(queries, keys, **places), extra_logits=extra, blocks=blocks)
        for k, (query, key, more, _) in enumerate(heads):
            single = swap_scores(relocated_logits(query, key, **places), extra_logits=more, blocks=blocks)
            for a, b in zip(batched, single, strict=True):
                assert a.shape == (2, 3)
                torch.testing.assert_close(a.flatten()[k], b, rtol=0, atol=1e-12)


def test_scores_by_temperature_are_those_of_each_temperature():
    relocated = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    extra = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    temperatures = (1e-4, 0.1, 3.0)
    found = scores_by_temperature(relocated, extra, temperatures)
    for k, temperature in enumerate(temperatures):
        expected = swap_scores(relocated, extra_logits=extra, temperature=temperature)[:2]
        torch.testing.assert_close((found[0][k], found[1][k]), tuple(expected), rtol=0, atol=1e-12)


def test_queries_broadcast_over_grouped_keys():
    query = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(0))
    keys = torch.randn(4, 1, 5, 8, generator=torch.Generator().manual_seed(1))
    places = random_head(5, 8, 8, "half", 0)[3]
    grouped = relocated_logits(query, keys, **places)
    assert grouped.shape == (4, 3, 5, 5)
    torch.testing.assert_close(grouped, relocated_logits(query, keys.expand(4, 3, 5, 8).clone(), **places))


def test_several_queries_look_at_the_same_keys():
    query = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    keys = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    places = random_head(5, 8, 8, "half", 0)[3]
    together = relocated_logits(query, keys, **places)
    torch.testing.assert_close(together, torch.stack([relocated_logits(one, keys, **places) for one in query]))


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_planes_add_up_and_match_permuting(layout):
    query, keys, _, places = random_head(6, 10, 6, layout, 3, 3.0)
    parts = relocated_logits(query, keys, **places, per_plane=True)
    assert parts.shape == (3, 6, 6)
    fixed = (keys[:, 6:] @ query[6:]) / math.sqrt(10)
    whole = relocated_logits(query, keys, **places)
    torch.testing.assert_close(parts.sum(0) + fixed[:, None], whole, rtol=0, atol=1e-12)
    scores = swap_scores(parts, temperature=0.1)
    for plane in range(3):
        pair = [2 * plane, 2 * plane + 1] if layout == "interleaved" else [plane, plane + 3]
        *expected, _ = permutation.swap_scores(
            query[pair],
            keys[:, pair],
            6,
            list(range(6)),
            places["frequencies"][plane : plane + 1],
            layout,
            1 / math.sqrt(10),
            [],
            None,
            0.1,
        )
        assert [x[plane].item() for x in scores] == pytest.approx(expected, abs=1e-10)


def test_relocated_logits_are_the_logits_of_moved_keys():
    query, keys, _, places = random_head(5, 8, 6, "half", 0)
    relocated = relocated_logits(query, keys, **places, scale=0.7)
    for content, place in itertools.product(range(5), repeat=2):
        turned_key = permutation.rotation_matrix(8, place, places["frequencies"], "half") @ keys[content]
        turned_query = permutation.rotation_matrix(8, 5, places["frequencies"], "half") @ query
        assert relocated[content, place].item() == pytest.approx(0.7 * float(turned_key @ turned_query), abs=1e-12)


@pytest.mark.parametrize("size", [1e2, 1e4])
def test_large_logits_stay_exact(size):
    """Hard attention: with one winner far ahead the scores of pure heads are exactly 1 and 0."""
    for dtype in (torch.float32, torch.float64):
        profile = torch.tensor([0.0, -1.0, 1.0, 0.3], dtype=dtype) * size
        for relocated, expected in [(profile.expand(4, 4), (1.0, 0.0)), (profile[:, None].expand(4, 4), (0.0, 1.0))]:
            scores = swap_scores(relocated)
            assert (scores.positional.item(), scores.symbolic.item()) == pytest.approx(expected, abs=1e-6)
            assert scores.entropy.item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("size", [1e2, 1e4])
@pytest.mark.parametrize("blocks", [[(0, 2), (2, 4), (4, 6)], [(0, 1), (1, 4), (4, 6)]])
def test_large_logits_stay_exact_in_blocks(blocks, size, relative):
    """Far from 0 on either side, where e to the logit is no number: the same scores as of logits that are small."""
    options = dict(blocks=blocks, relative=relative, temperature=0.1)
    for dtype, tolerance in ((torch.float32, 1e-2), (torch.float64, 1e-10)):
        near = torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=dtype)
        expected = swap_scores(near, **options)
        for shift in (-size, size):
            found = swap_scores(near + shift, **options)
            assert [x.item() for x in found] == pytest.approx([x.item() for x in expected], abs=tolerance)
        if len({stop - start for start, stop in blocks}) > 1:
            continue  # a block that takes a place of another length is not attended to as the one that was there
        profile = torch.tensor([0.0, -1.0, 1.0, 0.3, 0.2, -0.5], dtype=dtype) * size
        for relocated, wanted in [(profile.expand(6, 6), 0), (profile[:, None].expand(6, 6), 1)]:
            assert swap_scores(relocated, **options)[wanted].item() == pytest.approx(1.0, abs=1e-5)


def test_a_sink_flattens_absolute_weights_and_leaves_relative_ones():
    """A positional head behind a key of its own that takes nearly all: the other score is 0.97, and no entropy."""
    profile = torch.zeros(64, dtype=torch.float64)
    profile[20] = 5.0
    head, sink = profile.expand(64, 64), profile.new_tensor([10.0])
    absolute = swap_scores(head, extra_logits=sink, temperature=0.1)
    assert [round(x.item(), 3) for x in absolute] == [1.0, 0.967, 0.071]
    assert effective_swaps(profile, extra_logits=sink, temperature=0.1) > 2015.8
    for weight in (None, 10.0, 1e4):
        extra = None if weight is None else profile.new_tensor([weight])
        relative = swap_scores(head, extra_logits=extra, temperature=1.0, relative=True)
        assert [x.item() for x in relative[:2]] == pytest.approx([1.0, 1 / math.cosh(5)])
        counted = effective_swaps(profile, extra_logits=extra, temperature=1.0, relative=True).item()
        assert counted == pytest.approx(63)


def test_relative_weights_are_those_of_scaled_attention():
    """Multiplying all attention by a factor, however small, changes nothing; equal attention weighs all swaps alike."""
    relocated = torch.randn(9, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = swap_scores(relocated, relative=True, temperature=0.3)
    for shift in (-300.0, 300.0):
        extra = torch.zeros(1, dtype=torch.float64)
        found = swap_scores(relocated + shift, extra_logits=extra, relative=True, temperature=0.3)
        assert [x.item() for x in found[:2]] == pytest.approx([x.item() for x in expected[:2]], abs=1e-12)
    level = torch.full((5,), 0.7)
    for temperature in (1e-4, 1.0):
        assert effective_swaps(level, relative=True, temperature=temperature).item() == pytest.approx(10)
    tilted = torch.zeros(3, dtype=torch.float64) + torch.tensor([0.0, 1e-13, 2e-13], dtype=torch.float64)
    assert effective_swaps(tilted, relative=True, temperature=1e-2).item() == pytest.approx(1.0, abs=1e-6)


def test_two_high_scores_mean_that_attention_hardly_differs_where_the_weights_look():
    """Σ α (a_i − a_j)² / (a_i² + a_j²) is at most 2 (1 − positional) + 2 (1 − symbolic)."""
    for size in (0.1, 0.5, 2.0):
        relocated = size * torch.randn(8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        scores = swap_scores(relocated, temperature=1.0, relative=True)
        first, second = relocated.diagonal().softmax(0)[torch.combinations(torch.arange(8))].T
        gap = (first - second).abs()
        left = (gap / gap.sum() * gap**2 / (first**2 + second**2)).sum()
        assert 0 < left <= 2 * (1 - scores.positional) + 2 * (1 - scores.symbolic)


def test_every_swap_counts_alike_where_temperature_is_high_and_one_where_it_is_low():
    logits = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    for relative in (False, True):
        high, low = (effective_swaps(logits, temperature=t, relative=relative) for t in (1e6, 1e-6))
        torch.testing.assert_close(high, torch.full((3,), 66.0, dtype=torch.float64))
        torch.testing.assert_close(low, torch.ones(3, dtype=torch.float64))
        assert effective_swaps(logits[0, :2], relative=relative).item() == pytest.approx(1)


def test_tiny_weights_keep_their_cosine():
    """Two keys with weights near e^-200 still exchange them: dividing by the larger entry keeps the ratio."""
    profile = torch.tensor([0.0, -200.0, -203.0])
    crossed = swap_scores(profile[:, None].expand(3, 3), temperature=1e6)
    assert crossed.symbolic.item() == pytest.approx(1.0, abs=1e-6)


def test_uniform_heads_score_one_twice():
    scores = swap_scores(torch.zeros(9, 9))
    assert scores.positional.item() == pytest.approx(1) and scores.symbolic.item() == pytest.approx(1)
    assert scores.entropy.item() == pytest.approx(math.log(9))


def test_extra_logits_enter_entropy_and_weights_alone():
    relocated = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drowned = swap_scores(relocated, extra_logits=torch.tensor([50.0], dtype=torch.float64), temperature=1e-4)
    pairs = list(itertools.combinations(range(4), 2))
    cosines = [
        torch.nn.functional.cosine_similarity(
            torch.stack([relocated[j, i], relocated[i, j]]).exp(),
            torch.stack([relocated[i, i], relocated[j, j]]).exp(),
            0,
        )
        for i, j in pairs
    ]
    assert drowned.positional.item() == pytest.approx(torch.stack(cosines).mean().item(), abs=1e-9)
    assert drowned.entropy.item() < 1e-6


@pytest.mark.parametrize("count", [2, 3, 6])
def test_exclusion_agrees_with_all_permutations(count):
    relocated = torch.randn(count, count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    logits = relocated.diagonal()
    positional = symbolic = 0.0
    for order in itertools.permutations(range(count)):
        for place, content in enumerate(order):
            positional += float((relocated[content, place] - logits[place]) ** 2)
            symbolic += float((relocated[content, place] - logits[content]) ** 2)
    bound = (positional + symbolic) / (math.factorial(count) * count)
    result = exclusion(relocated)
    assert result.bound.item() == pytest.approx(bound, rel=1e-10)
    assert result.positional_deviation.item() * math.factorial(count - 1) == pytest.approx(positional, rel=1e-10)
    assert result.symbolic_deviation.item() * math.factorial(count - 1) == pytest.approx(symbolic, rel=1e-10)
    assert result.variance.item() == pytest.approx(sum((x - logits.mean()) ** 2 for x in logits).item() / count)
    assert result.variance <= result.bound


def test_purity_needs_both_scores():
    positional = torch.tensor([0.95, 0.95, 0.05, 0.5, 0.90, 1.0])
    symbolic = torch.tensor([0.05, 0.50, 0.95, 0.5, 0.10, 1.0])
    assert purity(positional, symbolic).tolist() == [1, 0, -1, 0, 1, 0]
    assert purity(positional, symbolic, gamma=0.05).tolist() == [1, 0, -1, 0, 0, 0]


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("blocks", [None, [(0, 2), (3, 5)], [(0, 1), (2, 5)]])
def test_scores_have_the_gradient_of_their_differences(blocks, relative):
    relocated = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)

    def scores(relocated):
        options = dict(blocks=blocks, temperature=0.5, relative=relative)
        return swap_scores(relocated, extra_logits=relocated.new_ones(1), **options)

    assert torch.autograd.gradcheck(scores, relocated)


@pytest.mark.parametrize("blocks", [None, [(0, 2), (3, 5)]])
def test_no_prompts_give_no_scores(blocks):
    relocated = torch.zeros(0, 3, 5, 5)
    scores = swap_scores(relocated, extra_logits=torch.zeros(0, 3, 1), blocks=blocks)
    counted = effective_swaps(torch.zeros(0, 3, 5), blocks=blocks)
    assert {tuple(x.shape) for x in (*scores, counted, *exclusion(relocated))} == {(0, 3)}


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_a_head_that_does_not_rotate_is_symbolic(layout):
    query, keys, _, places = random_head(5, 8, 8, layout, 0)
    places["frequencies"] = torch.empty(0)
    relocated = relocated_logits(query, keys, **places)
    torch.testing.assert_close(relocated, (keys @ query[..., None] / math.sqrt(8)).expand_as(relocated))
    assert relocated_logits(query, keys, **places, per_plane=True).shape[-3] == 0


def test_the_widest_temperatures_are_finite():
    relocated = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
    for temperature, relative in ((1e-30, False), (1e30, False), (1e-30, True), (1e30, True)):
        scores = swap_scores(relocated, temperature=temperature, relative=relative)
        assert all(bool(x.isfinite()) for x in scores)
        counted = effective_swaps(relocated.diagonal(), temperature=temperature, relative=relative)
        assert counted.item() == pytest.approx(1 if temperature < 1 else 10)


def test_every_way_of_writing_blocks_and_numbers_is_read_alike():
    relocated = torch.randn(5, 5, generator=torch.Generator().manual_seed(0)).half()
    expected = swap_scores(relocated.float(), blocks=[(0, 2), (2, 5)])
    for blocks in ([(0.0, 2.0), (2.0, 5.0)], np.array([[0, 2], [2, 5]]), torch.tensor([[0, 2], [2, 5]])):
        assert swap_scores(relocated, blocks=blocks) == expected
    assert swap_scores(relocated.T.contiguous().T) == swap_scores(relocated.float())


def square(*shape, value=0.0):
    return torch.full(shape, value)


@pytest.mark.parametrize(
    "relocated, options, message",
    [
        (square(3, 4), {}, "expected \\(..., T, T\\)"),
        (square(2, 2, 1, 1), {}, "at least two keys"),
        (square(4), {}, "expected \\(..., T, T\\)"),
        ([[0.0, 1.0]] * 2, {}, "torch.Tensor"),
        (square(3, 3, value=math.nan), {}, "not finite"),
        (square(3, 3), {"temperature": 0}, "temperature = 0"),
        (square(3, 3), {"temperature": "0.1"}, "temperature"),
        (square(3, 3), {"relative": 1}, "relative is of type int"),
        (square(2, 3, 3), {"extra_logits": square(3, 1)}, "extra_logits"),
        (square(3, 3), {"extra_logits": square(1, value=math.nan)}, "not finite"),
        (square(3, 3), {"blocks": []}, "at least two blocks"),
        (square(3, 3), {"blocks": [(0, 2), (1, 3)]}, "not overlapping"),
        (square(3, 3), {"blocks": [(0, 0), (1, 3)]}, "not empty"),
        (square(3, 3), {"blocks": [(0, 1), (1, 4)]}, "within the 3 keys"),
        (square(3, 3), {"blocks": "tokens"}, "list of \\(start, stop\\)"),
        (square(3, 3), {"blocks": [(0, 1.5), (2, 3)]}, "whole numbers"),
        (square(3, 3, value=0.0).bool(), {}, "real numbers"),
        (square(3, 3).to_sparse(), {}, "dense"),
        (square(3, 3).to("meta"), {}, "with values"),
        (square(3, 3), {"temperature": 1e-40}, "from 1e-30"),
        (square(3, 3), {"temperature": 10**400}, "temperature"),
    ],
)
def test_bad_score_inputs_are_refused(relocated, options, message):
    with pytest.raises(InputError, match=message):
        swap_scores(relocated, **options)


@pytest.mark.parametrize(
    "logits, options, message",
    [
        (square(1), {}, "at least two keys"),
        (square(3, value=math.nan), {}, "not finite"),
    ],
)
def test_bad_counts_of_swaps_are_refused(logits, options, message):
    with pytest.raises(InputError, match=message):
        effective_swaps(logits, **options)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"query": torch.ones(6)}, "one D"),
        ({"query": torch.ones(3, 8), "keys": torch.ones(2, 5, 8)}, "do not broadcast"),
        ({"keys": torch.ones(8)}, "one D"),
        ({"positions": torch.arange(4)}, "one for each key"),
        ({"positions": torch.tensor([0.0, 1, 2, 3, math.nan])}, "finite"),
        ({"query_position": None}, "one finite number"),
        ({"query_position": True}, "one finite number"),
        ({"frequencies": frequencies(10)}, "at most half"),
        ({"layout": "Half"}, "known layouts"),
        ({"scale": "none"}, "finite number"),
        ({"scale": math.nan}, "finite number"),
        ({"scale": True}, "finite number"),
        ({"positions": torch.arange(5) > 2}, "positions"),
        ({"positions": torch.arange(5) + 1j}, "positions"),
        ({"frequencies": frequencies(8) > 0.5}, "real numbers"),
        ({"per_plane": "yes"}, "per_plane is of type str"),
    ],
)
def test_bad_relocations_are_refused(change, message):
    query, keys, _, places = random_head(5, 8, 8, "half", 0)
    arguments = {"query": query, "keys": keys, **places, **change}
    with pytest.raises(InputError, match=message):
        relocated_logits(arguments.pop("query"), arguments.pop("keys"), **arguments)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((torch.ones(3), torch.ones(2)), r"positional \(3,\) and symbolic \(2,\): give two tensors of one shape"),
        ((1.0, torch.ones(2)), "positional is of type float"),
        ((torch.ones(2, dtype=torch.complex64), torch.ones(2)), "real scores"),
        ((torch.ones(2), torch.ones(2), True), "gamma is of type bool"),
        ((torch.ones(2), torch.ones(2), 0.5), "gamma"),
        ((torch.ones(2), torch.ones(2), 0), "gamma"),
    ],
)
def test_bad_purities_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        purity(*arguments)
