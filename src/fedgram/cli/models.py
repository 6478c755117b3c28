"""Use models: solve a site's own, and predict."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from fedgram import codec, files
from fedgram.cli.group import main
from fedgram.cli.ledger import PATH, method_option, set_option, site_samples
from fedgram.client import Client
from fedgram.data.sources import Vectors, load_vectors
from fedgram.errors import DataError
from fedgram.features.grid import Grid
from fedgram.heads import Blend, Linear
from fedgram.samples import Features, Floats


@main.command()
@click.argument("shared", type=PATH)
@click.argument("data")
@click.option("-o", "--out", type=PATH, required=True, help="File to write the model to.")
@click.option("--client", default="site", help="Name of this site.")
@method_option
@set_option
def personalize(
    shared: Path, data: str, out: Path, client: str, name: str, overrides: tuple[str, ...]
) -> None:
    """Solve this site's own model from what is shared and its own samples.

    Example: fedgram personalize shared.safetensors north/features.npz -m apfl -o north.safetensors
    """
    method, samples = site_samples(data, name, overrides)
    site = Client(id=client, train=samples, valid=samples.take([]))
    model = method.personalize(site, codec.load(shared))
    codec.save(out, model)
    click.echo(f"{out}: a personal model from {len(samples)} samples")


@main.command()
@click.argument("model", type=PATH)
@click.argument("data")
@click.option("-o", "--out", type=PATH, help="File to write (.csv or .json); else to the screen.")
def predict(model: Path, data: str, out: Path | None) -> None:
    """Predict classes with scores: a line per sample.

    DATA is an .npz, .safetensors or .csv file of feature vectors.

    Example: fedgram predict north.safetensors new.csv -o predictions.csv
    """
    suffix = out.suffix if out else ".csv"
    if suffix not in (".csv", ".json"):
        raise DataError(f"{out}: predictions are written as .csv or .json")
    head = codec.load(model)
    if not isinstance(head, Linear | Blend):
        raise DataError(f"{model}: holds a {type(head).__name__}, not a model that predicts")
    classes = (head.first if isinstance(head, Blend) else head).classes
    scores = head(_on_grid(head, load_vectors(data), data))
    text = _csv(scores, classes) if suffix == ".csv" else _json(scores, classes)
    if out is None:
        click.echo(text, nl=False)
        return
    files.write(out, text)
    click.echo(f"{out}: {len(scores)} predictions", err=True)


def _on_grid(head: Linear | Blend, vectors: Vectors, source: str) -> Features:
    space = (head.first if isinstance(head, Blend) else head).space
    if vectors.x.shape[1] != space.inputs:
        raise DataError(
            f"{source}: vectors of {vectors.x.shape[1]} features, the model was made for "
            f"{space.inputs}"
        )
    return Grid.of(space)(
        vectors.x,
        scale=vectors.scale,
        offset=vectors.offset,
        backbone=vectors.backbone or space.backbone,  # a table of numbers does not say
    )


def _csv(scores: Floats, classes: tuple[str, ...]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["label", "name", *(f"score_{name}" for name in classes)])
    for row in scores:
        label = int(row.argmax())
        writer.writerow([label, classes[label], *(f"{score:.6g}" for score in row)])
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
