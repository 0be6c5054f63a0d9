"""The report opened from disk in a real browser: its numbers, its controls, both widths and colour schemes."""

import copy
import math

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import possym
from possym.errors import InputError
from possym.models import hub, random_llama
from possym.profiling.report import write_report

ATTACK = "</script><script>document.title='broken'</script>"


class Shouting:
    """A tokenizer whose tokens try to break out of the page."""

    def convert_ids_to_tokens(self, ids):
        return [ATTACK] * len(ids)

    def decode(self, ids):
        return ATTACK


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    model, tokenizer = hub.load(str(random_llama.save(folder / "llama")), device="cpu")
    ids = tokenizer("Alice likes red. Bob likes tea.")["input_ids"]
    prompts = [ids, ids[:5] + ids[3:5]]
    found = possym.profile(model, prompts, relative=False, temperature=0.1, per_frequency=True, progress=False)
    path = write_report(found, folder / "report.html", model=model, tokenizer=Shouting(), title=ATTACK)
    return model, ids, found, path


def eager_attention(model, ids):
    eager = type(model).from_pretrained(model.config.name_or_path, attn_implementation="eager")
    with torch.no_grad():
        return eager(torch.tensor([ids]), output_attentions=True).attentions


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_control_works_from_disk(made, visit, width, scheme):
    model, ids, found, path = made
    summary = found.summary()
    with visit(width, color_scheme=scheme) as seen:
        page = seen.open(path.as_uri()).page
        assert page.title() == ATTACK
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("circle.head").count() == page.locator("rect.cell").count() == len(summary)
        for at, row in summary.iterrows():
            words = page.locator(f"circle.head[data-head='{at}'] title").text_content()
            assert f"positional {row.positional:.3f}, symbolic {row.symbolic:.3f}" in words
        on_top = """[...document.querySelectorAll('circle.head')].filter(c => { const box = c.getBoundingClientRect();
            return document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2) === c; })
            .map(c => Number(c.dataset.head)).filter(i => i !== chosen)"""
        page.locator("#plane").scroll_into_view_if_needed()
        dot = page.locator(f"circle.head[data-head='{page.evaluate(on_top)[0]}']")
        dot.hover()
        assert page.locator("#said").text_content() == dot.locator("title").text_content()
        dot.click()
        assert page.locator("#head").input_value() == dot.get_attribute("data-head")
        page.locator("rect.cell").nth(1).click()
        assert page.locator("#head").input_value() == "1"
        page.locator("#head").press("ArrowDown")
        assert page.locator("#head").input_value() == "2" and "head 2" in page.locator("#said").text_content()
        page.locator("#score").select_option("symbolic")
        page.locator("#head").select_option(page.evaluate("Object.keys(data.rows)[0].split(':')[1]"))
        chosen = summary.loc[int(page.locator("#head").input_value())]
        rings = page.evaluate("[...document.querySelectorAll('.ring')].map(c => (c.cx.baseVal.value - 40) / 320)")
        each = found.heads[(found.heads.layer == chosen.layer) & (found.heads["head"] == chosen["head"])]
        assert rings == pytest.approx(each.positional.tolist(), abs=1e-3)
        assert f"{chosen.positional_sd:.3f} and {chosen.symbolic_sd:.3f}" in page.locator("#said").text_content()
        weights = eager_attention(model, ids)[int(chosen.layer)][0, int(chosen["head"])]
        shares = "[...document.querySelectorAll('#tokens button')].map(b => Number(b.dataset.share))"
        assert torch.allclose(torch.tensor(page.evaluate(shares)), weights[-1], atol=1e-3)
        page.locator("#tokens button").nth(4).hover()
        assert torch.allclose(torch.tensor(page.evaluate(shares)), weights[4], atol=1e-3)
        page.locator("h1").hover()
        assert torch.allclose(torch.tensor(page.evaluate(shares)), weights[-1], atol=1e-3)
        page.locator("#asks").select_option("3")
        assert torch.allclose(torch.tensor(page.evaluate(shares)), weights[3], atol=1e-3)
        page.locator("#asks").select_option(str(len(ids) - 1))
        page.locator("#tokens button").nth(0).press("Enter")
        page.locator("#tokens button").nth(2).press("Enter")
        assert "After the swap" in page.locator("#swap").text_content()
        assert seen.findings() == []
        page.locator("#mode").click()
        assert page.locator("html").get_attribute("data-mode") != scheme
        assert seen.findings() == []
        assert seen.problems == []


def test_it_refuses_other_things(made, tmp_path):
    with pytest.raises(InputError, match="profile"):
        write_report("profile", tmp_path / "a.html")
    with pytest.raises(InputError, match="tokenizer"):
        write_report(made[2], tmp_path / "a.html", tokenizer="gpt2")


