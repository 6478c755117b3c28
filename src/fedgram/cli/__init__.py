"""The command line."""

from fedgram.cli import (
    check,
    features,
    federation,
    ledger,
    membership,
    models,
    partition,
    report,
    run,
    schema,
    study,
)
from fedgram.cli.root import main

__all__ = [
    "check",
    "features",
    "federation",
    "ledger",
    "main",
    "membership",
    "models",
    "partition",
    "report",
    "run",
    "schema",
    "study",
]
