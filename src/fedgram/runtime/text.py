"""Numbers as people read them: bytes, seconds, per cent, with prefixes of thousands."""

from __future__ import annotations

PREFIXES = ("", "k", "M", "G", "T", "P", "E")
MISSING = "-"
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
