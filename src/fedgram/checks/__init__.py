"""Invariants of methods ("laws") as public checks, for methods of third parties too."""

from fedgram.checks.laws import LAWS, Finding, check

__all__ = ["LAWS", "Finding", "check"]
