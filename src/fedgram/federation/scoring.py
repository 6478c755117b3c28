"""Personalize and score at a site: the only module that uses test data."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive
from fedgram.core.error_tally import ErrorTally
from fedgram.core.samples import Floats, Integers
from fedgram.core.tally import Tally
from fedgram.core.targets import Targets
from fedgram.errors import DataError
from fedgram.federation.client import Client, Site
from fedgram.federation.method import Method
from fedgram.models.linear import Predictor, predict
from fedgram.runtime import flops


@codec.register("Metrics/1", fields={"global_test": "whole"})
@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Metrics to compute besides accuracy.

    Parameters
    ----------
    auroc
        Macro AUROC on each client's own test samples, averaged over clients.
    classes
        Accuracy within each class.
    global_test
        Accuracy of every client's model on the test samples of all clients.

    Examples
    --------
    >>> import fedgram as fg
    >>> digits = fg.federate(fg.load_dataset("digits"))
    >>> result = fg.run("afl", digits, metrics=fg.Metrics(global_test=False))
    >>> result.accuracy["global_test"]
    nan
    """

    auroc: bool = False
    classes: bool = False
    global_test: bool = True


@codec.register("Evaluation/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class ScoreSums(Additive):
    """Scores of one or more sites as sums of integers, which secure sums need.

    Parameters
    ----------
    tally, valid
        Scores on test samples, and on validation samples if training did not use them.
    microseconds, flops
        Time and FLOPs of personalization.
    """

    tally: Tally = field(default_factory=Tally.zero)
    valid: Tally = field(default_factory=Tally.zero)
    microseconds: int = 0
    flops: int = 0

    def claimed_samples(self) -> int:
        return self.valid.samples  # test samples are not among those that a site contributes

    def validate(self, sites: int = 1) -> None:
        super().validate(sites)
        if min(self.microseconds, self.flops) < 0:
            raise DataError("a scoring that took less than no time or work")


@codec.register("ErrorScores/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class ErrorScoreSums(ScoreSums):
    """The same for a regression: the tally only counts clients and samples.

    Parameters
    ----------
    errors
        Errors on test samples.
    """

    errors: ErrorTally = field(default_factory=ErrorTally.zero)

    def lacks_schema(self) -> bool:
        return self.errors.lacks_schema()


@codec.register("Evaluated/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class SiteScore:
    """The result of scoring that the server receives.

    Parameters
    ----------
    sums
        Scores of one site, or of all sites if the server sees only their total.
    model_digest
        Digest of the site's model; None if the server must not see it.
    """

    sums: ScoreSums
    model_digest: str | None = None

    def size(self) -> int:
        """Return the number of bytes that are counted for this score (`codec.counted`).

        Scores of equal class lists whose numbers have equally many digits, and whose counts have
        equal integer types, are equally long: one of each kind is measured.
        """
        if isinstance(self.sums, ErrorScoreSums):
            return codec.counted(self)
        tallies = (self.sums.tally, self.sums.valid)
        numbers = [self.sums.microseconds, self.sums.flops]
        largest = []
        for tally in tallies:
            numbers += [getattr(tally, name) for name in _INTEGERS]
            counts = (tally.histogram, tally.class_samples, tally.class_correct)
            largest += [int(np.searchsorted(_LIMITS, each.max(initial=0))) for each in counts]
        key = (
            len("".join(map(str, numbers))),
            *largest,
            *(tally.classes for tally in tallies),
            self.model_digest and len(self.model_digest),
        )
        if key not in _SIZES:
            _SIZES[key] = codec.counted(self)
        return _SIZES[key]


_SIZES: dict[tuple[Any, ...], int] = {}
_LIMITS = np.array([np.iinfo(kind).max for kind in (np.int8, np.int16, np.int32)])
_INTEGERS = tuple(each.name for each in fields(Tally) if each.type == "int")


@dataclass(frozen=True, eq=False, kw_only=True)
class ScoreTask:
    """Personalize and score at a site.

    Parameters
    ----------
    method
        The method to evaluate.
    metrics
        Metrics to compute besides accuracy.
    kept_valid
        Whether training did not use the validation samples, so that they are scored too.
    round, best
        The scored round, and the best round so far; sites keep these two models.
    keep
        Called with the site's name and its model.
    digests
        Computes the models' digests.
    """

    method: Method[Any]
    metrics: Metrics = Metrics()
    kept_valid: bool = False
    round: int = 1
    best: int = 0
    keep: Callable[[str, Predictor], None] | None = None
    digests: codec.Digests = field(default_factory=codec.Digests)

    def __call__(self, site: Site, client: Client, shared: object) -> SiteScore:
        start, before = time.perf_counter(), flops.total()
        model = self.method.personalize(client, shared)
        seconds, operations = time.perf_counter() - start, flops.total() - before
        if self.keep:
            self.keep(site.id, model)
        scores, truth = model(site.test.features), site.test.labels
        if isinstance(truth, Targets):
            sums: ScoreSums = ErrorScoreSums(
                tally=Tally.of(np.full(len(truth), -1), truth),
                valid=Tally.of(np.zeros(0, np.int64), truth.take(np.zeros(0, np.int64))),
                microseconds=round(seconds * 1e6),
                flops=operations,
                errors=ErrorTally.of(scores, truth),
            )
            return SiteScore(sums=sums, model_digest=codec.digest(model))
        auroc = macro_auroc(scores, truth.codes) if self.metrics.auroc else None
        valid = site.valid if self.kept_valid else site.valid.take([])
        return SiteScore(
            sums=ScoreSums(
                tally=Tally.of(scores.argmax(axis=1), truth, auroc=auroc),
                valid=Tally.of(
                    predict(model, valid.features) if len(valid) else valid.labels.codes,
                    valid.labels,
                ),
                microseconds=round(seconds * 1e6),
                flops=operations,
            ),
            model_digest=self.digests(model),
        )


def macro_auroc(scores: Floats, codes: Integers) -> float | None:
    """Return the mean over classes of the area under the ROC curve, each class against the rest.

    Classes without samples, or with all samples, are left out; None if no class remains.

    Examples
    --------
    >>> macro_auroc(np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), np.array([0, 1, 1]))
    1.0
    >>> macro_auroc(np.array([[0.9, 0.1]]), np.array([0])) is None
    True
    """
    areas = []
    for code in np.unique(codes):
        inside = codes == code
        positive, negative = int(inside.sum()), int((~inside).sum())
        if negative:
            ranks = _ranks(scores[:, code])[inside].sum()
            areas.append((ranks - positive * (positive + 1) / 2) / (positive * negative))
    return float(np.mean(areas)) if areas else None


def _ranks(values: Floats) -> Floats:
    """Return ranks from 1, equal values sharing their mean; scipy.stats takes long to import."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (counts.cumsum() - (counts - 1) / 2)[places]
    return ranks
