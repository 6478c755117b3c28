"""A screen for contributions that harm the others, from the statistics of the sites alone.

For squared error, the error of any linear model on a site's samples follows exactly from the site's
statistics. So a server that holds contributions can ask, without any further request: does the
model of all sites describe the samples of this site? What does the model lose on the samples of the
others because of this site? A screen warns. It never removes a contribution: a site that differs
from all others may be right.

The first rule compares with a model that ignores the features and predicts class frequencies: its
threshold has a meaning of its own. The others have round numbers.

- *contradiction*: the model of all sites, in which no site has more weight than the median site,
  is worse on the site's samples than class frequencies. Samples with wrong labels, or with features
  of another meaning, are contradicted by the samples of the others nearby. Samples unlike those
  of all others, such as a class or a domain of its own, are not: the model describes them too. The
  error of a site with few samples must also be larger than chance explains.
- *harm*: the model with the site loses more than half of what the model without it explains on the
  samples of the others.
- *scale*: features are more than twice, or less than half, as large as at the median site.
- *share*: the site has more than half of all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from fedgram.core.samples import Floats
from fedgram.core.solve import ridge_solve, unpack_symmetric
from fedgram.core.statistics import Statistics

LEAST_SITES = 3  # of two sites that differ, neither is the odd one
_RIDGE = 0.01  # of the mean sum of squares of a feature
_DEVIATIONS = 4.0  # of the mean error of few samples: rarely exceeded, also among many sites
_MOST_HARM = 0.5
_MOST_SCALE = 4.0  # of sums of squares: a factor of two
_MOST_SHARE = 0.5

Contributed = Callable[[], Iterable[tuple[str, Statistics]]]


@dataclass(frozen=True, kw_only=True)
class SiteReport:
    """What the statistics say about one site.

    Parameters
    ----------
    name
        Name of the site.
    samples, share
        Number of its samples, and their fraction of all samples.
    misfit
        Squared error of the model of all sites on its samples, as a multiple of the error of class
        frequencies, or of what chance allows for few samples.
    error_without, error_with
        Mean squared error on the samples of the others, of the model without and with the site.
    harm
        Fraction of what the model without the site explains on the samples of the others that the
        model with the site does not.
    scale
        Its mean sum of squares of the features, as a multiple of that of the median site.
    """

    name: str
    samples: int
    share: float
    misfit: float
    error_without: float
    error_with: float
    harm: float
    scale: float

    @property
    def warnings(self) -> list[str]:
        """What the operator should ask the site about; empty for most sites."""
        scaled = not 1 / _MOST_SCALE <= self.scale <= _MOST_SCALE
        found = [
            (self.share > _MOST_SHARE, f"has {self.share:.0%} of all samples"),
            (
                self.misfit > 1,
                f"its samples contradict those of the other sites: the model of all sites has "
                f"{self.misfit:.2f} times the error of class frequencies on them",
            ),
            (
                self.harm > _MOST_HARM,
                f"the others' error is {self.error_without:.3f} without and "
                f"{self.error_with:.3f} with this site",
            ),
            (
                scaled,
                f"its features have {self.scale:.3g} times the sum of squares of the median site",
            ),
        ]
        return [text for warned, text in found if warned]


def screen(contributed: Contributed) -> list[SiteReport]:
    """Return a report on each site; empty for fewer than three sites with samples.

    The statistics must be those of classes, with one class list. One contribution is in memory at
    a time; the cost is one solve for each site.

    Parameters
    ----------
    contributed
        Returns the statistics of each site, by name; called several times.

    Examples
    --------
    >>> from fedgram.core.samples import Labels
    >>> from fedgram.features.grid import Grid
    >>> rng = np.random.default_rng(0)
    >>> codes = rng.integers(2, size=(5, 40))
    >>> def of(k):
    ...     rows = rng.normal(size=(40, 3)) + 3 * codes[k][:, None]
    ...     labels = codes[k] if k else 1 - codes[k]  # the first site has its labels reversed
    ...     return Statistics.of(Grid()(rows), Labels(labels, ("no", "yes")))
    >>> sites = {f"site {k}": of(k) for k in range(5)}
    >>> [report.name for report in screen(sites.items) if report.warnings]
    ['site 0']
    """
    sizes = {name: (part.count, _square(part)) for name, part in contributed() if part.count}
    if len(sizes) < LEAST_SITES:
        return []
    counts = np.array([count for count, _ in sizes.values()], np.float64)
    weights = dict(zip(sizes, np.minimum(1.0, np.median(counts) / counts), strict=True))
    middle = float(np.median([square for _, square in sizes.values()]))
    total, equal = Statistics.zero(), None
    for name, part in contributed():
        if name in sizes:
            total += part  # exact, so that a site can be subtracted again however large it is
            equal = _Sums.of(part, weights[name], equal)
    if equal is None:  # the sites have left meanwhile
        return []
    whole, balanced = _Sums.of(total).solved(), equal.solved()
    reports = []
    for name, part in contributed():
        if name in sizes:
            own, others = _Sums.of(part), _Sums.of(total - part)
            without, with_it = others.error(others.solved()), others.error(whole)
            explained = others.ignorant_error(others) - without
            chance = _by_chance(equal.error(balanced), part.count)
            report = SiteReport(
                name=name,
                samples=part.count,
                share=part.count / total.count,
                misfit=own.error(balanced) / max(own.ignorant_error(equal), chance),
                error_without=without,
                error_with=with_it,
                harm=(with_it - without) / explained if explained > 0 else 0.0,
                scale=sizes[name][1] / middle if middle else 1.0,
            )
            reports.append(report)
    return reports


@dataclass(frozen=True, eq=False, kw_only=True)
class _Sums:
    """Weighted sums of statistics in float64, with mean errors of models on their samples."""

    count: float
    gram: Floats
    moment: Floats
    classes: Floats | None  # counts, None if they are unknown

    @classmethod
    def of(cls, part: Statistics, weight: float = 1.0, before: _Sums | None = None) -> _Sums:
        """Return weighted statistics, added to the sums before.

        Parameters
        ----------
        part
            The statistics.
        weight
            Their weight.
        before
            Sums to add to.
        """
        counts = part.class_counts()
        own = cls(
            count=part.count * weight,
            gram=unpack_symmetric(part.gram, part.space.width) * weight,
            moment=part.moment * weight,
            classes=None if counts is None else counts * weight,
        )
        if before is None:
            return own
        known = before.classes is not None and own.classes is not None
        return cls(
            count=before.count + own.count,
            gram=before.gram + own.gram,
            moment=before.moment + own.moment,
            classes=before.classes + own.classes if known else None,  # type: ignore[operator]
        )

    def solved(self) -> Floats:
        """Return the ridge regression of these sums."""
        ridge = max(_RIDGE * float(np.trace(self.gram)) / len(self.gram), 1.0)
        return ridge_solve(self.gram, self.moment, ridge)

    def error(self, weights: Floats) -> float:
        """Return the mean squared error of a model on these samples."""
        cross, curvature = np.sum(weights * self.moment), np.sum(weights * (self.gram @ weights))
        return float(1 + (curvature - 2 * cross) / self.count)

    def ignorant_error(self, known: _Sums) -> float:
        """Return the mean squared error of the class frequencies of `known` on these samples.

        Where class counts are unknown, it is the error of predicting zeros.
        """
        if self.classes is None or known.classes is None:
            return 1.0
        shares = known.classes / known.count
        return float(1 - 2 * shares @ self.classes / self.count + shares @ shares)


def _by_chance(error: float, samples: int) -> float:
    """Return the largest mean error of some samples that chance explains, with this expectation.

    The squared error of one sample is at most about 2: the distance of two classes. So its variance
    is at most ``error (2 - error)`` (Bhatia and Davis 2000).
    """
    return error + _DEVIATIONS * float(np.sqrt(max(0.0, error * (2 - error)) / samples))


def _square(part: Statistics) -> float:
    """Return the mean sum of squares of a sample's features, without the constant."""
    squares = part.diagonal()[part.space.without_constant].astype(np.float64)
    return float(squares.sum() / part.count)
