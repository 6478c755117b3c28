"""The command group: one-line errors and documented exit codes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from fedgram.errors import FedgramError, MemoryLimitError


class Commands(click.Group):
    """Print warnings and fedgram's own errors in one line; end with the exit code of an error."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _one_line_warnings():
                return super().invoke(ctx)
        except FedgramError as error:
            click.echo(f"fedgram: error: {' '.join(str(error).split())}", err=True)
            ctx.exit(error.exit_code)
        except MemoryError as error:
            click.echo(f"fedgram: error: not enough memory ({error})", err=True)
            ctx.exit(MemoryLimitError.exit_code)
        except KeyboardInterrupt:
            click.echo("fedgram: interrupted; what was recorded is kept", err=True)
            ctx.exit(130)


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Write warnings without the place in the code that they come from."""

    def written(message: Warning | str, *_: object, **__: object) -> str:
        return f"fedgram: warning: {' '.join(str(message).split())}\n"

    before = warnings.formatwarning
    warnings.formatwarning = written
    try:
        yield
    finally:
        warnings.formatwarning = before


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fedgram")
def main() -> None:
    """Federated learning that is solved, not trained.

    Exit codes: 0 done, 2 wrong usage or configuration, 3 unusable data, 4 values that must not be
    added, 5 exactness cannot be kept, 6 nothing to solve, 7 refused for privacy, 8 refused by the
    ledger, 9 a law is broken, 10 not enough memory, 11 too few sites answered, 130
    interrupted.
    """
