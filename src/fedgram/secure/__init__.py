"""Secure sums: the server sees only the total (docs/security.md). No networking here."""
