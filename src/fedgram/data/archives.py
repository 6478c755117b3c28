"""Readers of the original files of MNIST (idx) and CIFAR (pickled batches)."""

from __future__ import annotations

import gzip
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.samples import Array
from fedgram.data.dataset import TEST, TRAIN
from fedgram.errors import DataError

_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_SAFE = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


def read_idx(path: Path) -> Array:
    """Return the array of an idx file (the format of MNIST), plain or gzipped."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        kind, dimensions = _IDX_TYPES[data[2]], data[3]
        shape = np.frombuffer(data, ">i4", dimensions, 4)
        return np.frombuffer(data, kind, offset=4 + 4 * dimensions).reshape(shape)
    except (OSError, EOFError, KeyError, IndexError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as an idx file ({error})") from error


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
            batches = [_unpickled(root / name) for name in (*train, test)]
            names = _unpickled(root / meta)[
                b"label_names" if label == b"labels" else b"fine_label_names"
            ]
            counts = [len(batch[label]) for batch in batches]
            pixels = np.concatenate([batch[b"data"] for batch in batches])
            return {
                "x": pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1),
                "y": np.concatenate([np.asarray(batch[label]) for batch in batches]),
                "split": np.repeat([TRAIN] * len(train) + [TEST], counts),
                "classes": np.array([name.decode() for name in names]),
            }
    return None


class _SafeUnpickler(pickle.Unpickler):
    """An unpickler that builds arrays and plain containers only: it runs no code of the file."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _SAFE:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a CIFAR file")
        return super().find_class(module, name)


def _unpickled(path: Path) -> dict[bytes, Any]:
    try:
        content = _SafeUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except Exception as error:
        raise DataError(f"{path}: cannot be read as a CIFAR file ({error})") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: not a CIFAR file")
    return content
