"""The command group: commands loaded when they are used, one-line errors, exit codes."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from fedgram.errors import FedgramError, MemoryLimitError
from fedgram.runtime.text import escaped, one_line
from fedgram.runtime.threads import default_to_one_blas_thread

# The module of each command and its line in --help: neither needs an import to be listed.
COMMANDS = {
    "check": ("check", "Check the laws of methods, by name or in a file of your own."),
    "compare": ("run", "Show recorded runs side by side."),
    "contribute": ("ledger", "Write this site's sums to a file that may leave the site."),
    "doctor": ("doctor", "Say what is usable here, and how to get what is not."),
    "export": ("export", "Write a model for programs without fedgram, with a model card."),
    "features": ("features", "Run a frozen backbone once and write its features."),
    "federation": ("membership", "Run a federation across real sites with Flower."),
    "info": ("info", "Show versions, the processor and the ways of exact products."),
    "ledger": ("ledger", "Manage the ledger of contributions."),
    "methods": (
        "methods",
        "List the methods with their settings and defaults, or show one method whole.",
    ),
    "partition": ("partition", "Show each client's number of samples of each class."),
    "personalize": ("models", "Make this site's own model from a shared file and its samples."),
    "predict": ("predict", "Predict classes of new samples, one line per sample."),
    "report": ("report", "Write recorded runs as one HTML page."),
    "run": ("run", "Run methods on a federation and print their accuracy."),
    "schema": ("schema", "Agree on the meaning of the columns of tables."),
    "settings": (
        "methods",
        "List the settings of a run with their meaning, default and current value.",
    ),
    "study": ("study", "Run data sets x partitions x clients x seeds x methods; write tables."),
}
ALIASES = {"table": "study"}  # former names: they work, and are not listed


def say(text: str, *, err: bool = False) -> None:
    """Print lines that may contain foreign names; control characters are escaped."""
    click.echo(escaped(text, keep="\n"), err=err)


class Inner(click.Group):
    """A group of commands that are listed with their first sentence, broken and not cut."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [
            (name, command.get_short_help_str(limit=1000))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class Commands(click.Group):
    """Load commands when they are used; print warnings and errors in one line."""

    group_class = Inner

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = ALIASES.get(cmd_name, cmd_name)
        if name in COMMANDS:
            importlib.import_module(f"fedgram.cli.{COMMANDS[name][0]}")
        return super().get_command(ctx, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name[:1] != "-" and not ctx.resilient_parsing and not self.get_command(ctx, name):
            ctx.fail(f"there is no command {name!r}; {_proposed(name, COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        default_to_one_blas_thread()  # before a command imports numpy
        try:
            with _one_line_warnings():
                return super().invoke(ctx)
        except FedgramError as error:
            click.echo(f"fedgram: error: {one_line(error)}", err=True)
            ctx.exit(error.exit_code)
        except MemoryError as error:
            click.echo(f"fedgram: error: not enough memory ({one_line(error)})", err=True)
            ctx.exit(MemoryLimitError.exit_code)
        except KeyboardInterrupt:
            click.echo("fedgram: interrupted; what was recorded is kept", err=True)
            ctx.exit(130)


class OneOf(click.Choice[str]):
    """One of some words; an error proposes the nearest."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        del ctx
        known = f"expected one of {', '.join(self.choices)}, got {value!r}"
        hint = _proposed(str(value), self.choices)
        return f"{known}; {hint}" if hint.startswith("did") else known


def _proposed(word: str, known: Iterable[str]) -> str:
    from fedgram.runtime.settings import propose  # needed for errors only

    return propose(word, known)


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Write warnings without the place in the code that they come from."""

    def written(message: Warning | str, *_: object, **__: object) -> str:
        return f"fedgram: warning: {one_line(message)}\n"

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
