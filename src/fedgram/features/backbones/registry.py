"""How a backbone is found by its name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from fedgram.data.items import Kind
from fedgram.errors import ConfigError
from fedgram.samples import Array
from fedgram.settings import propose

# Name (or source) -> module with a function `load(rest)`, imported when it is asked for.
_SOURCES = {
    "identity": "plain",
    "pixels": "plain",
    "onnx": "onnx",
    "hf": "hf",
    "efficientnet-lite0": "efficientnet",
    "wordllama": "wordllama",
}
DEFAULTS: dict[Kind, str] = {
    "images": "efficientnet-lite0",
    "texts": "wordllama",
    "vectors": "identity",
}


class Backbone(Protocol):
    """A frozen function from items to feature vectors."""

    @property
    def name(self) -> str:
        """The name it was found by."""

    @property
    def takes(self) -> Kind:
        """What it is run on."""

    @property
    def digest(self) -> str:
        """Of its weights and its preprocessing: sites with different ones must not add up."""

    def __call__(self, items: Sequence[Any]) -> Array:
        """Return one vector per item; images come as uint8 arrays, height by width by three."""


@runtime_checkable
class Staged(Backbone, Protocol):
    """A backbone that makes each item ready by itself, which threads can do ahead of time.

    Calling it does both, one after the other.
    """

    def prepare(self, item: Any, /) -> Any:
        """Return an item as the model takes it; several threads may ask at once."""

    def embed(self, ready: Sequence[Any], /) -> Array:
        """Return one vector for each item that was made ready."""


def names() -> list[str]:
    """Return the names and sources that are known."""
    return list(_SOURCES)


def find(name: str) -> Backbone:
    """Return a backbone by its name.

    Examples
    --------
    >>> find("pixels:4").name
    'pixels:4'
    >>> find("pixel")
    Traceback (most recent call last):
    ...
    fedgram.errors.ConfigError: backbone 'pixel' is not known; did you mean 'pixels'?
    """
    source, _, rest = name.partition(":")
    if source not in _SOURCES:
        raise ConfigError(f"backbone {name!r} is not known; {propose(source, _SOURCES)}")
    module = importlib.import_module(f"fedgram.features.backbones.{_SOURCES[source]}")
    backbone: Backbone = module.load(source, rest)
    return backbone


def missing(name: str, extra: str, error: ImportError) -> ConfigError:
    """Return the error to raise where a package that a backbone needs is not installed."""
    return ConfigError(
        f"backbone {name!r} needs the package {error.name}: pip install 'fedgram[{extra}]'"
    )
