"""ONNX graphs, built node by node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedgram.errors import ConfigError

FIRST_OPSET = 13  # of the operators that are used here
OPSET = 17  # if there is no backbone, whose own opset is kept
IR_VERSION = 8
_REDUCE_BY_INPUT = {"ReduceSum": 13, "ReduceMax": 18, "ReduceMin": 18}  # since these opsets


def onnx_package() -> Any:
    """Return the module `onnx`."""
    try:
        import onnx
    except ImportError as error:
        raise ConfigError("an ONNX file needs: pip install 'fedgram[export]'") from error
    return onnx


class Graph:
    """The nodes and constants of a graph; values are named by what `op` and `const` return."""

    def __init__(self, opset: int = OPSET) -> None:
        self._onnx = onnx_package()
        self.opset = opset
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._count = 0

    def const(self, value: Any, dtype: Any = None) -> str:
        """Return the name of a constant."""
        name = self._name("constant")
        array = np.asarray(value, dtype)
        self.constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def op(self, kind: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        name = out or self._name(kind)
        self.nodes.append(self._onnx.helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def cast(self, value: str, dtype: Any) -> str:
        """Return a value in another number type."""
        to = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.op("Cast", value, to=to)

    def reduce(self, kind: str, value: str, axes: Sequence[int], *, keep: bool = True) -> str:
        """Return a sum, maximum or minimum over some axes.

        Parameters
        ----------
        kind
            ReduceSum, ReduceMax or ReduceMin.
        value
            The value.
        axes
            The axes.
        keep
            Whether they stay, with length 1.
        """
        if self.opset >= _REDUCE_BY_INPUT[kind]:
            return self.op(kind, value, self.const(list(axes), np.int64), keepdims=int(keep))
        return self.op(kind, value, axes=list(axes), keepdims=int(keep))

    def length(self, value: str, axis: int) -> str:
        """Return the length of an axis, as an integer without axes."""
        shape = self.op("Shape", value)
        return self.op("Gather", shape, self.const(axis, np.int64), axis=0)

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """Return a value in another shape; 0 keeps a length, -1 is what is left."""
        return self.op("Reshape", value, self.const(list(shape), np.int64))

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind.lower()}_{self._count}"
