from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram import codec
from fedgram.client import Client
from fedgram.errors import MismatchError
from fedgram.features.lift import Lift
from fedgram.federation import Federation
from fedgram.heads import Linear, Predictor, lifted, require_lift
from fedgram.samples import Floats
from fedgram.solve import Factor, square
from fedgram.stats import Statistics


@dataclass(frozen=True, kw_only=True)
class FedCGS:
    """FedCGS: a Gaussian classifier from summed feature statistics (AAAI 2025, arXiv 2503.06962).

    From the same sums as `afl`: the mean mu_c of each class, the covariance S of all features,
    w_c = S^-1 mu_c, and a bias of log(n_c / N) - mu_c' S^-1 mu_c / 2. The paper's personalized
    variant trains the backbone towards the shared class means; with a frozen one nothing is left
    of it, so everybody gets the shared classifier.

    Parameters
    ----------
    shrinkage
        Added to the variance of every feature, for features of unit size.
    lift
        Random projection and activation before the head; width 0 for none.
    """

    shrinkage: float = 0.01
    lift: Lift = Lift()

    def statistics(self, client: Client, _: None) -> Statistics:
        return Statistics.of(*lifted(client.samples, self.lift))

    def fit(self, federation: Federation) -> Iterator[Linear]:
        total = federation.sum(self.statistics)
        require_lift(total.space, self.lift)
        yield Linear(
            weights=self._weights(total),
            space=total.space,
            classes=total.classes,
            lift=self.lift,
            origin=codec.digest({"total": total.digest(), "shrinkage": float(self.shrinkage)}),
        )

    def personalize(self, client: Client, shared: Any) -> Predictor:
        head: Linear = shared
        return head

    def _weights(self, total: Statistics) -> Floats:
        counts, constant = class_counts(total)
        unit, inner = total.space.unit, slice(0, -1)  # the constant has no variance
        means = total.moment[inner] / np.maximum(counts, 1) * unit
        center = total.moment[inner].sum(axis=1) / total.count * unit
        second = square(total.gram, total.space.width)[inner, inner] * unit**2
        spread = (second - total.count * np.outer(center, center)) / max(1, total.count - 1)
        head = Factor.of(spread, self.shrinkage, samples=total.count).solve(means)
        # A class without samples counts as half a sample at the origin.
        chances = np.log(np.maximum(counts, 0.5) / total.count)
        bias = chances - np.sum(means * head, axis=0) / 2
        weights: Floats = np.vstack([head, bias / constant])
        return weights


def class_counts(total: Statistics) -> tuple[Floats, float]:
    """Return the samples of each class, and the constant feature in real units.

    Both are read off the last feature, which is the same number in every sample.
    """
    square_of_constant = total.gram[-1] / total.count
    constant = float(np.sqrt(square_of_constant))
    counts: Floats = total.moment[-1] / constant
    if not np.allclose(counts, np.rint(counts)) or round(counts.sum()) != total.count:
        raise MismatchError("the last feature is not constant; this method needs one that is")
    return np.rint(counts), constant * total.space.unit
