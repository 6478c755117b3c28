"""Additive values as a public layout and one vector of integers modulo 2^64, and back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgram.core import codec
from fedgram.core.additive import Additive
from fedgram.errors import DataError, ExactnessError
from fedgram.secure.masks import Words

_INT = "int"


def flatten(value: Additive, *, clients: int = 1) -> tuple[dict[str, Any], Words]:
    """Return the layout of a value (schema, types and shapes) and the vector of its numbers.

    Arrays wrap modulo 2^64 (or less), as they do in sums without masks. Python's integers do not
    wrap: one is refused if the sum over this number of clients could.

    Examples
    --------
    >>> from fedgram.core.weighted import Weighted
    >>> value = Weighted.of(np.array([1.0, -4.0]), 3)
    >>> layout, vector = flatten(value)
    >>> len(vector), restore(layout, vector) == value
    (4, True)
    """
    pieces: list[NDArray[Any]] = []
    layout = _described(value, pieces, clients)
    return layout, np.concatenate(
        [np.zeros(0, np.uint64), *pieces]
    )  # a copy, because masks are added in place


def restore(layout: dict[str, Any], vector: Words) -> Any:
    """Return the value with this layout and these numbers."""
    size = words(layout)
    if len(vector) != size:
        raise DataError(f"expected {size} integers for this layout, got {len(vector)}")
    return _rebuilt(layout, iter(np.split(vector, np.cumsum(list(_sizes(layout)))[:-1])))


def words(layout: dict[str, Any]) -> int:
    """Return the length of the vector of a layout."""
    return sum(_sizes(layout))


def _described(value: Additive, pieces: list[NDArray[Any]], clients: int) -> dict[str, Any]:
    names = codec.wire_fields(type(value))
    agreed = {names[each]: getattr(value, each) for each in value.schema_fields()}
    summed: dict[str, Any] = {}
    # Sorted by name, because decoding does not keep the order of fields.
    for attribute in sorted(value.summed_fields(), key=names.__getitem__):
        content, name = getattr(value, attribute), names[attribute]
        if isinstance(content, Additive):
            summed[name] = _described(content, pieces, clients)
        else:
            summed[name] = _piece(f"{type(value).__name__}.{attribute}", content, clients)
            pieces.append(
                np.asarray(content).astype(np.int64, copy=False).reshape(-1).view(np.uint64)
            )
    return {"kind": codec.wire_name(type(value)), "agreed": agreed, "summed": summed}


def _piece(name: str, content: Any, clients: int) -> str | list[Any]:
    """Return the type and shape of a field; raise ExactnessError unless it sums without loss."""
    if isinstance(content, np.ndarray) and content.dtype.kind in "iu":
        return [content.dtype.name, *content.shape]
    if isinstance(content, int | np.integer) and not isinstance(content, bool):
        if abs(int(content)) > (2**63 - 1) // clients:
            raise ExactnessError(
                f"{name} = {content}: a secure sum over {clients} clients could overflow; use "
                "fewer clients, or fewer samples"
            )
        return _INT
    raise ExactnessError(
        f"{name}: expected integers, as secure sums need; use a grid (grid.bits from 2 to 16), or "
        "turn secure sums off"
    )


def _sizes(layout: dict[str, Any]) -> Iterator[int]:
    for _, piece in sorted(layout["summed"].items()):
        if isinstance(piece, dict):
            yield from _sizes(piece)
        else:
            yield 1 if piece == _INT else math.prod(piece[1:])


def _rebuilt(layout: dict[str, Any], pieces: Iterator[Words]) -> Any:
    fields = dict(layout["agreed"])
    for name, piece in sorted(layout["summed"].items()):
        if isinstance(piece, dict):
            fields[name] = _rebuilt(piece, pieces)
        elif piece == _INT:
            fields[name] = int(next(pieces).view(np.int64)[0])
        else:
            kind, *shape = piece
            fields[name] = next(pieces).view(np.int64).astype(kind).reshape(shape)
    return codec.build(layout["kind"], fields)
