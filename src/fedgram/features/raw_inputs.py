"""Recognize images, texts and paths among what is given to a model in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.samples import Array
from fedgram.data.hub import is_hub
from fedgram.data.items import ItemKind, Items
from fedgram.errors import DataError
from fedgram.runtime.text import escaped

_NAME = "X"


@dataclass(frozen=True, eq=False, kw_only=True)
class RawInputs:
    """Samples that become features by a backbone.

    Parameters
    ----------
    source
        A file or a folder; empty for samples in memory.
    images
        Decoded images.
    texts
        Texts, or paths of images: the backbone decides.
    """

    source: str = ""
    images: Sequence[Any] | Array = ()
    texts: Sequence[str | Path] = ()

    @property
    def words(self) -> str:
        """What was given, for messages."""
        if len(self.images):
            return "images"
        return "paths" if isinstance(self.texts[0], Path) else "texts"

    def items(self, kind: ItemKind) -> Items:
        """Return the samples as what a backbone takes: texts are paths if it takes images.

        Parameters
        ----------
        kind
            What the backbone takes.
        """
        if len(self.images):
            return Items(kind="images", entries=[_pixels(each) for each in self.images], name=_NAME)
        if kind == "images":
            paths = [Path(each) for each in self.texts]
            missing = next((path for path in paths if not path.is_file()), None)
            if missing is not None:
                raise DataError(f"X: {escaped(str(missing))}: file not found; expected an image")
            return Items(kind="images", entries=paths, name=_NAME)
        for place, text in enumerate(self.texts):
            if not isinstance(text, str):
                raise DataError(f"X[{place}]: expected a text, got {type(text).__name__}")
        return Items(kind="texts", entries=list(self.texts), name=_NAME)


def raw_inputs(given: Any) -> RawInputs | None:
    """Return images, texts or a path; None for anything else, such as numbers.

    Parameters
    ----------
    given
        A path; texts or paths in a list, an array or a series; an array of images (uint8, of three
        or four dimensions); or a list of images, as arrays or from Pillow.

    Examples
    --------
    >>> raw_inputs(["good day", "bad day"]).words, raw_inputs([[1.0, 2.0]])
    ('texts', None)
    >>> raw_inputs(np.zeros((5, 28, 28), np.uint8)).words
    'images'
    """
    if isinstance(given, str | Path):
        return _of_path(given)
    listed = _listed(given)
    if isinstance(listed, np.ndarray):
        return RawInputs(images=listed) if listed.ndim in (3, 4) else None
    if not isinstance(listed, list | tuple) or not listed:
        return None
    if any(isinstance(each, str | Path) for each in listed):
        return RawInputs(texts=listed)
    return RawInputs(images=listed) if all(_is_image(each) for each in listed) else None


def _of_path(given: str | Path) -> RawInputs:
    known = isinstance(given, Path) or is_hub(given)
    if not known and not Path(given).exists():
        raise DataError(
            f"X: {escaped(str(given)[:100])!r}: no such file or folder; expected a path, or texts "
            "in a list: [text]"
        )
    return RawInputs(source=str(given))


def _listed(given: Any) -> Any:
    """Return a tensor as an array, and a series or an array of texts as a list."""
    if hasattr(given, "detach"):
        given = given.detach().cpu().numpy()
    if isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype.kind in "UO":
        return given.tolist()
    if hasattr(given, "to_list") and not hasattr(given, "columns"):
        return given.to_list()
    return given


def _is_image(each: Any) -> bool:
    if hasattr(each, "convert") and hasattr(each, "getbands"):  # from Pillow
        return True
    return isinstance(each, np.ndarray) and each.dtype == np.uint8 and each.ndim in (2, 3)


def _pixels(image: Any) -> Array:
    """Return an image as an array of height by width by colors."""
    if hasattr(image, "convert"):
        image = np.asarray(image.convert("RGB"))
    array: Array = image[..., None] if image.ndim == 2 else image
    if array.dtype != np.uint8 or array.shape[2] not in (1, 3):
        raise DataError(
            "X: expected images of uint8, height by width by 1 or 3 colors, got "
            f"{array.dtype} of shape {array.shape}"
        )
    return array
