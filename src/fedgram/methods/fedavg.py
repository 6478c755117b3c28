from __future__ import annotations

from dataclasses import dataclass

from fedgram.training.loop import GradientMethod


@dataclass(frozen=True, kw_only=True)
class FedAvg(GradientMethod):
    """FedAvg (McMahan et al., AISTATS 2017): local SGD, averaged by sample counts in each round.

    On frozen features the parameters are those of the head, without the backbone; with `layers`,
    those of the network. With one step on all samples in each round it is central gradient descent,
    for any partition.

    Exchanges: in each round the model parameters, averaged by sample counts.
    """
