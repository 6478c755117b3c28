"""Frozen backbones (feature extractors) by name: ``source:name``."""

from fedgram.features.backbones.registry import Backbone, find, names

__all__ = ["Backbone", "find", "names"]
