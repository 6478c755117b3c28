"""Any ONNX model as a backbone, through onnxruntime."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.data.items import Kind
from fedgram.errors import ConfigError, DataError
from fedgram.features.backbones.registry import Backbone, missing
from fedgram.samples import Array
from fedgram.settings import build

BATCH = 8  # always this many at a time, padded: results do not depend on what is beside an image


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How an image becomes the model's input.

    It stands in a JSON file of the model's name plus ``.json``, or in the model's metadata under
    ``fedgram``. Size 0 leaves images as they are, for models that resize by themselves.

    Parameters
    ----------
    size
        Side of the square that images are resized to (bicubic).
    mean, std
        Taken off and divided by, for pixels from 0 to 1; one number for all channels.
    layout
        "NCHW" or "NHWC".
    raw
        Give the model the bytes 0 to 255 as they are.
    """

    size: int = 224
    mean: float = 0.5
    std: float = 0.5
    layout: str = "NCHW"
    raw: bool = False


def load(_source: str, rest: str) -> Backbone:
    """Return ``onnx:PATH``."""
    path = Path(rest)
    if not rest or not path.is_file():
        raise ConfigError(f"backbone 'onnx:{rest}': there is no such file; write onnx:PATH")
    sidecar = path.with_name(path.name + ".json")
    settings = None
    if sidecar.is_file():
        try:
            settings = build(
                Preprocessing, json.loads(sidecar.read_text(encoding="utf-8")), sidecar.name
            )
        except ValueError as error:
            raise DataError(f"{sidecar}: not valid JSON ({error})") from error
    return Onnx(path, name=f"onnx:{path.name}", settings=settings)


class Onnx:
    """An ONNX model with one input and the features as its first output."""

    takes: Kind = "images"

    def __init__(
        self, path: Path, *, name: str, settings: Preprocessing | None = None, digest: str = ""
    ) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise missing(name, "vision", error) from error
        self.name = name
        try:
            self._session = onnxruntime.InferenceSession(
                str(path), providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise DataError(f"{path}: cannot be read as an ONNX model ({error})") from error
        kept = self._session.get_modelmeta().custom_metadata_map.get("fedgram")
        if settings is None and kept:
            settings = build(Preprocessing, json.loads(kept), "fedgram metadata")
        self._settings = settings or Preprocessing()
        first = self._session.get_inputs()[0]
        self._input = first.name
        # Images that keep their sizes go one by one: few would share a batch, and padding costs.
        free = BATCH if self._settings.size else 1
        self._batch = first.shape[0] if isinstance(first.shape[0], int) else free
        weights = digest or hashlib.sha256(path.read_bytes()).hexdigest()
        recipe = json.dumps(asdict(self._settings), sort_keys=True)
        self.digest = hashlib.sha256(f"{weights} {recipe}".encode()).hexdigest()

    def __call__(self, items: Sequence[Any]) -> Array:
        return self.embed([self.prepare(image) for image in items])

    def prepare(self, image: Any) -> Array:
        """Return an image as the model takes it, without the axis of the batch."""
        settings = self._settings
        if settings.size:
            image = _resized(image, settings.size)
        if not settings.raw:
            image = ((image.astype(np.float32) / 255 - settings.mean) / settings.std).astype(
                np.float32
            )
        if settings.layout == "NCHW":
            image = image.transpose(2, 0, 1)
        return np.ascontiguousarray(image)

    def embed(self, ready: Sequence[Any]) -> Array:
        """Return the features of images that were made ready, whatever their neighbours."""
        rows: list[Array] = []
        for start in range(0, len(ready), self._batch):
            some = list(ready[start : start + self._batch])
            padding = [np.zeros_like(some[0])] * (self._batch - len(some))
            features = self._run(some + padding)[: len(some)]
            rows.extend(vector.reshape(-1) for vector in features)
        return np.stack(rows)

    def _run(self, images: list[Array]) -> Array:
        try:
            features: Array = self._session.run(None, {self._input: np.stack(images)})[0]
        except Exception as error:
            reason = " ".join(str(error).split())
            raise DataError(
                f"backbone {self.name!r} cannot be run on {images[0].dtype} of shape "
                f"{images[0].shape} ({reason}); say what it takes in a .json file beside it"
            ) from error
        return features


def _resized(image: Array, side: int) -> Array:
    from PIL import Image

    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC))
