"""A model as a PyTorch program (``torch.export``): features or grid integers to scores."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from fedgram.errors import ConfigError
from fedgram.export.arrays import arrays_of
from fedgram.export.formula import Formula

_RMS_BITS, _SQUARE_BITS = 15, 15  # as in fedgram.features
_TINY = -30.0  # log(log(1 + e^z)) is z to the last digit from here on


def torch_program(formula: Formula, *, stored: bool = False) -> bytes:
    """Return the content of a ``.pt2`` file, for ``torch.export.load``.

    The program takes samples by features in double and returns scores and, if they are known,
    probabilities; of a regression the values. The names are in the extra file ``classes.json``, or
    ``outputs.json``.

    Parameters
    ----------
    formula
        The model.
    stored
        Whether the input is the integers of a feature file.
    """
    try:
        import torch
        from torch.export import Dim, export, save
    except ImportError as error:
        raise ConfigError("a PyTorch program needs: pip install 'fedgram[torch]'") from error
    module = _module(torch, formula, stored=stored)
    example = torch.ones((2, formula.space.inputs), dtype=torch.float64)
    program = export(module, (example,), dynamic_shapes=({0: Dim("samples", min=1)},))
    content = io.BytesIO()
    names = json.dumps(list(formula.classes), ensure_ascii=False)
    file = "outputs.json" if formula.outputs else "classes.json"
    save(program, content, extra_files={file: names})
    return content.getvalue()


def _module(torch: Any, formula: Formula, *, stored: bool) -> Any:
    found = arrays_of(formula)
    config, grid = found.config, found.config["grid"]

    class ExportedProgram(torch.nn.Module):  # type: ignore[misc]  # torch may not be installed
        def __init__(self) -> None:
            super().__init__()
            for name, array in found.arrays.items():
                tensor = torch.from_numpy(np.array(array))
                self.register_buffer(name.replace(".", "_"), tensor)

        def forward(self, x: Any) -> Any:
            held = {name: getattr(self, name.replace(".", "_")) for name in found.arrays}
            rows = (
                x.double() if stored or grid["raw"] else _on_grid(torch, x.double(), config, held)
            )
            rows = _with_constant(torch, rows, grid["constant"])
            scores = held["shift"].expand(x.shape[0], -1)
            for head in config["heads"]:
                lifted = _lifted(torch, rows, head, held)
                scores = scores + (lifted * head["unit"]) @ held[f"{head['name']}.weights"]
            if formula.allowed is not None:
                scores = _masked(torch, scores, held["allowed"])
            how = config["probabilities"]
            return (scores, _probabilities(torch, scores, how)) if how else scores

    return ExportedProgram().eval()


def _with_constant(torch: Any, rows: Any, constant: int | None) -> Any:
    if constant is None:
        return rows
    last = torch.full_like(rows[:, :1], float(constant))
    return torch.cat([rows, last], dim=1)


def _on_grid(torch: Any, x: Any, config: Any, held: Any) -> Any:
    grid = config["grid"]
    if "mean" in held:
        return _standardized(torch, x, config, held)
    exponent = torch.frexp(x.abs().amax(1, keepdim=True))[1].double()
    scaled = x * torch.pow(2.0, _RMS_BITS - exponent)
    whole = torch.round(scaled)
    rms = torch.sqrt((whole * whole).sum(1, keepdim=True) / max(1, x.shape[1]))
    divisor = torch.where(rms > 0, rms * grid["step"], torch.ones_like(rms))
    return _rounded(torch, scaled / divisor, grid)


def _standardized(torch: Any, x: Any, config: Any, held: Any) -> Any:
    grid, anchor = config["grid"], config["anchor"]
    standard = (x - held["mean"]) / held["deviation"]
    if not grid["bound"]:
        return standard
    standard = standard.clamp(-grid["clip"], grid["clip"])
    whole = torch.round(standard * 2.0**_SQUARE_BITS)
    square = (whole * whole).sum(1, keepdim=True) / x.shape[1] * 2.0 ** (-2 * _SQUARE_BITS)
    size = torch.sqrt((square + anchor**2) / (1 + anchor**2))
    size = torch.where(size > 0, size, torch.ones_like(size))
    return _rounded(torch, standard / size / grid["step"], grid)


def _rounded(torch: Any, steps: Any, grid: Any) -> Any:
    if not grid["bound"]:
        return steps
    return torch.round(steps).clamp(-grid["bound"], grid["bound"])


def _lifted(torch: Any, rows: Any, head: Any, held: Any) -> Any:
    if not head["parts"]:
        return rows
    parts = []
    for part in range(head["parts"]):
        signs = held[f"{head['name']}.signs.{part}"].double()
        table = held[f"{head['name']}.table.{part}"]
        place = (rows @ signs).long() + table.shape[0] // 2
        parts.append(table[place.clamp(0, table.shape[0] - 1)].double())
    return _with_constant(torch, torch.cat(parts, dim=1), head["constant"])


def _masked(torch: Any, scores: Any, allowed: Any) -> Any:
    infinite = torch.full_like(scores, float("inf"))
    least = torch.where(allowed, scores, infinite).amin(1, keepdim=True) - 1
    return torch.where(allowed, scores, torch.minimum(scores, least))


def _probabilities(torch: Any, scores: Any, how: Any) -> Any:
    if how["sharpness"]:
        z = how["sharpness"] * scores
        safe = z.clamp(min=_TINY)
        soft = torch.log(torch.logaddexp(torch.zeros_like(safe), safe))
        scores = torch.where(z < _TINY, z, soft)
    return torch.softmax(how["power"] * scores, dim=1)
