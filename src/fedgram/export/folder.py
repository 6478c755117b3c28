"""The folder of an exported model: its files for one target, and a model card."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from safetensors.numpy import save as packed

from fedgram.core.layouts import TableLayout
from fedgram.errors import ConfigError
from fedgram.experiments.run_record import RunRecord
from fedgram.export import standalone
from fedgram.export.arrays import arrays_of
from fedgram.export.card import CARD, CardFacts, card, client_of, run_of, sizes_of
from fedgram.export.formula import Formula, formula_of
from fedgram.export.onnx_model import onnx_model
from fedgram.export.torch_program import torch_program
from fedgram.features.backbones.registry import Backbone
from fedgram.features.standardize import is_standardized
from fedgram.runtime import files

Target = Literal["onnx", "torch", "sklearn", "safetensors"]
TARGETS: tuple[Target, ...] = get_args(Target)


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written.

    Parameters
    ----------
    files
        The files, the model first and the card last.
    input
        Name of the input: image, features or grid.
    probabilities
        Whether the model has probabilities besides scores.
    numbers
        Whether the model predicts numbers, and not classes.
    """

    files: tuple[Path, ...]
    input: str
    probabilities: bool
    numbers: bool = False


def export_model(
    model: Any,
    out: Path | str,
    *,
    to: Target = "onnx",
    backbone: Backbone | None = None,
    stored: bool = False,
    source: Path | None = None,
) -> Exported:
    """Write a model as files that programs without fedgram can use, with a model card.

    Parameters
    ----------
    model
        A model of `fedgram.run`, or of a file.
    out
        Folder to write.
    to
        "onnx" (``model.onnx``, for onnxruntime), "torch" (``model.pt2``, for torch.export.load),
        "sklearn" (``model.py`` with an estimator) or "safetensors" (arrays and ``config.json``).
    backbone
        The backbone of images that becomes a part of an ONNX file.
    stored
        Whether the input is the integers of a feature file instead of real features.
    source
        The file of the model, for the card: a run's folder says how it was made.

    Examples
    --------
    >>> import fedgram as fg, tempfile
    >>> result = fg.run(fg.create_method("afl"), fg.federate(fg.load_dataset("digits")))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = fg.export_model(result.models["c00"], folder, to="safetensors")
    >>> [path.name for path in done.files], done.input
    (['model.safetensors', 'config.json', 'README.md'], 'features')
    """
    if to not in TARGETS:
        raise ConfigError(f"to = {to!r}: expected one of {', '.join(TARGETS)}")
    if backbone is not None and to != "onnx":
        raise ConfigError(
            f"a backbone in the exported model needs to='onnx', got {to!r}; export without it"
        )
    if backbone is not None and stored:
        raise ConfigError("a backbone gives real features: expected stored = False with a backbone")
    folder = Path(out)
    formula = formula_of(model).in_real_units()
    if stored and not formula.space.exact:
        raise ConfigError("grid integers as input: the model's features are not on a grid")
    columns = isinstance(formula.space.layout, TableLayout) or is_standardized(formula.space)
    if columns and formula.standardized is None and not stored:
        raise ConfigError(
            f"the model was made for {formula.space.backbone}, whose columns are not "
            "features yet; export it for the integers of a feature file: --input grid, stored=True"
        )
    name = "image" if backbone is not None else "grid" if stored else "features"
    contents = _WRITERS[to](formula, backbone, stored)
    for file, content in contents.items():
        files.write(folder / file, content)
    written = [folder / file for file in contents]
    facts = _facts(formula, written, to, name, source)
    files.write(folder / CARD, card(facts))
    return Exported(
        files=(*written, folder / CARD),
        input=name,
        probabilities=formula.probabilities is not None,
        numbers=bool(formula.outputs),
    )


Contents = Mapping[str, bytes | str]


