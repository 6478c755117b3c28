"""The command line."""

from fedgram.cli import check, features, ledger, models, run, table
from fedgram.cli.group import main

__all__ = ["check", "features", "ledger", "main", "models", "run", "table"]
