"""The report opened from disk in a real browser: its numbers, its controls, both widths and colour schemes."""

import pytest
import torch

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
    found = possym.profile(model, [ids], per_frequency=True, progress=False)
    path = write_report(found, folder / "report.html", model=model, tokenizer=Shouting(), title=ATTACK)
    return model, ids, found, path


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
        page.locator("rect.cell").nth(1).click()
        assert page.locator("#head").input_value() == "1"
        page.locator("#score").select_option("symbolic")
        page.locator("#head").select_option(page.evaluate("Object.keys(data.rows)[0].split(':')[1]"))
        chosen = summary.loc[int(page.locator("#head").input_value())]
        eager = type(model).from_pretrained(model.config.name_or_path, attn_implementation="eager")
        with torch.no_grad():
            weights = eager(torch.tensor([ids]), output_attentions=True).attentions[int(chosen.layer)]
        shares = page.evaluate("[...document.querySelectorAll('#tokens button')].map(b => Number(b.dataset.share))")
        assert torch.allclose(torch.tensor(shares), weights[0, int(chosen["head"]), -1], atol=1e-3)
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
