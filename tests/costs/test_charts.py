"""The chart of costs draws the numbers of `possym.costs`, and marks where memory ends."""

import pytest

from possym import costs
from possym.costs import charts
from possym.errors import InputError

from ..charts.drawn import draw, is_complete, marks, texts, title_of


def test_the_chart_is_complete_and_its_title_is_computed():
    chart = charts.time_by_tokens()
    is_complete(chart)
    for model in charts.MODELS:
        found = costs.profile_seconds(costs.shapes()[model], 2**17)
        hours = sum(found.values()) / 3600
        said = f"at 131,072 tokens takes {hours:.1f} hours, {100 * found['planes'] / 3600 / hours:.0f} % of them"
        assert title_of(chart, model=model).startswith(f"Profiling {model} {said}")
        for cards in (1, 3, 8):
            held = {
                card: costs.longest(costs.shapes()[model], entry["memory"], cards) >= 2**17
                for card, entry in costs.read()["cards"].items()
            }
            end = title_of(chart, model=model, cards=cards).partition("; it fits ")[2]
            fits = "" if end.startswith("neither") else end.partition(", not")[0]
            assert {card: f"{cards} × {card}" in fits for card in held} == held


def test_lines_are_the_parts_of_the_chosen_model():
    table = charts.times()
    row = table.query("model == 'Llama-3-8B' and tokens == 2048").set_index("part")["seconds"]
    measured = costs.read()["measured"]["milliseconds"]["Llama-3-8B"]
    assert row["forward pass"] == pytest.approx(measured["forward"] / 1000)
    assert row.sum() == pytest.approx(measured["planes"] / 1000)
    assert len(table) == 3 * 12 * 4
    for model in charts.MODELS:
        lines = marks(draw(charts.time_by_tokens(), model=model), "line mark")
        first = {line["part"]: float(line["Time on one H200"]) for line in lines}
        expected = table[(table["model"] == model) & (table["tokens"] == 512)].set_index("part")["seconds"]
        assert first == pytest.approx(expected.to_dict(), rel=1e-6)


@pytest.mark.parametrize(("model", "cards"), [("Llama-3-70B", 8), ("Llama-3-70B", 1), ("Llama-3-8B", 1)])
def test_rules_stand_where_the_memory_of_so_many_cards_ends(model, cards):
    svg = draw(charts.time_by_tokens(), model=model, cards=cards)
    expected = {
        card: costs.longest(costs.shapes()[model], entry["memory"], cards)
        for card, entry in costs.read()["cards"].items()
    }
    words = [text for text in texts(svg) if text.startswith(f"{cards} × ")]
    assert words == [
        f"{cards} × {card}: " + (f"up to {tokens:,} tokens" if tokens else "the weights alone do not fit")
        for card, tokens in expected.items()
    ]
    assert svg.count('aria-roledescription="rule mark"') == sum(tokens > 0 for tokens in expected.values())


def test_other_models_are_refused():
    with pytest.raises(InputError, match="known models are Llama-3-8B"):
        charts.time_by_tokens("GPT-2")
