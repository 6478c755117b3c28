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
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from fedgram.core.samples import Features, Labels, Samples
from fedgram.core.statistics import Statistics
from fedgram.core.statistics_sizes import statistics_sizes
from fedgram.core.targets import Targets
from fedgram.errors import ExactnessError
from fedgram.federation.client import Client
from fedgram.federation.sites import Union
from fedgram.federation.step import step
from fedgram.models.linear import streamed_statistics

Method = TypeVar("Method")
Broadcast = ParamSpec("Broadcast")
Rows = tuple[Features, Labels]


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


class _Declared:
    """A descriptor that turns the decorated function into a `StatisticsStep` of an instance."""

    def __init__(self, function: Callable[..., Rows]) -> None:
        self._function = function
        self.__doc__ = function.__doc__
        step(self)

    def __get__(self, method: object, owner: type | None = None) -> Any:
        if method is None:
            return self
        return StatisticsStep(functools.partial(self._function, method), self._function.__name__)


def statistics_step(
    function: Callable[Concatenate[Method, Samples, Broadcast], Rows],
) -> Callable[[Method, Client, Any], Statistics]:
    """Turn a function that returns the rows to sum into a step."""
    return cast(Callable[[Method, Client, Any], Statistics], _Declared(function))
