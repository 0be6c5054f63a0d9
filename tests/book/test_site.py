"""The built site in a real browser, every request to the network blocked and counted."""

import contextlib
import json
import re
from collections import Counter
from html import unescape

import pytest
from playwright.sync_api import TimeoutError

from possym.charts import ASKS, KINDS, KNOWN_HEADS

pytestmark = pytest.mark.book

PAGE_LIMIT = 310_000  # bytes of HTML beside shared scripts and pictures
# Words of charts that are too pale for the page: all but opaque ones among the marks, which stand on marks.
PALE = """() => {
  const rgb = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = parts => parts.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const back = rgb(getComputedStyle(document.body).backgroundColor), found = new Map();
  for (const word of document.querySelectorAll("figure.possym-chart svg.marks text")) {
    const style = getComputedStyle(word);
    let alpha = style.fillOpacity, part = word;
    for (; part.localName !== "figure"; part = part.parentElement) alpha *= getComputedStyle(part).opacity;
    if (!alpha || alpha == 1 && word.closest(".role-mark") || !word.textContent.trim()) continue;
    const ink = rgb(style.fill).map((v, i) => alpha * v + (1 - alpha) * back[i]);
    const [a, b] = [light(ink), light(back)].sort((x, y) => y - x), contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) found.set(`${contrast.toFixed(2)} of ${style.fill}`, word.textContent);
  }
  return [...found].map(([contrast, word]) => `a chart's words are pale: ${word}, ${contrast}`);
}"""
COLOURS = "color-contrast", "link-in-text-block"  # which take axe-core longest
OWN_LETTERS = "* {}"
ACROSS = "document.documentElement.scrollWidth"
WIDE_LETTERS = "html { font-size: 125% !important } * { font-family: monospace !important }"
LABEL = "figure.possym-chart svg .role-axis-label text"
WAYS = (360, "light"), (800, "dark"), (1440, "light")
JOINED = """async pages => {
  const texts = await Promise.all(pages.map(page => fetch(page).then(answer => answer.text())));
  const articles = texts.map(text => new DOMParser().parseFromString(text, "text/html").querySelector(".bd-article"));
  document.querySelector(".bd-article").replaceWith(...articles);
}"""
WIDTHS = """() => {
  const articles = [...document.querySelectorAll(".bd-article")];
  const show = (article, display) => { article.style.display = display; };
  articles.forEach(article => show(article, "none"));
  return articles.map(article => {
    show(article, "");
    const across = document.documentElement.scrollWidth;
    show(article, "none");
    return across;
  });
}"""
CUT = """() => [...document.querySelectorAll("figure.possym-chart svg.marks")].flatMap(svg => {
  const edge = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter(text => {
    const box = text.getBoundingClientRect();
    const outside = box.left < edge.left - 2 || box.right > edge.right + 2 || box.top < edge.top - 2;
    return outside && box.width && +getComputedStyle(text).opacity;
  }).map(text => text.textContent);
})"""
CUT_TABLES = """() => [...document.querySelectorAll(".bd-article table.dataframe")]
  .filter(table => table.checkVisibility())
  .filter(({ parentElement: room }) => room.scrollWidth > room.clientWidth + 1)
  .map(table => "a table is cut: " + table.textContent.replace(/\\s+/g, " ").slice(0, 80))"""
