"""Clients on several machines, carried by Ray; the only package that imports `ray`."""
