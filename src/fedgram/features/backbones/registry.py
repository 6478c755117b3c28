"""Registry of backbones: a backbone by its name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fedgram.core.samples import Array
from fedgram.data.items import ItemKind
from fedgram.errors import ConfigError, DataError
from fedgram.runtime.settings import propose

# Name (or source) -> module with a function `load(source, rest)`, imported on first use.
_SOURCES = {
    "identity": "plain",
    "pixels": "plain",
    "onnx": "onnx",
    "hf": "huggingface",
    "timm": "timm",
    "efficientnet-lite0": "efficientnet",
    "wordllama": "wordllama",
}
# Sources whose `load` also takes a file of weights.
_WITH_WEIGHTS = ("hf", "timm")
DEFAULTS: dict[ItemKind, str] = {
    "images": "efficientnet-lite0",
    "texts": "wordllama",
    "vectors": "identity",
}


class Backbone(Protocol):
    """A frozen function from items to feature vectors."""

    @property
    def name(self) -> str:
        """The name of the backbone."""

    @property
    def takes(self) -> ItemKind:
        """The kind of items: images, texts or vectors."""

    @property
    def digest(self) -> str:
        """Digest of weights and preprocessing; statistics of different digests do not add."""

    def __call__(self, items: Sequence[Any]) -> Array:
        """Return one vector per item; images are uint8 arrays of height by width by three."""


@runtime_checkable
class Staged(Backbone, Protocol):
    """A backbone with separate preprocessing, which threads can run ahead of the model.

    A call runs both steps.
    """

    def prepare(self, item: Any, /) -> Any:
        """Return an item as input of the model; thread-safe."""

    def embed(self, ready: Sequence[Any], /) -> Array:
        """Return one vector for each result of `prepare`."""


def names() -> list[str]:
    """Return all names and sources."""
    return list(_SOURCES)


def find(name: str, weights: Path | None = None) -> Backbone:
    """Return a backbone by its name; `weights` is a file of weights for an architecture.

    Examples
    --------
    >>> find("pixels:4").name
    'pixels:4'
    >>> find("pixel")
    Traceback (most recent call last):
    ...
    fedgram.errors.ConfigError: backbone 'pixel' is unknown; did you mean 'pixels'?
    """
    source, _, rest = name.partition(":")
    if source not in _SOURCES:
        raise ConfigError(f"backbone {name!r} is unknown; {propose(source, _SOURCES)}")
    module = importlib.import_module(f"fedgram.features.backbones.{_SOURCES[source]}")
    backbone: Backbone
    if weights is None:
        backbone = module.load(source, rest)
    elif source not in _WITH_WEIGHTS:
        others = ", ".join(f"{source}:NAME" for source in _WITH_WEIGHTS)
        raise ConfigError(f"backbone {name!r} takes no weights; remove them, or use {others}")
    elif not weights.is_file():
        raise DataError(f"{weights}: file of weights not found")
    else:
        backbone = module.load(source, rest, weights)
    return backbone


def missing(name: str, extra: str, error: ImportError) -> ConfigError:
    """Return the error for a missing package of a backbone.

    Parameters
    ----------
    name
        Name of the backbone.
    extra
        The extra of fedgram that installs the package.
    error
        The failed import.
    """
    return ConfigError(
        f"backbone {name!r} needs the package {error.name}: pip install 'fedgram[{extra}]'"
    )
