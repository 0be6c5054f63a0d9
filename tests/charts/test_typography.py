"""Charts and tables write numbers as the prose does: a space before the percent sign, a minus that is no hyphen."""

import re
from types import SimpleNamespace

import altair as alt
import pandas as pd
from IPython.core.formatters import DisplayFormatter

from possym import charts as plots
from possym.charts.typography import typeset, typeset_html

from .drawn import draw, texts

SHARES = pd.DataFrame({"share": [-0.25, 0.5, 1.0]}, index=["-1", "50%", "1e-4"])


def test_percentages_of_a_chart_have_the_space_on_axes_legends_marks_and_tooltips():
    share = alt.Chart(SHARES).encode(
        x=alt.X("share:Q").axis(format="%"),
        y=alt.Y("share:Q").axis(format=".1%"),
        color=alt.Color("share:Q").legend(format=".0%"),
    )
    svg = draw(share.mark_point() + share.mark_text().encode(text=alt.Text("share:Q", format=".2%")))
    said = texts(svg)
    assert {"100\xa0%", "100.0\xa0%", "100.00\xa0%", "−25.00\xa0%"} <= {*said}
    assert not re.search(r"\d%|-\d", " ".join(said) + " ".join(re.findall('aria-label="([^"]*)"', svg)))


def test_words_of_a_chart_are_typeset_and_its_data_are_not():
    data = pd.DataFrame({"text": ["-1 to 5%"], "share": [0.5]})
    chart = alt.Chart(data, title=alt.Title("-1 in 50%", subtitle="From -2")).mark_point()
    plots.enable()
    page = alt.renderers.get()(chart.encode(x=alt.X("share:Q", title="Step at 95% of -3")).to_dict())["text/html"]
    chart = alt.Chart(alt.Data(values=data.to_dict("records"))).mark_point()
    with alt.data_transformers.enable(consolidate_datasets=False):
        within = alt.renderers.get()(chart.encode(x=alt.X("share:Q", title=["-1", "50%"])).to_dict())["text/html"]
    assert '"text":"-1 to 5%"' in within and '"title":["−1","50\xa0%"]' in within
    for words in ("−1 in 50\xa0%", "From −2", '"title":"Step at 95\xa0% of −3"', '"text":"-1 to 5%"'):
        assert words in page


def test_tables_of_a_chapter_have_both(monkeypatch):
    shell = SimpleNamespace(display_formatter=DisplayFormatter())
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    plots.enable()
    for table in (SHARES, SHARES.style.format("{:.0%}").set_table_styles([{"selector": "", "props": "margin: -1px"}])):
        page = shell.display_formatter.format(table)[0]["text/html"]
        cells = re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", page)
        assert {"−1", "50\xa0%", "1e-4"} <= {*cells} and {"−0.25", "−25\xa0%"} & {*cells}
        assert not re.search(r"\d%|(?<!e)-\d", " ".join(cells))
        assert "−" not in "".join(re.findall("<style.*?</style>", page, re.DOTALL))
    with pd.option_context("display.notebook_repr_html", False):
        assert "text/html" not in shell.display_formatter.format(SHARES)[0]


def test_names_dates_ranges_flags_and_addresses_stay_as_they_are():
    kept = "gpt-j-6b 2026-11-28 1-2 --flag --3 1e-4 %5d 10%d https://a.b/c1%20d https://a.b/-1 ../-2"
    assert typeset(kept) == kept
    assert typeset("50%-60%, (-1, -.5) [-2]") == "50\xa0%-60\xa0%, (−1, -.5) [−2]"


def test_only_the_text_of_html_is_typeset():
    kept = (
        '<td title="a > -3 in 5%">', "<TD title='-3>' >", "<code>x[-1] % 5%</code>",
        "<pre class=a>\n-3<code>-4</code>-5</pre>",
        "<script>a = -3;</script>", "<STYLE>a {margin: -1px; width: 5%}</STYLE>", "<!-- -3 > -4 -->",
        '<a href="b%20-3">',
    )  # fmt: skip
    for part in kept:
        assert typeset_html(f"-1{part}-2") == f"−1{part}−2"
    assert typeset_html("a < -3 &lt; -4") == "a < −3 &lt; −4"