TOUCHING = """() => [...document.querySelectorAll("figure.possym-chart svg.marks .role-axis-label")].flatMap(axis => {
  const drawn = [...axis.querySelectorAll("text")].filter(text => +getComputedStyle(text).opacity);
  const numbers = drawn.filter(text => /^[\\d.,%−]+$/.test(text.textContent));
  const boxes = numbers.map(text => text.getBoundingClientRect());
  return numbers.slice(1).flatMap((text, i) => {
    const gap = boxes[i + 1].left - boxes[i].right, beside = Math.abs(boxes[i + 1].top - boxes[i].top) < 3;
    return beside && Math.abs(gap) < 1 ? [`${numbers[i].textContent} touches ${text.textContent}`] : [];
  });
})"""
TITLES = """async figure => {
  const { view } = figure.possymResult, params = window.possymSpecs[figure.dataset.spec].params || [];
  if (!params.some(({ name }) => name === "title")) return [];
  const bound = params.filter(({ bind }) => bind), titles = [];
  const visit = async ([first, ...rest]) => {
    if (!first) return titles.push((await view.runAsync(), figure.querySelector("figcaption strong").textContent));
    const { options, min, max } = first.bind;
    for (const value of options || [min, max]) {
      view.signal(first.name, value);
      await visit(rest);
    }
  };
  await visit(bound);
  return titles;
}"""
SLIDER = "figure.possym-chart .vega-bind input[type=range]"


def cramped(page) -> list[str]:
    """Texts of charts that are cut, and numbers of an axis that run together."""
    return page.evaluate(CUT) + page.evaluate(TOUCHING)


def themed(page, scheme: str) -> bool:
    """Whether a page takes on a colour scheme, for which its script is told a moment after the browser."""
    with contextlib.suppress(TimeoutError):
        page.wait_for_function("scheme => document.documentElement.dataset.theme === scheme", arg=scheme, timeout=5000)
        return True
    return False


def test_every_kind_of_page_is_whole_at_every_width(kinds_of_pages, address, visit):
    """And axe-core finds nothing wrong with it, light by all rules and dark by those of colours.

    Each page opens at one of the widths, in turn, and is taken to the others.
    """
    problems = []
    with visit() as v:
        for number, page in enumerate(kinds_of_pages):
            for turn in range(len(WAYS)):
                width, scheme = WAYS[(number + turn) % len(WAYS)]
                v.page.set_viewport_size({"width": width, "height": 900})
                v.page.emulate_media(color_scheme=scheme)
                if turn == 0:
                    v.open(f"{address}/{page}")
                charts = v.wait_for_charts()
                drawn = v.page.locator("figure.possym-chart[data-drawn=true] svg.marks").count()
                if drawn != charts:
                    v.problems.append(f"{drawn} of {charts} charts drawn")
                named = v.page.locator("figure.possym-chart [role=graphics-document][aria-label]").count()
                if named != charts:
                    v.problems.append(f"{named} of {charts} charts have an alternative text")
                v.wait_for_formulas()
                formulas, typeset = (v.page.locator(s).count() for s in (".bd-article .math", "mjx-container"))
                if typeset < formulas:
                    v.problems.append(f"{typeset} of {formulas} formulas typeset")
                if not themed(v.page, scheme):
                    v.problems.append(f"not {scheme}")
                if width == 360:
                    v.problems += cramped(v.page)
                else:
                    v.problems += v.findings(*COLOURS if scheme == "dark" else ()) + v.page.evaluate(PALE)
                if width == 1440 and page.startswith("chapters/"):
                    v.problems += v.page.evaluate(CUT_TABLES)
                if (across := v.page.evaluate(ACROSS)) > width:
                    v.problems.append(f"{across} pixels wide")
                if width == 360:
                    style = v.page.add_style_tag(content=WIDE_LETTERS)
                    if (across := v.page.evaluate(ACROSS)) > width:
                        v.problems.append(f"{across} pixels wide, with {WIDE_LETTERS}")
                    style.evaluate("style => style.remove()")
                problems += [f"{page} at {width}: {problem}" for problem in v.problems]
                v.problems.clear()
    assert problems == []


