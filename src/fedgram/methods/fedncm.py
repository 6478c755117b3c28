from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core import codec
from fedgram.errors import SolveError
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.method import Method, for_all_clients
from fedgram.federation.protocol import Federation
from fedgram.federation.step import step
from fedgram.models.linear import Predictor
from fedgram.models.nearest_mean import NearestMean
from fedgram.selection.class_sums import ClassSums


@dataclass(frozen=True, kw_only=True)
class FedNCM(Method[NearestMean]):
    """FedNCM (Legate et al., NeurIPS 2023, arXiv 2306.03937): the nearest class mean.

    The mean of each class over all clients' samples follows from the class sums and counts; a
    sample belongs to the class with the nearest mean. The paper continues with fine-tuning of the
    backbone, which is frozen here. All clients get the shared classifier.

    Exchanges: one sum of class sums and class counts.

    Parameters
    ----------
    normalize
        Divide each mean by its norm, so that angles are compared instead of distances.
    lift
        Random projection and activation before the means; width 0 for no lift.
    """

    normalize: bool = False
    lift: Lift = Lift()

    @step
    def class_sums(self, client: Client, _: None) -> ClassSums:
        """Return the class sums and class counts of a client's lifted samples."""
        return ClassSums.of(self.lift(client.samples.features), client.samples.labels)

    def fit(self, federation: Federation) -> Iterator[NearestMean]:
        total = federation.sum(self.class_sums)
        if not total.present.any():
            raise SolveError("no class means: the total holds no samples")
        means = total.means
        if self.normalize:
            norms = np.linalg.norm(means, axis=0)
            means = means / np.where(norms > 0, norms, 1.0)
        yield NearestMean(
            means=means,
            present=total.present,
            space=total.space,
            classes=total.classes,
            lift=self.lift,
            origin=codec.digest({"total": total, "normalize": self.normalize}),
        )

    @for_all_clients
    def personalize(self, client: Client, shared: Any) -> Predictor:
        model: NearestMean = shared
        return model
