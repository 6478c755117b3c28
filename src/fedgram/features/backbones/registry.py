"""How a backbone is found by its name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fedgram.core.samples import Array
from fedgram.data.items import ItemKind
from fedgram.errors import ConfigError, DataError
from fedgram.runtime.settings import propose

# Name (or source) -> module with a function `load(source, rest)`, imported when it is asked for.
_SOURCES = {
    "identity": "plain",
    "pixels": "plain",
    "onnx": "onnx",
    "hf": "hf",
    "timm": "timm",
    "efficientnet-lite0": "efficientnet",
    "wordllama": "wordllama",
}
# Those whose `load` takes a file of weights as well.
_WEIGHED = ("hf", "timm")
DEFAULTS: dict[ItemKind, str] = {
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
    def takes(self) -> ItemKind:
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


def find(name: str, weights: Path | None = None) -> Backbone:
    """Return a backbone by its name, with weights from a file where it is an architecture.

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
    backbone: Backbone
    if weights is None:
        backbone = module.load(source, rest)
    elif source not in _WEIGHED:
        takers = ", ".join(f"{source}:NAME" for source in _WEIGHED)
        raise ConfigError(f"backbone {name!r} takes no weights; leave them out, or use {takers}")
    elif not weights.is_file():
        raise DataError(f"{weights}: there is no such file of weights")
    else:
        backbone = module.load(source, rest, weights)
    return backbone


def missing(name: str, extra: str, error: ImportError) -> ConfigError:
    """Return the error to raise where a package that a backbone needs is not installed."""
    return ConfigError(
        f"backbone {name!r} needs the package {error.name}: pip install 'fedgram[{extra}]'"
    )
