"""Make a site's own model from what is shared, and read models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fedgram.cli.ledger import PATH, set_option
from fedgram.cli.root import main, say
from fedgram.core import codec
from fedgram.core.samples import Samples, concatenate
from fedgram.core.shared import Shared, part_for
from fedgram.core.sound import require_sound
from fedgram.core.targets import outputs_named
from fedgram.data.sources import load_schema
from fedgram.errors import ConfigError, DataError, FedgramError
from fedgram.experiments import config as configuration
from fedgram.export.card import write_personal_card
from fedgram.features.grid import Grid
from fedgram.features.standardize import is_standardized, require_means
from fedgram.federation.client import Client
from fedgram.federation.federated_dataset import training_batches
from fedgram.federation.shared import Published
from fedgram.models.saved import SavedModel, opened, saved


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
    held = opened(loaded(shared))
    published = held.model
    if not isinstance(published, Published):
        raise DataError(
            f"{shared}: holds a {type(published).__name__}; use what 'fedgram ledger solve' or "
            "'fedgram run --out' wrote"
        )
    with consistent(shared):
        made_by = published.name
    if name not in (None, published.method, made_by):
        raise ConfigError(f"{shared}: was made by {made_by}, not {name}; leave out -m")
    changes = configuration.load(None, overrides, [str(made_by)]).method
    with consistent(shared):
        method = published.make(changes.get(made_by, {}))
    common: Any = published.shared
    if not isinstance(published.shared, Shared):
        raise DataError(f"{shared}: {made_by} shares nothing to start from; use another")
    with consistent(shared):
        samples = _own_samples(held, common, data)
        samples = replace(samples, labels=samples.labels.relabel(common.classes))
        site = Client(id="site", train=samples, valid=samples.take([]))
        model = method.personalize(site, part_for(common, site.id))
    schema = held.schema or load_schema(data)
    known = None if changes.get(made_by) else held.calibration  # of the settings of the run
    codec.save(out, saved(replace(held, model=model, schema=schema, calibration=known)))
    write_personal_card(out, model, published, len(samples))
    say(f"{out}: a personal model from {len(samples)} samples")


def _own_samples(held: SavedModel, common: Any, source: str) -> Samples:
    """Return the samples of a site's file as the features of a shared model."""
    known, space = held.standardization, common.space
    ranges = [(output.low, output.high) for output in outputs_named(common.classes)]
    if is_standardized(space):
        require_means(known, space, source)
    return concatenate(
        list(
            training_batches(
                source,
                Grid.of(space),
                scaling=known,
                columns=held.columns,
                output_range=ranges or None,
            )
        )
    )


@contextmanager
def consistent(path: Path) -> Iterator[None]:
    """Raise DataError if a model of this file fails: its parts have other types or shapes."""
    try:
        yield
    except (FedgramError, MemoryError):
        raise
    except Exception as error:  # numpy and BLAS raise many types
        raise DataError(
            f"{path}: the parts of this model do not fit together ({error}); make it again"
        ) from error


def loaded(path: Path) -> Any:
    """Return the value in a file, which may come from elsewhere."""
    value = codec.load(path)
    require_sound(value, str(path))
    return value


def predictor_of(value: Any, path: Path) -> Any:
    """Return the model in the value of a file, which may be shared by all; see `loaded`."""
    head = opened(value).model
    if isinstance(head, Published | Shared):
        head = head.predictor()
    if not (callable(head) and hasattr(head, "space") and hasattr(head, "classes")):
        raise DataError(
            f"{path}: expected a model that predicts, got {_described(head)}; use what "
            "'fedgram personalize' wrote"
        )
    if not head.classes or not all(isinstance(name, str) for name in head.classes):
        raise DataError(f"{path}: expected a list of class names; make it again")
    return head


def _described(value: Any) -> str:
    return "a shared result without a model of its own" if value is None else type(value).__name__
