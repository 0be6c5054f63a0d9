"""Numbers as the book writes them: a space before the percent sign, and a minus that is as wide as a plus."""

import re

SPACE = "\N{NO-BREAK SPACE}"


def percent(share: float, digits: int = 0) -> str:
    """Return a share as a percentage with a no-break space before its sign.

    >>> percent(0.594), percent(0.594, 1)
    ('59\\xa0%', '59.4\\xa0%')
    """
    return f"{share:.{digits}%}".replace("%", f"{SPACE}%")


def typeset(text: str) -> str:
    """Return text with its numbers as the book writes them, whatever format they were made with.

    >>> typeset("r = -0.63 in 95% of heads, 1e-4 to 2-3")
    'r = −0.63 in 95\\xa0% of heads, 1e-4 to 2-3'
    """
    return re.sub(r"(?<![\w.])-(?=\d)", "−", re.sub(r"(?<=\d) ?%", f"{SPACE}%", text))


def typeset_html(page: str) -> str:
    """Return HTML with the numbers of its text as the book writes them, its tags and styles as they are.

    >>> typeset_html('<style>td {margin: -1px}</style><td width="50%">-0.3</td>')
    '<style>td {margin: -1px}</style><td width="50%">−0.3</td>'
    """
    return re.sub(
        r"<style.*?</style>|<[^>]*>|([^<]+)",
        lambda part: typeset(part[0]) if part[1] else part[0],
        page,
        flags=re.DOTALL,
    )
