from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedgram.core.gcv import resolved
from fedgram.federation.client import Client
from fedgram.federation.method import for_all_clients
from fedgram.federation.protocol import Federation
from fedgram.layerwise.solver import LayerwiseSolver, SolvedNetwork
from fedgram.models.linear import Predictor


@dataclass(frozen=True, kw_only=True)
class FedACnnL(LayerwiseSolver):
    """FedACnnL (Gu et al., arXiv 2502.06915): a convolutional network solved layer by layer.

    The server solves the filters of a layer in closed form and broadcasts them, rounded to a public
    integer grid. The outputs of a layer are therefore integers, and the next total is exact to the
    bit. The last layer is a ridge regression on the classes. The papers' targets of hidden layers
    (label encoding, after Zhuang et al., ACnnL, arXiv 2202.06504) are derived from their text.
    `filters` offers three of them, two controls, and filters without targets: principal axes of the
    patches, which are more accurate and the default.

    Exchanges: for each layer one sum of Gram matrices of the patches (and of their products with
    the targets), then that of the head.
    """

    def fit(self, federation: Federation) -> Iterator[SolvedNetwork]:
        stack, origins = self.solved(federation, federation.sum(self.census))
        total = federation.sum(self.head_statistics, stack)
        yield self.headed(stack, total, origins, resolved(self.ridge, total))

    @for_all_clients
    def personalize(self, client: Client, shared: Any) -> Predictor:
        model: SolvedNetwork = shared
        return model
