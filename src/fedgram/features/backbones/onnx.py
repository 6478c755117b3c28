"""Any ONNX model as a backbone, through onnxruntime."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedgram.data.items import Kind
from fedgram.errors import ConfigError, DataError
from fedgram.features.backbones.registry import Backbone, missing
from fedgram.samples import Array
from fedgram.settings import build

BATCH = 8  # always this many at a time, padded: results do not depend on how items are batched


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
        Taken off and divided by, for pixels from 0 to 1: one number for all channels, or a list of
        one for each.
    layout
        "NCHW" or "NHWC".
    raw
        Give the model the bytes 0 to 255 as they are.
    """

    size: int = 224
    mean: float | tuple[float, ...] = 0.5
    std: float | tuple[float, ...] = 0.5
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    raw: bool = False

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            value = getattr(self, name)
            if isinstance(value, tuple):
                if len(value) != 3:
                    raise ConfigError(
                        f"{name} {list(value)}: one number, or one for each of red, green and blue"
                    )
                if len(set(value)) == 1:  # the same pixels, so the same digest
                    object.__setattr__(self, name, value[0])
        if not np.all(self.std):
            raise ConfigError(f"std {self.std}: must not be 0")


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
        self._input = self._session.get_inputs()[0].name
        weights = digest or hashlib.sha256(path.read_bytes()).hexdigest()
        recipe = json.dumps(asdict(self._settings), sort_keys=True)
        self.digest = hashlib.sha256(f"{weights} {recipe}".encode()).hexdigest()

    def __call__(self, items: Sequence[Any]) -> Array:
        ready = [self._prepared(image) for image in items]
        rows: list[Array | None] = [None] * len(ready)
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for index, image in enumerate(ready):
            by_shape.setdefault(image.shape, []).append(index)
        for members in by_shape.values():
            for start in range(0, len(members), BATCH):
                some = members[start : start + BATCH]
                batch = np.zeros((BATCH, *ready[some[0]].shape), ready[some[0]].dtype)
                for place, index in enumerate(some):
                    batch[place] = ready[index]
                features = self._session.run(None, {self._input: batch})[0]
                for place, index in enumerate(some):
                    rows[index] = features[place].reshape(-1)
        return np.stack([row for row in rows if row is not None])

    def _prepared(self, image: Array) -> Array:
        settings = self._settings
        if settings.size:
            image = _resized(image, settings.size)
        if not settings.raw:
            mean, std = (np.asarray(v, np.float32) for v in (settings.mean, settings.std))
            image = (image.astype(np.float32) / np.float32(255) - mean) / std
        return image.transpose(2, 0, 1) if settings.layout == "NCHW" else image


def _resized(image: Array, side: int) -> Array:
    from PIL import Image

    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC))
