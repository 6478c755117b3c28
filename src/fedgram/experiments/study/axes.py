"""The axes of a table, as TOML gives them: data sets, partitions, clients, seeds, methods."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fedgram.data import synthetic
from fedgram.data.plan import PARTITIONS
from fedgram.errors import ConfigError
from fedgram.experiments import config
from fedgram.experiments.partition_summary import STRENGTHS, partition_name
from fedgram.federation.method import find_method, names, parameters
from fedgram.runtime.settings import propose

MOST_SEEDS = 10_000
RUN_TABLES = tuple(config.TABLES)


@dataclass(frozen=True, kw_only=True)
class AxisValue:
    """One data set or one partition, with the run settings that it brings."""

    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class MethodRow:
    """One row: a method with its own row name and fixed parameters."""

    name: str
    method: str
    settings: Mapping[str, Any]

    def takes(self) -> list[str]:
        """Return the names of the method's parameters."""
        return [parameter.name for parameter in parameters(find_method(self.method))]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A parameter of methods, or a run setting such as ``grid.bits``, and its values."""

    parameter: str
    values: tuple[Any, ...]
    name: str

    @property
    def path(self) -> list[str]:
        """The parameter's name, part by part."""
        return self.parameter.split(".")

    def moves(self, entry: MethodRow) -> bool:
        """Return whether a row changes with the parameter; otherwise it is constant."""
        head = self.path[0]
        return head in RUN_TABLES or (head in entry.takes() and not self._fixed(entry))

    def _fixed(self, entry: MethodRow) -> bool:
        node: Any = entry.settings
        for name in self.path:
            if not isinstance(node, Mapping) or name not in node:
                return False
            node = node[name]
        return True


def datasets(value: Any) -> tuple[AxisValue, ...]:
    """Return the data sets: a source each, or a table with a source and settings."""
    where, choices = "table.datasets", []
    for item in as_list(value, where):
        table = dict(as_table({"source": item} if isinstance(item, str) else item, where))
        if "source" not in table:
            raise ConfigError(f"{where} = {item!r}: expected a source, such as source = 'digits'")
        source = as_text(table["source"], f"{where}.source")
        given = source if source.startswith(f"{synthetic.NAME}:") else Path(source).stem
        name = as_text(table.pop("name", given), f"{where}.name")
        choices.append(AxisValue(name=name, settings=_brought(table, where, "source")))
    return _unique(choices, where)


def partitions(value: Any, data: Mapping[str, Any]) -> tuple[AxisValue, ...]:
    """Return the partitions: texts such as ``dirichlet 0.1``, or tables of data settings."""
    where, choices = "table.partitions", []
    for item in as_list(value, where):
        table = dict(as_table(_partition(item) if isinstance(item, str) else item, where))
        name = table.pop("name", None)
        settings = _brought(table, where)
        if name is None:
            name = partition_name({**asdict(config.Data()), **data, **settings["data"]})
        choices.append(AxisValue(name=as_text(name, f"{where}.name"), settings=settings))
    return _unique(choices, where)


def clients(value: Any) -> tuple[int | None, ...]:
    """Return the numbers of clients; None leaves it to the data settings."""
    if value is None:
        return (None,)
    numbers = as_list(value, "table.clients")
    if not all(_is_count(number) for number in numbers):
        raise ConfigError(f"table.clients = {value!r}: expected integers, such as [50, 100]")
    return tuple(dict.fromkeys(numbers))


def seeds(value: Any) -> tuple[int, ...]:
    """Return the seeds: a list of them, or how many."""
    if _is_count(value) and value > MOST_SEEDS:
        raise ConfigError(f"table.seeds = {value}: use at most {MOST_SEEDS}")
    numbers = list(range(value)) if _is_count(value) else value
    if not isinstance(numbers, list) or not numbers or not all(_is_count(n) for n in numbers):
        raise ConfigError(f"table.seeds = {value!r}: expected a number of seeds or a list of seeds")
    return tuple(dict.fromkeys(numbers))


def entries(value: Any) -> tuple[MethodRow, ...]:
    """Return the rows: methods by name, or tables with a method, a name and parameters."""
    where, rows = "table.methods", []
    for item in as_list(value, where):
        table = dict(as_table({"method": item} if isinstance(item, str) else item, where))
        if "method" not in table:
            raise ConfigError(f"{where}: {item!r} has no method; write method = 'afl'")
        method = as_text(table.pop("method"), f"{where}.method")
        name = as_text(table.pop("name", Path(method).stem), f"{where}.name")
        rows.append(MethodRow(name=name, method=method, settings=table))
    known = names()
    lacking = [row.method for row in rows if row.method not in known and row.method[-3:] != ".py"]
    if lacking:
        raise ConfigError(
            f"{where}: this fedgram has no method {', '.join(dict.fromkeys(lacking))} "
            f"({propose(lacking[0], known)}); upgrade fedgram, or choose methods with -m"
        )
    return _unique(rows, where)


