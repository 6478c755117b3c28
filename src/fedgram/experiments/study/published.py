"""Published numbers of papers, to compare with ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from fedgram.errors import ConfigError
from fedgram.experiments import config
from fedgram.experiments.measures import measure
from fedgram.experiments.study.axes import as_list, as_table, as_text, known
from fedgram.experiments.study.cells import Cell
from fedgram.runtime.settings import propose

_KEYS = ("source", "backbone", "measure", "parameter", "columns", "rows", "remarks")
_CONDITIONS = ("dataset", "clients", "dirichlet", "method", "value")


@dataclass(frozen=True, kw_only=True)
class PublishedNumbers:
    """The numbers of one published table.

    Parameters
    ----------
    source
        Authors, title, and the number of the table.
    backbone
        What made the features there.
    measure, parameter
        What the numbers are, and which parameter varies, if one does.
    numbers
        Conditions on a cell, and the number it has under them.
    remarks
        What else is published of it.
    """

    source: str
    backbone: str
    measure: str
    parameter: str | None
    numbers: tuple[tuple[Mapping[str, Any], float], ...]
    remarks: tuple[str, ...]

    def number(self, cell: Cell, measure: str) -> float | None:
        """Return the published number that belongs to a cell, where there is one."""
        if (measure, cell.place.parameter) != (self.measure, self.parameter):
            return None
        for conditions, number in self.numbers:
            if all(_fits(cell, key, expected) for key, expected in conditions.items()):
                return number
        return None


def load(name: str) -> PublishedNumbers:
    """Return published numbers: of fedgram's own by name, or of a TOML file."""
    if name.endswith(".toml"):
        return _read(config.read_toml(Path(name)), name)
    folder = resources.files("fedgram.experiments.study") / "published"
    ours = sorted(file.name.removesuffix(".toml") for file in folder.iterdir())
    if name not in ours:
        raise ConfigError(f"table.published: unknown {name!r}; {propose(name, ours)}")
    with resources.as_file(folder / f"{name}.toml") as path:
        return _read(config.read_toml(path), name)


def _read(content: Mapping[str, Any], where: str) -> PublishedNumbers:
    known(content, _KEYS, f"{where}: ")
    columns = [as_table(c, where) for c in as_list(content.get("columns", [{}]), where)]
    numbers: list[tuple[Mapping[str, Any], float]] = []
    for row in as_list(content.get("rows", []), where, empty=True):
        conditions = dict(as_table(row, where))
        values = as_list(conditions.pop("values", []), where, empty=True)
        if len(values) != len(columns) or not all(isinstance(v, int | float) for v in values):
            raise ConfigError(f"{where}: {conditions}: expected one number for each column")
        for column, value in zip(columns, values, strict=True):
            known({**column, **conditions}, _CONDITIONS, f"{where}: ")
            numbers.append(({**column, **conditions}, float(value)))
    remarks = as_list(content.get("remarks", []), where, empty=True)
    return PublishedNumbers(
        source=as_text(content.get("source"), f"{where}: source"),
        backbone=as_text(content.get("backbone"), f"{where}: backbone"),
        measure=measure(as_text(content.get("measure", "client_mean"), f"{where}: measure")).name,
        parameter=content.get("parameter"),
        numbers=tuple(numbers),
        remarks=tuple(as_text(remark, f"{where}: remarks") for remark in remarks),
    )


def _fits(cell: Cell, key: str, expected: Any) -> bool:
    plan = cell.plan
    if key == "dataset":  # cifar100_vit.npz is CIFAR-100
        return _normalized(cell.place.dataset).startswith(_normalized(str(expected)))
    if key == "dirichlet":
        return plan.partition == "dirichlet" and bool(plan.dirichlet == expected)
    found = {"clients": plan.clients, "method": cell.place.method, "value": cell.place.value}
    return bool(found[key] == expected)


def _normalized(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
