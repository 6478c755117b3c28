"""WordLlama: static word vectors for texts, with weights from a package: 256 features, no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.samples import Array
from fedgram.data.items import ItemKind
from fedgram.features.backbones.registry import Backbone, missing

NAME = "wordllama"


def load(_source: str, _rest: str) -> Backbone:
    """Return the backbone."""
    try:
        import wordllama
    except ImportError as error:
        raise missing(NAME, "text", error) from error
    folder = Path(wordllama.__file__).parent
    # Without `cache_dir` the package looks for its own tokenizer in a cache folder.
    model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
    weights = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".safetensors", ".json")):
        weights.update(path.read_bytes())
    return WordLlama(model, weights.hexdigest())


class WordLlama:
    """The mean of a text's word vectors."""

    name = NAME
    takes: ItemKind = "texts"

    def __init__(self, model: Any, digest: str) -> None:
        self._model = model
        self.digest = digest

    def __call__(self, items: Sequence[Any]) -> Array:
        # One at a time: with padding, the features of a text would depend on the batch.
        return np.concatenate([self._model.embed([str(text)]) for text in items])
