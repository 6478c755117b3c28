"""Models of timm as backbones: pooled features, with the evaluation transform of each model.

``timm:NAME``, such as ``timm:vit_base_patch16_224.mae``; ``timm:hf-hub:OWNER/NAME`` for a model on
the Hugging Face hub; ``timm:FOLDER`` for a model saved by timm (``config.json`` and weights).
Weights are read from the cache, downloaded, or read from a file.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import math
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
from fedgram.features.backbones.weights import digest, put, read
from fedgram.runtime.parse import json_object

SAVED = ("model.safetensors", "pytorch_model.bin", "pytorch_model.pth", "model.pth")
_FOLDER, _HUB = "local-dir:", "hf-hub:"


def load(_source: str, rest: str, weights: Path | None = None) -> Backbone:
    """Return ``timm:NAME``, ``timm:hf-hub:OWNER/NAME`` or ``timm:FOLDER``."""
    name = f"timm:{rest}"
    timm = _package(name)
    spec = _spec(timm, rest)
    arguments: dict[str, Any] = {}
    if spec.startswith(_FOLDER):
        folder = Path(spec.removeprefix(_FOLDER))
        arguments = _arguments(folder)
        weights = weights or _saved(folder)
    elif weights is None and not spec.startswith(_HUB) and not timm.is_model_pretrained(spec):
        raise DataError(f"backbone {name!r}: timm has no weights for it; use --weights")
    try:
        model = timm.create_model(spec, pretrained=weights is None, num_classes=0)
    except Exception as error:  # of timm, the hub or the download
        raise _refused(name, error) from error
    if weights is not None:
        _put(timm, model, weights, name)
    picture = _picture(timm, model, name, arguments)
    return Timm(model, picture, tagged=weights is None, arguments=arguments)


def _package(name: str) -> Any:
    try:
        import timm
        import timm.data
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise missing(name, "timm", error) from error
    except Exception as error:  # torchvision raises many types if it does not fit torch
        raise ConfigError(
            f"backbone {name!r}: timm cannot be imported ({error}); install matching versions of "
            "torch and torchvision (see pytorch.org)"
        ) from error
    return timm


def _spec(timm: Any, rest: str) -> str:
    """Return the name for `timm.create_model`; raise `ConfigError` for unknown names."""
    if rest.startswith((_FOLDER, _HUB)):
        return rest
    architecture, _, tag = rest.partition(".")
    former = timm.models.get_deprecated_models()
    if architecture in former:
        today = former[architecture]
        remedy = f"use {today}" if today else "the model was removed"
        raise ConfigError(f"backbone 'timm:{rest}': deprecated name; {remedy}")
    if timm.is_model(architecture):
        tags = timm.list_models(architecture, include_tags=True)
        if not tag or rest in tags:
            return rest
        near = difflib.get_close_matches(rest, tags, n=3, cutoff=0)
        raise ConfigError(f"backbone 'timm:{rest}': timm has {', '.join(near)}")
    if rest and Path(rest).is_dir():
        return f"{_FOLDER}{rest}"
    known = timm.list_models(include_tags=bool(tag))
    near = difflib.get_close_matches(rest, known, n=3, cutoff=0.5)
    proposed = f"did you mean {', '.join(near)}?" if near else "see timm.list_models()"
    raise ConfigError(f"backbone 'timm:{rest}': neither a model nor a folder; {proposed}")


def _arguments(folder: Path) -> dict[str, Any]:
    try:
        config = json_object((folder / "config.json").read_text(encoding="utf-8"))
        return dict(config.get("model_args") or {})
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise DataError(
            f"{folder}: not a model saved by timm ({error}); expected a config.json"
        ) from error


def _saved(folder: Path) -> Path:
    for name in SAVED:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"{folder}: {SAVED[0]} is missing; use --weights for another file")


def _refused(name: str, error: Exception) -> DataError:
    first = str(error).split("\n", 1)[0]
    return DataError(
        f"backbone {name!r} is not in the cache and cannot be downloaded ({first}); "
        "connect once, or use --weights"
        if isinstance(error, OSError)
        else f"backbone {name!r} cannot be loaded ({first})"
    )


def _put(timm: Any, model: Any, path: Path, name: str) -> None:
    """Load a file of weights into a model, in timm's format or a format that timm converts."""
    state, own = read(path), model.state_dict()
    entry = timm.model_entrypoint(model.pretrained_cfg["architecture"])
    converted = getattr(importlib.import_module(entry.__module__), "checkpoint_filter_fn", None)
    if converted is not None:
        takes_model = len(inspect.signature(converted).parameters) > 1
        try:
            state = converted(state, model) if takes_model else converted(state)
        except Exception as error:
            raise DataError(
                f"{path} does not fit {name}: timm could not convert it ({error})"
            ) from error
    heads = model.pretrained_cfg.get("classifier") or ()
    heads = {heads} if isinstance(heads, str) else set(heads)
    heads |= {head.split(".", 1)[0] for head in heads}
    state = {k: v for k, v in state.items() if k in own or k.rpartition(".")[0] not in heads}
    put(model, state, name, path)


def _picture(timm: Any, model: Any, name: str, arguments: dict[str, Any]) -> Picture:
    """Return timm's evaluation transform, as of version 1.0.31.

    If the result is not square, earlier versions ignore the settings and resize bilinearly.
    """
    config = timm.data.resolve_model_data_config(model)
    channels, height, width = config["input_size"]
    side = arguments.get("img_size")  # a model built for another size than the one in its settings
    height, width = (side, side) if isinstance(side, int) else side or (height, width)
    if channels != 3:
        raise ConfigError(f"backbone {name!r}: expected a model for 3 channels, got {channels}")
    resize = math.floor(height / config["crop_pct"]), math.floor(width / config["crop_pct"])
    square = resize[0] == resize[1]
    fits: dict[str, Fit] = {"squash": "squash", "border": "inside"}
    fit = fits.get(config["crop_mode"], "shorter" if square else "outside")
    return Picture(
        size=(height, width),
        resize=resize,
        fit=fit,
        interpolation=config["interpolation"],
        middle="even",
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )


class Timm:
    """A network's pooled features, one image at a time: results do not depend on the batch."""

    takes: ItemKind = "images"

    def __init__(
        self, model: Any, picture: Picture, *, tagged: bool, arguments: dict[str, Any]
    ) -> None:
        # The name must not contain the folder, which differs from site to site.
        settings = model.pretrained_cfg
        tag = f".{settings['tag']}" if tagged and settings.get("tag") else ""
        self.name = f"timm:{settings['architecture']}{tag}"
        self._model, self._picture = model.eval().float().requires_grad_(False), picture
        recipe = {
            "architecture": settings["architecture"],
            "arguments": arguments,
            "pooling": settings.get("global_pool"),
            "picture": asdict(picture),
        }
        self.digest = digest(self._model, json.dumps(recipe, sort_keys=True))

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
            for pixels in ready:
                row = self._model(torch.from_numpy(pixels)[None])
                if not isinstance(row, torch.Tensor) or row.ndim != 2:
                    raise DataError(f"backbone {self.name!r}: expected one pooled vector per image")
                rows.append(row[0].numpy())
        return np.stack(rows)
