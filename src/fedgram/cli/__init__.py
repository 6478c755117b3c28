"""The command line."""

from fedgram.cli import check, ledger, models, run
from fedgram.cli.group import main

__all__ = ["check", "ledger", "main", "models", "run"]
