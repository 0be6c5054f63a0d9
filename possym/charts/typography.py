"""Numbers as the book writes them: a space before the percent sign, and a minus that is as wide as a plus."""

import re

SPACE = "\N{NO-BREAK SPACE}"
# Parts of HTML: what is shown or done letter by letter, comments, tags, and the text between.
PARTS = re.compile(
    r"""<(style|script|code|pre|kbd|samp|textarea)\b.*?</\1>|<!--.*?-->|<[/!a-z](?:"[^"]*"|'[^']*'|[^"'>])*>"""
    r"""|(?P<text>[^<]+|<)""",
    re.DOTALL | re.IGNORECASE,
)


def percent(share: float, digits: int = 0) -> str:
    """Return a share as a percentage with a no-break space before its sign.

    >>> percent(0.594), percent(0.594, 1)
    ('59\\xa0%', '59.4\\xa0%')
    """
    return f"{share:.{digits}%}".replace("%", f"{SPACE}%")


def typeset(text: str) -> str:
    """Return text with its numbers as the book writes them, whatever format they were made with; addresses stay.

    >>> typeset("r = -0.63 in 95% of heads, 1e-4 to 2-3, 50%-60%, https://a.b/c%20-1, d1%20e/-1")
    'r = −0.63 in 95\\xa0% of heads, 1e-4 to 2-3, 50\\xa0%-60\\xa0%, https://a.b/c%20-1, d1%20e/-1'
    """
    return re.sub(r"(?<![\w./%-])-(?=\d)", "−", re.sub(r"(?<=\d) ?%(?!\w)", f"{SPACE}%", text))


def typeset_html(page: str) -> str:
    """Return HTML with the numbers of its text as the book writes them, its tags, styles, scripts and code as they are.

    >>> typeset_html('<style>td {margin: -1px}</style><td width="50%">-0.3 as <code>x[-1]</code></td>')
    '<style>td {margin: -1px}</style><td width="50%">−0.3 as <code>x[-1]</code></td>'
    """
    return PARTS.sub(lambda part: typeset(part[0]) if part["text"] else part[0], page)
