"""Commands for tables: the schema that sites agree on, and the features of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from fedgram.cli.root import main, say
from fedgram.core import codec
from fedgram.data.items import Columns
from fedgram.data.sources import save
from fedgram.data.tabular.draft import draft as drafted
from fedgram.data.tabular.draft import draft_for_file
from fedgram.data.tabular.moments import Measured, measured, sum_measured, with_moments
from fedgram.data.tabular.reader import SPLIT, is_table, read_tables
from fedgram.data.tabular.schema import Schema
from fedgram.errors import ConfigError, DataError
from fedgram.features.grid import Grid
from fedgram.features.tabular import dataset, vectors
from fedgram.runtime import files
from fedgram.runtime.settings import propose
from fedgram.runtime.text import clean_name

PATH = click.Path(path_type=Path, dir_okay=False)
UNLABELLED = ", without labels: for 'fedgram predict'"
_HEADER = """\
# The schema that sites agree on before they share anything. This file is public.
# Review it: ranges and categories come from {source}.
#   a column of numbers     range = [low, high], outside = "refuse" or "clip"
#   a column of categories  values = [...], outside = "refuse" or "zero"
#   both                    missing = "refuse" or "indicate"
"""


_IDS = ("id", "index", "row", "unnamed: 0")  # names of columns that number the rows
_NAMED = 12  # columns that are listed


def _echo_used(columns: Sequence[str]) -> None:
    """Name the columns that become features, so that one that was left over is seen."""
    more = f" and {len(columns) - _NAMED} more" if len(columns) > _NAMED else ""
    say(
        f"columns that become features: {', '.join(columns[:_NAMED])}{more}; leave others out with "
        "--without NAME",
        err=True,
    )
    for name in columns:
        if name.lower() in _IDS or name.lower().endswith(("_id", " id")):
            say(
                f"warning: column {name!r} becomes a feature, but its name is that of an "
                f"identifier; use --without {name!r}, or --client {name!r}",
                err=True,
            )


def table_features(
    path: Path,
    out: Path,
    columns: Columns,
    grid: Grid,
    *,
    schema: Path | None,
    without: Sequence[str],
) -> None:
    """Write the features of a table.

    Parameters
    ----------
    path
        The table.
    out
        The feature file to write.
    columns
        Names of the columns with classes, clients and domains.
    grid
        Grid of the features.
    schema
        The schema; None to derive one from this table.
    without
        Columns to leave out if there is no schema.
    """
    named = [name for name in (columns.client, columns.domain) if name]
    names = next(read_tables(path)).columns
    labelled = True
    if schema:
        agreed = Schema.load(schema)
        labelled = agreed.label in names
        used = {agreed.label, SPLIT, *agreed.columns, *named}
        others = [name for name in names if name not in used]
        _echo_left_out(dict.fromkeys(others, "is not in the schema"))
    else:
        if columns.label not in names:
            raise DataError(
                f"{path}: column {columns.label!r} is missing; "
                f"{propose(columns.label, names)}; for "
                "rows without a class, give the --schema of the model's features"
            )
        agreed, left_out = draft_for_file(path, label=columns.label, without=[*named, *without])
        _echo_left_out(left_out)
        _echo_used(list(agreed.columns))
        kept = out.with_name(f"{out.stem}.schema.toml")
        files.write(kept, agreed.toml())
        say(
            f"no --schema: scales and categories are from {path} only, and written to {kept}; for "
            "several sites see 'fedgram schema'",
            err=True,
        )
    rows = read_tables(path)
    data = dataset(agreed, rows, columns, grid) if labelled else vectors(agreed, rows, grid)
    save(out, data, schema=agreed.toml())
    unknown = "" if labelled else UNLABELLED
    say(f"{out}: {len(data.x)} samples, {data.x.shape[1]} features, {agreed.backbone}{unknown}")


def require_table(source: str) -> Path:
    """Return the path of a table; raise ConfigError for other data."""
    path = Path(source)
    if not is_table(path):
        raise ConfigError(f"{source}: not a table; expected a .csv, .jsonl or .parquet file")
    return path


@main.group()
def schema() -> None:
    """Agree on the meaning of the columns of tables."""


@schema.command()
@click.argument("table")
@click.option("-o", "--out", type=PATH, required=True, help="TOML file to write.")
@click.option("--label", default="label", show_default=True, help="Column of classes.")
@click.option("--without", multiple=True, help="Column to leave out; may be repeated.")
def draft(table: str, out: Path, label: str, without: tuple[str, ...]) -> None:
    """Draft a schema from one table, for people to review.

    The draft contains the names of the columns, the classes and categories that occur, the range
    of each number rounded outwards, and which columns have missing values. Make it from a table
    whose owner agrees to that, or write the schema from public knowledge.

    Example: fedgram schema draft north.csv --label outcome --without id -o draft.toml
    """
    path = require_table(table)
    agreed, left_out = drafted(read_tables(path), label=label, without=without)
    files.write(out, _HEADER.format(source=path.name) + agreed.toml())
    _echo_left_out(left_out)
    say(f"{out}: {len(agreed.columns)} columns, {len(agreed.classes)} classes; review it")


@schema.command()
@click.argument("schema", type=PATH)
@click.argument("table")
@click.option("--client", required=True, help="Name of this site.")
@click.option("-o", "--out", type=PATH, required=True, help="File to write.")
def measure(schema: Path, table: str, client: str, out: Path) -> None:
    """Write this site's count, sum and sum of squares of each number.

    The file may leave the site: it reveals the mean and deviation of each column, and nothing about
    single rows unless there are very few. Test rows (split 2) are not included.

    Example: fedgram schema measure draft.toml north.csv --client north -o north.moments
    """
    agreed = Schema.load(schema)
    if not agreed.pending:
        raise ConfigError(f"{schema}: all numbers have a mean and deviation; nothing to measure")
    moments = measured(agreed, read_tables(require_table(table)))
    client = clean_name(client, "--client")
    codec.save(out, Measured(client=client, moments=moments))
    rows = max(moments.count)
    say(f"{out}: {rows} rows of {client}, {out.stat().st_size} bytes")


@schema.command()
@click.argument("schema", type=PATH)
@click.argument("moments", nargs=-1, required=True, type=PATH)
@click.option("-o", "--out", type=PATH, required=True, help="The .toml file to write.")
def settle(schema: Path, moments: tuple[Path, ...], out: Path) -> None:
    """Write the mean and deviation over all sites into the schema.

    MOMENTS are files of 'fedgram schema measure', in any order.

    Example: fedgram schema settle draft.toml north.moments south.moments -o agreed.toml
    """
    agreed = Schema.load(schema)
    total = sum_measured(agreed, _measured(moments))
    final = with_moments(agreed, total)
    rows, clients = max(total.count), len(moments)
    files.write(out, f"# Mean and deviation of {rows} rows of {clients} clients.\n" + final.toml())
    say(f"{out}: {rows} rows of {clients} clients, {final.backbone}")


def _measured(paths: tuple[Path, ...]) -> Iterator[Measured]:
    for path in paths:
        part = codec.load(path)
        if not isinstance(part, Measured):
            raise DataError(f"{path}: not a file of 'fedgram schema measure'; make it again")
        yield part


def _echo_left_out(columns: Mapping[str, str]) -> None:
    for name, why in columns.items():
        say(f"left out: {name!r} {why}", err=True)
