"""Base class of methods whose first exchange is the sum of the clients' statistics."""

from __future__ import annotations

from typing import TypeVar

from fedgram.core.samples import Features, Labels, Samples
from fedgram.core.statistics import Statistics
from fedgram.features.lift import Lift
from fedgram.federation.method import Method
from fedgram.federation.step import Step
from fedgram.federation.union_step import statistics_step
from fedgram.models.linear import lifted

SharedResult = TypeVar("SharedResult")


class ClosedForm(Method[SharedResult]):
    """Base class of methods that begin with the sum of all clients' statistics.

    Later steps that leave samples out of the total depend on whether the client is in the total
    (`client.in_total`).
    """

    lift: Lift  # a field of the method: the lift before the head

    def shared_lift(self) -> Lift:
        """Return the lift of the statistics."""
        return self.lift

    @statistics_step
    def statistics(self, samples: Samples) -> tuple[Features, Labels]:
        """Return the lifted samples, whose Gram matrix and class sums are summed."""
        return lifted(samples, self.shared_lift())

    def statistics_step(self) -> Step[Statistics]:
        """Return `statistics`, whose total can be kept in a ledger."""
        return self.statistics
