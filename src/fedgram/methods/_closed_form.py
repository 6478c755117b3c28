"""What methods have in common whose one contribution is a client's statistics."""

from __future__ import annotations

from typing import TypeVar

from fedgram.core.statistics import Statistics
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.method import Method
from fedgram.federation.step import Step, step
from fedgram.models.linear import lifted

SharedResult = TypeVar("SharedResult")


class ClosedForm(Method[SharedResult]):
    """Base of methods that begin with the sum of all clients' statistics.

    Later steps that leave samples out of the total must know whether the client is in the total
    at all (`client.in_total`): a method with such steps answers yes to `leaves_samples_out`.
    """

    lift: Lift  # a field of the method: random features before the head

    def shared_lift(self) -> Lift:
        """Return the lift of the statistics."""
        return self.lift

    def leaves_samples_out(self) -> bool:
        """Whether a later step needs `client.in_total`."""
        return False

    @step
    def statistics(self, client: Client, _: None) -> Statistics:
        """Return the Gram matrix and class sums of a client's lifted samples."""
        if self.leaves_samples_out():
            client.remember(in_total=True)
        return Statistics.of(*lifted(client.samples, self.shared_lift()))

    def statistics_step(self) -> Step[Statistics]:
        """Return `statistics`: a ledger may keep its total."""
        return self.statistics
