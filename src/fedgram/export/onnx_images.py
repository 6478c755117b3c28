"""Backbones of images as nodes of a graph: decoded uint8 images of any size to feature vectors.

Images are resized in the graph, with the arithmetic of the backbone: sums of pixels in the same
order and number type, so that the network sees the same pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgram.errors import ConfigError, DataError
from fedgram.export.graph import FIRST_OPSET, OPSET, Graph, onnx_package
from fedgram.features.backbones.bicubic import SHARPNESS
from fedgram.features.backbones.efficientnet import SIDE, EfficientNetLite0
from fedgram.features.backbones.onnx import Onnx, Preprocessing
from fedgram.features.backbones.plain import Pixels
from fedgram.features.new_data import FlatPixels

PREFIX = "backbone/"
_PILLOW_BITS = 22  # binary places of the weights of Pillow's resizing
_PILLOW_SHARPNESS = -0.5
# Permutations that make an axis of images the last one, and back.
_TO_LAST = {1: [0, 2, 3, 1], 2: [0, 1, 3, 2]}
_BACK = {1: [0, 3, 1, 2], 2: [0, 1, 3, 2]}


def network_of(backbone: Any) -> Any:
    """Return the network of a backbone as an ONNX model with prefixed names; None without one."""
    onnx = onnx_package()
    if not isinstance(backbone, Onnx):
        return None
    try:
        model = onnx.load(str(backbone.path))
        opset = _opset(model)
        if opset < FIRST_OPSET:
            model = onnx.version_converter.convert_version(model, OPSET)
    except Exception as error:  # of protobuf and of the converter
        raise DataError(f"{backbone.path}: cannot be read as an ONNX model ({error})") from error
    return onnx.compose.add_prefix(model, PREFIX)


def opset_of(network: Any) -> int:
    """Return the opset of a network's operators; the default opset without a network."""
    return OPSET if network is None else _opset(network)


def _opset(model: Any) -> int:
    return max(int(each.version) for each in model.opset_import if each.domain in ("", "ai.onnx"))


def image_shape(backbone: Any) -> list[int | str]:
    """Return the shape of a backbone's images: samples, height, width and colors."""
    if isinstance(backbone, FlatPixels):
        return ["samples", *backbone.layout.shape]
    return ["samples", "height", "width", 3]


def image_features(graph: Graph, images: str, backbone: Any, network: Any) -> str:
    """Return the feature vectors of images, in double.

    Parameters
    ----------
    graph
        The graph.
    images
        Decoded images, uint8, (samples, height, width, colors).
    backbone
        The backbone.
    network
        Its network, as `network_of` returns it.
    """
    if isinstance(backbone, FlatPixels):
        return graph.cast(graph.reshape(images, [0, -1]), np.float64)
    if isinstance(backbone, Pixels):
        return _cells(graph, images, backbone.side)
    if network is None:
        raise ConfigError(
            f"backbone {backbone.name} is not an ONNX network: it runs in another program; export "
            "without it, and give its features to the exported model"
        )
    if isinstance(backbone, EfficientNetLite0):
        pixels = _bicubic(graph, images, SIDE)
        pixels = graph.op("Transpose", pixels, perm=[0, 3, 1, 2])
    else:
        pixels = _prepared(graph, images, backbone.settings)
    return graph.cast(_through(graph, pixels, network), np.float64)


def _through(graph: Graph, pixels: str, network: Any) -> str:
    """Add the nodes of a network, on prepared images; return its first output as vectors."""
    inner = network.graph
    weights = {each.name for each in inner.initializer}
    inputs = [each for each in inner.input if each.name not in weights]
    if len(inputs) != 1:
        raise ConfigError(f"the backbone has {len(inputs)} inputs; expected one")
    batch = inputs[0].type.tensor_type.shape.dim[0]
    if batch.HasField("dim_value") and batch.dim_value > 1:
        raise ConfigError(
            f"the backbone was exported for batches of {batch.dim_value}; export it again with any "
            "number of samples"
        )
    graph.op("Identity", pixels, out=inputs[0].name)
    graph.nodes.extend(inner.node)
    graph.constants.extend(inner.initializer)
    return graph.reshape(inner.output[0].name, [0, -1])


# Resizing as in PyTorch: see fedgram.features.backbones.bicubic


