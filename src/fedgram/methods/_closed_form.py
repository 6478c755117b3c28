"""Base class of methods whose first exchange is the sum of the clients' statistics."""

from __future__ import annotations

from typing import TypeVar

from fedgram.core.statistics import Statistics
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.method import Method
from fedgram.federation.step import Step, step
from fedgram.models.linear import lifted_statistics

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

    @step
    def statistics(self, client: Client, _: None) -> Statistics:
        """Return the Gram matrix and class sums of a client's lifted samples."""
        return lifted_statistics(client.samples, self.shared_lift())

    def statistics_step(self) -> Step[Statistics]:
        """Return `statistics`, whose total can be kept in a ledger."""
        return self.statistics
