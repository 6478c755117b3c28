"""A model as named arrays and a JSON description: all that another program needs to evaluate it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedgram.core.samples import Array
from fedgram.export.formula import Formula, Head
from fedgram.features.grid import Grid, bias

FORMAT = "fedgram-arrays/1"


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelArrays:
    """The arrays of a model by name, and its description for ``config.json``."""

    arrays: Mapping[str, Array]
    config: Mapping[str, Any]


def arrays_of(formula: Formula) -> ModelArrays:
    """Return the arrays and the description of a model.

    Examples
    --------
    >>> from fedgram.export.formula import formula_of
    >>> from fedgram.models.linear import Linear
    >>> head = Linear(weights=np.ones((3, 2)), space=Grid().space(2), classes=("a", "b"))
    >>> found = arrays_of(formula_of(head))
    >>> list(found.arrays), found.config["grid"]["constant"]
    (['head.0.weights', 'shift'], 21)
    """
    space, grid = formula.space, Grid.of(formula.space)
    arrays: dict[str, Array] = {}
    heads = [_head(number, head, formula, arrays) for number, head in enumerate(formula.heads)]
    arrays["shift"] = np.asarray(formula.shift, np.float64)
    if formula.allowed is not None:
        arrays["allowed"] = np.asarray(formula.allowed, bool)
    how = formula.standardized
    if how is not None:
        arrays["mean"], arrays["deviation"] = how.mean, how.deviation
    config = {
        "format": FORMAT,
        "outputs" if formula.outputs else "classes": list(formula.classes),
        "features": space.inputs,
        "backbone": space.backbone,
        "steps": list(space.steps),
        "grid": {
            "raw": grid.raw,
            "step": grid.step,
            "bound": grid.bound,
            "clip": grid.reach if grid.bound else None,
            "constant": bias(grid.step, grid.bound) if space.has_constant else None,
        },
        "anchor": None if how is None else how.anchor,
        "heads": heads,
        "probabilities": formula.probabilities and asdict(formula.probabilities),
    }
    return ModelArrays(arrays=arrays, config=config)


def _head(number: int, head: Head, formula: Formula, arrays: dict[str, Array]) -> dict[str, Any]:
    lifted = head.lift.space(formula.space)
    name = f"head.{number}"
    arrays[f"{name}.weights"] = np.ascontiguousarray(head.weights, np.float64)
    parts = 0
    if head.lift.width:
        signs = [signs for _, signs in head.lift.parts(formula.space.width)]
        tables = head.lift.tables(formula.space)
        for parts, (sign, table) in enumerate(zip(signs, tables, strict=True), 1):
            arrays[f"{name}.signs.{parts - 1}"] = np.ascontiguousarray(sign)
            arrays[f"{name}.table.{parts - 1}"] = np.ascontiguousarray(table)
    constant = bias(lifted.unit, lifted.bound) if lifted.has_constant else None
    return {"name": name, "unit": lifted.unit, "parts": parts, "constant": constant}