def test_another_models_attention_is_not_shown(made, tmp_path):
    model, _, found, _ = made
    other = type(model).from_pretrained(model.config.name_or_path)
    with torch.no_grad():
        other.model.layers[0].self_attn.q_proj.weight[0, 0] += 1
    with pytest.raises(InputError, match="other weights than the profiled one"):
        write_report(found, tmp_path / "report.html", model=other)
    assert not (tmp_path / "report.html").exists()
    other.is_quantized = True  # such weights may be packed anew as they are used: the configuration counts
    write_report(found, tmp_path / "report.html", model=other)
    other.config.rope_parameters = other.config.rope_parameters | {"rope_theta": 5.0}
    with pytest.raises(InputError, match="other weights than the profiled one"):
        write_report(found, tmp_path / "other.html", model=other)


def test_scores_of_the_swaps_that_the_page_shows_are_those_of_the_library(made, visit):
    """Every pair of tokens swapped on the page, one by one, and its attention scored by the definition."""
    _, _, found, path = made
    swaps = """key => { const row = data.rows[key], n = row.moved.length;
        const all = { before: shares(row, []).values, after: [] };
        for (let i = 0; i < n; i++) for (let j = i + 1; j < n; j++) all.after.push([i, j, shares(row, [i, j]).values]);
        return all; }"""
    with visit() as seen:
        page = seen.open(path.as_uri()).page
        keys = page.evaluate("Object.keys(data.rows)")
        assert {key.split(":")[0] for key in keys} == {"0", "1"} and len(keys) > 8
        for key in keys:
            prompt, at = map(int, key.split(":"))
            told = page.evaluate(swaps, key)
            before, same, crossed, gaps = told["before"], [], [], []
            for i, j, after in told["after"]:
                old, new = (np.array([values[i], values[j]]) for values in (before, after))
                same.append(old @ new / math.hypot(*old) / math.hypot(*new))
                crossed.append(old[::-1] @ new / math.hypot(*old) / math.hypot(*new))
                gaps.append(abs(old[0] - old[1]))
            weights = np.exp(np.array(gaps) / 0.1)
            row = found.heads[found.heads.prompt == prompt].iloc[at]
            scores = [weights @ same / weights.sum(), weights @ crossed / weights.sum()]
            assert scores == pytest.approx([row.positional, row.symbolic], abs=2e-3)


def test_a_slider_goes_through_checkpoints(made, visit, tmp_path):
    model, ids, _, _ = made
    prompts = [[*ids[k:], *ids[:k]] for k in range(8)]
    before = possym.profile(model, prompts, progress=False)
    changed = copy.deepcopy(model)
    width = changed.config.hidden_size // changed.config.num_attention_heads
    with torch.no_grad():
        changed.model.layers[-1].self_attn.q_proj.weight[width : 2 * width] = 0  # it attends evenly
    after = possym.profile(changed, prompts, progress=False)
    path = write_report({"step-0": before, "step-9": after}, tmp_path / "film.html", model=changed)
    planted = possym.compare(before, after).changed.iloc[0]
    for width in (360, 1280):
        with visit(width) as seen:
            page = seen.open(path.as_uri()).page
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.locator("#step-said").text_content().startswith("step-9: 1 head changed since step-0")
            name = f"Layer {planted.layer}, head {planted['head']}"
            page.get_by_role("button", name=name, exact=True).first.click()
            assert f"symbolic {planted.symbolic_after:.3f}" in page.locator("#said").text_content()
            assert page.locator("line.path").count() == 1 and page.locator("#tokens button").count() == len(ids)
            assert seen.findings() == []
            page.locator("#step").press("ArrowLeft")
            assert "the first" in page.locator("#step-said").text_content()
            assert f"symbolic {planted.symbolic_before:.3f}" in page.locator("#said").text_content()
            assert page.locator("line.path").count() == page.locator("#tokens button").count() == 0
            assert "step-9" in page.locator("#changes table").text_content()
            assert seen.findings() == [] and seen.problems == []


def test_a_thousand_heads_on_twenty_prompts_fit_into_three_megabytes(tmp_path, visit):
    config = LlamaConfig(
        vocab_size=500, hidden_size=40, intermediate_size=64, num_hidden_layers=25, num_attention_heads=40,
        num_key_value_heads=2, head_dim=128,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    prompts = torch.randint(3, 500, (20, 64)).tolist()
    prompts = [*prompts[:3], *(prompt[:6] for prompt in prompts[3:])]  # the length of the others adds nothing
    found = possym.profile(model, prompts, layers=[0], per_frequency=True, progress=False)
    for name in ("heads", "frequencies"):  # the other layers are not scored: of each the first one's values
        table = getattr(found, name)
        setattr(found, name, pd.concat([table.assign(layer=k) for k in range(25)], ignore_index=True))
    path = write_report(found, tmp_path / "large.html", model=model)
    assert len(found.summary()) == 1000 and 1.5e6 < path.stat().st_size < 3e6
    with visit() as seen:
        page = seen.open(path.as_uri()).page
        assert page.locator("circle.head").count() == 1000
        page.locator("#head").select_option("999")
        assert "Layer 24, head 39" in page.locator("#said").text_content() and seen.problems == []
