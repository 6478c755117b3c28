from __future__ import annotations

from dataclasses import dataclass

from fedgram.methods._dual_stream import DualStream
from fedgram.methods._residual_blocks import StackedMethod


@dataclass(frozen=True, kw_only=True)
class DeepAFLAPFL(StackedMethod):
    """Analytic Personalized FL on the deep features of `deepafl`: two linear streams.

    By default the streams are those of `apfl-linear`, as deep features are lifted already; `top`
    may give them lifts as in `apfl`.

    Exchanges: the sums of `deepafl`, then those of `apfl-linear` on deep features.
    """

    top: DualStream = DualStream()
