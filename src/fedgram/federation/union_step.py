"""Steps whose total over clients is the reply for the union of their samples.

Statistics of the union are the sum of the statistics, to the bit on the grid. A method declares
such a step as a function of samples, which returns the rows that are summed::

    @statistics_step
    def statistics(self, samples):
        return lifted(samples, self.lift)

A function with a second argument gets the broadcast. Called as ``statistics(client, broadcast)`` it
is an ordinary step. An engine that has the samples of many clients at hand may call
``statistics.total(union, broadcast)``: the sum and the bytes of all replies are equal to the bit,
without Python code for each client.

Of other exact sums a method declares how the total of a union is made::

    @summed_step(total)
    def residuals(self, client, query):
        return query.sums(client.samples)

where ``total(union, query)`` returns the sum of the clients' replies, and the sum of their bytes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, runtime_checkable

from fedgram.core.additive import Additive
from fedgram.core.samples import Features, Labels, Samples
from fedgram.core.statistics import Statistics
from fedgram.core.statistics_sizes import statistics_sizes
from fedgram.core.targets import Targets
from fedgram.errors import ExactnessError
from fedgram.federation.client import Client
from fedgram.federation.sites import Union
from fedgram.federation.step import BoundStep, Step
from fedgram.models.linear import streamed_statistics

Method = TypeVar("Method")
Broadcast = ParamSpec("Broadcast")
Reply = TypeVar("Reply", bound=Additive)
Rows = tuple[Features, Labels]
Total = Callable[[Union, Any], tuple[Reply, int]]


@runtime_checkable
class UnionStep(Protocol):
    """A step of one client that also makes the total of many clients."""

    def __call__(self, client: Client, broadcast: Any) -> Any:
        """Return a client's reply."""

    def total(self, union: Union, broadcast: Any = None) -> tuple[Any, int]:
        """Return the sum of the replies of all clients of a union, and the sum of their bytes.

        Raise a FedgramError if the total has to be made client by client.
        """


class SummedStep:
    """A step with a function that makes the total of the replies of many clients."""

    def __init__(self, alone: Step[Any], total: Total[Any], name: str) -> None:
        self._alone = alone
        self._total = total
        self.__name__ = name

    def __call__(self, client: Client, broadcast: Any) -> Any:
        """Return a client's reply."""
        return self._alone(client, broadcast)

    def total(self, union: Union, broadcast: Any = None) -> tuple[Any, int]:
        """Return the sum of the replies of all clients of a union, and the sum of their bytes."""
        return self._total(union, broadcast)


class StatisticsStep:
    """The statistics of a client's samples, or of the union of many clients' samples."""

    def __init__(self, rows: Callable[..., Rows], name: str) -> None:
        self._rows = rows
        self._asks = len(inspect.signature(rows).parameters) > 1
        self.__name__ = name

    def __call__(self, client: Client, broadcast: Any) -> Statistics:
        """Return a client's reply."""
        return streamed_statistics(client.samples, lambda some: self._rows_of(some, broadcast))

    def total(self, union: Union, broadcast: Any = None) -> tuple[Statistics, int]:
        """Return the sum of the replies of all clients of a union, and the sum of their bytes.

        Features that are not on the grid raise ExactnessError: the order of additions would count.
        """
        features, labels = self._rows_of(union.samples, broadcast)
        if isinstance(labels, Targets):
            raise ExactnessError("sums of outputs are made client by client")
        if not features.space.exact:
            raise ExactnessError("sums of features without a grid depend on the order of additions")
        sizes = statistics_sizes(features, labels, union.owners, union.clients)
        return Statistics.of(features, labels), int(sizes.sum())

    def _rows_of(self, samples: Samples, broadcast: Any) -> Rows:
        return self._rows(samples, broadcast) if self._asks else self._rows(samples)


def summed_step(
    total: Total[Reply],
) -> Callable[[Callable[[Method, Client, Any], Reply]], Callable[[Method, Client, Any], Reply]]:
    """Declare a step whose total over the clients of a union is `total(union, broadcast)`.

    The total and its bytes are those of the clients' replies one by one, to the bit.
    """

    def declared(
        function: Callable[[Method, Client, Any], Reply],
    ) -> Callable[[Method, Client, Any], Reply]:
        bound = BoundStep(function, lambda alone, name: SummedStep(alone, total, name))
        return cast(Callable[[Method, Client, Any], Reply], bound)

    return declared


def statistics_step(
    function: Callable[Concatenate[Method, Samples, Broadcast], Rows],
) -> Callable[[Method, Client, Any], Statistics]:
    """Turn a function that returns the rows to sum into a step."""
    return cast(Callable[[Method, Client, Any], Statistics], BoundStep(function, StatisticsStep))
