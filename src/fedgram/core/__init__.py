"""Exact additive values, sufficient statistics, ridge solves and serialization."""
