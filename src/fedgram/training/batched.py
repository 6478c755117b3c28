"""Local SGD of several clients of one process in one batch.

A batched step is written for one client, as a generator: it yields each `LocalDescent` and
continues when the descent has been run::

    @batched_step
    def update(self, client, model):
        theta = model.theta.copy()
        yield self.descent(model).task(model.shape, theta, self.rows(client, model), client.rng)
        return ...

Called as ``update(client, model)`` it is an ordinary step. An engine with several clients may call
``update.together(clients, model)``: the replies are equal to the bit, with less overhead of Python,
because the descents of all clients run in one batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypeVar, cast

from fedgram.errors import at_client
from fedgram.federation.client import Client
from fedgram.federation.step import step
from fedgram.training.descent import LocalDescent, run_batched

Method = TypeVar("Method")
Broadcast = TypeVar("Broadcast")
Reply = TypeVar("Reply")
Descents = Generator[LocalDescent, None, Reply]  # return type of a batched step's function


def run_alone(running: Descents[Reply]) -> Reply:
    """Return what a generator of descents returns; they are run one after the other."""
    while True:
        task, reply = _advanced(running)
        if task is None:
            return cast(Reply, reply)
        run_batched([task])


class BatchedStep(Generic[Reply]):
    """A method's step for one client, or for several in one batch."""

    def __init__(self, begin: Callable[[Client, Any], Descents[Reply]], name: str) -> None:
        self._begin = begin
        self.__name__ = name

    def __call__(self, client: Client, broadcast: Any) -> Reply:
        """Return a client's reply."""
        return run_alone(self._begin(client, broadcast))

    def together(self, clients: Sequence[Client], broadcast: Any) -> list[Reply]:
        """Return the replies of the clients, in the order of the clients."""
        running = {client.id: self._begin(client, broadcast) for client in clients}
        replies: dict[str, Reply] = {}
        while len(replies) < len(clients):
            tasks = []
            for client in [name for name in running if name not in replies]:
                with at_client(client, self.__name__):
                    task, reply = _advanced(running[client])
                if task is None:
                    replies[client] = cast(Reply, reply)
                else:
                    tasks.append(task)
            run_batched(tasks)
        return [replies[client.id] for client in clients]


class _Batched(Generic[Reply]):
    """A descriptor that turns the decorated function into a `BatchedStep` of an instance."""

    def __init__(self, function: Callable[[Any, Client, Any], Descents[Reply]]) -> None:
        self._function = function
        self.__doc__ = function.__doc__
        step(self)  # a step that is declared by being batched

    def __get__(self, method: object, owner: type | None = None) -> Any:
        if method is None:
            return self
        return BatchedStep(functools.partial(self._function, method), self._function.__name__)


def batched_step(
    function: Callable[[Method, Client, Broadcast], Descents[Reply]],
) -> Callable[[Method, Client, Broadcast], Reply]:
    """Turn a function that yields its client's descents into a step."""
    return cast(Callable[[Method, Client, Broadcast], Reply], _Batched(function))


def _advanced(running: Descents[Reply]) -> tuple[LocalDescent | None, Reply | None]:
    """Return the next descent and None, or None and the reply."""
    try:
        return next(running), None
    except StopIteration as end:
        return None, end.value
