"""Completion of methods and keys of settings in a shell."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


def complete_methods(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the methods whose name begins so, and files for anything that looks like a path."""
    del ctx, param
    if "/" in incomplete or incomplete.startswith("."):
        return [CompletionItem(incomplete, type="file")]
    from fedgram.federation.method import find_method, names, summary

    found = [name for name in names() if name.startswith(incomplete)]
    return [CompletionItem(name, help=summary(find_method(name))) for name in found]


def complete_keys(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the keys of settings that begin so."""
    del ctx, param
    from fedgram.experiments.settings_list import keys

    if "=" in incomplete:
        return []
    return [CompletionItem(key) for key in keys() if key.startswith(incomplete)]
