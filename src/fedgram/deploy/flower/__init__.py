"""Flower: the only package that imports it."""
