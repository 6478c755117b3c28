"""Errors that name the cause and the remedy; the command line prints them in one line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Self


class FedgramError(Exception):
    """Any error of fedgram's own.

    ``exit_code`` is the status with which the command line ends when the error reaches it.

    Examples
    --------
    >>> error = RowError("row 3: not a number", row=3).with_context("client north")
    >>> type(error).__name__, str(error), error.row
    ('RowError', 'client north: row 3: not a number', 3)
    """

    exit_code = 1

    def with_context(self, text: str) -> Self:
        """Return the same error with `text` before its message, whatever its constructor takes."""
        error = type(self).__new__(type(self), f"{text}: {self}")
        error.__dict__.update(self.__dict__)
        return error


class ConfigError(FedgramError):
    """A setting, a method's name or a command line that cannot be used as written."""

    exit_code = 2


class DataError(FedgramError):
    """A file, an array or a set of samples that cannot be used."""

    exit_code = 3


class UnknownTypeError(DataError):
    """A file or message with a type that is not known here, though nothing of it is damaged."""


class RowError(DataError):
    """One row of the data that cannot be used."""

    def __init__(self, message: str, *, row: int = -1) -> None:
        super().__init__(message)
        self.row = row


class MismatchError(FedgramError):
    """Two values that must not be added: other grid, other lift, other class list."""

    exit_code = 4


class ExactnessError(FedgramError):
    """An operation that could not be exact to the bit, refused before anything is lost."""

    exit_code = 5


class SolveError(FedgramError):
    """A least-squares problem without a usable solution."""

    exit_code = 6


class PrivacyError(FedgramError):
    """A question that would show the server more than this federation allows."""

    exit_code = 7


class LedgerError(FedgramError):
    """A ledger that cannot be used, or an operation that does not fit what is in it."""

    exit_code = 8


class LawError(FedgramError):
    """A law that a method does not keep."""

    exit_code = 9


class MemoryLimitError(FedgramError):
    """Something that would not fit in this machine's memory."""

    exit_code = 10


class FederationError(FedgramError):
    """Sites that did not come, or did not answer: there are too few to go on."""

    exit_code = 11


@contextlib.contextmanager
def at_client(name: str, step: str) -> Iterator[None]:
    """Add to an error of the body the client and the step in which it occurred.

    Examples
    --------
    >>> with at_client("north", "update"):
    ...     raise DataError("there are no samples")
    Traceback (most recent call last):
    ...
    fedgram.errors.DataError: client north: there are no samples
    """
    try:
        yield
    except FedgramError as error:
        raise error.with_context(f"client {name}") from error
    except Exception as error:
        error.add_note(f"at client {name}, in {step}")
        raise
