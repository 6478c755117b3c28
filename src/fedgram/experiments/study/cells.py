"""From a table's settings to its cells, and from cells to the runs they need.

A run is identified by a digest of everything that determines it: the samples' bytes, their split
and partition, the grid, the engine's seed, and the method with all its parameters. Names of rows
and columns, titles, paths and the number of processes do not count, nor does fedgram's version:
finished runs stay valid after an upgrade, and a note below the table lists the versions if there
are several.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from fedgram.core import codec
from fedgram.data.dataset import Dataset
from fedgram.experiments import config
from fedgram.experiments.study.axes import RUN_TABLES, AxisValue, MethodRow, Sweep
from fedgram.experiments.study.settings import Study, merged
from fedgram.federation.method import Method

DIGITS = 16
LONGEST_SLUG = 100
NAMES_IN_DIGESTS = {"apfl-linear": "apfl"}  # parameters distinguish the two


@dataclass(frozen=True, kw_only=True)
class Source:
    """Description of a data set that is not in memory."""

    digest: str
    samples: int
    features: int
    classes: int
    itemsize: int

    @classmethod
    def of(cls, data: Dataset) -> Source:
        """Return the description of loaded data; their name does not count."""
        return cls(
            digest=digest_of(data),
            samples=len(data),
            features=data.x.shape[1],
            classes=len(data.classes),
            itemsize=data.x.dtype.itemsize,
        )


def source_key(data: config.Data) -> str:
    """Return what a data set is read by: its source, and the range of a regression."""
    return data.source if data.task is None else f"{data.source} {data.task} {data.output_range}"


@dataclass(frozen=True, kw_only=True)
class CellKey:
    """The position of a cell: one value of every axis except seeds."""

    dataset: str
    clients: int | None
    partition: str
    method: str
    parameter: str | None = None
    value: Any = None


@dataclass(frozen=True, eq=False, kw_only=True)
class CellRun:
    """One run that a table needs.

    Parameters
    ----------
    settings
        Of this run alone, with one method.
    source
        The data it is run on.
    slug
        The readable part of its folder's name.
    """

    settings: config.Config
    source: Source
    slug: str

    @property
    def method(self) -> str:
        return self.settings.methods[0]

    @property
    def label(self) -> str:
        """Name of the method in messages."""
        return Path(self.method).stem

    @cached_property
    def made(self) -> Method[Any]:
        """The method with its parameters."""
        return self.settings.make(self.method)

    @property
    def rounds(self) -> int:
        """The configured number of rounds."""
        return self.made.number_of_rounds()

    @cached_property
    def digest(self) -> str:
        """Digest of everything that determines the result."""
        plain = self.settings.to_dict()
        plain["data"]["source"] = self.source.digest
        for name in ("workers", "kind", "address"):  # which change nothing
            del plain["engine"][name]
        plain["metrics"]["whole"] = plain["metrics"].pop("global_test")  # name in digests
        identity = {
            **{name: plain[name] for name in RUN_TABLES},
            "method": _identity(self.method),
            "parameters": self.made.settings(),
        }
        text = json.dumps(identity, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.slug}-{self.digest}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Cell:
    """One cell of the table with its runs, by seed."""

    place: CellKey
    runs: Mapping[int, CellRun]
    moved: bool = True

    @property
    def plan(self) -> config.Data:
        """How the samples are partitioned here, for any seed."""
        return next(iter(self.runs.values())).settings.data


def cells(table: Study, sources: Mapping[str, Source]) -> list[Cell]:
    """Return all cells of a table; cells that need the same run share it."""
    known: dict[str, CellRun] = {}
    found = []
    axes = (_swept(table), table.datasets, table.clients, table.partitions, table.methods)
    for (sweep, value), dataset, clients, partition, entry in product(*axes):
        point = _Point(
            table=table,
            dataset=dataset,
            clients=clients,
            partition=partition,
            entry=entry,
            sweep=sweep,
            value=value,
        )
        runs = {seed: point.run(seed, sources) for seed in table.seeds}
        shared = {seed: known.setdefault(run.digest, run) for seed, run in runs.items()}
        found.append(Cell(place=point.place, runs=shared, moved=point.moved))
    return found


def needed(some: Iterable[Cell]) -> list[CellRun]:
    """Return the runs of these cells, each once: all of the first seed, then of the next."""
    ordered: dict[str, CellRun] = {}
    some = list(some)
    for seed in dict.fromkeys(seed for cell in some for seed in cell.runs):
        for cell in some:
            if seed in cell.runs:
                ordered.setdefault(cell.runs[seed].digest, cell.runs[seed])
    return list(ordered.values())


def digest_of(data: Dataset) -> str:
    """Return the digest of a data set's arrays, wherever they were read from."""
    named = ("name", "columns", "labels")  # which change no result
    parts = {f.name: getattr(data, f.name) for f in fields(data) if f.name not in named}
    if data.standardize is None:  # digests of earlier runs do not have it
        del parts["standardize"]
    if data.targets is None:
        del parts["task"], parts["targets"]
    return codec.digest(parts)


