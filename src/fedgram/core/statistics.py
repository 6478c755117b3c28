"""What clients send and servers sum: `Statistics` behind solves, `Tally` behind scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive, schema_field
from fedgram.core.exact import Accumulator
from fedgram.core.samples import NO_SPACE, Array, Features, Floats, Labels, Space
from fedgram.core.solve import require_ridge, ridge_solve, unpack_symmetric
from fedgram.errors import DataError, ExactnessError, MismatchError, SolveError


@codec.register("Statistics/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Statistics(Additive):
    """The sums behind every closed-form method: all a ridge regression needs to know of the data.

    On the grid these are integers, and the laws of a commutative group hold to the last bit: any
    split of the same samples over any number of clients, in any order, in batches of any size,
    gives the same bytes.

    Parameters
    ----------
    count
        Number of samples.
    gram
        Sum of f f', the upper triangle row by row.
    moment
        Sum of f y', features by classes.
    energy
        Sum of |y|^2.
    space
        What the features mean; statistics of different spaces refuse to add.
    classes
        The class list, in the order of the moment's columns.

    Examples
    --------
    >>> space = Space(width=2, bound=127)
    >>> rows = Features(np.array([[1, 2], [3, 4], [5, 6]], dtype=np.int8), space)
    >>> labels = Labels(np.array([0, 1, 1]), ("no", "yes"))
    >>> whole = Statistics.of(rows, labels)
    >>> part, rest = (
    ...     Statistics.of(rows.take(s), labels.take(s)) for s in (slice(0, 1), slice(1, 3))
    ... )
    >>> part + rest == whole, whole - part == rest, (part + rest).digest() == whole.digest()
    (True, True, True)
    >>> whole.gram
    array([35, 44, 56])
    """

    count: int = 0
    gram: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    moment: Array = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    energy: int = 0
    space: Space = schema_field(default=NO_SPACE)
    classes: tuple[str, ...] = schema_field(default=())

    def __post_init__(self) -> None:
        width = self.space.width
        shapes = (width * (width + 1) // 2,), (width, len(self.classes))
        if (self.gram.shape, self.moment.shape) != shapes:
            raise DataError(
                f"statistics of shapes {self.gram.shape} and {self.moment.shape} do not fit "
                f"{width} features and {len(self.classes)} classes"
            )
        if abs(self.count) > self.space.most_samples:
            raise ExactnessError(
                f"a total of {self.count} samples might not be exact: this grid holds "
                f"{self.space.most_samples}; use fewer grid.bits"
            )

    @classmethod
    def of(cls, features: Features, labels: Labels) -> Self:
        """Return the statistics of one block of samples."""
        return cls.over([(features, labels)])

    @classmethod
    def over(cls, batches: Iterable[tuple[Features, Labels]]) -> Self:
        """Return the statistics of a stream of batches, in memory that does not grow with it."""
        total: Accumulator | None = None
        count, space = 0, NO_SPACE
        classes: tuple[str, ...] = ()
        for features, labels in batches:
            if len(features) != len(labels):
                raise DataError(f"{len(features)} feature rows but {len(labels)} labels")
            if total is None:
                space, classes = features.space, labels.classes
                total = Accumulator(space.width, len(classes), space.bound)
            elif features.space != space:
                raise MismatchError(f"batches differ: {space.difference(features.space)}")
            elif labels.classes != classes:
                raise MismatchError("batches differ in their class lists")
            total.add(features.values, labels.codes)
            count += len(labels)
        if total is None:
            return cls.zero()
        gram, moment = total.take()
        return cls(
            count=count,
            gram=gram,
            moment=moment,
            energy=count,  # one-hot targets have length one
            space=space,
            classes=classes,
        )

    def lacks_schema(self) -> bool:
        return self.space == NO_SPACE

    def solve(self, ridge: float, *, towards: Floats | None = None) -> Floats:
        """Return the weights of argmin_W ``|F W - Y|^2 + ridge |W - towards|^2``, (d, c).

        Ridge, weights and `towards` are in real units (features of about unit size), so they do
        not depend on the grid, nor on the number of clients.
        """
        return next(iter(self.path([ridge], towards=towards)))

    def path(self, ridges: Sequence[float], *, towards: Floats | None = None) -> Iterable[Floats]:
        """Yield the weights for each of several ridges."""
        if self.count <= 0:
            raise SolveError(f"nothing to solve: the total holds {self.count} samples")
        gram, unit = unpack_symmetric(self.gram, self.space.width), self.space.unit
        # Stored features are real ones divided by the unit, so weights come out multiplied by it.
        pull = None if towards is None else towards * unit
        for ridge in ridges:
            require_ridge(ridge)
            stored = ridge_solve(
                gram,
                self.moment.astype(np.float64),
                ridge / unit**2,
                towards=pull,
                samples=self.count,
            )
            yield stored / unit

    def error(self, weights: Floats) -> float:
        """Return the sum of ``|y - W' f|^2`` over the samples, from the statistics alone."""
        stored = weights * self.space.unit
        cross = np.sum(stored * self.moment)
        curvature = np.sum(stored * (unpack_symmetric(self.gram, self.space.width) @ stored))
        return float(self.energy - 2 * cross + curvature)

    def diagonal(self) -> Array:
        """Return the sums of squares of the features, which no real data make negative."""
        width = self.space.width
        starts = np.arange(width) * width - np.arange(width) * (np.arange(width) - 1) // 2
        diagonal: Array = self.gram[starts]
        return diagonal

    def with_classes(self, classes: Sequence[str]) -> Statistics:
        """Return the same statistics over another class list: other order, more or fewer classes.

        A class that is new gets a column of zeros; one that is left out must have had one.
        """
        place = {name: column for column, name in enumerate(self.classes)}
        for name in set(self.classes) - set(classes):
            if self.moment[:, place[name]].any():
                raise MismatchError(f"class {name!r} has samples and cannot be left out")
        moment = np.zeros((self.space.width, len(classes)), self.moment.dtype)
        for column, name in enumerate(classes):
            if name in place:
                moment[:, column] = self.moment[:, place[name]]
        return replace(self, moment=moment, classes=tuple(classes))

    def digest(self) -> str:
        """Return the sha256 of the canonical bytes; on the grid the same on every machine.

        Classes count in alphabetical order: how a site lists them does not matter.
        """
        return codec.digest(self.with_classes(sorted(self.classes)))


