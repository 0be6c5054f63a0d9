"""Controls that call a model: live in JupyterLab, a note in a printed or built page."""

from html import escape

from possym.errors import InputError, MissingPackageError, install_command

try:
    import ipywidgets
except ModuleNotFoundError as error:
    raise MissingPackageError(f"controls need {error.name}: {install_command('plots')}") from None

RUN_IN_LAB = "Run this chapter in JupyterLab (make lab) to use the controls: they call the model."


def show(widget, note: str = RUN_IN_LAB) -> None:
    """Display an ipywidgets ``widget``; where no kernel runs, readers see ``note`` instead.

    Raises InputError for what is not an ipywidget.

    >>> import ipywidgets
    >>> show(ipywidgets.IntSlider(3), "Run this chapter to move the slider.")  # doctest: +ELLIPSIS
    {'text/plain': 'Run this chapter to move the slider.', ...}
    """
    from IPython.display import display

    if not isinstance(widget, ipywidgets.Widget):
        raise InputError(f"show() was given {type(widget).__name__}; it shows an ipywidgets widget: pass one")
    bundle = widget._repr_mimebundle_()
    display({**bundle, "text/plain": note, "text/html": f'<p class="possym-widget">{escape(note)}</p>'}, raw=True)


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
    return f'<div style="overflow-x:auto"><table>{"".join(lines)}</table></div>'
