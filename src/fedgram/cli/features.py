"""From images, texts or tables to a feature file."""

from __future__ import annotations

from pathlib import Path

import click

from fedgram.cli.group import main
from fedgram.cli.screen import counting
from fedgram.data.items import Columns, read_items
from fedgram.experiment import config as configuration
from fedgram.features.backbones import find
from fedgram.features.backbones.registry import DEFAULTS
from fedgram.features.extract import Extraction


@main.command()
@click.argument("source")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), required=True, help="The .npz file to write."
)
@click.option("--backbone", help="By default one that fits: for images, texts or vectors.")
@click.option("--text", help="Column of texts in a table.")
@click.option("--label", default="label", show_default=True, help="Column of classes in a table.")
@click.option("--client", help="Column of clients in a table.")
@click.option("--domain", help="Column of domains in a table.")
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
    text: str | None,
    label: str,
    client: str | None,
    domain: str | None,
    workers: int,
    skip_broken: bool,
    overrides: tuple[str, ...],
) -> None:
    """Run a frozen backbone once and write its features, ready for 'fedgram run'.

    SOURCE is a folder of images (class/image, client/class/image or train/class/image), a table
    (.csv, .jsonl, .parquet), an .npz or .safetensors file, or a folder of MNIST or CIFAR files.
    Started again after a kill, it goes on where it stopped. Where OUT is there already, made by the
    same backbone on the same grid, only items that it does not hold are run.

    Example: fedgram features photos/ -o photos.npz
    """
    columns = Columns(text=text, label=label, client=client, domain=domain)
    items = read_items(source, columns)
    grid = configuration.load(None, overrides).grid
    chosen = find(backbone or DEFAULTS[items.kind])
    extraction = Extraction(
        backbone=chosen,
        grid=grid,
        workers=workers,
        broken="skip" if skip_broken else "refuse",
    )
    with counting(chosen.name, len(items)) as count:
        done = extraction.run(items, out, count)
    for name in done.skipped:
        click.echo(f"skipped {name}", err=True)
    before = f", {done.reused} of them as they were" if done.reused else ""
    click.echo(f"{out}: {len(items) - len(done.skipped)} samples, {chosen.name}{before}")
