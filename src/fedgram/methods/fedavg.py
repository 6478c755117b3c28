from __future__ import annotations

from dataclasses import dataclass

from fedgram.training.loop import GradientMethod


@dataclass(frozen=True, kw_only=True)
class FedAvg(GradientMethod):
    """FedAvg: rounds of local descent, averaged by sample counts (McMahan et al., 2017).

    On frozen features what travels is the head, not the backbone; with `layers`, the network.
    """
