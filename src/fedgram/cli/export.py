"""Export models for programs without fedgram."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from fedgram.cli.ledger import PATH
from fedgram.cli.models import consistent, loaded, predictor_of
from fedgram.cli.root import OneOf, main, say
from fedgram.errors import ConfigError
from fedgram.export.folder import TARGETS, Target, export_model
from fedgram.features.new_data import backbone_of
from fedgram.models.saved import opened
from fedgram.runtime.text import size

FOLDER = click.Path(path_type=Path, file_okay=False)
INPUTS = ("image", "features", "grid")


@main.command()
@click.argument("model", type=PATH)
@click.option("--to", type=OneOf(TARGETS), required=True, help="What the files are for.")
@click.option("-o", "--out", type=FOLDER, help="Folder to write; default: MODEL-TO beside MODEL.")
@click.option(
    "--input",
    "given",
    type=OneOf(INPUTS),
    default="features",
    show_default=True,
    help="What the exported model takes: decoded images (with the backbone in the file), features "
    "as the backbone gives them, or the integers of a feature file.",
)
@click.option("--backbone", help="Backbone, if the model's is not found by its name: onnx:PATH.")
def export(model: Path, to: Target, out: Path | None, given: str, backbone: str | None) -> None:
    """Write a model for programs without fedgram, with a model card.

    onnx is one file that onnxruntime runs alone; torch is a program for torch.export.load; sklearn
    is a Python file with an estimator; safetensors are the arrays with their description. Grid,
    lift, heads, class prior and calibration are included. With --input image, decoded uint8 images
    of any size are resized and go through the backbone in the same ONNX file.

    Example: fedgram export runs/a/auto/models/c0.safetensors --to onnx --input image -o c0-onnx
    """
    if backbone and given != "image":
        raise ConfigError("--backbone: used with --input image only; leave it out")
    folder = out or model.with_name(f"{model.stem}-{to}")
    value = loaded(model)
    with consistent(model):
        head = replace(opened(value), model=predictor_of(value, model))
        found = None
        if given == "image":
            found = backbone_of(head.space, given=backbone or "", near=model.parent)
        done = export_model(
            head, folder, to=to, backbone=found, stored=given == "grid", source=model
        )
    first = done.files[0]
    extra = "scores and probabilities" if done.probabilities else "scores"
    extra = "numbers" if done.numbers else extra
    say(f"{first}: {size(first.stat().st_size)}, from {done.input} to {extra}; {done.files[-1]}")
