"""Ranges of numbers, rounded outwards so that the exact ends stay private."""

from __future__ import annotations

import math

from fedgram.errors import ConfigError

_MOST_DIGITS = 323  # 10^-323 is the smallest power of ten that is not 0


def rounded_outwards(low: float, high: float) -> tuple[float, float]:
    """Return a range rounded outwards, to one digit of its width.

    Examples
    --------
    >>> rounded_outwards(18.3, 91.7), rounded_outwards(0.052, 0.163)
    ((10.0, 100.0), (0.0, 0.2))
    >>> rounded_outwards(-3.0, -3.0), rounded_outwards(0.0, 0.0)
    ((-3.0, -2.0), (0.0, 1.0))
    """
    width = high - low or abs(low) or 1.0
    digits = min(-math.floor(math.log10(width)), _MOST_DIGITS)
    unit = 10.0**-digits
    bottom, top = math.floor(low / unit), math.ceil(high / unit)
    top = max(top, bottom + 1)
    # Floating-point rounding must not exclude the given ends.
    return min(low, round(bottom * unit, digits)), max(high, round(top * unit, digits))


def require_agreed_range(task: str | None, output_range: object, name: str) -> None:
    """Raise ConfigError for a regression of one site of several without a range, or the reverse.

    Parameters
    ----------
    task
        The task of the site.
    output_range
        The range that the site declares, if any.
    name
        Name of the settings in messages.
    """
    if task == "regression" and output_range is None:
        raise ConfigError(
            f"{name}: data.output_range: expected the range that all sites agreed on, such as "
            "[0, 100], got none; the range of the data of one site fits no other"
        )
    if task != "regression" and output_range is not None:
        raise ConfigError(
            f"{name}: data.output_range: expected data.task = 'regression' with it; leave it out "
            "for classes"
        )
