from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.methods._residual_blocks import ResidualBlocks, ResidualModel
from fedgram.models.linear import Linear, Predictor


@dataclass(frozen=True, kw_only=True)
class DeepAFL(ResidualBlocks):
    """DeepAFL: residual blocks on frozen features, each solved (ICLR 2026, arXiv 2603.00579).

    On features Phi a head W is solved as in `afl`. With random features F of Phi, a block solves
    for what the head leaves over, ``min |Y - Phi W - F Omega W|^2 + block_ridge |Omega|^2``, and
    the next features are Phi + F Omega. The constant feature stays as it is. Omega travels as a
    product through one number per class, which is all the rank it has.

    The paper asks twice for every block. Here F is summed beside Phi, so that head and block come
    of one sum: half the rounds, for a Gram matrix of both. A result is shared after every depth,
    the first of which is `afl`.
    """

    def fit(self, federation: Federation) -> Iterator[ResidualModel]:
        below = self.start(federation)
        for head, deeper in self.deeper(federation, below):
            yield ResidualModel(below=below, model=head)
            below = deeper
        total = federation.sum(self.depth_statistics, below)
        yield ResidualModel(below=below, model=Linear.of(total, ridge=self.ridge))

    def personalize(self, client: Client, shared: Any) -> Predictor:
        deep: ResidualModel = shared
        return deep
