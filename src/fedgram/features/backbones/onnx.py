"""Any ONNX model as a backbone, run by onnxruntime."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedgram.core.samples import Array
from fedgram.data.items import ItemKind
from fedgram.errors import ConfigError, DataError
from fedgram.features.backbones.preprocessing import rows_first
from fedgram.features.backbones.registry import Backbone, missing
from fedgram.runtime.files import read_text
from fedgram.runtime.parse import json_object
from fedgram.runtime.settings import build


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Preprocessing of an image for an ONNX model.

    Read from a JSON file (name of the model file plus ``.json``), or from the model's metadata
    under ``fedgram``.

    Parameters
    ----------
    size
        Images are resized to a square of this side (bicubic); 0 does not resize.
    mean, std
        Normalization of pixels from 0 to 1: one number for all channels, or one for each.
    layout
        "NCHW" or "NHWC".
    raw
        Pixels from 0 to 255 without normalization.
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
                        f"{name} {list(value)}: expected one number, or three: red, green and blue"
                    )
                if len(set(value)) == 1:  # equal pixels, so equal digests
                    object.__setattr__(self, name, value[0])
        if not np.all(self.std):
            raise ConfigError(f"std {self.std}: must not be 0")


def load(_source: str, rest: str) -> Backbone:
    """Return ``onnx:PATH``."""
    path = Path(rest)
    if not rest or not path.is_file():
        raise ConfigError(f"backbone 'onnx:{rest}': file not found; write onnx:PATH")
    sidecar = path.with_name(path.name + ".json")
    settings = None
    if sidecar.is_file():
        settings = _stated(sidecar)
    return Onnx(path, name=f"onnx:{path.name}", settings=settings)


def _stated(sidecar: Path) -> Preprocessing:
    try:
        text = read_text(sidecar)
    except (OSError, ValueError) as error:
        raise DataError(f"{sidecar}: cannot be read ({error})") from error
    return _preprocessing(text, str(sidecar))


def _preprocessing(text: str, where: str) -> Preprocessing:
    try:
        settings = json_object(text)
    except ValueError as error:
        raise DataError(f"{where}: not valid JSON ({error})") from error
    stated: Preprocessing = build(Preprocessing, settings, where)
    return stated


class Onnx:
    """An ONNX model with one input, whose first output contains the features."""

    takes: ItemKind = "images"

    def __init__(
        self, path: Path, *, name: str, settings: Preprocessing | None = None, digest: str = ""
    ) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise missing(name, "vision", error) from error
        self.name, self.path = name, path
        # One thread per image is faster than several threads per image.
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        try:
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise DataError(f"{path}: cannot be read as an ONNX model ({error})") from error
        metadata = self._session.get_modelmeta().custom_metadata_map.get("fedgram")
        if settings is None and metadata:
            settings = _preprocessing(metadata, f"{path}: fedgram metadata")
        self.settings = settings or Preprocessing()
        first = self._session.get_inputs()[0]
        self._input = first.name
        # Batches of one, so that features do not depend on other images, unless the model was
        # exported for a fixed batch size.
        self._batch = first.shape[0] if isinstance(first.shape[0], int) else 1
        weights = digest or hashlib.sha256(path.read_bytes()).hexdigest()
        recipe = json.dumps(asdict(self.settings), sort_keys=True)
        self.digest = hashlib.sha256(f"{weights} {recipe}".encode()).hexdigest()

    def __call__(self, items: Sequence[Any]) -> Array:
        return self.embed([self.prepare(image) for image in items])

    def prepare(self, image: Any) -> Array:
        """Return an image as input of the model, without the batch axis."""
        settings = self.settings
        if settings.size:
            image = _resized(image, settings.size)
        if not settings.raw:
            mean, std = (np.asarray(v, np.float32) for v in (settings.mean, settings.std))
            image = (image.astype(np.float32) / np.float32(255) - mean) / std
        if settings.layout == "NCHW":
            image = image.transpose(2, 0, 1)
        return np.ascontiguousarray(image)

    def embed(self, ready: Sequence[Any]) -> Array:
        """Return the features of prepared images, with one thread per core."""
        batches = [ready[k : k + self._batch] for k in range(0, len(ready), self._batch)]
        with ThreadPoolExecutor(_cores()) as pool:
            return np.concatenate(list(pool.map(self._features, batches)))

    def _features(self, images: Sequence[Array]) -> Array:
        padding = [np.zeros_like(images[0])] * (self._batch - len(images))
        try:
            batch = {self._input: np.stack([*images, *padding])}
            features: Array = self._session.run(None, batch)[0][: len(images)]
        except Exception as error:
            reason = " ".join(str(error).split())
            raise DataError(
                f"backbone {self.name!r} cannot be run on {images[0].dtype} of shape "
                f"{images[0].shape} ({reason}); describe its input in a .json file next to it"
            ) from error
        return features.reshape(len(images), -1)


def _cores() -> int:
    """Return the number of cores that this process may use; cluster schedulers limit it."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every platform
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _resized(image: Array, side: int) -> Array:
    from PIL import Image

    return np.asarray(rows_first(Image.fromarray(image), (side, side), "bicubic"))