def _onnx(formula: Formula, backbone: Backbone | None, stored: bool) -> Contents:
    made = onnx_model(formula, backbone=backbone, stored=stored, about="exported by fedgram")
    return {"model.onnx": made.SerializeToString(deterministic=True)}


def _torch(formula: Formula, _: Backbone | None, stored: bool) -> Contents:
    return {"model.pt2": torch_program(formula, stored=stored)}


def _arrays(formula: Formula, _: Backbone | None, stored: bool) -> Contents:
    found = arrays_of(formula)
    config = {**found.config, "stored": stored}
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    return {"model.safetensors": packed(dict(found.arrays)), "config.json": text}


def _sklearn(formula: Formula, backbone: Backbone | None, stored: bool) -> Contents:
    source = inspect.getsource(standalone)
    return {"model.py": source, **_arrays(formula, backbone, stored)}


_WRITERS: dict[str, Callable[[Formula, Backbone | None, bool], Contents]] = {
    "onnx": _onnx,
    "torch": _torch,
    "sklearn": _sklearn,
    "safetensors": _arrays,
}


def _facts(
    formula: Formula, written: list[Path], to: Target, name: str, source: Path | None
) -> CardFacts:
    run: RunRecord | None = run_of(source) if source is not None else None
    client = client_of(source, run) if source is not None else ""
    method = run.method if run is not None else ""
    title = " of ".join(part for part in (method or "Model", client) if part)
    kept = {path: "the model" if k == 0 else "a part" for k, path in enumerate(written)}
    return CardFacts(
        title=title,
        method=method,
        settings=run.parameters if run is not None else {},
        space=formula.space,
        classes=formula.classes,
        outputs=formula.outputs,
        client=client,
        samples=sizes_of(run, client) if run is not None else {},
        run=run,
        files=kept,
        usage=_usage(formula, to, name),
    )


_SHAPES = {
    "image": "decoded images: uint8, (samples, height, width, colors), of any size",
    "features": "features as the backbone gives them: double, (samples, {width})",
    "grid": "the array `x` of a feature file: int16, (samples, {width})",
}


def _usage(formula: Formula, to: Target, name: str) -> str:
    shape = _SHAPES[name].format(width=formula.space.inputs)
    has_probabilities = formula.probabilities is not None
    if to == "onnx":
        dtype = {"image": "uint8", "features": "float64", "grid": "int16"}[name]
        given = ["label", "class", "scores", *(["probabilities"] if has_probabilities else [])]
        given = ["values"] if formula.outputs else given
        taken = ", ".join("name" if each == "class" else each for each in given)
        return f"""\
The input `{name}` is {shape}. {"The output is" if formula.outputs else "The outputs are"} \
{", ".join(f"`{each}`" for each in given)}.

```python
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession("model.onnx")
outputs = session.run(None, {{"{name}": np.asarray(x, np.{dtype})}})
{"[values]" if formula.outputs else taken} = outputs
```"""
    kind = "outputs" if formula.outputs else "classes"
    if to == "torch":
        returned = "scores, probabilities" if has_probabilities else "scores"
        returned = "values" if formula.outputs else returned
        return f"""\
The input is {shape.replace("int16", "double")}.

```python
import torch
extra = {{"{kind}.json": ""}}
model = torch.export.load("model.pt2", extra_files=extra).module()
{returned} = model(torch.as_tensor(x, dtype=torch.float64))
```"""
    if to == "sklearn":
        argument = "stored=True" if name == "grid" else ""
        made = "ExportedRegressor" if formula.outputs else "ExportedClassifier"
        return f"""\
The input is {shape.replace("int16", "integers")}. The file `model.py` needs
NumPy and safetensors; with scikit-learn the model is one of its estimators.

```python
from model import {made}
model = {made}({argument})
model.predict(x)
```"""
    return (
        f"The input is {shape}. `config.json` describes the arrays; grid, lift and heads are "
        "evaluated as in the `model.py` of `fedgram export --to sklearn`."
    )
