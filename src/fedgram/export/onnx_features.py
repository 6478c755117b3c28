"""Grid, lift and heads as nodes of a graph: the same operations as fedgram's, in double.

Every step up to the heads is one that IEEE 754 defines to the bit, so features are rounded to the
same integers.
"""

from __future__ import annotations

import numpy as np

from fedgram.core.samples import Array, Space
from fedgram.export.formula import Formula, Head, Probabilities, Standardized
from fedgram.export.graph import Graph
from fedgram.features.grid import Grid, bias
from fedgram.features.lift import Lift

_RMS_BITS = 15  # as in fedgram.features.grid
_SQUARE_BITS = 15  # as in fedgram.features.tabular
_FLOAT32_EXACT = 2**24
_TINY = -30.0  # log(log(1 + e^z)) is z to the last digit from here on


def grid_rows(graph: Graph, x: str, formula: Formula) -> str:
    """Return the rows on the grid, with the constant, for real features in double.

    Parameters
    ----------
    graph
        The graph.
    x
        Real features, samples by features.
    formula
        The model.
    """
    grid = Grid.of(formula.space)
    if formula.standardized is not None:
        levels = _standardized(graph, x, formula.standardized, grid)
    elif grid.raw:
        return x
    else:
        levels = _unit_size(graph, x, formula.space, grid)
    return with_constant(graph, levels, formula.space)


def with_constant(graph: Graph, levels: str, space: Space) -> str:
    """Return rows with the constant of the space appended."""
    if not space.has_constant:
        return levels
    first = graph.op("Slice", levels, *(graph.const([v], np.int64) for v in (0, 1, 1)))
    zero = graph.op("Mul", first, graph.const(0.0, np.float64))
    constant = graph.const(float(bias(space.unit, space.bound)), np.float64)
    return graph.op("Concat", levels, graph.op("Add", zero, constant), axis=1)


def _unit_size(graph: Graph, x: str, space: Space, grid: Grid) -> str:
    scaled = graph.op("Mul", x, _power_of_two(graph, x))
    whole = graph.op("Round", scaled)
    squares = graph.reduce("ReduceSum", graph.op("Mul", whole, whole), [1])
    mean = graph.op("Div", squares, graph.const(float(max(1, space.inputs)), np.float64))
    rms = graph.op("Sqrt", mean)
    zero, one = graph.const(0.0, np.float64), graph.const(1.0, np.float64)
    divisor = graph.op("Mul", rms, graph.const(grid.step, np.float64))
    divisor = graph.op("Where", graph.op("Greater", rms, zero), divisor, one)
    steps = graph.op("Div", scaled, divisor)
    return _clipped(graph, graph.op("Round", steps), grid.bound) if grid.bound else steps


def _power_of_two(graph: Graph, x: str) -> str:
    """Return the power of two that makes each row's largest entry just smaller than 2^15.

    The logarithm may be off by its rounding, so that its whole part is corrected by comparison.
    """
    zero, one, two = (graph.const(v, np.float64) for v in (0.0, 1.0, 2.0))
    largest = graph.reduce("ReduceMax", graph.op("Abs", x), [1])
    nothing = graph.op("Equal", largest, zero)
    largest = graph.op("Where", nothing, graph.const(0.5, np.float64), largest)
    log2 = graph.op("Div", graph.op("Log", largest), graph.const(np.log(2.0), np.float64))
    exponent = graph.op("Add", graph.op("Floor", log2), one)
    power = graph.op("Pow", two, exponent)
    higher = graph.op("Not", graph.op("Less", largest, power))
    exponent = graph.op("Where", higher, graph.op("Add", exponent, one), exponent)
    half = graph.op("Div", graph.op("Pow", two, exponent), two)
    lower = graph.op("Less", largest, half)
    exponent = graph.op("Where", lower, graph.op("Sub", exponent, one), exponent)
    shift = graph.op("Sub", graph.const(float(_RMS_BITS), np.float64), exponent)
    return graph.op("Pow", two, shift)


def _standardized(graph: Graph, x: str, how: Standardized, grid: Grid) -> str:
    centred = graph.op("Sub", x, graph.const(how.mean, np.float64))
    standard = graph.op("Div", centred, graph.const(how.deviation, np.float64))
    if not grid.bound:
        return standard
    standard = _clipped(graph, standard, grid.reach)
    finer = graph.op("Mul", standard, graph.const(2.0**_SQUARE_BITS, np.float64))
    whole = graph.op("Round", finer)
    squares = graph.reduce("ReduceSum", graph.op("Mul", whole, whole), [1])
    mean = graph.op("Div", squares, graph.const(float(len(how.mean)), np.float64))
    mean = graph.op("Mul", mean, graph.const(2.0 ** (-2 * _SQUARE_BITS), np.float64))
    anchored = graph.op("Add", mean, graph.const(how.anchor**2, np.float64))
    size = graph.op("Sqrt", graph.op("Div", anchored, graph.const(1 + how.anchor**2, np.float64)))
    zero, one = graph.const(0.0, np.float64), graph.const(1.0, np.float64)
    size = graph.op("Where", graph.op("Greater", size, zero), size, one)
    rescaled = graph.op("Div", standard, size)
    steps = graph.op("Div", rescaled, graph.const(grid.step, np.float64))
    return _clipped(graph, graph.op("Round", steps), grid.bound)


