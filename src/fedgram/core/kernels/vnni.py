"""The way of AVX-512 VNNI: int8 dot products by a small C library, `vnni.c`.

The library is built with the package where a C compiler is at hand (`hatch_build.py`). It checks at
run time that the processor has the instructions.
"""

from __future__ import annotations

import ctypes
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgram.core.kernels.way import Array, Int8, Int64, Way, terms_of
from fedgram.errors import MemoryLimitError
from fedgram.runtime.threads import product_threads

# Not "*.so": it is no module of Python, and must not be taken for one.
LIBRARY = Path(__file__).with_name("libvnni.so.1")
_GROUP, _PANEL, _BLOCK = 16, 48, 288  # as in vnni.c
_MOST_PACKED = 2**25  # bytes of rows that are packed at a time
_FEWEST_ROWS = 2048  # at a time: with fewer, adding to the total would cost more than multiplying
_ADDRESS, _SIZE = ctypes.c_void_p, ctypes.c_int64


class _Operand(ctypes.Structure):
    _fields_ = (("quads", _ADDRESS), ("sums", _ADDRESS), ("columns", _SIZE))


class _Output(ctypes.Structure):
    _fields_ = (
        ("triangle", _ADDRESS),
        ("matrix", _ADDRESS),
        ("looked_up", _ADDRESS),
        ("stride", _SIZE),
        ("table", _ADDRESS),
        ("entries", _SIZE),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class _Packed:
    """A packed operand; the arrays stay alive with it."""

    quads: Int8
    sums: NDArray[np.int32]
    inner: int
    columns: int

    def passed(self) -> Any:
        """Return what the library is given."""
        return ctypes.byref(_Operand(self.quads.ctypes.data, self.sums.ctypes.data, self.columns))


class Vnni(Way):
    """Products by the C library, over tiles in several threads."""

    name = "vnni"

    def __init__(self, library: Any, threads: int) -> None:
        self._library = library
        self._threads = threads
        self._kept: dict[int, _Packed] = {}

    def gram(self, rows: Int8, total: Int64) -> None:
        width = rows.shape[1]
        if not (total.flags.c_contiguous and len(total) == width * (width + 1) // 2):
            raise ValueError("expected a contiguous total of a triangle's size")
        at_a_time = max(_FEWEST_ROWS, _MOST_PACKED // max(1, width))
        for part in terms_of(len(rows)):
            for start in range(part.start, part.stop, at_a_time):
                packed = self._packed(rows[start : min(part.stop, start + at_a_time)])
                self._multiply(packed, packed, _Output(triangle=total.ctypes.data))

    def product(self, left: Int8, right: Int8) -> Array:
        shape, parts = (left.shape[0], right.shape[1]), list(terms_of(left.shape[1]))
        if not parts:
            return np.zeros(shape, np.int32)
        sums: Array | None = None
        for part in parts:
            found = np.empty(shape, np.int32)
            whole = len(parts) == 1
            second = self._kept_packed(right) if whole else self._packed(right[part])
            self._multiply(
                self._packed(left[:, part].T),
                second,
                _Output(matrix=found.ctypes.data, stride=shape[1]),
            )
            sums = found if sums is None else sums + found.astype(np.int64)
        assert sums is not None  # noqa: S101 - there is at least one part
        return sums

    def looked_up(self, left: Int8, right: Int8, table: Int8, out: Int8) -> None:
        """Write looked-up products; the library packs, multiplies and looks up tile by tile.

        Parameters
        ----------
        left, right, table, out
            As of `Way.looked_up`.
        """
        if left.shape[1] == 0 or out.strides[1] != 1 or not table.flags.c_contiguous:
            super().looked_up(left, right, table, out)
            return
        second = self._kept_packed(right)
        at_a_time = max(_BLOCK, _MOST_PACKED // max(1, left.shape[1]))
        for start in range(0, len(left), at_a_time):
            part = slice(start, start + at_a_time)
            self._multiply(
                self._packed(left[part].T),
                second,
                _Output(
                    looked_up=out[part].ctypes.data,
                    stride=out.strides[0],
                    table=table.ctypes.data,
                    entries=len(table),
                ),
            )

    def class_sums(self, rows: Int8, codes: Int64, total: Int64) -> None:
        """Add each row to the total of its class.

        Parameters
        ----------
        rows, codes, total
            As of `Way.class_sums`.
        """
        rows = rows if rows.strides[1] == 1 else np.ascontiguousarray(rows)
        codes = np.ascontiguousarray(codes, np.int64)
        if len(codes) and not (codes.min() >= 0 and codes.max() < len(total)):
            raise ValueError(f"class codes beyond the {len(total)} classes")
        self._library.fedgram_class_sums(
            rows.ctypes.data, codes.ctypes.data, *rows.shape, rows.strides[0], total.ctypes.data
        )

    def unpack(self, packed: Array, width: int) -> NDArray[np.float64]:
        if packed.dtype != np.int64 or not packed.flags.c_contiguous:
            return super().unpack(packed, width)
        matrix = np.empty((width, width))
        self._library.fedgram_unpack(packed.ctypes.data, width, matrix.ctypes.data)
        return matrix

    def _kept_packed(self, matrix: Int8) -> _Packed:
        """Pack a matrix that nobody changes once, and keep the result as long as the matrix."""
        if matrix.flags.writeable or matrix.base is not None:
            return self._packed(matrix)
        key = id(matrix)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = self._packed(matrix)
            weakref.finalize(matrix, self._kept.pop, key, None).atexit = False
        return found

    def _packed(self, matrix: Int8) -> _Packed:
        """Pack a matrix, (terms, columns), which may be a transposed view."""
        inner, columns = matrix.shape
        pack = self._library.fedgram_pack_columns
        if matrix.strides[1] != 1 and matrix.strides[0] == 1:
            matrix, pack = matrix.T, self._library.fedgram_pack_rows
        elif matrix.strides[1] != 1:
            matrix = np.ascontiguousarray(matrix)
        groups, quads = -(-columns // _PANEL) * (_PANEL // _GROUP), -(-inner // 4)
        out, sums = _aligned(64 * groups * quads), np.empty(groups * _GROUP, np.int32)
        given = matrix.ctypes.data, inner, columns, matrix.strides[0]
        self._spread(
            lambda first, last: pack(*given, out.ctypes.data, sums.ctypes.data, first, last), groups
        )
        return _Packed(quads=out, sums=sums, inner=inner, columns=columns)

    def _multiply(self, left: _Packed, right: _Packed, output: _Output) -> None:
        given = left.passed(), right.passed(), left.inner, ctypes.byref(output)
        tiles = -(-left.columns // _BLOCK) * -(-right.columns // _BLOCK)

        def some(first: int, last: int) -> None:
            if not self._library.fedgram_multiply(*given, first, last):
                raise MemoryLimitError("no memory for a tile of a product; use a narrower lift")

        self._spread(some, tiles)

    def _spread(self, work: Any, pieces: int) -> None:
        """Call `work` with ranges that cover all pieces, in all threads."""
        if self._threads == 1 or pieces < 2:
            work(0, pieces)
            return
        step = max(1, pieces // (8 * self._threads))  # small steps, so that no thread waits long
        with ThreadPoolExecutor(self._threads, "fedgram-product") as pool:
            starts = range(0, pieces, step)
            for done in [pool.submit(work, s, min(pieces, s + step)) for s in starts]:
                done.result()


def _aligned(size: int) -> Int8:
    """Return an array of bytes whose first one is at a multiple of 64."""
    room = np.empty(size + 64, np.int8)
    start = -room.ctypes.data % 64
    return room[start : start + size]


@cache
def _loaded() -> Any:
    library = ctypes.CDLL(str(LIBRARY))
    pack: Any = [_ADDRESS, _SIZE, _SIZE, _SIZE, _ADDRESS, _ADDRESS, _SIZE, _SIZE]
    library.fedgram_pack_columns.argtypes = library.fedgram_pack_rows.argtypes = pack
    library.fedgram_multiply.argtypes = [_ADDRESS, _ADDRESS, _SIZE, _ADDRESS, _SIZE, _SIZE]
    library.fedgram_class_sums.argtypes = [_ADDRESS, _ADDRESS, _SIZE, _SIZE, _SIZE, _ADDRESS]
    library.fedgram_unpack.argtypes = [_ADDRESS, _SIZE, _ADDRESS]
    return library


def made(threads: int | None = None) -> Way:
    """Return this way; raise OSError with a reason if it cannot be used here."""
    if not LIBRARY.is_file():
        raise OSError("the C library was not built: the installer found no C compiler")
    if not _loaded().fedgram_supported():
        raise OSError("the processor has no AVX-512 VNNI")
    return Vnni(_loaded(), threads or product_threads())
