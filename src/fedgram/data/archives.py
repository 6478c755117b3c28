"""Readers of the original files of MNIST (idx) and CIFAR (pickled batches)."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import zlib
from pathlib import Path
from typing import IO, Any, Literal, cast

import numpy as np

from fedgram.core.samples import Array
from fedgram.data.dataset import TEST, TRAIN
from fedgram.errors import DataError
from fedgram.runtime import memory

_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_PIXELS = 3 * 32 * 32  # of an image of CIFAR


def read_idx(path: Path) -> Array:
    """Return the array of an idx file (the format of MNIST), plain or gzipped."""
    try:
        with path.open("rb") as raw:
            if path.suffix != ".gz":
                return _idx(raw, path)
            with gzip.GzipFile(fileobj=raw) as unpacked:
                return _idx(cast(IO[bytes], unpacked), path)
    except (OSError, EOFError, LookupError, ValueError, MemoryError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read as an idx file ({error})") from error


def _idx(file: IO[bytes], path: Path) -> Array:
    """Read an array; no more than its header declares, whatever a compressed file contains."""
    start = file.read(4)
    kind = np.dtype(_IDX_TYPES[start[2]])
    shape = np.frombuffer(file.read(4 * start[3]), ">u4", start[3]).tolist()
    length = math.prod(shape) * kind.itemsize
    memory.require(length, str(path), "use fewer samples")
    data = file.read(length)
    if len(data) < length or file.read(1):
        raise ValueError(f"expected {length} bytes after the header")
    return np.frombuffer(data, kind).reshape(shape)


def idx_folder(root: Path) -> dict[str, Array] | None:
    """Return images, labels and split of a folder of MNIST's idx files; None for other folders."""
    found = {}
    for split, prefix in ((TRAIN, "train"), (TEST, "t10k")):
        for part in ("images", "labels"):
            matches = sorted(root.glob(f"{prefix}-{part}*ubyte*"))
            if not matches:
                return None
            found[split, part] = read_idx(matches[0])
    images = [found[split, "images"] for split in (TRAIN, TEST)]
    labels = [found[split, "labels"] for split in (TRAIN, TEST)]
    if any(part.dtype.kind not in "iu" or part.ndim != 1 for part in labels):
        raise DataError(f"{root}: labels: expected a list of class codes")
    if (
        len({(part.dtype, *part.shape[1:]) for part in images}) > 1
        or min(p.ndim for p in images) < 1
    ):
        raise DataError(f"{root}: training and test images have different shapes or number types")
    return {
        "x": np.concatenate(images),
        "y": np.concatenate(labels).astype(np.int64),
        "split": np.repeat([TRAIN, TEST], [len(part) for part in labels]),
    }


def cifar_folder(root: Path) -> dict[str, Array] | None:
    """Return the arrays of a folder of CIFAR-10 or CIFAR-100 batches; None for other folders."""
    ten = [f"data_batch_{k}" for k in range(1, 6)], "test_batch", b"labels", "batches.meta"
    hundred = ["train"], "test", b"fine_labels", "meta"
    for train, test, label, meta in (ten, hundred):
        if all((root / name).is_file() for name in (*train, test, meta)):
            return _cifar_arrays(root, train, test, label, meta)
    return None


def _cifar_arrays(
    root: Path, train: list[str], test: str, label: bytes, meta: str
) -> dict[str, Array]:
    parts = [_batch(root / name, label) for name in (*train, test)]
    names = _unpickled(root / meta).get(
        b"label_names" if label == b"labels" else b"fine_label_names"
    )
    if not isinstance(names, list) or not all(isinstance(name, bytes) for name in names):
        raise DataError(f"{root / meta}: not a CIFAR file: expected a list of class names")
    return {
        "x": np.concatenate([pixels for pixels, _ in parts])
        .reshape(-1, 3, 32, 32)
        .transpose(0, 2, 3, 1),
        "y": np.concatenate([labels for _, labels in parts]),
        "split": np.repeat([TRAIN] * len(train) + [TEST], [len(labels) for _, labels in parts]),
        "classes": np.array([name.decode("utf-8", "replace") for name in names], np.str_),
    }


def _batch(path: Path, label: bytes) -> tuple[Array, Array]:
    """Return pixels and labels of a file, of exactly the types that CIFAR has."""
    content = _unpickled(path)
    images, labels = content.get(b"data"), content.get(label)
    pixels = images.array if isinstance(images, _PixelArray) else None
    if pixels is None or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise DataError(f"{path}: not a CIFAR file: expected images of {_PIXELS} pixels")
    if not isinstance(labels, list) or not all(type(code) is int for code in labels):
        raise DataError(f"{path}: not a CIFAR file: expected a list of class codes")
    if not all(0 <= code < 2**31 for code in labels):
        raise DataError(f"{path}: not a CIFAR file: a class code is out of range")
    return pixels, np.array(labels, np.int64)


class _Number:
    """Stands for numpy.dtype in a file; pixels are bytes."""

    def __init__(self, code: Any, *_: Any) -> None:
        if code not in (b"u1", "u1"):
            raise pickle.UnpicklingError("an array of another kind")

    def __setstate__(self, state: Any) -> None:
        """Ignore the rest: numpy itself would believe any size and any flag."""


class _PixelArray:
    """Stands for numpy.ndarray in a file; `array` has the pixels, if the file has their bytes."""

    array: Array | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, number, columns_first, raw = state
        if not isinstance(number, _Number) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array of another kind")
        order: Literal["F", "C"] = "F" if columns_first else "C"
        self.array = np.frombuffer(raw, np.uint8).reshape(shape, order=order)


def _images(*_: Any) -> _PixelArray:
    return _PixelArray()


def _latin(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding not in (b"latin1", "latin1"):
        raise pickle.UnpicklingError("a text of another kind")
    return text.encode("latin1")


_SAFE: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _images,
    ("numpy._core.multiarray", "_reconstruct"): _images,
    ("numpy", "ndarray"): _PixelArray,
    ("numpy", "dtype"): _Number,
    ("_codecs", "encode"): _latin,
}


# The unpickler in Python: the one in C reserves memory for any number that a file names.
class _SafeUnpickler(pickle._Unpickler):
    """An unpickler that builds images and plain containers only: it runs no code of the file."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _SAFE:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a CIFAR file")
        return _SAFE[module, name]


def _unpickled(path: Path) -> dict[bytes, Any]:
    try:
        content = _SafeUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except Exception as error:
        raise DataError(f"{path}: cannot be read as a CIFAR file ({error})") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: not a CIFAR file")
    return content
