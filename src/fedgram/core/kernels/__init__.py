"""Exact products of int8 matrices, by the fastest way that this machine has.

Every way gives the same integers, so the choice changes no byte of a result. Each way has a module
of its own, which is imported when it is tried.
"""