def test_every_page_of_the_reference_fits_a_telephone(pages, kinds_of_pages, address, visit):
    """And axe-core finds nothing wrong with its words: those of all pages stand in one, whose kind is seen above."""
    rest = [page for page in pages if page not in kinds_of_pages]
    with visit(360, color_scheme="light") as v:
        v.open(f"{address}/{rest[0]}")
        v.page.evaluate(JOINED, [f"{address}/{page}" for page in rest])
        assert v.page.locator("article.bd-article h1").count() == len(rest)
        assert v.page.locator("article.bd-article :is(.math, .possym-chart, img)").count() == 0
        v.problems += v.findings(without=COLOURS)
        for letters in (OWN_LETTERS, WIDE_LETTERS):
            v.page.add_style_tag(content=letters)
            widths = dict(zip(rest, v.page.evaluate(WIDTHS), strict=True))
            v.problems += [f"{page}: {across} pixels wide" for page, across in widths.items() if across > 360]
        assert v.problems == []


def test_pages_are_small(site, pages):
    sizes = {page: (site / page).stat().st_size for page in pages}
    assert {page: size for page, size in sizes.items() if size > PAGE_LIMIT} == {}


def test_charts_work_from_disk(site, chart_pages, visit):
    with visit() as v:
        v.open((site / chart_pages[0]).as_uri())
        assert v.wait_for_charts() == v.page.locator("figure.possym-chart[data-drawn=true]").count()
        # Chromium refuses the theme's font preloads from disk, and says so; the page is whole without them.
        assert [problem for problem in v.problems if "console" not in problem] == []


def test_models_answer_in_the_pages_that_have_one(site, pages, address, visit):
    having = [page for page in pages if 'figure class="possym-model' in (site / page).read_text(encoding="utf-8")]
    assert len(having) >= 5
    with visit(reduced_motion="reduce") as v:
        for page in having:
            v.open(f"{address}/{page}").page.locator("figure.possym-model").scroll_into_view_if_needed()
            v.page.wait_for_selector("figure.possym-model[data-state=ready]", timeout=60_000)
        assert v.problems == []


def test_charts_near_the_screen_are_drawn_first(address, visit):
    with visit(reduced_motion="reduce") as v:
        v.page.add_init_script("""
          document.addEventListener("readystatechange", () => scrollTo(0, 1e6));
          new MutationObserver(changes => {
            const drawn = changes.map(change => change.target).find(figure => figure.dataset.drawn === "true");
            window.first ??= drawn && [...document.querySelectorAll("figure.possym-chart")].indexOf(drawn);
          }).observe(document, {subtree: true, attributeFilter: ["data-drawn"]})""")
        v.open(f"{address}/chapters/05-canonical-tasks.html", unfolded=False)
        v.page.wait_for_function("window.first !== undefined")
        figures = "[...document.querySelectorAll('figure.possym-chart')]"
        last = v.page.evaluate(f"{figures}.findLastIndex(figure => figure.checkVisibility())")
        assert v.page.evaluate("window.first") == last > 4
        assert v.problems == []


def test_every_plane_of_scores_has_the_positional_one_across(site):
    def axes(part):
        if isinstance(part, list):
            part = dict(enumerate(part))
        if isinstance(part, dict):
            yield tuple(part[axis].get("field") for axis in ("x", "y") if isinstance(part.get(axis), dict))
            for inner in part.values():
                yield from axes(inner)

    specs = [path.read_text(encoding="utf-8") for path in (site / "_static/charts/specs").glob("*.js")]
    found = [pair for spec in specs for pair in axes(json.loads(spec.partition(" = ")[2].rstrip(";\n")))]
    planes = {pair for pair in found if set(pair) == {"positional", "symbolic"}}
    assert planes == {("positional", "symbolic")}


def test_titles_of_charts_follow_one_convention(site, chart_pages):
    """Open with a capital, a digit or a sign; no last stop; a space before %, a minus that is none of a hyphen."""
    wrong = []
    for page in chart_pages:
        for caption in re.findall(
            r"<figcaption>.*?</figcaption>", (site / page).read_text(encoding="utf-8"), re.DOTALL
        ):
            for part in re.findall(r"<(strong|span)>(.*?)</\1>", caption, re.DOTALL):
                text = unescape(part[1])
                if text[0].islower() or text[-1] in ".;:," or re.search(r"\d%|(?<![\w.])-\d", text):
                    wrong.append(f"{page}: {text}")
    assert wrong == []


