"""Engines: each is a `Federation` that can also be scored."""