def _clipped(graph: Graph, value: str, bound: float) -> str:
    ends = (graph.const(end, np.float64) for end in (-float(bound), float(bound)))
    return graph.op("Clip", value, *ends)


def scores(graph: Graph, rows: str, formula: Formula) -> str:
    """Return the scores of rows on the grid, in double."""
    total = graph.const(formula.shift, np.float64)
    for head in formula.heads:
        total = graph.op("Add", total, _head(graph, rows, head, formula.space))
    if formula.allowed is None:
        return total
    allowed = graph.const(formula.allowed[None], np.bool_)
    infinite = graph.const(np.inf, np.float64)
    least = graph.reduce("ReduceMin", graph.op("Where", allowed, total, infinite), [1])
    least = graph.op("Sub", least, graph.const(1.0, np.float64))
    below = graph.op("Where", graph.op("Less", total, least), total, least)
    return graph.op("Where", allowed, total, below)


def _head(graph: Graph, rows: str, head: Head, space: Space) -> str:
    lifted = _lifted(graph, rows, head.lift, space)
    # The unit is a part of the weights: a factor of its own would be fused into the product by
    # onnxruntime, which keeps such factors in single precision.
    weights = head.weights * head.lift.space(space).unit
    return graph.op("MatMul", lifted, graph.const(weights, np.float64))


def _lifted(graph: Graph, rows: str, lift: Lift, space: Space) -> str:
    if not lift.width:
        return rows
    largest = space.bound * space.width * lift.copies
    narrow = np.float32 if largest < _FLOAT32_EXACT else np.float64
    values = graph.cast(rows, narrow)
    parts: list[str] = []
    for (_, signs), table in zip(lift.parts(space.width), lift.tables(space), strict=True):
        stored = graph.const(np.ascontiguousarray(signs))
        product = graph.op("MatMul", values, graph.cast(stored, narrow))
        parts.append(_looked_up(graph, product, table))
    lifted = graph.op("Concat", *parts, axis=1)
    return with_constant(graph, lifted, lift.space(space))


def _looked_up(graph: Graph, product: str, table: Array) -> str:
    place = graph.op("Add", graph.cast(product, np.int64), graph.const(len(table) // 2, np.int64))
    ends = (graph.const(end, np.int64) for end in (0, len(table) - 1))
    place = graph.op("Clip", place, *ends)
    return graph.op("Gather", graph.const(table, np.float64), place, axis=0)


def probabilities(graph: Graph, scored: str, how: Probabilities, out: str) -> str:
    """Return calibrated probabilities of scores.

    Parameters
    ----------
    graph
        The graph.
    scored
        The scores.
    how
        How scores become probabilities.
    out
        Name of the result.
    """
    if how.sharpness:
        z = graph.op("Mul", scored, graph.const(how.sharpness, np.float64))
        tiny = graph.const(_TINY, np.float64)
        small = graph.op("Less", z, tiny)
        safe = graph.op("Where", small, tiny, z)
        # log(1 + e^z) = max(z, 0) + log(1 + d) with d = e^-|z|; log(u) d / (u - 1) is log(1 + d) to
        # the last digits where u = 1 + d is rounded (Kahan).
        zero, one = graph.const(0.0, np.float64), graph.const(1.0, np.float64)
        decay = graph.op("Exp", graph.op("Neg", graph.op("Abs", safe)))
        u = graph.op("Add", one, decay)
        rounded = graph.op("Sub", u, one)
        is_tiny = graph.op("Equal", rounded, zero)
        safely = graph.op("Where", is_tiny, one, rounded)
        log1p = graph.op("Div", graph.op("Mul", graph.op("Log", u), decay), safely)
        log1p = graph.op("Where", is_tiny, decay, log1p)
        above = graph.op("Where", graph.op("Greater", safe, zero), safe, zero)
        soft = graph.op("Add", above, log1p)
        scored = graph.op("Where", small, z, graph.op("Log", soft))
    logits = graph.op("Mul", scored, graph.const(how.power, np.float64))
    return graph.op("Softmax", logits, axis=1, out=out)
