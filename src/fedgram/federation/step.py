"""Steps: the functions of a method that run at clients on request of the server."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fedgram.errors import DataError
from fedgram.federation.client import Client

Reply = TypeVar("Reply")
Function = TypeVar("Function")
Step = Callable[[Client, Any], Reply]

_MARK = "is_step"


def step(function: Function) -> Function:
    """Declare a function of a method as a step: ``(self, client, broadcast) -> reply``.

    A site runs declared steps only. A method that overrides a step need not declare it again.

    Examples
    --------
    >>> class Mine:
    ...     @step
    ...     def count(self, client, broadcast):
    ...         return len(client.samples)
    ...     def rows(self, client, broadcast):
    ...         return client.samples
    >>> declared_steps(Mine)
    ['count']
    >>> named_step(Mine(), "rows")
    Traceback (most recent call last):
    ...
    fedgram.errors.DataError: 'rows' is not a step of Mine; declared with @step: count
    """
    setattr(function, _MARK, True)
    return function


class BoundStep:
    """A descriptor that makes a step of the decorated function, for each instance of a method.

    Parameters
    ----------
    function
        The decorated function, whose first argument is the method.
    made
        Returns the step of an instance, from the function bound to it and the function's name.
    """

    def __init__(
        self, function: Callable[..., Any], made: Callable[[Callable[..., Any], str], Any]
    ) -> None:
        self._function = function
        self._made = made
        self.__doc__ = function.__doc__
        step(self)

    def __get__(self, method: object, owner: type | None = None) -> Any:
        if method is None:
            return self
        return self._made(functools.partial(self._function, method), self._function.__name__)


def declared_steps(method: type[Any]) -> list[str]:
    """Return the names of a method's steps."""
    return sorted(
        {
            name
            for kind in method.__mro__
            for name, value in vars(kind).items()
            if getattr(value, _MARK, False)
        }
    )


def named_step(method: object, name: str) -> Step[Any]:
    """Return a method's step by its name; raise DataError for anything else."""
    declared = declared_steps(type(method))
    if name not in declared:
        listed = ", ".join(declared) or "nothing"
        raise DataError(
            f"{name!r} is not a step of {type(method).__name__}; declared with @step: {listed}"
        )
    found: Step[Any] = getattr(method, name)
    return found


def step_name(step: Callable[..., Any]) -> str:
    """Return the name of a step in messages and records."""
    return getattr(step, "__name__", type(step).__name__)


@dataclass(frozen=True, eq=False, kw_only=True)
class Nested:
    """Base class of broadcasts that ask for a step of an inner method, named by `step`."""

    step: str


def total_name(step: Callable[..., Any], broadcast: Any) -> str:
    """Return the name of the total of a step, as it is in `Client.totals`.

    Examples
    --------
    >>> def outer(client, broadcast): ...
    >>> total_name(outer, None), total_name(outer, Nested(step="statistics"))
    ('outer', 'outer/statistics')
    """
    name = step_name(step)
    return f"{name}/{broadcast.step}" if isinstance(broadcast, Nested) else name
