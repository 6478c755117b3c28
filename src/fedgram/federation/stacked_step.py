"""Steps that many small clients compute in stacks of arrays.

A stacked step is written for several clients. It computes arrays of equal shapes together::

    @stacked_step
    def left_out(self, clients, broadcast):
        return [... for client in clients]

Called as ``left_out(client, broadcast)`` it is an ordinary step. An engine with many clients may
call ``left_out.stacked(clients, broadcast)``: the replies are equal to the bit, with less overhead
of Python. So a client's reply must not depend on the others of a stack: products of matrices are
made by `numpy.matmul`, slice by slice, and sums are along the last axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, cast

from fedgram.federation.client import Client
from fedgram.federation.step import BoundStep
from fedgram.runtime.threads import single_threaded_blas

Method = TypeVar("Method")
Broadcast = TypeVar("Broadcast")
Reply = TypeVar("Reply")

_ENTRIES_AT_A_TIME = 2**16  # more would leave the processor's cache


class StackedStep(Generic[Reply]):
    """A method's step for one client, or for many in stacks."""

    def __init__(self, made: Callable[[Sequence[Client], Any], list[Reply]], name: str) -> None:
        self._made = made
        self.__name__ = name

    def __call__(self, client: Client, broadcast: Any) -> Reply:
        """Return a client's reply."""
        return self._made([client], broadcast)[0]

    def stacked(self, clients: Sequence[Client], broadcast: Any) -> list[Reply]:
        """Return the replies of the clients, in the order of the clients."""
        with single_threaded_blas():  # set once, not for every small product
            return self._made(clients, broadcast)


def stacked_step(
    function: Callable[[Method, Sequence[Client], Broadcast], list[Reply]],
) -> Callable[[Method, Client, Broadcast], Reply]:
    """Turn a function that returns the replies of several clients into a step."""
    return cast(Callable[[Method, Client, Broadcast], Reply], BoundStep(function, StackedStep))


def alike(samples: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield the places of clients with equally many samples, in stacks of bounded size.

    Parameters
    ----------
    samples
        Number of samples of each client.
    size
        Numbers for each sample.

    Examples
    --------
    >>> list(alike([5, 2, 5, 0, 5], size=2**16 // 10))
    [[0, 2], [4], [1], [3]]
    """
    groups: dict[int, list[int]] = {}
    for place, count in enumerate(samples):
        groups.setdefault(count, []).append(place)
    for count, places in groups.items():
        together = max(1, _ENTRIES_AT_A_TIME // max(1, count * size))
        for start in range(0, len(places), together):
            yield places[start : start + together]