def test_no_table_is_cut(site, pages):
    """Nothing that pandas leaves out to save room: rows, columns, ends of words."""
    left_out = r"(\.\.\.|…)</t[dh]>|\d+ rows [×x] \d+ columns|<pre>[^<]*\n *\.\.\. "
    assert [page for page in pages if re.search(left_out, (site / page).read_text(encoding="utf-8"))] == []


def test_symbols_of_legends_are_not_black(site):
    """What has no colour of its own is drawn in the colour of the text, which a dark page makes light."""
    black = r'role-legend-symbol"[^>]*><path[^>]*(fill|stroke)="(black|#000)'
    stills = list((site / "_images").glob("chart-*.svg"))
    assert stills and [path.name for path in stills if re.search(black, path.read_text(encoding="utf-8"))] == []


def test_what_has_a_role_has_its_colour_in_every_chart(site):
    known = {name: colour for name, colour in KNOWN_HEADS.items() if name != "other"}
    roles = KINDS | known | {f"{name} head": colour for name, colour in known.items()}
    roles |= {"number": ASKS["where"], "letter": ASKS["what"]}

    def scales(part):
        if isinstance(part, list | dict):
            for inner in part.values() if isinstance(part, dict) else part:
                yield from scales(inner)
        if isinstance(part, dict) and isinstance(part.get("domain"), list) and isinstance(part.get("range"), list):
            yield from zip(part["domain"], part["range"], strict=False)

    wrong, seen = [], set()
    for path in sorted((site / "_static/charts/specs").glob("*.js")):
        spec = json.loads(path.read_text(encoding="utf-8").partition(" = ")[2].rstrip(";\n"))
        for name, colour in scales({key: part for key, part in spec.items() if key != "datasets"}):
            if str(colour).startswith("#") and name in roles:
                seen.add(name)
                wrong += [f"{path.name}: {name} is {colour}"] if colour.lower() != roles[name].lower() else []
    assert wrong == [] and seen == {*roles}


def test_stills_show_where_scripts_do_not_run(address, chart_pages, visit):
    with visit(java_script_enabled=False) as v:
        v.open(f"{address}/{chart_pages[0]}")
        stills = v.page.locator("img.possym-still")
        assert stills.count() > 0
        for still in stills.all():
            still.scroll_into_view_if_needed()
            assert still.bounding_box()["height"] > 50
            assert len(still.get_attribute("alt")) > 10
        assert v.problems == []


def test_controls_change_their_charts_and_titles_have_words_for_every_setting(chart_pages, address, visit):
    """And no text of a chart is cut on a wide page; on a narrow one it is looked at where every page is opened."""

    def move(slider):
        slider.focus()
        value = slider.input_value()
        slider.press("End")
        if slider.input_value() == value:
            slider.press("Home")

    def select(menu):  # each other entry; one that says how to scale may need its slider moved as well
        svg = menu.locator("xpath=ancestor::figure").locator("svg.marks")
        before = svg.inner_html()
        for index in reversed(range(menu.locator("option").count())):
            menu.select_option(index=index)
            menu.page.wait_for_timeout(100)
            if svg.inner_html() != before:
                return

    def choose(group):
        group.locator("label:has(input:not(:checked))").last.click()

    bound = "figure.possym-chart .vega-bind"
    uses = {SLIDER: move, f"{bound} select": select, f"{bound}-radio": choose}
    used, followed = Counter(), 0
    with visit() as v:
        for page in chart_pages:
            v.open(f"{address}/{page}").wait_for_charts()
            assert cramped(v.page) == [], page
            used += _answering(uses, v, page)
            for figure in v.page.locator("figure.possym-chart").all():
                titles = figure.evaluate(TITLES)
                wrong = [title for title in titles if len(title) < 10 or re.search("undefined|NaN|null", title)]
                assert wrong == [], page
                followed += bool(titles)
            assert v.problems == [], page
    assert used[SLIDER] >= 8 and len(used) == len(uses) and followed >= 8


