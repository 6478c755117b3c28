"""Hugging Face models as backbones, by the library transformers.

``hf:NAME`` or ``hf:FOLDER``, with the pooling of token vectors as suffix: ``@cls`` (default for
images) or ``@mean`` (default for texts). Weights are read from the cache, downloaded, or read from
a file that fits the architecture.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.samples import Array
from fedgram.data.items import ItemKind
from fedgram.errors import ConfigError, DataError
from fedgram.features.backbones.preprocessing import Fit, Picture
from fedgram.features.backbones.registry import Backbone, missing
from fedgram.features.backbones.weights import check, digest, read
from fedgram.runtime.parse import json_object

POOLINGS = ("cls", "mean")
# Layers after the token vectors: unused here, and random in models that were saved without them.
IDLE = ("pooler.",)
# Indexed by Pillow's numbers of its filters.
FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
BICUBIC = FILTERS.index("bicubic")


def load(_source: str, rest: str, weights: Path | None = None) -> Backbone:
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
        if hasattr(config, "mask_ratio"):
            config.mask_ratio = 0.0  # no masking in a masked autoencoder
        model = _model(transformers, name, config, weights)
        # The name must not contain the folder, which differs from site to site.
        public_name = config.model_type if Path(name).is_dir() else name
        if hasattr(config, "image_size"):
            picture = _preprocessor(name, config)
            return HuggingFaceImages(public_name, pooling or "cls", model, picture)
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        return HuggingFaceTexts(public_name, pooling or "mean", model, tokenizer)
    except (OSError, ValueError) as error:
        first = str(error).split("\n", 1)[0]
        raise DataError(f"backbone 'hf:{name}' cannot be loaded ({first})") from error


def _model(transformers: Any, name: str, config: Any, weights: Path | None) -> Any:
    how = {"config": config, "output_loading_info": True, "ignore_mismatched_sizes": True}
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # `check` below reports what does not fit
    try:
        if weights is None:
            problem = f"backbone 'hf:{name}' is incomplete"
            model, info = transformers.AutoModel.from_pretrained(name, **how)
        else:
            problem = f"{weights} does not fit hf:{name}"
            kind = type(transformers.AutoModel.from_config(config))
            model, info = kind.from_pretrained(None, state_dict=read(weights), **how)
    finally:
        transformers.logging.set_verbosity(verbosity)
    inside = f"{model.base_model_prefix}."  # prefix of these keys in a model with a head
    check(
        problem,
        model.state_dict(),
        missing=info["missing_keys"],
        further=[key.removeprefix(inside) for key in info["unexpected_keys"]],
        shapes={key: (tuple(has), tuple(wants)) for key, has, wants in info["mismatched_keys"]},
        idle=IDLE,
    )
    return model.eval().float().requires_grad_(False)


def _preprocessor(name: str, config: Any) -> Picture:
    from transformers.utils import cached_file

    try:
        path = cached_file(name, "preprocessor_config.json")
        settings = json_object(Path(path).read_text(encoding="utf-8"))
    except (OSError, TypeError):  # a model saved without one
        settings = {}
    except ValueError as error:
        raise DataError(
            f"hf:{name}: preprocessor_config.json: not valid JSON ({error}); save the model again"
        ) from error
    return picture(settings, config.image_size, f"hf:{name}")


def picture(settings: dict[str, Any], image_size: Any, name: str) -> Picture:
    """Return the preprocessing of a ``preprocessor_config.json``.

    Parameters
    ----------
    settings
        The content of the file; empty if the model has no such file.
    image_size
        The model's image size, used if the file contains none.
    name
        Name of the backbone, for error messages.
    """
    try:
        return _picture(settings, image_size, name)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise DataError(
            f"backbone {name!r}: preprocessor_config.json is not understood ({error}); save the "
            "model again"
        ) from error


def _picture(settings: dict[str, Any], image_size: Any, name: str) -> Picture:
    size = settings.get("size", image_size)
    cuts = bool(settings.get("do_center_crop"))
    if isinstance(size, list | tuple):
        size = dict(zip(("height", "width"), size, strict=True))
    elif isinstance(size, int):  # as older versions of transformers wrote it
        size = {"shortest_edge": size} if cuts else {"height": size, "width": size}
    strange = [key for key in ("crop_pct", "do_pad") if settings.get(key)]
    strange += [f"size.{key}" for key in size if key not in ("shortest_edge", "height", "width")]
    if strange or not settings.get("do_resize", True):
        raise DataError(
            f"backbone {name!r}: preprocessing with {(*strange, 'do_resize=false')[0]} is not "
            "supported; export the model and use onnx:PATH"
        )
    fit: Fit = "shorter" if "shortest_edge" in size else "squash"
    resize = (size["shortest_edge"],) * 2 if fit == "shorter" else (size["height"], size["width"])
    crop = settings.get("crop_size", resize[0]) if cuts else resize
    if isinstance(crop, dict):
        crop = crop["height"], crop["width"]
    # `Picture` normalizes pixels from 0 to 1, so the model's own factor goes into mean and std.
    rescales = settings.get("do_rescale", True)
    factor = 255 * settings.get("rescale_factor", 1 / 255) if rescales else 255
    normalizes = settings.get("do_normalize", True)
    mean = settings.get("image_mean", [0.5] * 3) if normalizes else [0.0] * 3
    std = settings.get("image_std", [0.5] * 3) if normalizes else [1.0] * 3
    return Picture(
        size=(crop, crop) if isinstance(crop, int) else tuple(crop),
        resize=resize,
        fit=fit,
        interpolation=FILTERS[settings.get("resample", BICUBIC)],
        mean=tuple(value / factor for value in mean),
        std=tuple(value / factor for value in std),
    )


class HuggingFaceImages:
    """A vision transformer, one image at a time: results do not depend on the batch."""

    takes: ItemKind = "images"

    def __init__(self, name: str, pooling: str, model: Any, picture: Picture) -> None:
        self.name = f"hf:{name}@{pooling}"
        self.digest = digest(model, pooling, json.dumps(asdict(picture)), idle=IDLE)
        self._model, self._pooling, self._picture = model, pooling, picture

    def __call__(self, items: Sequence[Any]) -> Array:
        return self.embed([self.prepare(image) for image in items])

    def prepare(self, item: Any) -> Array:
        """Return an image as input of the network."""
        return self._picture(item)

    def embed(self, ready: Sequence[Any]) -> Array:
        """Return the features of prepared images."""
        import torch

        rows = []
        with torch.inference_mode():
            for image in ready:
                pixels = torch.from_numpy(image)[None]
                more = {}
                if hasattr(self._model.config, "mask_ratio"):  # fix the order of the patches
                    height, width = self._picture.size
                    patch = self._model.config.patch_size
                    patches = (height // patch) * (width // patch)
                    more["noise"] = torch.arange(patches, dtype=torch.float32)[None]
                tokens = self._model(pixel_values=pixels, **more).last_hidden_state[0]
                rows.append(tokens[0] if self._pooling == "cls" else tokens[1:].mean(dim=0))
        return np.stack([row.numpy() for row in rows])


class HuggingFaceTexts:
    """A text encoder, one text at a time: results do not depend on the batch."""

    takes: ItemKind = "texts"

    def __init__(self, name: str, pooling: str, model: Any, tokenizer: Any) -> None:
        self.name = f"hf:{name}@{pooling}"
        vocabulary = json.dumps(tokenizer.get_vocab(), sort_keys=True)
        self.digest = digest(model, pooling, vocabulary, idle=IDLE)
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
