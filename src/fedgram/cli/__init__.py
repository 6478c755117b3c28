"""The command line."""

from fedgram.cli import check, features, federation, ledger, models, report, run, table, tables
from fedgram.cli.group import main

__all__ = [
    "check",
    "features",
    "federation",
    "ledger",
    "main",
    "models",
    "report",
    "run",
    "table",
    "tables",
]
