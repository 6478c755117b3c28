"""The command line."""

from fedgram.cli.root import main

__all__ = ["main"]
