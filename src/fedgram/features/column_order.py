"""Named columns in the order of a model."""

from __future__ import annotations

from collections.abc import Sequence

from fedgram.data.frames import require_unique
from fedgram.errors import DataError
from fedgram.runtime.settings import propose


def places(wanted: Sequence[str], given: Sequence[str], name: str) -> list[int]:
    """Return the place of each column of a model among given columns; others are left out.

    Parameters
    ----------
    wanted
        Names of the columns of the model, in its order.
    given
        Names of the columns of new samples.
    name
        Name of the new samples in messages.

    Examples
    --------
    >>> places(["age", "dose"], ["id", "dose", "age"], "new.csv")
    [2, 1]
    >>> places(["age", "dose"], ["id", "does", "age"], "X")
    Traceback (most recent call last):
    ...
    fedgram.errors.DataError: X: expected a column 'dose', which is missing; did you mean 'does'?
    """
    place = {column: k for k, column in enumerate(given)}
    missing = [column for column in wanted if column not in place]
    if missing:
        near = propose(missing[0], given)
        raise DataError(f"{name}: expected a column {missing[0]!r}, which is missing; {near}")
    require_unique([column for column in given if column in set(wanted)], name)
    return [place[column] for column in wanted]
