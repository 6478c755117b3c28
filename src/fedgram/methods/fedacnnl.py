from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedgram.core.gcv import resolved
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.layerwise.solver import LayerwiseSolver, SolvedNetwork
from fedgram.models.linear import Predictor


@dataclass(frozen=True, kw_only=True)
class FedACnnL(LayerwiseSolver):
    """FedACnnL: a convolutional network solved layer by layer (Gu et al., arXiv 2502.06915).

    For each layer clients send the summed statistics of their patches; the server solves the
    filters in closed form and broadcasts them, rounded to a public integer grid, so that what comes
    out of them are integers again and the next total is exact to the bit too. The last layer is a
    ridge regression on the classes. The papers' targets of hidden layers (label encoding, after
    Zhuang et al., ACnnL, arXiv 2202.06504) are derived from their text; `filters` offers three of
    them, the two controls that they have to beat, and filters that need no targets at all:
    principal axes of the patches, which do better and are the default.
    """

    def fit(self, federation: Federation) -> Iterator[SolvedNetwork]:
        stack, origins = self.solved(federation, federation.sum(self.census))
        total = federation.sum(self.head_statistics, stack)
        yield self.headed(stack, total, origins, resolved(self.ridge, total))

    def personalize(self, client: Client, shared: Any) -> Predictor:
        model: SolvedNetwork = shared
        return model
