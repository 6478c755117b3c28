"""Weights of torch models: reading without running code, checking, and digests."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedgram.errors import DataError

# Training programs wrap the state dict (averaged weights take precedence) and prefix its keys.
_WRAPPINGS = ("state_dict_ema", "model_ema", "state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.")
_COUNTER = "num_batches_tracked"  # used in training only, and absent from older files


def read(path: Path) -> dict[str, Any]:
    """Return the tensors of a safetensors file, or of a state dict saved by torch."""
    import torch
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            # Many training programs save their command line with the weights.
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise DataError(
            f"{path}: cannot be read as weights ({_first(error)}); save them as safetensors, or a "
            "plain state dict with torch.save"
        ) from error
    content = content if isinstance(content, dict) else {}
    inner = [content[key] for key in _WRAPPINGS if isinstance(content.get(key), dict)]
    tensors = (inner[0] if inner else content).items()
    state = {_bare(str(key)): value for key, value in tensors if isinstance(value, torch.Tensor)}
    if not state:
        raise DataError(f"{path}: no weights; expected a dictionary of tensors by name")
    return state


def put(model: Any, state: dict[str, Any], name: str, path: Path) -> None:
    """Load weights into a torch model; raise `DataError` if they do not fit.

    Parameters
    ----------
    model
        The torch model.
    state
        The tensors by name.
    name
        Name of the backbone, for error messages.
    path
        The file of weights, for error messages.
    """
    own = model.state_dict()
    check(
        f"{path} does not fit {name}",
        own,
        missing=own.keys() - state.keys(),
        further=state.keys() - own.keys(),
        shapes={
            key: (tuple(state[key].shape), tuple(own[key].shape))
            for key in own.keys() & state.keys()
            if state[key].shape != own[key].shape
        },
    )
    model.load_state_dict({key: state[key] for key in own.keys() & state.keys()}, strict=False)


def check(
    problem: str,
    own: Iterable[str],
    *,
    missing: Iterable[str],
    further: Iterable[str],
    shapes: dict[str, tuple[Any, Any]],
    idle: tuple[str, ...] = (),
) -> None:
    """Raise `DataError` if weights are missing, or belong to another model.

    Further weights of modules that the model does not have are allowed: a classifier or a decoder.
    Further weights inside a module of the model are not.

    Parameters
    ----------
    problem
        Start of the error message.
    own
        The keys of the model.
    missing
        Keys of the model without weights.
    further
        Keys of weights that the model does not have.
    shapes
        Keys with different shapes: that of the weights, and that of the model.
    idle
        Prefixes of keys that do not influence the features.
    """
    modules = {key.split(".", 1)[0] for key in own}
    lacking = [key for key in missing if not key.startswith(idle) and not key.endswith(_COUNTER)]
    foreign = [key for key in further if key.split(".", 1)[0] in modules]
    reasons = []
    if lacking:
        reasons.append(f"missing: {_shortened(lacking)}")
    if foreign:
        reasons.append(f"unexpected: {_shortened(foreign)}")
    for key in sorted(shapes)[:1]:
        reasons.append(f"{key}: expected shape {shapes[key][1]}, got {shapes[key][0]}")
    if reasons:
        raise DataError(f"{problem}: {'; '.join(reasons)}")


def digest(model: Any, *more: str, idle: tuple[str, ...] = ()) -> str:
    """Return a digest of a torch model's weights and of further settings as texts."""
    total = hashlib.sha256()
    for key, tensor in sorted(model.state_dict().items()):
        if not key.startswith(idle):
            total.update(key.encode())
            total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    for text in more:
        total.update(text.encode())
    return total.hexdigest()


def _bare(key: str) -> str:
    for prefix in _PREFIXES:
        key = key.removeprefix(prefix)
    return key


def _shortened(keys: list[str]) -> str:
    listed = ", ".join(sorted(keys)[:3])
    return listed if len(keys) <= 3 else f"{listed} and {len(keys) - 3} more"


def _first(error: Exception) -> str:
    return str(error).split("\n", 1)[0] or type(error).__name__
