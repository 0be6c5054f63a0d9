"""What the page computes is what possym computes: the values that the charts' own expressions give, read back."""

import html
import json
import math
import re

import pytest
import torch
import vl_convert
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from possym.experiments.theory import charts as theory
from possym.experiments.theory import exclusion_charts as exclusion
from possym.experiments.theory import geometry_charts as geometry
from possym.scores import exclusion as exclusion_of
from possym.scores import swap_scores
from possym.theory import (
    index_bound,
    index_gaps,
    mixed_head,
    positional_weight,
    retrieval_bound,
    retrieval_margin,
    symbolic_weight,
)
from possym.theory.statements_p1 import pair_margins

from ...charts.drawn import draw as draw_chart
from ...charts.drawn import marks, title_of, value_of


def drawn(chart, layer, fields, **settings):
    """The rows that one layer of a chart draws with its parameters set, as tuples of numbers or words.

    Each row's fields go into the description of a point, which the picture of the chart carries.
    """
    spec = json.loads(json.dumps(chart.to_dict()))
    part = spec
    for step in layer:
        part = {"data": part.get("data"), **part["hconcat" if "hconcat" in part else "layer"][step]}
    params = spec["params"]
    for name, value in settings.items():
        (found,) = [param for param in params if param["name"] == name]
        found["value"] = value
    label = " + '|' + ".join(f"datum['{field}']" for field in fields)
    alone = {
        "datasets": spec.get("datasets", {}),
        "data": part["data"],
        "params": [{key: value for key, value in param.items() if key != "bind"} for param in params],
        "transform": [*part["transform"], {"calculate": label, "as": "row"}],
        "mark": "point",
        "encoding": {"description": {"field": "row", "type": "nominal"}, "x": {"value": 1}},
    }
    picture = vl_convert.vegalite_to_svg(alone)
    points = re.findall(r'aria-label="([^"]*)" role="graphics-symbol"', picture)
    rows = [html.unescape(point).split("|") for point in points]
    return [tuple(float(cell) if re.match(r"^-?[\d.e+-]+$", cell) else cell for cell in row) for row in rows]


@pytest.mark.parametrize(("strength", "logtau"), [(1.5, -1), (0.0, -4), (6.0, -4), (3.0, 1)])
def test_exclusion_plane(strength, logtau):
    chart = exclusion.exclusion_plane()
    scores = drawn(chart, [0, 0], ["p", "positional", "symbolic"], strength=strength, logtau=logtau)
    lines = drawn(chart, [1, 0], ["quantity", "p", "value"], strength=strength)
    assert len(scores) == 21 and len(lines) == 84
    values = {(quantity, round(p, 2)): value for quantity, p, value in lines}
    for p, positional, symbolic in scores:
        head = mixed_head(strength * torch.tensor(exclusion.LOGITS, dtype=torch.float64), p)
        expected = swap_scores(head, temperature=10.0**logtau)
        assert positional == pytest.approx(expected.positional.item(), abs=1e-4)
        assert symbolic == pytest.approx(expected.symbolic.item(), abs=1e-4)
        result, square = exclusion_of(head), len(head) ** 2
        assert values["variance", round(p, 2)] == pytest.approx(result.variance.item(), abs=1e-4)
        assert values["bound (A + B)/N²", round(p, 2)] == pytest.approx(result.bound.item(), abs=1e-4)
        assert values["A/N²", round(p, 2)] == pytest.approx(result.positional_deviation.item() / square, abs=1e-4)
        assert values["B/N²", round(p, 2)] == pytest.approx(result.symbolic_deviation.item() / square, abs=1e-4)


def test_exclusion_plane_entropy():
    words = drawn(exclusion.exclusion_plane(), [1, 2], ["words"], strength=2.0)[0][0]
    head = mixed_head(2 * torch.tensor(exclusion.LOGITS, dtype=torch.float64), 0.5)
    assert words == f"entropy {swap_scores(head).entropy.item():.2f} of {math.log(6):.2f} nats"


