from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedgram.federation.client import Client
from fedgram.federation.method import for_all_clients
from fedgram.federation.protocol import Federation
from fedgram.methods._residual_blocks import ResidualBlocks
from fedgram.methods._stacked import StackedModel
from fedgram.models.linear import Linear, Predictor


@dataclass(frozen=True, kw_only=True)
class DeepAFL(ResidualBlocks):
    """DeepAFL (ICLR 2026, arXiv 2603.00579): residual blocks on frozen features, in closed form.

    On features Phi a head W is solved as in `afl`. With random features F of Phi, a block fits the
    residual of the head, ``min |Y - Phi W - F Omega W|^2 + block_ridge |Omega|^2``, and the next
    features are Phi + F Omega. The constant feature does not change. Omega is sent as a product of
    two factors, since its rank is at most the number of classes.

    The paper needs two exchanges per block. Here F and Phi are in one Gram matrix, so that head and
    block come from one sum: half the rounds, for a larger matrix. A result is shared after each
    depth; the first one is `afl`.

    Exchanges: for each block and the last head, one sum of Gram matrices and class sums of deep
    features with the block's random features.
    """

    def fit(self, federation: Federation) -> Iterator[StackedModel]:
        below = self.start(federation)
        for head, deeper in self.deeper(federation, below):
            yield StackedModel(below=below, model=head)
            below = deeper
        total = federation.sum(self.depth_statistics, below)
        yield StackedModel(below=below, model=Linear.of(total, ridge=self.ridge))

    @for_all_clients
    def personalize(self, client: Client, shared: Any) -> Predictor:
        deep: StackedModel = shared
        return deep
