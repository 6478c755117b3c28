"""Test scores that add up over clients: the sums behind every reported accuracy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive, require_shape, schema_field
from fedgram.core.samples import Array, Labels
from fedgram.errors import DataError

HISTOGRAM_BINS = 101  # client accuracies, rounded to per cent
FIXED_POINT_ONE = 10**12  # an accuracy of 1.0 in the fixed-point sums


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
    """Integer sums of test scores over clients, so that secure aggregation can add them.

    Parameters
    ----------
    clients, clients_without_test
        Number of clients, and of those without test samples.
    samples, correct
        Number of test samples, and of correct predictions.
    accuracies
        Sum of the clients' accuracies, in fixed point (`FIXED_POINT_ONE`).
    global_accuracy_sum
        Sum of the accuracies of the clients' models on the global test set, in fixed point.
    auroc_clients, aurocs
        Number of clients with a defined AUROC, and the sum of these in fixed point.
    histogram
        Number of clients by accuracy, rounded to per cent.
    class_samples, class_correct
        `samples` and `correct` for each class.
    classes
        The class list.

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
        """Return the tally of one client.

        Parameters
        ----------
        predicted
            Predicted class code of each test sample.
        truth
            The labels of these samples.
        global_accuracy
            Accuracy of the client's model on the global test set.
        auroc
            Macro AUROC of the client's model; None if undefined or not computed.
        """
        hit = predicted == truth.codes
        samples, correct = len(truth), int(hit.sum())
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
            class_correct=np.bincount(truth.codes[hit], minlength=width),
            classes=truth.classes,
        )

    def validate(self, sites: int = 1) -> None:
        super().validate(sites)
        require_shape("Tally.histogram", self.histogram, HISTOGRAM_BINS)
        for counts in (self.class_samples, self.class_correct):
            require_shape("Tally: counts by class", counts, len(self.classes))
        tested = int(self.samples > 0)
        wrong = (
            self.clients != 1
            or self.clients_without_test != 1 - tested
            or not 0 <= self.correct <= self.samples
            or not all(
                0 <= each <= FIXED_POINT_ONE for each in (self.accuracies, self.global_accuracy_sum)
            )
            or self.auroc_clients not in (0, 1)
            or not 0 <= self.aurocs <= self.auroc_clients * FIXED_POINT_ONE
            or (self.histogram < 0).any()
            or int(self.histogram.sum()) != tested
            or (self.class_correct < 0).any()
            or (self.class_correct > self.class_samples).any()
            or sum(self.class_samples.tolist()) != self.samples
            or sum(self.class_correct.tolist()) != self.correct
        )
        if wrong:
            raise DataError("a tally that no single client can have")

    @property
    def client_mean(self) -> float:
        """Mean accuracy of the clients that have test samples."""
        return _share(self.accuracies, (self.clients - self.clients_without_test) * FIXED_POINT_ONE)

    @property
    def sample_mean(self) -> float:
        """Accuracy over all test samples, each predicted by its own client's model."""
        return _share(self.correct, self.samples)

    @property
    def global_mean(self) -> float:
        """Mean over clients of the accuracy of their models on the global test set."""
        return _share(self.global_accuracy_sum, self.clients * FIXED_POINT_ONE)

    @property
    def balanced(self) -> float:
        """Balanced accuracy: mean over classes of the accuracy within the class."""
        tested = self.class_samples > 0
        if not tested.any():
            return float("nan")
        return float(np.mean(self.class_correct[tested] / self.class_samples[tested]))

    @property
    def auroc(self) -> float:
        """Mean macro AUROC of the clients with a defined AUROC."""
        return _share(self.aurocs, self.auroc_clients * FIXED_POINT_ONE)

    @property
    def class_accuracy(self) -> dict[str, float]:
        """Accuracy within each class, over the test samples of all clients."""
        pairs = zip(self.class_correct, self.class_samples, strict=True)
        return dict(zip(self.classes, (_share(c, n) for c, n in pairs), strict=True))

    @property
    def worst_decile(self) -> float:
        """Mean accuracy of the worst 10 % of the clients, to a per cent (from the histogram)."""
        tested = self.clients - self.clients_without_test
        return worst_decile(np.repeat(np.linspace(0, 1, HISTOGRAM_BINS), self.histogram)[:tested])


def worst_decile(accuracies: Array) -> float:
    """Return the mean accuracy of the worst 10 % of the clients (number rounded up)."""
    lowest = np.sort(accuracies)[: -(-len(accuracies) // 10)]
    return float(lowest.mean()) if len(lowest) else float("nan")


def _share(part: Any, whole: Any) -> float:
    return float(part / whole) if whole else float("nan")
