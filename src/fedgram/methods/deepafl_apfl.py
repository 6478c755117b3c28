from __future__ import annotations

from dataclasses import dataclass

from fedgram.methods._residual_blocks import StackedMethod
from fedgram.methods.apfl import APFL


@dataclass(frozen=True, kw_only=True)
class DeepAFLAPFL(StackedMethod):
    """Analytic Personalized FL (`apfl`) on the deep features of `deepafl`.

    Exchanges: the sums of `deepafl`, then those of `apfl` on deep features.
    """

    top: APFL = APFL()
