"""From images, texts or tables to a feature file."""

from __future__ import annotations

from pathlib import Path

import click

from fedgram.cli.root import main, say
from fedgram.cli.schema import PATH, UNLABELLED, require_table, table_features
from fedgram.cli.screen import counting
from fedgram.data.items import Columns, read_items
from fedgram.data.tabular.reader import is_table
from fedgram.errors import ConfigError
from fedgram.experiments import config as configuration
from fedgram.features.backbones import find
from fedgram.features.backbones.registry import DEFAULTS
from fedgram.features.extract import Extraction


@main.command()
@click.argument("source")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), required=True, help="The .npz file to write."
)
@click.option(
    "--backbone", help="Backbone; the default depends on the data: images, texts or vectors."
)
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    help="File of weights for hf:NAME or timm:NAME: safetensors, or a PyTorch state dict.",
)
@click.option("--text", help="Column of texts in a table.")
@click.option("--image", help="Column of images in a data set of the hub, if it has several.")
@click.option("--label", show_default="label", help="Column of classes in a table.")
@click.option("--client", help="Column of clients in a table.")
@click.option("--domain", help="Column of domains in a table.")
@click.option("--schema", type=PATH, help="Schema of the columns that the sites agreed on.")
@click.option("--without", multiple=True, help="Column to leave out; may be repeated.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Threads that decode images while the backbone runs.",
)
@click.option("--skip-broken", is_flag=True, help="Leave out images that cannot be read.")
@click.option(
    "-s", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a grid setting."
)
def features(
    source: str,
    out: Path,
    backbone: str | None,
    weights: Path | None,
    text: str | None,
    image: str | None,
    label: str | None,
    client: str | None,
    domain: str | None,
    schema: Path | None,
    without: tuple[str, ...],
    workers: int,
    skip_broken: bool,
    overrides: tuple[str, ...],
) -> None:
    """Run a frozen backbone once and write its features.

    SOURCE is a folder of images (class/image, client/class/image or train/class/image), a table
    (.csv, .jsonl, .parquet), an .npz or .safetensors file, a folder of MNIST or CIFAR files, or a
    data set of the Hugging Face hub (hf:NAME, or a folder written by save_to_disk).
    To continue an interrupted extraction, give the same command again. If OUT exists already, with
    the same backbone and grid, only new items are computed.

    Without classes (images directly in the folder, a table without the column) the features are
    for 'fedgram predict' only.

    The columns of a table without texts are standardized, with the schema of the sites if there is
    one ('fedgram schema'). --backbone identity leaves them unchanged.

    Example: fedgram features photos/ -o photos.npz
    """
    columns = Columns(text=text, image=image, label=label or "label", client=client, domain=domain)
    grid = configuration.load(None, overrides).grid
    if schema:
        _refuse(label=label, text=text, backbone=backbone, without=without)
    if schema or (is_table(Path(source)) and not (text or backbone)):
        path = require_table(source)
        table_features(path, out, columns, grid, schema=schema, without=without)
        return
    _refuse(without=without)
    items = read_items(source, columns, labels="required" if label else "optional")
    chosen = find(backbone or DEFAULTS[items.kind], weights)
    extraction = Extraction(
        backbone=chosen,
        grid=grid,
        workers=workers,
        broken="skip" if skip_broken else "refuse",
    )
    with counting(chosen.name, len(items)) as count:
        done = extraction.run(items, out, count)
    for name in done.skipped:
        say(f"skipped {name}", err=True)
    before = f", {done.reused} of them unchanged" if done.reused else ""
    unknown = UNLABELLED if items.y is None else ""
    say(f"{out}: {len(items) - len(done.skipped)} samples, {chosen.name}{before}{unknown}")


def _refuse(**options: object) -> None:
    """Raise ConfigError for options that would have no effect."""
    for name, value in options.items():
        if value:
            raise ConfigError(f"--{name}: not used with this schema or kind of data; leave it out")
