"""Frozen backbones by name: ``source:name``, in the spirit of timm."""

from fedgram.features.backbones.registry import Backbone, find, names

__all__ = ["Backbone", "find", "names"]
