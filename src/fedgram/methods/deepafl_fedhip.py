from __future__ import annotations

from dataclasses import dataclass

from fedgram.methods._residual_blocks import StackedMethod
from fedgram.methods.fedhip import FedHiP


@dataclass(frozen=True, kw_only=True)
class DeepAFLFedHiP(StackedMethod):
    """FedHiP (`fedhip`) on top of the deep features of `deepafl`."""

    top: FedHiP = FedHiP()