def test_clicks_choose_what_a_menu_offers_and_double_clicks_what_it_offered_first(site, chart_pages, address, visit):
    clicked = 0
    for page in chart_pages:
        figures = _figures(site, page)
        names = [name for name, _, spec in figures if any(p["name"].endswith("_click") for p in spec.get("params", []))]
        if not names:
            continue
        with visit() as v:
            v.open(f"{address}/{page}").wait_for_charts()
            for name in names:
                figure = v.page.locator(f'figure[data-spec="{name}"]')
                menu, svg = figure.locator("select"), figure.locator("svg.marks")
                first, drawn = menu.input_value(), svg.inner_html()
                marks = figure.locator("svg.marks :is(.mark-symbol, .mark-line).role-mark path")
                mark = (marks if marks.count() else figure.locator("svg.marks .mark-rect.role-mark path")).nth(7)
                v.page.mouse.click(*_middle(mark))
                v.page.wait_for_timeout(300)
                assert menu.input_value() != first and svg.inner_html() != drawn, page
                v.page.mouse.dblclick(*_middle(mark))
                v.page.wait_for_timeout(300)
                assert menu.input_value() == first, page
                assert v.problems == []
                clicked += 1
    assert clicked


def _middle(mark) -> tuple[float, float]:
    """The middle of a mark that is filled, a point of one that is a line, on the screen."""
    mark.scroll_into_view_if_needed()
    return mark.evaluate("""path => {
      const box = path.getBoundingClientRect(), half = path.getTotalLength() / 2;
      const { x, y } = path.getPointAtLength(half).matrixTransform(path.getScreenCTM());
      return path.closest(".mark-line") ? [x, y] : [box.x + box.width / 2, box.y + box.height / 2];
    }""")


def _answering(uses, v, name: str) -> Counter:
    """Use every control that these selectors find on an open page, each changes its chart; how many there are."""
    used, touched = Counter(), set()
    for control in uses:
        around = v.page.locator(control).locator("xpath=ancestor::figure")
        figures = set(around.evaluate_all("figures => figures.map(figure => figure.dataset.spec)"))
        if touched & figures:  # what one kind of control chose may leave another idle
            v.open(v.page.url).wait_for_charts()
            touched.clear()
        touched |= figures
        for found in v.page.locator(control).all():
            svg = found.locator("xpath=ancestor::figure").locator("svg.marks")
            before = svg.inner_html()
            uses[control](found)
            assert _changes(svg, before), f"{name}: {found} leaves its chart as it was"
            used[control] += 1
    return used


def _changes(svg, before: str) -> bool:
    """Whether a chart becomes another than it was, within three seconds."""
    for _ in range(60):
        if svg.inner_html() != before:
            return True
        svg.page.wait_for_timeout(50)
    return False


def test_titles_name_no_setting_that_a_control_changes(site, chart_pages):
    """Words that name some entries of a menu are wrong for the others, unless they are computed from the choice."""
    wrong = []
    for page in chart_pages:
        for _, caption, spec in _figures(site, page):
            params = spec.get("params", [])
            computed = any(param["name"] == "title" for param in params)
            said = re.sub("<strong>.*?</strong>", " ", caption) if computed else caption
            words = unescape(re.sub("<[^>]*>", " ", said))
            for param in params:
                bind = param.get("bind", {})
                options = [f"{each:,}" if isinstance(each, int) else str(each) for each in bind.get("options", [])]
                names = bind.get("labels") or options
                named = {name for name in names if re.search(rf"(?<![\w.,]){re.escape(name)}(?![\w,.]*\w|\s?%)", words)}
                if named and named != set(names):
                    wrong.append(f"{page}: {words} names {', '.join(sorted(named))}")
    assert wrong == []


