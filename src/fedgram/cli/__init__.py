"""The command line."""

from fedgram.cli import (
    check,
    features,
    federation,
    ledger,
    membership,
    models,
    report,
    run,
    table,
    tables,
)
from fedgram.cli.group import main

__all__ = [
    "check",
    "features",
    "federation",
    "ledger",
    "main",
    "membership",
    "models",
    "report",
    "run",
    "table",
    "tables",
]