@pytest.mark.parametrize("theta", [0.8, 0.3, 2.5])
def test_index_discrepancy(theta):
    chart = theory.index_discrepancy()
    curves = [dict(drawn(chart, [layer], ["length", "gap"], theta=theta, longest=100)) for layer in range(3)]
    for n in (2, 3, 9, 16, 17, 55, 56, 100):
        gaps = index_gaps(n, theta)
        expected = gaps.min().item(), gaps.max().item(), index_bound(n, theta)
        assert [curve[n] for curve in curves] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("theta", "alphabet"), [(0.0027, 8), (0.0, 4), (0.05, 3), (0.02, 26), (0.03, 2)])
def test_retrieval_discrepancy(theta, alphabet):
    chart = theory.retrieval_discrepancy()
    settings = {"theta": theta, "alphabet": alphabet, "longest": 300}
    margin, bound = (dict(drawn(chart, [layer], ["length", "gap"], **settings)) for layer in range(2))
    for n in (2, 3, 10, 147, 200, 300):
        assert margin[n] == pytest.approx(retrieval_margin(n, theta, alphabet), abs=1e-6)
        assert bound[n] == pytest.approx(retrieval_bound(n, theta, alphabet), abs=1e-6)


@pytest.mark.parametrize(("turns", "n", "beta"), [(0.6, 16, 2.0), (1.4, 9, 5.0), (2.5, 32, 1.0)])
def test_weight_by_place(turns, n, beta):
    chart = theory.weight_by_position()
    angle = turns * 2 * math.pi / n
    for layer, weight in ((0, positional_weight), (1, symbolic_weight)):
        rows = dict(drawn(chart, [layer], ["j", "weight"], turns=turns, n=n, beta=beta))
        assert [rows[j] for j in range(n)] == pytest.approx(weight(n, angle, beta).tolist(), abs=1e-6)


@pytest.mark.parametrize(
    "proportion, factor, logbase, logtrained, loglength",
    [(0.0, 4, 4, 11, 14), (0.3, 16, 5.7, 13, 12), (1.0, 1, 5.7, 11, 14)],
)
def test_wavelengths(proportion, factor, logbase, logtrained, loglength):
    base, trained, length = 10.0**logbase, 2**logtrained, 2**loglength
    factors = (1 + (factor - 1) * torch.arange(64) / 63).tolist()
    before = {"original_max_position_embeddings": trained}
    parameters = {
        "linear": {},
        "dynamic": {},
        "yarn": before,
        "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0, **before},
        "longrope (example)": {"short_factor": factors, "long_factor": factors, **before},
    }
    expected = {}
    for name, more in parameters.items():
        kind = name.split()[0]
        config = LlamaConfig(
            hidden_size=128,
            num_attention_heads=1,
            max_position_embeddings=trained if kind == "dynamic" else 2 * trained,
            rope_parameters={"rope_type": kind, "rope_theta": base, "factor": float(factor), **more},
        )
        expected[name], _ = ROPE_INIT_FUNCTIONS[kind](config, device="cpu", seq_len=length)
    assert list(expected) == list(geometry.SCALINGS)
    for name, angles in expected.items():
        rows = drawn(
            geometry.wavelengths(),
            [1],
            ["id", "angle"],
            scaling=name,
            factor=factor,
            logbase=logbase,
            logtrained=logtrained,
            loglength=loglength,
            proportion=proportion,
        )
        found = dict(rows)
        angles[int(proportion * 64) :] = 0
        assert [found[k + 1] for k in range(64)] == pytest.approx(angles.tolist(), rel=1e-4, abs=1e-12), name


