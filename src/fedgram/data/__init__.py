"""Samples by name, and how they are dealt to clients."""
