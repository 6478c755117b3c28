"""Models of the Hugging Face hub, or saved in a folder, through transformers.

``hf:NAME`` or ``hf:FOLDER``; ``@cls`` or ``@mean`` behind it chooses how token vectors are pooled
(by default the class token for images and the mean for texts). Weights come from the usual cache
or are downloaded as usual.
"""

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

POOLINGS = ("cls", "mean")


@dataclass(frozen=True, kw_only=True)
class Picture:
    """How an image becomes pixel values: resize the shorter side, cut out the middle, normalize."""

    resize: int
    crop: int
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    @classmethod
    def of(cls, settings: dict[str, Any], image_size: int) -> Picture:
        """Read a ``preprocessor_config.json``, empty where a model has none."""
        size = settings.get("size", image_size)
        if isinstance(size, dict):
            size = size.get("shortest_edge") or size.get("height") or image_size
        crop = settings.get("crop_size", size) if settings.get("do_center_crop") else size
        if isinstance(crop, dict):
            crop = crop.get("height", size)
        return cls(
            resize=int(size),
            crop=int(crop),
            mean=tuple(settings.get("image_mean", (0.5, 0.5, 0.5))),
            std=tuple(settings.get("image_std", (0.5, 0.5, 0.5))),
        )

    def __call__(self, image: Array) -> Array:
        from PIL import Image

        picture = Image.fromarray(image)
        scale = self.resize / min(picture.size)
        if self.crop == self.resize:
            picture = picture.resize((self.resize, self.resize), Image.Resampling.BICUBIC)
        else:
            sides = [max(self.resize, round(side * scale)) for side in picture.size]
            picture = picture.resize(sides, Image.Resampling.BICUBIC)
        left, top = ((side - self.crop) // 2 for side in picture.size)
        picture = picture.crop((left, top, left + self.crop, top + self.crop))
        pixels = (np.asarray(picture, np.float32) / 255 - self.mean) / self.std
        return pixels.transpose(2, 0, 1).astype(np.float32)


def load(_source: str, rest: str) -> Backbone:
    """Return ``hf:NAME``, with an optional ``@cls`` or ``@mean``."""
    name, _, pooling = rest.partition("@")
    if not name or (pooling and pooling not in POOLINGS):
        raise ConfigError(f"backbone 'hf:{rest}': write hf:NAME, hf:NAME@cls or hf:NAME@mean")
    try:
        import torch  # noqa: F401
        import transformers
    except ImportError as error:
        raise missing(f"hf:{rest}", "hf", error) from error
    try:
        config = transformers.AutoConfig.from_pretrained(name)
        images = hasattr(config, "image_size")
        if hasattr(config, "mask_ratio"):
            config.mask_ratio = 0.0  # a masked autoencoder must see the whole image here
        model = transformers.AutoModel.from_pretrained(name, config=config).eval()
        if images:
            return HuggingFaceImages(name, pooling or "cls", model, _preprocessor(name, config))
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        return HuggingFaceTexts(name, pooling or "mean", model, tokenizer)
    except (OSError, ValueError) as error:
        first = str(error).split("\n", 1)[0]
        raise DataError(f"backbone 'hf:{name}' cannot be loaded ({first})") from error


def _preprocessor(name: str, config: Any) -> Picture:
    from transformers.utils import cached_file

    try:
        path = cached_file(name, "preprocessor_config.json")
        settings = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, TypeError):  # a model saved without one
        settings = {}
    return Picture.of(settings, config.image_size)


def _weights(model: Any, *more: str) -> str:
    total = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        total.update(name.encode())
        total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    for text in more:
        total.update(text.encode())
    return total.hexdigest()


class HuggingFaceImages:
    """A vision transformer, one image at a time: results do not depend on the batch."""

    takes: Kind = "images"

    def __init__(self, name: str, pooling: str, model: Any, picture: Picture) -> None:
        self.name = f"hf:{name}@{pooling}"
        self.digest = _weights(model, pooling, json.dumps(asdict(picture)))
        self._model, self._pooling, self._picture = model, pooling, picture

    def __call__(self, items: Sequence[Any]) -> Array:
        import torch

        rows = []
        with torch.inference_mode():
            for image in items:
                pixels = torch.from_numpy(self._picture(image))[None]
                more = {}
                if hasattr(self._model.config, "mask_ratio"):  # fix the order of the patches
                    patches = (self._picture.crop // self._model.config.patch_size) ** 2
                    more["noise"] = torch.arange(patches, dtype=torch.float32)[None]
                tokens = self._model(pixel_values=pixels, **more).last_hidden_state[0]
                rows.append(tokens[0] if self._pooling == "cls" else tokens[1:].mean(dim=0))
        return np.stack([row.numpy() for row in rows])


class HuggingFaceTexts:
    """A text encoder, one text at a time: padding would tie a text to its neighbours."""

    takes: Kind = "texts"

    def __init__(self, name: str, pooling: str, model: Any, tokenizer: Any) -> None:
        self.name = f"hf:{name}@{pooling}"
        vocabulary = json.dumps(tokenizer.get_vocab(), sort_keys=True)
        self.digest = _weights(model, pooling, vocabulary)
        self._model, self._pooling, self._tokenizer = model, pooling, tokenizer

    def __call__(self, items: Sequence[Any]) -> Array:
        import torch

        rows = []
        with torch.inference_mode():
            for text in items:
                tokens = self._tokenizer(str(text), truncation=True, return_tensors="pt")
                states = self._model(**tokens).last_hidden_state[0]
                rows.append(states[0] if self._pooling == "cls" else states.mean(dim=0))
        return np.stack([row.numpy() for row in rows])
