"""Weights: read from files without running anything in them, checked, digested."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedgram.errors import DataError

# Training programs wrap the state dict, averaged weights first, and parallel ones prefix its keys.
_WRAPPINGS = ("state_dict_ema", "model_ema", "state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.")
_COUNTER = "num_batches_tracked"  # which training alone needs, and older files do not have


def read(path: Path) -> dict[str, Any]:
    """Return the tensors of a safetensors file or of a state dict that torch has saved."""
    import torch
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            # Many a training program keeps its command line beside the weights.
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
        raise DataError(f"{path}: holds no weights; a dictionary of tensors by name is wanted")
    return state


def put(model: Any, state: dict[str, Any], name: str, path: Path) -> None:
    """Put weights into a torch model, or say which do not fit."""
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
    """Refuse weights that would leave a part of the model to chance.

    A classifier or a decoder that the model does not have may be left over. A further layer of a
    part that it does have may not: the weights are another model's. Keys that begin as `idle`
    says belong to what features do not depend on.
    """
    parts = {key.split(".", 1)[0] for key in own}
    lacking = [key for key in missing if not key.startswith(idle) and not key.endswith(_COUNTER)]
    foreign = [key for key in further if key.split(".", 1)[0] in parts]
    reasons = []
    if lacking:
        reasons.append(f"it lacks {_some(lacking)}")
    if foreign:
        reasons.append(f"it has {_some(foreign)} too many")
    for key in sorted(shapes)[:1]:
        reasons.append(f"{key} has shape {shapes[key][0]} instead of {shapes[key][1]}")
    if reasons:
        raise DataError(f"{problem}: {'; '.join(reasons)}")


def digest(model: Any, *more: str, idle: tuple[str, ...] = ()) -> str:
    """Return a digest of a torch model's weights and of what else decides its features."""
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


def _some(keys: list[str]) -> str:
    listed = ", ".join(sorted(keys)[:3])
    return listed if len(keys) <= 3 else f"{listed} and {len(keys) - 3} more"


def _first(error: Exception) -> str:
    return str(error).split("\n", 1)[0] or type(error).__name__
