"""HTML and SVG as strings; all text that is not markup already is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

# An HTML element is closed by a tag of its own even where it is empty, a shape of SVG by a slash,
# and these by nothing.
_VOID = frozenset({"br", "meta"})
_SHAPES = frozenset({"circle", "line", "path", "rect"})
# What XML cannot hold, however it is escaped: most control characters, and half a character.
_FORBIDDEN = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Markup(str):
    """Text that is markup already, and is not escaped again."""

    __slots__ = ()


def tag(name: str, /, *children: str | Iterable[str], **attributes: str | float | None) -> Markup:
    """Return an element; attributes are escaped, and children unless they are `Markup`.

    An underscore in the name of an attribute stands for a hyphen, a last one for nothing. An
    attribute that is None is left out.

    Examples
    --------
    >>> tag("td", "<script>", class_="name", data_value=0.5)
    '<td class="name" data-value="0.5">&lt;script&gt;</td>'
    >>> tag("g", [tag("circle", r=3), tag("title", "a & b")])
    '<g><circle r="3"/><title>a &amp; b</title></g>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    if name in _SHAPES and not children:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{joined(*children)}</{name}>")


def joined(*children: str | Iterable[str]) -> Markup:
    """Return the children joined, escaped unless they are markup."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, str):
            parts.append(child if isinstance(child, Markup) else text(child))
        else:
            parts.append(joined(*child))
    return Markup("".join(parts))


def text(value: str) -> Markup:
    """Return a text as markup that shows it.

    Examples
    --------
    >>> text('<b> & "c"')
    '&lt;b&gt; &amp; &quot;c&quot;'
    """
    return Markup(escape(_FORBIDDEN.sub("\ufffd", value)))


def number(value: float) -> str:
    """Return a coordinate: at most two decimals, without trailing zeros.

    Examples
    --------
    >>> number(3.0), number(0.125), number(-0.001)
    ('3', '0.12', '0')
    """
    short = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if short == "-0" else short


def _plain(value: str | float) -> str:
    return value if isinstance(value, str) else number(value)
