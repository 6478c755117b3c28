"""Steps: the functions of a method that a server may have a client run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fedgram.errors import DataError
from fedgram.federation.client import Client

Reply = TypeVar("Reply")
Function = TypeVar("Function")
Step = Callable[[Client, Any], Reply]

_MARK = "is_step"


def step(function: Function) -> Function:
    """Declare a function of a method as a step: ``(self, client, broadcast) -> reply``.

    A site runs declared steps only, whatever a server names. A method that overrides a step
    need not declare it again.

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
    """Return a method's step by its name; anything else is refused."""
    declared = declared_steps(type(method))
    if name not in declared:
        listed = ", ".join(declared) or "nothing"
        raise DataError(
            f"{name!r} is not a step of {type(method).__name__}; declared with @step: {listed}"
        )
    found: Step[Any] = getattr(method, name)
    return found


def step_name(step: Callable[..., Any]) -> str:
    """Return the name a step goes by in messages and records."""
    return getattr(step, "__name__", type(step).__name__)
