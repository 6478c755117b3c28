"""A study's settings: from TOML to axes; unknown keys are errors."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from fedgram.data.dataset import REGRESSION
from fedgram.errors import ConfigError
from fedgram.experiments import config
from fedgram.experiments.measures import COST_AXES, Measure, measure
from fedgram.experiments.study import axes
from fedgram.experiments.study.axes import RUN_TABLES, AxisValue, MethodRow, Sweep
from fedgram.federation.method import create_method, find_method, names
from fedgram.runtime.settings import propose

_TABLE = (
    *("title", "datasets", "partitions", "clients", "seeds", "methods"),
    *("show", "curves", "published", "keep_models"),
)


@dataclass(frozen=True, kw_only=True)
class Study:
    """All settings of a table.

    Parameters
    ----------
    title
        What stands above it.
    datasets, partitions, clients, seeds, methods
        The axes. A client number of None leaves it to ``data.clients`` and the partition.
    sweeps
        Parameters to vary; each makes a part of its own, with the values as columns.
    show
        Which numbers of a run.
    curves
        Costs against which accuracy is drawn round by round: rounds, seconds, flops, bytes.
    published
        Files of published numbers to stand beside ours, of fedgram's own by name.
    keep_models
        Record all models with every run.
    shared, every
        Settings of all runs; parameters for each method that has them.

    Examples
    --------
    >>> table = read({"table": {"partitions": ["dirichlet 0.1", "iid"], "methods": ["afl"]}})
    >>> [choice.name for choice in table.partitions], table.seeds
    (['dirichlet 0.1', 'iid'], (0, 1, 2))
    >>> read({"table": {"seed": 3}})
    Traceback (most recent call last):
    ...
    fedgram.errors.ConfigError: table.seed is not a setting; did you mean 'seeds'?
    """

    title: str
    datasets: tuple[AxisValue, ...]
    partitions: tuple[AxisValue, ...]
    clients: tuple[int | None, ...]
    seeds: tuple[int, ...]
    methods: tuple[MethodRow, ...]
    sweeps: tuple[Sweep, ...]
    show: tuple[Measure, ...]
    curves: tuple[str, ...]
    published: tuple[str, ...]
    keep_models: bool
    shared: Mapping[str, Any]
    every: Mapping[str, Any]

    @property
    def numbers(self) -> bool:
        """Whether the runs predict numbers."""
        return bool(self.shared.get("data", {}).get("task") == REGRESSION)


def load(
    name: str,
    overrides: Iterable[str] = (),
    *,
    sources: Iterable[str] = (),
    methods: Iterable[str] = (),
) -> Study:
    """Return the study of a TOML file or of a preset, changed by options of the command line."""
    is_file = name.endswith(".toml") or Path(name).is_file()
    settings = config.read_toml(Path(name)) if is_file else tomllib.loads(preset(name))
    for text in overrides:
        config.override(settings, text)
    table = settings.setdefault("table", {})
    if isinstance(table, dict):  # else it is refused below
        if given := [_source(text) for text in sources]:
            table["datasets"] = given
            if isinstance(settings.get("data"), dict):
                settings["data"].pop("source", None)
        if requested := list(methods):
            table["methods"] = axes.chosen(table.get("methods"), requested)
    return read(settings)


def presets() -> list[str]:
    """Return the names of the presets."""
    folder = resources.files("fedgram.experiments.study") / "presets"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir())


def preset(name: str) -> str:
    """Return the TOML text of a preset."""
    if name not in presets():
        hint = propose(name, presets())
        raise ConfigError(f"{name}: neither a .toml file nor a preset; {hint}")
    folder = resources.files("fedgram.experiments.study") / "presets"
    return (folder / f"{name}.toml").read_text(encoding="utf-8")


def title(name: str) -> str:
    """Return the title of a preset.

    Examples
    --------
    >>> title("fedhip-disjoint")
    'Clients whose classes do not overlap'
    """
    return str(tomllib.loads(preset(name))["table"]["title"])


def read(settings: Mapping[str, Any]) -> Study:
    """Return the study of nested plain settings; an invalid one raises ConfigError."""
    axes.known(settings, ("table", *RUN_TABLES, "method", "every", "sweep"), "")
    table = axes.as_table(settings.get("table", {}), "table")
    axes.known(table, _TABLE, "table.")
    shared = {
        key: axes.as_table(settings[key], key) for key in (*RUN_TABLES, "method") if key in settings
    }
    data = shared.get("data", {})
    numbers = data.get("task") == REGRESSION
    _refuse_what_axes_decide(table, shared)
    show = axes.as_list(table.get("show", "client_mean"), "table.show")
    published = axes.as_list(table.get("published", []), "table.published", empty=True)
    keep_models = table.get("keep_models", False)
    if not isinstance(keep_models, bool):
        raise ConfigError(f"table.keep_models = {keep_models!r}: expected true or false")
    result = Study(
        title=axes.as_text(table.get("title", "methods compared"), "table.title"),
        datasets=axes.datasets(table.get("datasets", data.get("source", "digits"))),
        partitions=axes.partitions(table.get("partitions", [{}]), data),
        clients=axes.clients(table.get("clients", data.get("clients"))),
        seeds=axes.seeds(table.get("seeds", 3)),
        methods=axes.entries(table.get("methods", list(config.DEFAULT_METHODS))),
        sweeps=axes.sweeps(settings.get("sweep", [])),
        show=tuple(
            measure(name, numbers=numbers)
            for name in dict.fromkeys(axes.as_text(name, "table.show") for name in show)
        ),
        curves=axes.words(table.get("curves", []), COST_AXES, "table.curves"),
        published=tuple(axes.as_text(name, "table.published") for name in published),
        keep_models=keep_models,
        shared=shared,
        every=axes.as_table(settings.get("every", {}), "every"),
    )
    _check(result)
    return result


def merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings, the later over the earlier.

    Examples
    --------
    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    total: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            both = isinstance(value, Mapping) and isinstance(total.get(key, {}), Mapping)
            total[key] = merged(total.get(key, {}), value) if both else value
    return total


def _source(text: str) -> Any:
    name, equals, source = text.partition("=")
    if equals and not Path(text).is_file():
        return {"name": name, "source": source}
    return text


def _refuse_what_axes_decide(table: Mapping[str, Any], shared: Mapping[str, Any]) -> None:
    for key in ("data", "engine"):
        if "seed" in shared.get(key, {}):
            raise ConfigError(f"{key}.seed: the runs differ in it; write table.seeds = [0, 1, 2]")
    for key, axis in (("source", "datasets"), ("clients", "clients")):
        if axis in table and key in shared.get("data", {}):
            raise ConfigError(f"data.{key} and table.{axis} are both given; leave one out")


def _check(table: Study) -> None:
    """Raise ConfigError for errors that no single run would notice."""
    _check_task(table)
    ours = {name for entry in table.methods for name in entry.takes()}
    for key in table.every:
        if key not in ours and key not in _parameters_of_all():
            hint = propose(key, sorted(ours))
            raise ConfigError(f"every.{key}: no method has this parameter; {hint}")
    choices = [table.shared, *(choice.settings for choice in (*table.datasets, *table.partitions))]
    for settings in choices:
        for name, parameters in settings.get("method", {}).items():
            create_method(name, axes.as_table(parameters, f"method.{name}"))
    for sweep in table.sweeps:
        if not any(sweep.moves(entry) for entry in table.methods):
            hint = propose(sweep.path[0], sorted(ours))
            raise ConfigError(
                f"sweep.parameter = {sweep.parameter!r}: no method has this parameter; {hint}"
            )
    rows = [entry.name for entry in table.methods]
    for shown in table.show:
        if shown.over is not None and shown.over not in rows:
            hint = propose(shown.over, rows)
            raise ConfigError(f"table.show: {shown.name!r}: no row is named {shown.over!r}; {hint}")


def _check_task(table: Study) -> None:
    """Raise ConfigError if classes and numbers would stand in one table."""
    for choice in (*table.datasets, *table.partitions):
        if "task" in choice.settings["data"]:
            raise ConfigError(f"{choice.name}: data.task: expected in [data], for the whole study")
    if not table.numbers:
        return
    data = table.shared["data"]
    for choice in table.datasets:
        if "output_range" not in {**data, **choice.settings["data"]}:
            raise ConfigError(
                f"{choice.name}: data.output_range: expected with data.task = 'regression' in a "
                "study, got none; write the lowest and highest possible output"
            )
    for row in table.methods:
        if not find_method(row.method).predicts_numbers:
            raise ConfigError(
                f"table.methods: {row.name}: expected a method for data.task = 'regression'; there "
                f"are: {', '.join(n for n in names() if find_method(n).predicts_numbers)}"
            )


def _parameters_of_all() -> set[str]:
    found: set[str] = set()
    for name in names():
        with suppress(ImportError):  # a method whose extra is not installed
            found.update(MethodRow(name=name, method=name, settings={}).takes())
    return found