def chosen(listed: Any, requested: Iterable[str]) -> list[Any]:
    """Return the listed rows of these names, and a method that is not listed by itself."""
    rows = listed if isinstance(listed, list) else []
    by_name = {_row_name(row): row for row in rows}
    return [by_name.get(name, name) for name in requested]


def sweeps(value: Any) -> tuple[Sweep, ...]:
    """Return the sweeps: one table, or a list of them."""
    found = []
    for item in as_list(value, "sweep", empty=True):
        table = as_table(item, "sweep")
        known(table, ("parameter", "values", "name"), "sweep.")
        if "parameter" not in table or "values" not in table:
            raise ConfigError("sweep: expected a parameter and its values")
        parameter = as_text(table["parameter"], "sweep.parameter")
        if parameter in ("data.source", "data.seed", "engine.seed"):
            raise ConfigError(f"sweep.parameter = {parameter!r}: use table.datasets or table.seeds")
        values = as_list(table["values"], "sweep.values")
        if not all(isinstance(value, str | int | float) for value in values):
            raise ConfigError(f"sweep.values = {values}: expected numbers or texts")
        name = as_text(table.get("name", parameter), "sweep.name")
        found.append(Sweep(parameter=parameter, values=tuple(dict.fromkeys(values)), name=name))
    return tuple(found)


def known(table: Mapping[str, Any], keys: Iterable[str], where: str) -> None:
    """Raise ConfigError for an unknown key, with the nearest known one."""
    keys = list(keys)
    for key in table:
        if key not in keys:
            raise ConfigError(f"{where}{key} is not a setting; {propose(key, keys)}")


def as_list(value: Any, where: str, *, empty: bool = False) -> list[Any]:
    """Return a list as it is, and anything else as a list of one."""
    items = value if isinstance(value, list) else [value]
    if not items and not empty:
        raise ConfigError(f"{where}: expected at least one value")
    return items


def words(value: Any, allowed: Iterable[str], where: str) -> tuple[str, ...]:
    """Return a list of words, each of which must be one of those allowed."""
    allowed = list(allowed)
    for word in as_list(value, where, empty=True):
        if word not in allowed:
            raise ConfigError(f"{where}: unknown {word!r}; {propose(str(word), allowed)}")
    return tuple(dict.fromkeys(as_list(value, where, empty=True)))


def as_table(value: Any, where: str) -> Mapping[str, Any]:
    """Return a table, refuse anything else."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} = {value!r}: expected a table, such as {where}.key = value")
    return value


def as_text(value: Any, where: str) -> str:
    """Return a text of one line with something in it, refuse anything else."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ConfigError(f"{where} = {value!r}: expected a text of one line")
    return value


def _row_name(row: Any) -> Any:
    return row.get("name", row.get("method")) if isinstance(row, Mapping) else row


def _partition(text: str) -> dict[str, Any]:
    found = re.fullmatch(r"(\S+)(?:\s+(\S+))?", text.strip())
    kind, strength = found.groups() if found else (text, None)
    if kind not in PARTITIONS:
        hint = propose(kind, PARTITIONS)
        raise ConfigError(f"table.partitions: unknown {text!r}; {hint}")
    if strength is None:
        return {"partition": kind}
    if kind not in STRENGTHS:
        raise ConfigError(f"table.partitions: {text!r}: {kind} takes no number")
    try:
        number = int(strength) if kind in ("shards", "classes") else float(strength)
    except ValueError:
        raise ConfigError(f"table.partitions: {text!r}: {strength!r} is not a number") from None
    return {"partition": kind, STRENGTHS[kind]: number}


def _brought(table: Mapping[str, Any], where: str, *more: str) -> dict[str, Any]:
    """Return the run settings of a choice: its keys are those of [data], or these tables."""
    axes = ("source", "clients", "seed")  # axes of the study
    keys = [field.name for field in fields(config.Data) if field.name not in axes]
    apart = ("grid", "method")
    known(table, [*more, *keys, *apart], f"{where}.")
    data = {key: value for key, value in table.items() if key not in apart}
    return {"data": data, **{k: as_table(table[k], f"{where}.{k}") for k in apart if k in table}}


def _unique(items: list[Any], where: str) -> tuple[Any, ...]:
    counts = Counter(item.name for item in items)
    for name in counts:
        if counts[name] > 1:
            raise ConfigError(f"{where}: {name!r} appears twice; give each a different name")
    return tuple(items)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