def _bicubic(graph: Graph, images: str, side: int) -> str:
    pixels = graph.cast(images, np.float32)
    for axis in (1, 2):
        pixels = _resized(graph, pixels, axis, side)
    return graph.op("Clip", pixels, *(graph.const(end, np.float32) for end in (0.0, 255.0)))


def _resized(graph: Graph, pixels: str, axis: int, side: int) -> str:
    """Return pixels resized along an axis: four products each, added in their order."""
    length = graph.length(pixels, axis)
    scale = graph.op("Div", graph.cast(length, np.float64), graph.const(float(side), np.float64))
    middle = graph.op("Mul", graph.const(np.arange(side) + 0.5, np.float64), scale)
    centre = graph.op("Sub", middle, graph.const(0.5, np.float64))
    first = graph.op("Sub", graph.op("Floor", centre), graph.const(1.0, np.float64))
    last = graph.op("Sub", length, graph.const(1, np.int64))
    total = ""
    for k in range(4):
        place = graph.op("Add", first, graph.const(float(k), np.float64))
        weight = _keys(graph, graph.op("Abs", graph.op("Sub", centre, place)), SHARPNESS)
        weight = graph.cast(weight, np.float32)
        inside = graph.op("Clip", graph.cast(place, np.int64), graph.const(0, np.int64), last)
        shape = [1, 1, 1, 1]
        shape[axis] = side
        taken = graph.op("Gather", pixels, inside, axis=axis)
        part = graph.op("Mul", taken, graph.reshape(weight, shape))
        total = graph.op("Add", total, part) if total else part
    return total


def _keys(graph: Graph, distance: str, a: float) -> str:
    """Return the cubic kernel (Keys, 1981) of distances up to 2."""

    def number(value: float) -> str:
        return graph.const(value, np.float64)

    square = graph.op("Mul", distance, distance)
    near = graph.op("Sub", graph.op("Mul", number(a + 2), distance), number(a + 3))
    near = graph.op("Add", graph.op("Mul", near, square), number(1.0))
    far = graph.op("Sub", graph.op("Mul", number(a), distance), number(5 * a))
    far = graph.op("Add", graph.op("Mul", far, distance), number(8 * a))
    far = graph.op("Sub", graph.op("Mul", far, distance), number(4 * a))
    is_near = graph.op("Not", graph.op("Less", number(1.0), distance))
    return graph.op("Where", is_near, near, far)


# Resizing and normalization of other ONNX backbones, as Pillow does it


def _prepared(graph: Graph, images: str, settings: Preprocessing) -> str:
    pixels = images
    if settings.size:
        for axis in (2, 1):  # Pillow resizes rows first, and rounds in between
            pixels = _pillow(graph, pixels, axis, settings.size)
    if not settings.raw:
        pixels = graph.cast(pixels, np.float32)
        pixels = graph.op("Div", pixels, graph.const(255.0, np.float32))
        pixels = graph.op("Sub", pixels, graph.const(settings.mean, np.float32))
        pixels = graph.op("Div", pixels, graph.const(settings.std, np.float32))
    return graph.op("Transpose", pixels, perm=[0, 3, 1, 2]) if settings.layout == "NCHW" else pixels


def _pillow(graph: Graph, pixels: str, axis: int, side: int) -> str:
    """Return uint8 pixels resized along an axis by a matrix of integers, rounded to uint8."""
    matrix = _pillow_matrix(graph, graph.length(pixels, axis), side)
    values = graph.cast(pixels, np.float64)
    lines = graph.op("Transpose", values, perm=_TO_LAST[axis])
    sums = graph.op("MatMul", lines, graph.op("Transpose", matrix, perm=[1, 0]))
    half = graph.const(2.0 ** (_PILLOW_BITS - 1), np.float64)
    one = graph.const(2.0**_PILLOW_BITS, np.float64)
    whole = graph.op("Floor", graph.op("Div", graph.op("Add", sums, half), one))
    whole = graph.op("Clip", whole, *(graph.const(end, np.float64) for end in (0.0, 255.0)))
    return graph.cast(graph.op("Transpose", whole, perm=_BACK[axis]), np.uint8)


