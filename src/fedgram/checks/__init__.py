"""The laws every method keeps, public, so that third parties run them on their own methods."""

from fedgram.checks.laws import LAWS, Finding, check

__all__ = ["LAWS", "Finding", "check"]
