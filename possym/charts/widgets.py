"""Controls that call a model: live in JupyterLab, a note in a printed or built page."""

from html import escape

from possym.errors import needed

with needed("controls need", "plots"):
    import ipywidgets

RUN_IN_LAB = "As it starts. In JupyterLab (make lab) its controls call the model."


def show(widget, note: str = RUN_IN_LAB) -> None:
    """Display an ipywidgets ``widget``; where no kernel runs, readers see what its HTML parts start with, and ``note``.

    A widget that starts without a picture leaves nothing on a page.

    >>> import ipywidgets
    >>> show(ipywidgets.HTML("<b>3</b>"), "Run this chapter to move the slider.")  # doctest: +ELLIPSIS
    {'text/plain': 'Run this chapter to move the slider.', ...}
    """
    from IPython.display import display

    bundle = widget._repr_mimebundle_()
    parts = [part for part in first_pictures(widget) if "<" in part]
    page = f'<div class="possym-widget">{"".join(parts)}<p>{escape(note)}</p></div>' if parts else "<span></span>"
    display({**bundle, "text/plain": note, "text/html": page}, raw=True)


def first_pictures(widget) -> list[str]:
    """Return what the HTML parts of a widget hold, in order.

    >>> import ipywidgets
    >>> first_pictures(ipywidgets.VBox([ipywidgets.HTML("a"), ipywidgets.IntSlider(3), ipywidgets.HTML("<i>b</i>")]))
    ['a', '<i>b</i>']
    """
    own = [widget.value] if isinstance(widget, ipywidgets.HTML) else []
    return own + [part for child in getattr(widget, "children", ()) for part in first_pictures(child)]


def heat_table(rows: list[tuple[str, list[str], list[float]]]) -> str:
    """Return rows of tokens as an HTML table, each cell shaded by its share of attention, which it also states."""
    lines = []
    for name, tokens, weights in rows:
        cells = "".join(
            f'<td style="padding:2px 5px;text-align:center;background:rgba(0,158,115,{weight:.3f})">{escape(token)}'
            f"<br><small>{weight:.2f}</small></td>"
            for token, weight in zip(tokens, weights, strict=True)
        )
        lines.append(
            f'<tr><th scope="row" style="padding-right:8px;white-space:nowrap">{escape(name)}</th>{cells}</tr>'
        )
    # What scrolls has to be reached by the keyboard.
    scrolls = 'style="overflow-x:auto" tabindex="0" role="region" aria-label="Attention by token"'
    return f"<div {scrolls}><table>{''.join(lines)}</table></div>"