def _pillow_matrix(graph: Graph, length: str, side: int) -> str:
    """Return Pillow's bicubic weights, (side, length): integers in steps of 2^-22, in double."""

    def number(value: float) -> str:
        return graph.const(value, np.float64)

    count = graph.cast(length, np.float64)
    scale = graph.op("Div", count, number(float(side)))
    wider = graph.op("Where", graph.op("Less", scale, number(1.0)), number(1.0), scale)
    support = graph.op("Mul", number(2.0), wider)
    middle = graph.const((np.arange(side) + 0.5)[:, None], np.float64)
    centre = graph.op("Mul", middle, scale)
    zero = number(0.0)
    first = graph.op("Floor", graph.op("Add", graph.op("Sub", centre, support), number(0.5)))
    first = graph.op("Where", graph.op("Less", first, zero), zero, first)
    end = graph.op("Floor", graph.op("Add", graph.op("Add", centre, support), number(0.5)))
    end = graph.op("Where", graph.op("Less", end, count), end, count)
    ends = graph.const(0, np.int64), length, graph.const(1, np.int64)
    place = graph.cast(graph.op("Range", *ends), np.float64)
    inside = graph.op("And", graph.op("Not", graph.op("Less", place, first)),
                      graph.op("Less", place, end))  # fmt: skip
    distance = graph.op("Add", graph.op("Sub", place, centre), number(0.5))
    distance = graph.op("Abs", graph.op("Mul", distance, graph.op("Div", number(1.0), wider)))
    near = graph.op("Less", distance, number(2.0))
    weights = _keys(graph, distance, _PILLOW_SHARPNESS)
    weights = graph.op("Where", graph.op("And", inside, near), weights, zero)
    weights = graph.op("Div", weights, graph.reduce("ReduceSum", weights, [1]))
    steps = graph.op("Mul", weights, number(2.0**_PILLOW_BITS))
    sign = graph.op("Sign", steps)
    rounded = graph.op("Floor", graph.op("Add", graph.op("Abs", steps), number(0.5)))
    return graph.op("Mul", sign, rounded)


# Means of cells: see fedgram.features.backbones.plain


def _cells(graph: Graph, images: str, side: int) -> str:
    pixels = graph.cast(images, np.float64)
    heights, widths = (graph.length(images, axis) for axis in (1, 2))
    rows, columns = (_starts(graph, length, side) for length in (heights, widths))
    sums = pixels
    for axis, length, starts in ((1, heights, rows), (2, widths, columns)):
        sums = _summed(graph, sums, axis, _membership(graph, length, starts))
    areas = graph.op(
        "Mul",
        graph.reshape(_lengths(graph, heights, rows), [1, side, 1, 1]),
        graph.reshape(_lengths(graph, widths, columns), [1, 1, side, 1]),
    )
    means = graph.op("Div", sums, areas)
    nearest = graph.op("Gather", graph.op("Gather", pixels, rows, axis=1), columns, axis=2)
    least = graph.op("Min", heights, widths)
    few = graph.op("Less", least, graph.const(side, np.int64))
    return graph.reshape(graph.op("Where", few, nearest, means), [0, -1])


def _starts(graph: Graph, length: str, side: int) -> str:
    numbers = graph.const(np.arange(side), np.int64)
    return graph.op("Div", graph.op("Mul", numbers, length), graph.const(side, np.int64))


def _ends(graph: Graph, length: str, starts: str) -> str:
    axis = graph.const([0], np.int64)
    rest = graph.op("Slice", starts, graph.const([1], np.int64), graph.const([2**31], np.int64))
    return graph.op("Concat", rest, graph.op("Unsqueeze", length, axis), axis=0)


def _lengths(graph: Graph, length: str, starts: str) -> str:
    return graph.cast(graph.op("Sub", _ends(graph, length, starts), starts), np.float64)


def _membership(graph: Graph, length: str, starts: str) -> str:
    """Return which pixels are in which cell, (pixels, cells), as 0 and 1."""
    ends = _ends(graph, length, starts)
    place = graph.op("Range", graph.const(0, np.int64), length, graph.const(1, np.int64))
    place = graph.reshape(place, [-1, 1])
    after = graph.op("Not", graph.op("Less", place, starts))
    return graph.cast(graph.op("And", after, graph.op("Less", place, ends)), np.float64)


def _summed(graph: Graph, values: str, axis: int, membership: str) -> str:
    lines = graph.op("Transpose", values, perm=_TO_LAST[axis])
    return graph.op("Transpose", graph.op("MatMul", lines, membership), perm=_BACK[axis])