@codec.register("Opening/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Opening(Additive):
    """What all clients agree on before the first round."""

    space: Space = schema_field(default=NO_SPACE)
    classes: tuple[str, ...] = schema_field(default=())

    def lacks_schema(self) -> bool:
        return self.space == NO_SPACE


HISTOGRAM_BINS = 101  # client accuracies, rounded to per cent
FIXED_POINT_ONE = 10**12  # a client's accuracy is summed as an integer number of these parts


@codec.register(
    "Tally/1",
    fields={
        "clients_without_test": "untested",
        "global_accuracy_sum": "everywhere",
        "auroc_clients": "ranked",
    },
)
@dataclass(frozen=True, eq=False, kw_only=True)
class Tally(Additive):
    """Scores that add up, so that they survive a secure sum: integers only.

    Examples
    --------
    >>> truth = Labels(np.array([0, 1, 1]), ("no", "yes"))
    >>> one = Tally.of(np.array([0, 1, 0]), truth)
    >>> two = Tally.of(np.array([0, 1, 1]), truth)
    >>> both = one + two
    >>> both.client_mean, both.sample_mean, both.balanced
    (0.8333333333335, 0.8333333333333334, 0.875)
    """

    clients: int = 0
    clients_without_test: int = 0
    samples: int = 0
    correct: int = 0
    accuracies: int = 0
    global_accuracy_sum: int = 0
    auroc_clients: int = 0
    aurocs: int = 0
    histogram: Array = field(default_factory=lambda: np.zeros(HISTOGRAM_BINS, np.int64))
    class_samples: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    class_correct: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    classes: tuple[str, ...] = schema_field(default=())

    def lacks_schema(self) -> bool:
        return not (self.clients or self.classes or self.class_samples.size)

    @classmethod
    def of(
        cls,
        predicted: Array,
        truth: Labels,
        *,
        global_accuracy: float = 0.0,
        auroc: float | None = None,
    ) -> Self:
        """Tally one client.

        `global_accuracy` is its model's accuracy on the global test set, `auroc` its macro AUROC,
        None where that is not defined or was not asked for.
        """
        right = predicted == truth.codes
        samples, correct = len(truth), int(right.sum())
        tested = samples > 0
        share = correct / samples if tested else 0.0
        histogram = np.zeros(HISTOGRAM_BINS, np.int64)
        histogram[round(share * (HISTOGRAM_BINS - 1))] += int(tested)
        width = len(truth.classes)
        return cls(
            clients=1,
            clients_without_test=int(not tested),
            samples=samples,
            correct=correct,
            accuracies=round(share * FIXED_POINT_ONE),
            global_accuracy_sum=round(global_accuracy * FIXED_POINT_ONE),
            auroc_clients=int(auroc is not None),
            aurocs=round((auroc or 0.0) * FIXED_POINT_ONE),
            histogram=histogram,
            class_samples=np.bincount(truth.codes, minlength=width),
            class_correct=np.bincount(truth.codes[right], minlength=width),
            classes=truth.classes,
        )

    @property
    def client_mean(self) -> float:
        """Mean accuracy of the clients that have test samples."""
        return _share(self.accuracies, (self.clients - self.clients_without_test) * FIXED_POINT_ONE)

    @property
    def sample_mean(self) -> float:
        """Accuracy over all test samples, each judged by its own client's model."""
        return _share(self.correct, self.samples)

    @property
    def global_mean(self) -> float:
        """Mean over clients of the accuracy of their models on everybody's test samples."""
        return _share(self.global_accuracy_sum, self.clients * FIXED_POINT_ONE)

    @property
    def balanced(self) -> float:
        """Mean over classes of the accuracy within the class."""
        seen = self.class_samples > 0
        if not seen.any():
            return float("nan")
        return float(np.mean(self.class_correct[seen] / self.class_samples[seen]))

    @property
    def auroc(self) -> float:
        """Mean macro AUROC of the clients for which it is defined."""
        return _share(self.aurocs, self.auroc_clients * FIXED_POINT_ONE)

    @property
    def class_accuracy(self) -> dict[str, float]:
        """Accuracy within each class, over all test samples that have it."""
        pairs = zip(self.class_correct, self.class_samples, strict=True)
        return dict(zip(self.classes, (_share(c, n) for c, n in pairs), strict=True))

    @property
    def worst_decile(self) -> float:
        """Mean accuracy of the lowest tenth of the clients, to a per cent (from the histogram)."""
        tested = self.clients - self.clients_without_test
        return worst_decile(np.repeat(np.linspace(0, 1, HISTOGRAM_BINS), self.histogram)[:tested])


def worst_decile(accuracies: Array) -> float:
    """Return the mean of the lowest tenth (rounded up) of the clients' accuracies."""
    lowest = np.sort(accuracies)[: -(-len(accuracies) // 10)]
    return float(lowest.mean()) if len(lowest) else float("nan")


def _share(part: Any, whole: Any) -> float:
    return float(part / whole) if whole else float("nan")
