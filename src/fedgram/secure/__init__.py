"""Sums of which the server sees nothing but the total (docs/security.md); carries no messages."""
