"""Texts as people read them: numbers with units, names without controls, output on terminals."""

from __future__ import annotations

import textwrap
import unicodedata

from fedgram.errors import DataError

PREFIXES = ("", "k", "M", "G", "T", "P", "E")
MISSING = "-"
LONGEST_NAME = 1000  # characters of the name of a site, client or class
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet may run a cell that starts like this
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def compact(value: float) -> str:
    """Return a number as it is written on an axis, with a power of ten where it is long.

    Examples
    --------
    >>> compact(0.001), compact(250.0), compact(1e6), compact(2e-5)
    ('0.001', '250', '10⁶', '2·10⁻⁵')
    """
    if value == 0 or (abs(value) * 1.001 >= 0.001 and abs(value) < 99999):
        return f"{value:.6g}"
    mantissa, _, power = f"{value:.5e}".partition("e")
    short = mantissa.rstrip("0").rstrip(".")
    raised = "10" + str(int(power)).translate(_SUPERSCRIPTS)
    return raised if short == "1" else f"{short}·{raised}"


def percent(share: float | None) -> str:
    """Return a share as a percentage with one decimal, without the sign.

    Examples
    --------
    >>> percent(0.98765), percent(None)
    ('98.8', '-')
    """
    return MISSING if share is None else f"{100 * share:.1f}"


def percent_tick(share: float) -> str:
    """Return a share as a percentage with as many decimals as it needs, without the sign.

    Examples
    --------
    >>> percent_tick(0.3), percent_tick(0.985)
    ('30', '98.5')
    """
    return f"{round(100 * share, 6):g}"


def thousands(value: float, largest: str = PREFIXES[-1]) -> tuple[float, str]:
    """Return the power of 1000 that fits a quantity, and its prefix.

    Examples
    --------
    >>> thousands(1_420_000), thousands(999.6), thousands(3e15, "T")
    ((1000000.0, 'M'), (1000.0, 'k'), (1000000000000.0, 'T'))
    """
    scale = 1.0
    for prefix in PREFIXES:
        if prefix == largest or abs(value) < 999.5 * scale:
            break
        scale *= 1000
    return scale, prefix


def quantity(value: float, unit: str = "") -> str:
    """Return a quantity of three digits with a prefix of thousands.

    Examples
    --------
    >>> quantity(10_240, "B"), quantity(0), quantity(3.2e12)
    ('10.2 kB', '0', '3.2 T')
    """
    scale, prefix = thousands(value)
    return f"{value / scale:.3g} {prefix}{unit}".strip()


def size(value: float) -> str:
    """Return a number of bytes with its unit."""
    return quantity(value, "B")


def seconds(value: float) -> str:
    """Return a time with the unit that fits it.

    Examples
    --------
    >>> seconds(0.0123), seconds(12.0), seconds(7200)
    ('12.3 ms', '12 s', '2 h')
    """
    for scale, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")):
        if value >= scale * (2 if unit in ("d", "h", "min") else 1):
            return f"{value / scale:.3g} {unit}"
    return "0 s" if value == 0 else f"{value * 1e6:.3g} µs"


def short_seconds(value: float) -> str:
    """Return a number of seconds in four characters as long as it fits.

    Examples
    --------
    >>> short_seconds(1.234), short_seconds(12.34), short_seconds(123.4)
    ('1.23', '12.3', '123')
    """
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def duration(value: float) -> str:
    """Return a time in two units.

    Examples
    --------
    >>> [duration(t) for t in (0.2, 75, 4000, 200000)]
    ['1 s', '1 min 15 s', '1 h 6 min', '2 d 7 h']
    """
    whole = max(1, round(value))
    for scale, unit, small, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= scale:
            return f"{whole // scale} {unit} {whole % scale // small} {smaller}"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


def normalized(name: str) -> str:
    r"""Return a name in the form in which names are compared: NFC, without spaces at its ends.

    Examples
    --------
    >>> normalized(" Zu\u0308rich ") == "Z\u00fcrich"
    True
    """
    return unicodedata.normalize("NFC", name).strip()


def clean_name(name: str, what: str = "name") -> str:
    r"""Return a name as it is stored: normalized; raise DataError for a name that is not a text.

    Two names that look equal are equal afterwards. Control characters, marks that reverse the
    direction of a text, and lone surrogates are refused, as are empty and very long names.

    Examples
    --------
    >>> clean_name(" ward 3 ")
    'ward 3'
    >>> clean_name("ward\x1b[2J", "client")
    Traceback (most recent call last):
    ...
    fedgram.errors.DataError: client 'ward\x1b[2J': contains a control character; use another name
    """
    if not isinstance(name, str):
        raise DataError(f"{what}: expected a text, got {type(name).__name__}")
    if len(name) > LONGEST_NAME:
        raise DataError(f"{what} of {len(name)} characters: use at most {LONGEST_NAME}")
    clean = normalized(name)
    if not clean:
        raise DataError(f"{what}: the name is empty; use another name")
    if not clean.isprintable():
        raise DataError(f"{what} {clean!r}: contains a control character; use another name")
    return clean


def escaped(text: object, *, keep: str = "") -> str:
    r"""Return a text that a terminal shows as it is: other characters are written as escapes.

    Foreign names and texts could otherwise move the cursor, clear the screen or change what a
    line above says. The characters in `keep` stay.

    Examples
    --------
    >>> escaped("ward\x1b[2J \u202e3")
    'ward\\x1b[2J \\u202e3'
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escape(c) for c in text)


def one_line(text: object) -> str:
    r"""Return a text in one line, escaped.

    Examples
    --------
    >>> one_line("no\n  samples \x07")
    'no samples \\x07'
    """
    return escaped(" ".join(str(text).split()))


def broken(text: str, width: int, *, first: str = "", rest: str = "  ") -> str:
    """Return a text in lines of a width, broken between words; a longer word stays whole.

    Parameters
    ----------
    text
        The text; line breaks in it count as spaces.
    width
        Most characters of a line.
    first, rest
        What the first line and the others begin with.

    Examples
    --------
    >>> print(broken("the weight of the squared norm", 16))
    the weight of
      the squared
      norm
    """
    return textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def csv_cell(value: object) -> object:
    """Return a cell of a CSV file; a text that a spreadsheet would compute gets an apostrophe.

    Examples
    --------
    >>> [csv_cell(cell) for cell in ("=1+1", "@sum", "-3.5", -3.5, "north")]
    ["'=1+1", "'@sum", '-3.5', -3.5, 'north']
    """
    if not isinstance(value, str) or not value.startswith(_FORMULA) or _is_number(value):
        return value
    return f"'{value}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return not text.startswith(("\t", "\r"))


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
