"""The command line."""

from fedgram.cli import ledger, models, run
from fedgram.cli.group import main

__all__ = ["ledger", "main", "models", "run"]
