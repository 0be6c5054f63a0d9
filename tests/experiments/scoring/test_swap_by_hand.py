"""The landing page's two heads: what the page is given is what the library computes."""

import json
import math
import re
from html import unescape

import pytest
import torch

from possym.errors import InputError
from possym.experiments.scoring.swap_by_hand import OWN, WORDS, ByHand, positional_head, symbolic_head
from possym.rope import frequencies


@pytest.fixture(scope="module")
def page():
    return ByHand()


def test_the_positional_head_knows_places_alone():
    """The logit of a place is that of two clocks, whatever stands there: cos of its distance from the first place."""
    turn = frequencies(4, base=10.0).tolist()
    for row in positional_head().tolist():
        assert row == pytest.approx(
            [4 * sum(math.cos(place * angle) for angle in turn) for place in range(6)], abs=1e-5
        )


def test_the_symbolic_head_knows_words_alone():
    relocated = symbolic_head()
    assert (relocated == relocated[:, :1]).all()
    assert (relocated[1] == relocated[4]).all()  # likes, twice
    assert relocated[:, 0].argmax() == WORDS.index("Alice")


def test_what_the_page_holds_is_what_the_heads_see(page):
    html = page._repr_html_()
    panels = re.findall(r'data-logits="(.*?)"', html)
    shares = [float(share) for share in re.findall(r"--share:([\d.]+)", html)]
    for number, (given, relocated) in enumerate(zip(panels, page.heads.values(), strict=True)):
        logits = json.loads(unescape(given))
        assert logits == [pytest.approx(row, abs=1e-3) for row in relocated.tolist()]
        weights = [math.exp(logits[place][place]) for place in range(6)] + [math.exp(OWN)]
        assert shares[7 * number : 7 * number + 7] == pytest.approx([w / sum(weights) for w in weights], abs=2e-3)


def test_each_head_is_of_its_kind_and_its_scores_stand_below_it(page):
    html = page._repr_html_()
    for own, name in enumerate(page.heads):
        scores = page.scores(name)
        assert scores[own] > 0.999 and scores[1 - own] < 0.2
        assert f"positional score <b>{scores[0]:.2f}</b>, symbolic score <b>{scores[1]:.2f}</b>" in html
        assert f"{name}: Alice" in repr(page)


def test_logits_that_do_not_fit_the_words_are_refused():
    with pytest.raises(InputError, match="6 words"):
        ByHand({"a head": torch.zeros(5, 5)})
