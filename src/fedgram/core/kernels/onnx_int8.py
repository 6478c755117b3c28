"""The way of onnxruntime: its operator MatMulInteger, where onnxruntime is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgram.core.kernels.way import Int8, Way, WholeProducts

# The graph "sums = MatMulInteger(left: uint8, right: int8, shift: uint8)" as an ONNX file, so that
# the package `onnx` is not needed; tests build it with `onnx` and compare.
GRAPH = (
    b'\x08\x07\x12\x00:\x94\x01\n)\n\x04left\n\x05right\n\x05shift\x12\x04sums"\rMatMulInteger'
    b"\x12\x07productZ\x18\n\x04left\x12\x10\n\x0e\x08\x02\x12\n\n\x03\x12\x01n\n\x03\x12\x01k"
    b"Z\x19\n\x05right\x12\x10\n\x0e\x08\x03\x12\n\n\x03\x12\x01k\n\x03\x12\x01mZ\x0f\n\x05shift"
    b"\x12\x06\n\x04\x08\x02\x12\x00b\x18\n\x04sums\x12\x10\n\x0e\x08\x06\x12\n\n\x03\x12\x01n\n"
    b"\x03\x12\x01mB\x04\n\x00\x10\n"
)
_SHIFT = np.array(128, np.uint8)


class OnnxInt8(WholeProducts):
    """Products of uint8 by int8: the left operand is shifted by 128, which the operator subtracts.

    The operator's sums are exact modulo 2^32 wherever its 32-bit additions wrap, so the rule of
    `MOST_TERMS` holds for it too.
    """

    name = "onnxruntime"

    def __init__(self, session: Any) -> None:
        self._session = session

    def _whole(self, left: Int8, right: Int8) -> NDArray[np.int32]:
        if not (left.size and right.size):
            return np.zeros((left.shape[0], right.shape[1]), np.int32)
        shifted = np.ascontiguousarray(left).view(np.uint8) ^ _SHIFT
        given = {"left": shifted, "right": np.ascontiguousarray(right), "shift": _SHIFT}
        (sums,) = self._session.run(None, given)
        found: NDArray[np.int32] = sums
        return found


def made() -> Way:
    """Return this way; raise an error with a reason if it cannot be used here."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return OnnxInt8(
        onnxruntime.InferenceSession(GRAPH, options, providers=["CPUExecutionProvider"])
    )
