from __future__ import annotations

from dataclasses import dataclass

from fedgram.methods._residual_blocks import StackedMethod
from fedgram.methods.fedhip import FedHiP


@dataclass(frozen=True, kw_only=True)
class DeepAFLFedHiP(StackedMethod):
    """FedHiP (`fedhip`) on the deep features of `deepafl`.

    Exchanges: the sums of `deepafl`, then those of `fedhip` on deep features.
    """

    top: FedHiP = FedHiP(alpha=10.0, ridge=100.0)