def test_words_beside_sliders_are_those_that_the_reader_knows(address, visit):
    with visit() as v:
        v.open(f"{address}/chapters/07-learning-dynamics.html").wait_for_charts()
        slider = v.page.locator("input[name=evaluation]").first
        clock = v.page.locator("figure.possym-chart:has(input[name=evaluation]) svg text", has_text="step ")
        for key in ("Home", "End", "ArrowLeft"):
            slider.press(key)
            v.page.wait_for_timeout(200)
            beside = slider.evaluate("slider => slider.nextElementSibling.textContent")
            assert clock.first.text_content() == f"step {beside}"
            assert slider.get_attribute("aria-valuetext") == beside
        assert v.problems == []


def test_a_slider_ends_where_another_says(address, visit):
    with visit() as v:
        v.open(f"{address}/chapters/04-rope-geometry.html").wait_for_charts()
        asked = v.page.locator("input[name=sigma]")
        figure = asked.locator("xpath=ancestor::figure")
        asked.press("End")
        v.page.wait_for_timeout(200)
        assert int(asked.input_value()) == int(figure.locator("input[name=n]").input_value()) - 1
        figure.locator("input[name=n]").press("Home")
        v.page.wait_for_timeout(200)
        assert asked.input_value() == asked.get_attribute("max") == "1"
        assert figure.evaluate("figure => figure.possymResult.view.signal('sigma')") == 1
        assert v.problems == []


def test_a_chart_drawn_anew_at_another_width_keeps_its_settings_and_its_title(address, visit):
    with visit(1200) as v:
        v.open(f"{address}/chapters/10-length-generalization.html").wait_for_charts()
        figure = v.page.locator("figure.possym-chart:has(select[name=hops])")
        figure.locator("select").select_option("2")
        title = figure.locator("figcaption strong")
        expected = title.text_content()
        assert "with 2 hops" in expected
        v.page.set_viewport_size({"width": 360, "height": 800})
        v.page.wait_for_timeout(1500)
        assert figure.locator("select").input_value() == "2" and title.text_content() == expected
        assert figure.evaluate("figure => figure.possymResult.view.signal('hops')") == "2"
        assert v.problems == []


def test_dark_mode_keeps_charts_readable_and_sliders_where_they_are(address, chart_pages, visit):
    page = next(p for p in chart_pages if _has_slider(p, address, visit))
    with visit(color_scheme="light") as v:
        v.open(f"{address}/{page}").wait_for_charts()
        slider = v.page.locator(SLIDER).first
        slider.focus()
        slider.press("ArrowRight")
        value, ink = slider.input_value(), _ink(v.page)
        assert v.page.evaluate(PALE) == []
        while v.page.evaluate("document.documentElement.dataset.theme") != "dark":
            v.page.locator("button.theme-switch-button:visible").first.click()
        v.page.wait_for_timeout(500)
        assert _ink(v.page) != ink
        assert v.page.evaluate(PALE) == []
        assert slider.input_value() == value
        assert v.problems == []


def test_paper_is_light_unfolded_and_without_controls(address, visit):
    with visit(color_scheme="dark") as v:
        v.open(f"{address}/chapters/02-exclusion-principle.html").wait_for_charts()
        solution = v.page.locator(".tag_solution pre").first
        assert (
            not solution.evaluate("element => element.checkVisibility()") and v.page.locator(SLIDER).first.is_visible()
        )
        v.page.emulate_media(media="print")
        assert solution.evaluate("element => element.checkVisibility()")
        assert not v.page.locator(SLIDER).first.is_visible()
        assert v.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        for text in (".bd-article p", ".bd-article table td", ".bd-article pre"):
            color = v.page.locator(text).first.evaluate("text => getComputedStyle(text).color")
            assert max(map(int, re.findall(r"\d+", color)[:3])) < 100, text


