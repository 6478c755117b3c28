"""Predict classes of new samples: images, texts, rows of tables, or vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from fedgram.cli.ledger import PATH
from fedgram.cli.models import consistent, loaded, predictor_of
from fedgram.cli.root import OneOf, main, say
from fedgram.core.samples import Features, Floats
from fedgram.core.targets import outputs_named, real
from fedgram.data.table_writer import FORMATS, TableFormat, csv_text, format_of, writer
from fedgram.data.tabular.schema import Schema
from fedgram.errors import DataError
from fedgram.features.new_data import NewData
from fedgram.models.saved import SavedModel, opened
from fedgram.runtime.text import escaped


@main.command()
@click.argument("model", type=PATH)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option("-o", "--out", type=PATH, help="File to write; else CSV on the screen.")
@click.option(
    "--format",
    "kind",
    type=OneOf(FORMATS),
    help="Format of the file; the default is the ending of its name.",
)
@click.option("--text", help="Column of texts in a table.")
@click.option("--name", help="Column of a table with the name of each row; else rows are numbered.")
@click.option("--schema", type=PATH, help="Schema of a table, if the model file has none.")
@click.option("--backbone", help="Backbone, if the model's is not found by its name: onnx:PATH.")
@click.option("--weights", type=PATH, help="File of weights for hf:NAME or timm:NAME.")
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Number of images or texts at a time.",
)
@click.option("--skip-broken", is_flag=True, help="Leave out images that cannot be read.")
def predict(
    model: Path,
    inputs: tuple[str, ...],
    out: Path | None,
    kind: TableFormat | None,
    text: str | None,
    name: str | None,
    schema: Path | None,
    backbone: str | None,
    weights: Path | None,
    batch: int,
    skip_broken: bool,
) -> None:
    """Predict classes of new samples, one line per sample.

    An INPUT is what the backbone of the model takes: an image or a folder of images, a table with
    a column of texts or a .txt file with a text in each line, a table with the columns of the
    model's schema; or a file of feature vectors (.npz, .safetensors, .csv). Labels are not needed.
    If the model knows the names of its columns, a table with names may have them in any order.

    A line has the item, the class (its number and name), and a probability or a score for each
    class; of a regression the item and its numbers. The item is the path of a file, else the
    number of a row from 1.

    Example: fedgram predict north.safetensors photos/ -o predictions.csv

    Example: fedgram predict north.safetensors new.csv --text review -o new.parquet
    """
    target = None if out is None else (out, format_of(out, kind))
    value = loaded(model)
    agreed = Schema.load(schema) if schema else _own_schema(value, model)
    data = NewData(
        backbone=backbone or "",
        weights=weights,
        near=model.parent,
        text=text,
        name=name,
        schema=agreed,
        columns=_own_columns(value, model),
        standardization=opened(value).standardization,
        batch=batch,
        broken="skip" if skip_broken else "refuse",
    )
    with consistent(model):
        head = replace(opened(value), model=predictor_of(value, model))
    found = _columns(head, model, inputs, data)
    numbers = bool(outputs_named(head.classes))
    if target is None:
        for number, each in enumerate(found):
            text = csv_text(each.columns, header=not number, full=numbers)
            click.echo(escaped(text, keep="\n"), nl=False)
        return
    count = 0
    with writer(*target, full=numbers) as write:
        for each in found:
            write(each.columns)
            count += each.rows
    say(f"{out}: {count} predictions", err=True)


def predicted(model: Path, data: str, schema: Path | None) -> tuple[Floats, tuple[str, ...]]:
    """Return the scores of a model file for the samples of a file, and its classes.

    Parameters
    ----------
    model
        File of the model.
    data
        File of the samples.
    schema
        File of the schema, if `data` is a table and the model file has none.
    """
    value = loaded(model)
    agreed = Schema.load(schema) if schema else _own_schema(value, model)
    with consistent(model):
        head = replace(opened(value), model=predictor_of(value, model))
        known = NewData(
            schema=agreed,
            columns=_own_columns(value, model),
            standardization=opened(value).standardization,
            near=model.parent,
        )
        batches = known.batches(data, head.space)
        scores = [_scores(head, batch.features, model) for batch in batches]
    return np.concatenate(scores), tuple(head.classes)


def _own_schema(value: Any, path: Path) -> Schema | None:
    held = opened(value)
    if not held.schema:
        return None
    try:
        return Schema.parsed(held.schema)
    except Exception as error:
        raise DataError(f"{path}: its schema cannot be read ({error}); make it again") from error


def _own_columns(value: Any, path: Path) -> tuple[str, ...]:
    columns = opened(value).columns
    if not (isinstance(columns, tuple) and all(isinstance(name, str) for name in columns)):
        raise DataError(f"{path}: expected names of columns, got {columns!r:.80}; make it again")
    return columns


@dataclass(frozen=True, eq=False, kw_only=True)
class _Predictions:
    """Predictions of some samples, by column."""

    columns: dict[str, list[Any]]

    @property
    def rows(self) -> int:
        return len(self.columns["item"])


def _columns(
    head: SavedModel, model: Path, inputs: tuple[str, ...], data: NewData
) -> Iterator[_Predictions]:
    kind = "probability" if head.has_probabilities else "score"
    several = len(inputs) > 1
    for source in inputs:
        for batch in data.batches(source, head.space):
            for name in batch.skipped:
                say(f"skipped {name}", err=True)
            with consistent(model):
                scores = _scores(head, batch.features, model)
            named = [_item(source, name) for name in batch.names] if several else batch.names
            if outputs := outputs_named(head.classes):
                values = real(outputs, scores)
                columns = {each.name: values[:, k].tolist() for k, each in enumerate(outputs)}
                yield _Predictions(columns={"item": list(named), **columns})
                continue
            labels = scores.argmax(axis=1).tolist()
            yield _Predictions(
                columns={
                    "item": list(named),
                    "label": labels,
                    "name": [head.classes[label] for label in labels],
                    **{
                        f"{kind}_{name}": scores[:, k].tolist()
                        for k, name in enumerate(head.classes)
                    },
                }
            )


def _item(source: str, name: str) -> str:
    """Return the name of an item of one of several sources."""
    if name == source:
        return name
    return str(Path(source) / name) if Path(source).is_dir() else f"{source}:{name}"


def _scores(head: SavedModel, features: Features, model: Path) -> Floats:
    """Return probabilities of a calibrated model, else scores."""
    scores = head.probabilities(features) if head.has_probabilities else head(features)
    if scores.shape != (len(features), len(head.classes)):
        raise DataError(f"{model}: expected a score for each sample and each class; make it again")
    return scores
