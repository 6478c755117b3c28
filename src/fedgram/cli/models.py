"""Use models: solve a site's own, and predict."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from fedgram.cli.ledger import PATH, set_option, site_samples
from fedgram.cli.root import main, say
from fedgram.cli.schema import require_table
from fedgram.core import codec
from fedgram.core.layouts import TableLayout
from fedgram.core.samples import Features, Floats, Space
from fedgram.core.shared import Shared, part_for
from fedgram.core.sound import require_sound
from fedgram.data.dataset import Dataset, Vectors
from fedgram.data.sources import load_vectors
from fedgram.data.tabular.reader import is_table, read_tables
from fedgram.data.tabular.schema import Schema
from fedgram.errors import ConfigError, DataError, FedgramError, MismatchError
from fedgram.experiments import config as configuration
from fedgram.features.grid import Grid
from fedgram.features.tabular import vectors as table_vectors
from fedgram.federation.client import Client
from fedgram.federation.federated_dataset import gridded
from fedgram.federation.shared import Published
from fedgram.runtime import files
from fedgram.runtime.text import csv_cell, escaped
from fedgram.selection.pool import LogLinear


@main.command()
@click.argument("shared", type=PATH)
@click.argument("data")
@click.option("-o", "--out", type=PATH, required=True, help="File to write the model to.")
@click.option("-m", "--method", "name", help="Must be the method that made SHARED.")
@set_option
def personalize(
    shared: Path, data: str, out: Path, name: str | None, overrides: tuple[str, ...]
) -> None:
    """Make this site's own model from a shared file and its samples.

    Method and parameters are those that SHARED was made with; -s changes a parameter for this site.

    Example: fedgram personalize shared.safetensors north/features.npz -o north.safetensors
    """
    published = _loaded(shared)
    if not isinstance(published, Published):
        raise DataError(
            f"{shared}: holds a {type(published).__name__}; use what 'fedgram ledger solve' or "
            "'fedgram run --out' wrote"
        )
    if name not in (None, published.method):
        raise ConfigError(f"{shared}: was made by {published.method}, not {name}; leave out -m")
    changes = configuration.load(None, overrides, [str(published.method)]).method
    with _consistent(shared):
        method = published.make(changes.get(published.method, {}))
    common: Any = published.shared
    if not isinstance(published.shared, Shared):
        raise DataError(f"{shared}: {published.method} shares nothing to start from; use another")
    with _consistent(shared):
        samples = site_samples(data, Grid.of(common.space))
        samples = replace(samples, labels=samples.labels.relabel(common.classes))
        site = Client(id="site", train=samples, valid=samples.take([]))
        model = method.personalize(site, part_for(common, site.id))
    codec.save(out, model)
    say(f"{out}: a personal model from {len(samples)} samples")


@contextmanager
def _consistent(path: Path) -> Iterator[None]:
    """Raise DataError if a model of this file fails: its parts have other types or shapes."""
    try:
        yield
    except (FedgramError, MemoryError):
        raise
    except Exception as error:  # numpy and BLAS raise many types
        raise DataError(
            f"{path}: the parts of this model do not fit together ({error}); make it again"
        ) from error


@main.command()
@click.argument("model", type=PATH)
@click.argument("data")
@click.option("-o", "--out", type=PATH, help="File to write (.csv or .json); else to the screen.")
@click.option("--schema", type=PATH, help="What the columns of DATA mean, if it is a table.")
def predict(model: Path, data: str, out: Path | None, schema: Path | None) -> None:
    """Predict classes with scores, one line per sample.

    DATA is an .npz, .safetensors or .csv file of feature vectors; with --schema, a table of the
    columns that the schema declares.

    Example: fedgram predict north.safetensors new.csv -o predictions.csv
    """
    suffix = out.suffix if out else ".csv"
    if suffix not in (".csv", ".json"):
        raise DataError(f"{out}: predictions are written as .csv or .json")
    scores, classes = predicted(model, data, schema)
    text = _csv(scores, classes) if suffix == ".csv" else _json(scores, classes)
    if out is None:
        click.echo(escaped(text, keep="\n"), nl=False)
        return
    files.write(out, text)
    say(f"{out}: {len(scores)} predictions", err=True)


def predicted(model: Path, data: str, schema: Path | None) -> tuple[Floats, tuple[str, ...]]:
    """Return the scores of a model file for the vectors of a file, and its classes.

    Parameters
    ----------
    model
        File of the model.
    data
        File of the vectors, or a table.
    schema
        File of the schema, if `data` is a table.
    """
    head = _loaded(model)
    with _consistent(model):
        return _scores(head, model, data, schema)


def _scores(
    head: Any, model: Path, data: str, schema: Path | None
) -> tuple[Floats, tuple[str, ...]]:
    if isinstance(head, Published | Shared):
        head = head.predictor()
    if not (callable(head) and hasattr(head, "space") and hasattr(head, "classes")):
        raise DataError(
            f"{model}: expected a model that predicts, got {_described(head)}; use what "
            "'fedgram personalize' wrote"
        )
    features = _on_grid(head.space, _vectors(head.space, data, schema), data)
    # A pool is calibrated: its scores are shown as probabilities.
    scores = head.probabilities(features) if isinstance(head, LogLinear) else head(features)
    classes = tuple(head.classes)
    named = all(isinstance(name, str) for name in classes)
    if not named or scores.shape != (len(features), len(classes)) or not classes:
        raise DataError(f"{model}: expected a score for each sample and each class; make it again")
    return scores, classes


def _loaded(path: Path) -> Any:
    """Return the value in a file, which may come from elsewhere."""
    value = codec.load(path)
    require_sound(value, str(path))
    return value


def _vectors(space: Space, source: str, schema: Path | None) -> Vectors:
    if schema:
        agreed = Schema.load(schema)
        if agreed.backbone != space.backbone:
            made = space.backbone or "vectors"
            raise MismatchError(
                f"{schema}: is {agreed.backbone}, but the model was made for {made}; use the "
                "schema that its features were made with"
            )
        return table_vectors(agreed, read_tables(require_table(source)), Grid.of(space))
    tabular = isinstance(space.layout, TableLayout)
    found = None if tabular and is_table(Path(source)) else load_vectors(source)
    if found is None or (tabular and not found.backbone):
        raise DataError(
            f"{source}: the model was made for {space.backbone}; give that schema with --schema"
        )
    return found


def _described(value: Any) -> str:
    return "a shared result without a model of its own" if value is None else type(value).__name__


def _on_grid(space: Space, vectors: Vectors, source: str) -> Features:
    if vectors.x.shape[1] != space.inputs:
        raise DataError(
            f"{source}: vectors of {vectors.x.shape[1]} features, the model was made for "
            f"{space.inputs}; give one row of {space.inputs} numbers per sample"
        )
    backbone = vectors.backbone or space.backbone  # a table of numbers has no backbone name
    data = Dataset(
        x=vectors.x,
        y=np.zeros(len(vectors.x), np.int64),  # unknown, and not used
        classes=("",),
        scale=vectors.scale,
        offset=vectors.offset,
        backbone=backbone,
        grid=vectors.grid,
        name=source,
    )
    return gridded(data, Grid.of(space)).features


def _csv(scores: Floats, classes: tuple[str, ...]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["label", "name", *(f"score_{name}" for name in classes)])
    for row in scores:
        label = int(row.argmax())
        writer.writerow([label, csv_cell(classes[label]), *(f"{score:.6g}" for score in row)])
    return text.getvalue()


def _json(scores: Floats, classes: tuple[str, ...]) -> str:
    rows: list[dict[str, Any]] = []
    for row in np.asarray(scores):
        label = int(row.argmax())
        rows.append(
            {
                "label": label,
                "name": classes[label],
                "scores": dict(zip(classes, map(float, row), strict=True)),
            }
        )
    return json.dumps({"predictions": rows}, indent=2) + "\n"