def test_a_folded_table_is_on_paper(address, visit):
    with visit() as v:
        v.open(f"{address}/chapters/07-learning-dynamics.html").wait_for_charts()
        table = v.page.locator(".tag_hide-output table").first
        assert not table.evaluate("element => element.checkVisibility()")
        v.page.emulate_media(media="print")
        assert table.evaluate("element => element.checkVisibility()")


def _figures(site, page) -> list[tuple[str, str, dict]]:
    """Name, caption and specification of every chart of a page."""
    html, found = (site / page).read_text(encoding="utf-8"), []
    for name, caption in re.findall(r'data-spec="(\w+)"><figcaption>(.*?)</figcaption>', html, re.DOTALL):
        spec = (site / f"_static/charts/specs/{name}.js").read_text(encoding="utf-8")
        found.append((name, caption, json.loads(spec.partition(" = ")[2].rstrip(";\n"))))
    return found


def _has_slider(page, address, visit) -> bool:
    with visit() as v:
        v.open(f"{address}/{page}").wait_for_charts()
        return v.page.locator(SLIDER).count() > 0


def _ink(page) -> str:
    return page.evaluate("selector => getComputedStyle(document.querySelector(selector)).fill", LABEL)


def test_download_button_gives_the_executed_notebook(site, chart_pages):
    for page in chart_pages:
        html = (site / page).read_text(encoding="utf-8")
        link = re.search(r'href="([^"]+\.ipynb)"', html)
        assert link, f"{page} offers no notebook"
        notebook = json.loads((site / page).parent.joinpath(link[1]).read_text(encoding="utf-8"))
        ran = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert any(cell["outputs"] for cell in ran)
        assert all(cell["execution_count"] for cell in ran if "".join(cell["source"]).strip())


def test_injected_parameters_are_hidden_and_parameters_folded(site, chart_pages):
    for page in chart_pages:
        html = (site / page).read_text(encoding="utf-8")
        assert "tag_injected-parameters" not in html
        if "tag_parameters" in html:
            assert re.search(r'class="[^"]*tag_hide-input[^"]*tag_parameters', html)


def test_search_works_offline(address, visit):
    with visit() as v:
        v.open(f"{address}/search.html?q=attention")
        v.page.wait_for_selector("#search-results li a")
        assert v.problems == []


@pytest.mark.parametrize("host", ["example.org", "93.184.216.34"])
def test_a_page_that_asks_the_network_is_noticed_and_gets_no_answer(tmp_path, visit, host):
    (tmp_path / "page.html").write_text(f'<img src="http://{host}/dot.png">')
    with visit() as v:
        v.open((tmp_path / "page.html").as_uri())
        assert v.problems[0] == f"asked the network for http://{host}/dot.png"
        assert "net::ERR_NAME_NOT_RESOLVED" in v.problems[1] and len(v.problems) == 2


def test_a_page_that_loads_from_the_network_fails_the_build(book, make):
    folder = book(one="1 + 1")
    (folder / "index.md").write_text('# Leaky\n\n<script src="https://example.org/tracker.js"></script>\n')
    result = make("book", folder=folder)
    assert result.returncode != 0
    assert "index.html loads https://example.org/tracker.js" in result.stdout


def test_pages_that_are_gone_or_became_notebooks_leave_nothing_behind(book, make):
    folder = book(one="1 + 1", two="2 + 2")
    assert make("book", folder=folder).returncode == 0
    toc, notebook = folder / "_toc.yml", (folder / "chapters/one.md").read_text()
    toc.write_text(toc.read_text().replace("  - file: chapters/two\n", ""))
    (folder / "index.md").write_text(notebook.replace("Chapter one", "A small book, with code"))
    result = make("book", folder=folder)
    assert result.returncode == 0, result.stdout
    assert {path.stem for path in (folder / "_build/html/chapters").glob("*.html")} == {"one"}
    assert "with code" in (folder / "_build/html/index.html").read_text()