def slug(text: str) -> str:
    """Return a text as part of a file name that is the same on every system.

    Examples
    --------
    >>> slug("AFL (ridge 0.1) / Köln")
    'afl-ridge-0.1-koln'
    >>> slug("../..")
    'x'
    """
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9.]+", "-", plain).strip("-.")[:LONGEST_SLUG].strip("-.") or "x"


@dataclass(frozen=True, eq=False, kw_only=True)
class _Point:
    """One value of every axis except seeds, with the settings behind it."""

    table: Study
    dataset: AxisValue
    clients: int | None
    partition: AxisValue
    entry: MethodRow
    sweep: Sweep | None
    value: Any

    @property
    def moved(self) -> bool:
        return self.sweep is None or self.sweep.moves(self.entry)

    @property
    def place(self) -> CellKey:
        return CellKey(
            dataset=self.dataset.name,
            clients=self.clients,
            partition=self.partition.name,
            method=self.entry.name,
            parameter=self.sweep.parameter if self.sweep else None,
            value=self.value,
        )

    def run(self, seed: int, sources: Mapping[str, Source]) -> CellRun:
        built = config.read(self._settings(seed))
        clients = [] if built.data.clients is None else [f"{built.data.clients} clients"]
        value = [f"{self.sweep.parameter} {self.value}"] if self.sweep and self.moved else []
        words = [self.dataset.name, self.partition.name, *clients, f"seed {seed}", self.entry.name]
        readable = slug(" ".join([*words, *value]))
        return CellRun(settings=built, source=sources[source_key(built.data)], slug=readable)

    def _settings(self, seed: int) -> dict[str, Any]:
        """Return the settings of one run; later win: all, data set, partition, sweep, row."""
        table, method = self.table, self.entry.method
        shown = {measure.base for measure in table.show}
        # Testing every model on all test samples takes longer than solving a closed form.
        needed = {"metrics": {"global_test": "global_test" in shown, "auroc": "auroc" in shown}}
        layers = (table.shared, self.dataset.settings, self.partition.settings)
        chosen = merged(needed, *map(config.renamed, layers))
        swept = config.renamed(_nested(self.sweep.path, self.value)) if self.sweep else {}
        takes = self.entry.takes()
        parameters = merged(
            {key: given for key, given in table.every.items() if key in takes},
            chosen.pop("method", {}).get(method, {}),
            {key: given for key, given in swept.items() if key in takes},
            self.entry.settings,
        )
        axes = {
            "data": {"seed": seed, **({} if self.clients is None else {"clients": self.clients})},
            "engine": {"seed": seed},
        }
        moved = {key: given for key, given in swept.items() if key in RUN_TABLES}
        return merged(chosen, axes, moved, {"methods": [method], "method": {method: parameters}})


def _swept(table: Study) -> list[tuple[Sweep | None, Any]]:
    if not table.sweeps:
        return [(None, None)]
    return [(sweep, value) for sweep in table.sweeps for value in sweep.values]


def _nested(path: list[str], value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    result: dict[str, Any] = value
    return result


def _identity(method: str) -> str:
    """Return a method's name, or the content of the user's own file."""
    if not method.endswith(".py"):
        return NAMES_IN_DIGESTS.get(method, method)
    return f"sha256 {hashlib.sha256(Path(method).read_bytes()).hexdigest()}"
