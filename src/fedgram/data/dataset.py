"""`Dataset`: feature vectors, class codes and metadata of all samples, in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgram.core.samples import Array, Integers
from fedgram.errors import DataError

TRAIN, VALID, TEST = 0, 1, 2  # codes of `Dataset.split`


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Feature vectors with class codes, before any split.

    Parameters
    ----------
    x
        Samples by features, of any float or integer type.
    y
        Class code of each sample.
    classes
        Class names.
    scale, offset
        If given, the real features are ``x * scale + offset``.
    client, domain
        If given, the name of each sample's client or domain.
    split
        If given, 0 for training, 1 for validation, 2 for test samples.
    backbone
        Name of the backbone that made the vectors, if known; sums of different backbones do not
        add.
    grid
        If given, bits and clip of the grid of ``x``: the features are integers of this grid,
        without the constant.
    name
        Name of the data in messages and records.

    Examples
    --------
    >>> from fedgram.data.sources import load_dataset
    >>> load_dataset("digits")
    Dataset(digits: 1797 samples, 64 features, 10 classes)
    """

    x: Array
    y: Integers
    classes: tuple[str, ...]
    scale: Array | None = None
    offset: Array | None = None
    client: Array | None = None
    domain: Array | None = None
    split: Array | None = None
    backbone: str = ""
    grid: tuple[int, float] | None = None
    name: str = "data"

    def __post_init__(self) -> None:
        real = np.issubdtype(self.x.dtype, np.integer) or np.issubdtype(self.x.dtype, np.floating)
        if self.x.ndim != 2 or not real:
            raise DataError(
                f"{self.name}: x: expected numbers, samples by features, got {self.x.dtype} of "
                f"shape {self.x.shape}"
            )
        for label in ("y", "client", "domain", "split"):
            array = getattr(self, label)
            if array is not None and array.shape != (len(self.x),):
                raise DataError(
                    f"{self.name}: {label} has shape {array.shape} but x has {len(self.x)} "
                    "rows; give one entry per row"
                )
        for label in ("scale", "offset"):
            array = getattr(self, label)
            if array is not None and array.dtype.kind not in "iuf":
                raise DataError(f"{self.name}: {label}: expected numbers, got {array.dtype}")
            if array is not None and array.shape not in ((), (1,), (self.x.shape[1],)):
                raise DataError(
                    f"{self.name}: {label} has shape {array.shape} but x has {self.x.shape[1]} "
                    "features; give one number per feature, or one for all"
                )
        if self.split is not None and self.split.dtype.kind not in "iufb":
            raise DataError(f"{self.name}: split: expected numbers, got {self.split.dtype}")
        if self.split is not None and not np.isin(self.split, (TRAIN, VALID, TEST)).all():
            raise DataError(f"{self.name}: split: expected 0 (train), 1 (valid) or 2 (test)")
        wrong = np.flatnonzero((self.y < 0) | (self.y >= len(self.classes)))
        if len(wrong):
            client = "" if self.client is None else f"client {self.client[wrong[0]]}: "
            raise DataError(
                f"{self.name}: {client}labels run from {self.y.min()} to {self.y.max()}, but there "
                f"are {len(self.classes)} classes; use codes from 0 to {len(self.classes) - 1}"
            )

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name}: {len(self)} samples, {self.x.shape[1]} features, "
            f"{len(self.classes)} classes)"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Vectors:
    """Feature vectors without labels, for prediction; the fields are those of `Dataset`."""

    x: Array
    scale: Array | None = None
    offset: Array | None = None
    backbone: str = ""
    grid: tuple[int, float] | None = None
