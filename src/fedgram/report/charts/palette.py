"""Colors and markers of series, alike in every figure.

People with protanopia, deuteranopia and tritanopia can distinguish any two of the colors at least
as well as those of Okabe and Ito. The contrast with the page is at least 3 to 1. Tests check both.
Markers differ too, so that no information depends on color alone.
"""

from __future__ import annotations

import math

from fedgram.report.markup import Markup, number, tag

PAPER, DARK_PAPER = "#ffffff", "#15181d"
INK, DARK_INK = "#1f2430", "#e6e8ec"
FAINT, DARK_FAINT = "#5f6675", "#9aa2b1"
RULE, DARK_RULE = "#e3e6eb", "#2d333d"
LIGHT = (
    *("#3881c4", "#e1791b", "#007758", "#b6539b"),
    *("#86640f", "#319ed4", "#8b1436", "#4c40b0"),
)
DARK = (
    *("#3a93cc", "#f6872a", "#17be90", "#f299cf"),
    *("#fddc71", "#a8defe", "#c2566d", "#8b6afc"),
)
_FONT = "font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans',sans-serif"


def _star(points: int, inner: float, outer: float) -> tuple[tuple[float, float], ...]:
    """Return the corners of a star, from the top around."""
    turns = [math.pi * step / points for step in range(2 * points)]
    radii = [outer, inner] * points
    return tuple((r * math.sin(t), -r * math.cos(t)) for t, r in zip(turns, radii, strict=True))


_PLUS = (
    *((-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4), (1.2, 0.4), (0.4, 0.4)),
    *((0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4), (-1.2, -0.4), (-0.4, -0.4)),
)
# Corners of the markers, in units of their radius; the first is a circle.
_MARKERS = (
    (),
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
    ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    ((0, 1.2), (1.1, -0.8), (-1.1, -0.8)),
    _PLUS,
    tuple(((x - y) * 0.75, (x + y) * 0.75) for x, y in _PLUS),
    _star(5, 0.6, 1.5),
)


def color_class(index: int) -> str:
    """Return the class that colors a series, by its place among all of them."""
    return f"s{index % len(LIGHT)}"


def line_class(index: int, kind: str = "line") -> str:
    """Return the class of a series' line; where colors come round again it is dotted."""
    return f"{kind} again" if index >= len(LIGHT) else kind


def marker(index: int, x: float, y: float, radius: float = 3.6) -> Markup:
    """Return the marker of a series; series of the same color have different ones."""
    shape = _MARKERS[(index + index // len(LIGHT)) % len(_MARKERS)]
    if not shape:
        return tag("circle", cx=x, cy=y, r=radius, class_="mark")
    corners = " ".join(f"{number(x + radius * a)},{number(y + radius * b)}" for a, b in shape)
    # The point itself is not the middle of every shape: the page's script must know it to zoom.
    return tag("path", d=f"M{corners}z", class_="mark", data_at=f"{number(x)} {number(y)}")


def style() -> Markup:
    """Return the style of every figure: light, dark, and light on paper."""
    return tag("style", Markup(style_rules()))


def style_rules() -> str:
    """Return the rules of that style.

    Colors are inherited as ``currentColor`` from plain class rules, without variables, so that
    programs that turn SVG into PDF read them too.
    """
    light = _rules(PAPER, INK, FAINT, RULE, LIGHT)
    dark = _rules(DARK_PAPER, DARK_INK, DARK_FAINT, DARK_RULE, DARK)
    shapes = (
        f".fg text{{{_FONT};font-size:12px;fill:currentColor;stroke:none}}"
        ".fg .title{font-size:14px;font-weight:600}"
        ".fg .small{font-size:11px}"
        ".fg .paper{fill:currentColor}"
        ".fg .rule{stroke:currentColor;stroke-width:1;fill:none}"
        ".fg .line{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round}"
        ".fg .reach{fill:none;stroke:currentColor;stroke-width:1.6;stroke-dasharray:6 4}"
        ".fg .line.again{stroke-dasharray:1.5 2.5}.fg .reach.again{stroke-dasharray:8 3 1.5 3}"
        ".fg .whisker{stroke:currentColor;stroke-width:1.2;opacity:.7}"
        ".fg .band{fill:currentColor;opacity:.14}"
        ".fg .mark{fill:currentColor}"
        ".fg .bar{fill:currentColor;opacity:.55}"
        ".fg .cloud{fill:currentColor;fill-opacity:.62;stroke:currentColor;stroke-width:.8}"
        ".fg .ring{fill:none;stroke:currentColor;stroke-width:1.6}"
        ".fg .strip{fill:currentColor;opacity:0}.fg .strip:hover{opacity:.12}"
        ".fg .plot :is(.line,.reach,.whisker,.band){vector-effect:non-scaling-stroke}"
    )
    media = f"@media (prefers-color-scheme:dark){{@media not print{{{dark}}}}}"
    return shapes + light + media


def _rules(paper: str, ink: str, faint: str, rule: str, colors: tuple[str, ...]) -> str:
    named = {"": ink, " .ink": ink, " .faint": faint, " .grid": rule, " .paper": paper}
    named |= {f" .s{index}": color for index, color in enumerate(colors)}
    halo = f".fg .halo text{{paint-order:stroke;stroke:{paper};stroke-width:4px}}"
    return "".join(f".fg{key}{{color:{value}}}" for key, value in named.items()) + halo
