"""`Dataset`: feature vectors, class codes and metadata of all samples, in memory."""

from __future__ import annotations

import html
import warnings
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any

import numpy as np

from fedgram.core.samples import Array, Integers
from fedgram.core.targets import Output, Targets, require_distinguished
from fedgram.data.arrays import (
    coded,
    column,
    matrix,
    names,
    outputs,
    require_finite,
)
from fedgram.data.frames import require_in_memory, require_one_order, require_unique
from fedgram.data.ranges import rounded_outwards
from fedgram.errors import DataError
from fedgram.runtime.text import clean_name, escaped

TRAIN, VALID, TEST = 0, 1, 2  # codes of `Dataset.split`
REGRESSION = "regression"
TASKS = ("classification", REGRESSION)
_GROUPS = 10  # of samples with similar outputs


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Feature vectors with labels, before any split.

    Parameters
    ----------
    x
        Samples by features: an array, a nested list, a data frame of pandas or polars, or a tensor
        of torch, of any float or integer type.
    y
        Label of each sample: texts, integers or booleans. If `classes` is given, class codes.
    clients
        Another name of `client`.
    classes
        Class names, if `y` contains class codes; by default the labels of `y`, sorted.
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
    columns
        Names of the features; by default those of a data frame.
    labels
        The labels behind the class codes, in the order of `classes`: what models return. By default
        the labels of `y`, or the class names if `classes` is given.
    standardize
        Whether columns are standardized, by means and deviations from exact sums over the training
        samples. False for features of a backbone. None: not standardized, and an error if the grid
        would lose columns because their scales are very different.
    task
        "classification", or "regression" for a `y` of numbers: one for each sample, or a row of
        them for several outputs.
    output_range
        For a regression the lowest and highest possible value of each output: one pair for all, or
        one for each. Sums of outputs are exact in this range. By default it is taken from the data,
        those of test samples too, with a warning: in a federation it is agreed upon without them.
    targets
        The outputs of a regression. Then `y` and `classes` are ten groups of samples with similar
        values of the first output, by which samples are split and partitioned.

    Examples
    --------
    >>> Dataset([[0.0, 1.0], [1.0, 0.0], [1.0, 0.5]], ["cat", "dog", "dog"], clients=[1, 1, 2])
    Dataset(data: 3 samples, 2 features, 2 classes, 2 clients)
    >>> from fedgram.data.sources import load_dataset
    >>> load_dataset("digits")
    Dataset(digits: 1797 samples, 64 features, 10 classes)
    >>> Dataset([[0.0, 1.0], [1.0, 0.0]], ["cat"])
    Traceback (most recent call last):
    ...
    fedgram.errors.DataError: y: expected 2 values, one for each row of X, got 1
    """

    x: Array
    y: Integers
    clients: InitVar[Any] = None
    _: KW_ONLY
    classes: tuple[str, ...] = ()
    scale: Array | None = None
    offset: Array | None = None
    client: Array | None = None
    domain: Array | None = None
    split: Array | None = None
    backbone: str = ""
    grid: tuple[int, float] | None = None
    name: str = "data"
    columns: tuple[str, ...] = ()
    labels: Array = field(default_factory=lambda: np.zeros(0, np.str_))
    standardize: bool | None = None
    task: str = "classification"
    output_range: InitVar[Any] = None
    targets: Targets | None = None

    def __post_init__(self, clients: Any, output_range: Any) -> None:
        self._refuse_left_over(clients)
        if self.task not in TASKS:
            raise DataError(f"task: expected one of {', '.join(TASKS)}, got {self.task!r}")
        if self.task != REGRESSION and output_range is not None:
            raise DataError(
                f"output_range: expected task={REGRESSION!r} (data.task) with it, got task="
                f"{self.task!r}; leave it out for classes"
            )
        if self.task == REGRESSION and self.targets is None:
            self._take_outputs(output_range)
        self._take_arrays()
        if clients is not None:
            if self.client is not None:
                raise DataError(f"{self.name}: expected clients or client, got both")
            object.__setattr__(self, "client", names(clients, "clients", len(self.x)))
        self._require_shapes()
        self._require_columns()
        wrong = np.flatnonzero((self.y < 0) | (self.y >= len(self.classes)))
        if len(wrong):
            client = "" if self.client is None else f"client {self.client[wrong[0]]}: "
            raise DataError(
                f"{self.name}: {client}labels run from {self.y.min()} to {self.y.max()}, but there "
                f"are {len(self.classes)} classes; use codes from 0 to {len(self.classes) - 1}"
            )

    def _take_arrays(self) -> None:
        """Turn features and labels of any kind into arrays."""
        if not self.classes:
            x, columns = matrix(self.x, "X")
            require_finite(x, "X", columns)
            found = coded(self.y, "y", len(x))
            self._set(x=x, y=found.codes, classes=found.classes, columns=self.columns or columns)
            if not len(self.labels):
                self._set(labels=found.values)
        elif not len(self.labels):
            self._set(labels=np.array(self.classes))

    def _refuse_left_over(self, clients: Any) -> None:
        """Raise DataError if the labels or the clients are among the columns of a frame."""
        require_in_memory(self.x, "X")
        columns = [str(name) for name in getattr(self.x, "columns", ())]
        for argument, given in (("y", self.y), ("clients", clients)):
            require_one_order(self.x, given, argument)
            name = getattr(given, "name", None)
            if isinstance(name, str) and name in columns:
                raise DataError(
                    f"X: column {name!r} is {argument} too, and would become a feature; expected X "
                    f"without it: X.drop(columns={name!r})"
                )

    def _take_outputs(self, output_range: Any) -> None:
        """Turn numbers into outputs in fixed point, and group samples by the first output."""
        x, columns = matrix(self.x, "X")
        require_finite(x, "X", columns)
        values, called = outputs(self.y, "y", len(x))
        if not len(values):
            raise DataError("y: expected a number for each sample, got no samples")
        ranges = _ranges(output_range, values, self.name)
        listed = [
            Output(name=clean_name(name, "y"), low=low, high=high)
            for name, (low, high) in zip(called, ranges, strict=True)
        ]
        targets = Targets.of(values, listed)
        require_distinguished(values, listed)
        edges = np.quantile(values[:, 0], np.linspace(0, 1, _GROUPS + 1)[1:-1])
        groups = tuple(f"{listed[0].name}, tenth {k + 1}" for k in range(_GROUPS))
        codes = np.searchsorted(edges, values[:, 0], side="right")
        self._set(x=x, y=codes, classes=groups, columns=self.columns or columns, targets=targets)

    def _set(self, **values: Any) -> None:
        for label, value in values.items():
            object.__setattr__(self, label, value)

    def _require_shapes(self) -> None:
        real = np.issubdtype(self.x.dtype, np.integer) or np.issubdtype(self.x.dtype, np.floating)
        if self.x.ndim != 2 or not real:
            raise DataError(
                f"{self.name}: x: expected numbers, samples by features, got {self.x.dtype} of "
                f"shape {self.x.shape}"
            )
        for label in ("client", "domain"):
            given = getattr(self, label)
            if given is not None and not isinstance(given, np.ndarray):
                self._set(**{label: names(given, label, len(self.x))})
        if self.split is not None and not isinstance(self.split, np.ndarray):
            self._set(split=column(self.split, "split", len(self.x)))
        for label in ("y", "client", "domain", "split"):
            array = getattr(self, label)
            if array is not None and array.shape != (len(self.x),):
                raise DataError(
                    f"{self.name}: {label} has shape {array.shape} but x has {len(self.x)} "
                    "rows; give one entry per row"
                )

    def _require_columns(self) -> None:
        for label in ("scale", "offset"):
            array = getattr(self, label)
            if array is not None and array.dtype.kind not in "iuf":
                raise DataError(f"{self.name}: {label}: expected numbers, got {array.dtype}")
            if array is not None and array.shape not in ((), (1,), (self.x.shape[1],)):
                raise DataError(
                    f"{self.name}: {label} has shape {array.shape} but x has {self.x.shape[1]} "
                    "features; give one number per feature, or one for all"
                )
        if self.columns and len(self.columns) != self.x.shape[1]:
            raise DataError(
                f"{self.name}: columns: expected {self.x.shape[1]} names, got {len(self.columns)}"
            )
        require_unique(self.columns, f"{self.name}: columns")
        if len(self.labels) != len(self.classes):
            raise DataError(
                f"{self.name}: labels: expected one for each of {len(self.classes)} classes, got "
                f"{len(self.labels)}"
            )
        if self.split is not None and self.split.dtype.kind not in "iufb":
            raise DataError(f"{self.name}: split: expected numbers, got {self.split.dtype}")
        if self.split is not None and not np.isin(self.split, (TRAIN, VALID, TEST)).all():
            raise DataError(f"{self.name}: split: expected 0 (train), 1 (valid) or 2 (test)")
        if self.standardize and (self.grid or self.scale is not None or self.offset is not None):
            raise DataError(
                f"{self.name}: standardize: expected raw columns, got features on a grid or with "
                "a scale; leave standardize out"
            )

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        clients = "" if self.client is None else f", {len(np.unique(self.client))} clients"
        return (
            f"Dataset({escaped(self.name)}: {len(self)} samples, {self.x.shape[1]} features, "
            f"{self._words()}{clients})"
        )

    def _words(self) -> str:
        if self.targets is None:
            return f"{len(self.classes)} classes"
        count = len(self.targets.outputs)
        return f"{count} output{'s' * (count > 1)}"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"


def _ranges(given: Any, values: Array, name: str) -> list[tuple[float, float]]:
    """Return the range of each output: as declared, or of the data."""
    count = values.shape[1]
    if given is None:
        ends = zip(values.min(axis=0), values.max(axis=0), strict=True)
        found = [rounded_outwards(float(low), float(high)) for low, high in ends]
        shown = ", ".join(f"({low:g}, {high:g})" for low, high in found)
        warnings.warn(
            f"{name}: the range of the outputs is taken from the data, test samples too: {shown}; "
            "declare output_range=(low, high) (data.output_range), which a federation agrees on "
            "without the data",
            UserWarning,
            stacklevel=5,
        )
        return found
    array = np.asarray(given, np.float64) if _is_ranges(given) else np.zeros(0)
    if array.shape == (2,):
        array = np.repeat(array[None], count, axis=0)
    if array.shape != (count, 2):
        raise DataError(
            f"output_range: expected a pair (low, high), or {count} pairs, got {given!r}"
        )
    return [(float(low), float(high)) for low, high in array]


def _is_ranges(given: Any) -> bool:
    try:
        return np.asarray(given).dtype.kind in "iuf"
    except ValueError:
        return False


@dataclass(frozen=True, eq=False, kw_only=True)
class Vectors:
    """Feature vectors without labels, for prediction; the fields are those of `Dataset`."""

    x: Array
    scale: Array | None = None
    offset: Array | None = None
    backbone: str = ""
    grid: tuple[int, float] | None = None
