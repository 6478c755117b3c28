"""The way of torch: its int8 matrix product, where torch is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgram.core.kernels.way import Int8, Way, WholeProducts
from fedgram.runtime.threads import single_threaded_torch


class TorchInt8(WholeProducts):
    """Products by ``torch._int_mm``, which is private: `made` looks whether it is there."""

    name = "torch"

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def _whole(self, left: Int8, right: Int8) -> NDArray[np.int32]:
        if not (left.size and right.size):
            return np.zeros((left.shape[0], right.shape[1]), np.int32)
        first, second = (self._torch.from_numpy(_writeable(each)) for each in (left, right))
        with single_threaded_torch(self._torch):
            product: NDArray[np.int32] = self._torch._int_mm(first, second).numpy()
        return product


def _writeable(matrix: Int8) -> Int8:
    """Return a matrix by rows; torch warns about one that must not be written.

    NumPy lets a dimension of length 1 have any stride and still calls the matrix contiguous. With
    such strides `_int_mm` returns memory that it has not written.
    """
    whole = np.ascontiguousarray(matrix)
    by_rows = whole.strides == (whole.shape[1], 1)
    return whole if by_rows and whole.flags.writeable else whole.copy()


def made() -> Way:
    """Return this way; raise an error with a reason if it cannot be used here."""
    import torch

    if not hasattr(torch, "_int_mm"):
        raise OSError(f"torch {torch.__version__} has no int8 product for matrices")
    return TorchInt8(torch)