def test_wavelengths_stand_beside_those_without_scaling():
    chart = geometry.wavelengths()
    plain = dict(drawn(chart, [0], ["id", "plain"], logbase=5))
    expected = 2 * math.pi / torch.tensor([10.0 ** (-5 * 2 * k / 128) for k in range(64)], dtype=torch.float64)
    assert [plain[k + 1] for k in range(64)] == pytest.approx(expected.tolist(), rel=1e-4)
    for scaling_name in geometry.SCALINGS:
        for length in (8, 14, 20):
            settings = {"scaling": scaling_name, "loglength": length, "logbase": 5}
            after, before = map(int, re.findall(r"\d+", drawn(chart, [4], ["words"], **settings)[0][0]))
            turned = [w <= 2**length for w in expected.tolist()]
            assert before == sum(turned) and after <= before, settings
        at_first = {"scaling": scaling_name}
        after, before = map(int, re.findall(r"\d+", drawn(chart, [4], ["words"], **at_first)[0][0]))
        assert after < before, "the first view shows no effect"


def test_sliders_show_what_the_reader_knows():
    chart = geometry.wavelengths()
    settings = {"loglength": 14, "logbase": 4}
    assert [value_of(chart, f"{name}_said", **settings) for name in settings] == ["16,384", "10,000"]
    index = geometry.index_logits()
    for n in (2, 57):
        assert value_of(index, "sigma_most", n=n) == str(n - 1)


@pytest.mark.parametrize(("theta", "alphabet"), [(0.0027, 8), (0.01, 5), (0.05, 26), (0.05, 2)])
def test_the_title_of_retrieval_names_the_first_length_that_errs(theta, alphabet):
    title = title_of(theory.retrieval_discrepancy(), theta=theta, alphabet=alphabet)
    first, end = (int(number) for number in re.findall(r"from n = (\d+) on, while the bound ends at (\d+)", title)[0])
    assert retrieval_margin(first, theta, alphabet) < 0
    assert first == 2 or retrieval_margin(first - 1, theta, alphabet) > 0
    assert end == round(2 * math.pi / alphabet / theta)


def test_the_title_of_retrieval_without_angle_promises_what_holds():
    assert title_of(theory.retrieval_discrepancy(), theta=0) == "Retrieval: without an angle the head never errs"
    assert min(retrieval_margin(300, 0.0, alphabet) for alphabet in (2, 8, 26)) > 0


def test_constructed_logits():
    rows = dict(drawn(geometry.index_logits(), [1], ["d", "logit"], theta=0.7, n=12, sigma=4))
    assert [rows[d] for d in range(12)] == pytest.approx([math.cos((d - 4) * 0.7) for d in range(12)], abs=1e-6)
    rows = drawn(geometry.retrieval_logits(), [0], ["d", "delta", "logit"], theta=0.01, alphabet=5, n=40)
    assert len(rows) == 40
    for d, delta, logit in rows:
        assert logit == pytest.approx(math.cos(delta * 2 * math.pi / 5 + d * 0.01), abs=1e-6)


def test_every_chart_states_a_finding_and_describes_itself():
    for chart in (
        exclusion.exclusion_plane(),
        geometry.turning_planes(),
        geometry.wavelengths(),
        geometry.index_logits(),
        geometry.retrieval_logits(),
        theory.index_discrepancy(),
        theory.retrieval_discrepancy(),
        theory.weight_by_position(),
    ):
        spec = chart.to_dict()
        assert len(title_of(chart)) > 20 and len(spec["description"]) > 60
        assert len(json.dumps(spec)) < 40_000


def test_pair_chart():
    draws = [pair_margins(seed) for seed in range(3)]
    for draw in (1, 3):
        bars = marks(draw_chart(theory.pair_chart(draws), draw=draw), "bar")
        found = sorted((bar["input"], float(bar["Lead of the right answer"].replace("−", "-"))) for bar in bars)
        wanted = sorted((row["input"], row["margin"]) for row in draws[draw - 1])
        assert [name for name, _ in found] == [name for name, _ in wanted]
        assert [lead for _, lead in found] == pytest.approx([lead for _, lead in wanted], abs=1e-6)
