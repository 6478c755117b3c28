"""The command line."""

from fedgram.cli import check, features, ledger, models, report, run, table, tables
from fedgram.cli.group import main

__all__ = ["check", "features", "ledger", "main", "models", "report", "run", "table", "tables"]
