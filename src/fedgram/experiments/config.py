"""A run's configuration: TOML tables made into dataclasses; unknown keys are errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from fedgram.data.dataset import REGRESSION, Dataset
from fedgram.data.plan import PartitionPlan, stated
from fedgram.data.sources import load_dataset
from fedgram.errors import ConfigError
from fedgram.experiments.record import Record
from fedgram.experiments.result import Result
from fedgram.experiments.runner import ScoringSchedule, run
from fedgram.features.grid import Grid
from fedgram.federation.earlier_names import SETTINGS_VERSION, upgraded
from fedgram.federation.federated_dataset import FederatedDataset
from fedgram.federation.method import (
    Method,
    create_method,
    find_method,
    method_name,
    names,
    parameters,
)
from fedgram.federation.scoring import Metrics
from fedgram.runtime.files import read_text
from fedgram.runtime.parse import MOST_TOML, toml_table
from fedgram.runtime.settings import build, propose

VERSION = SETTINGS_VERSION
TRACKERS = ("trackio", "wandb", "mlflow", "tensorboard")
OnReply = Callable[[str, int, int], None]
OnRound = Callable[[int], None]
RENAMED = {("metrics", "whole"): "global_test"}  # keys of earlier configurations
KeepModels = Literal["none", "best", "all"]
DEFAULT_METHODS = ("local", "afl", "fedhip", "apfl", "auto")


@dataclass(frozen=True, kw_only=True)
class Data(PartitionPlan):
    """Where the samples come from, what is predicted, and how the samples are partitioned.

    Parameters
    ----------
    source
        digits, a file of features or images, a folder of MNIST or CIFAR files, or
        synthetic:ALPHA,BETA, the heterogeneous data of FedProx and pFedMe, whose own clients are
        data.partition=given.
    task
        "classification", or "regression" for numbers; without it classification.
    output_range
        For a regression the lowest and highest possible value of the outputs; without it, the range
        of the data, with a warning.
    """

    source: str = "digits"
    task: Literal["classification", "regression"] | None = None
    output_range: tuple[float, float] | None = None

    def load(self) -> Dataset:
        """Return the data set."""
        return load_dataset(self.source, task=self.task, output_range=self.output_range)


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How the federation is simulated.

    Parameters
    ----------
    kind
        "process" for clients in this process, "ray" for clients in Ray workers.
    address
        Where Ray runs: "local" to start it on this machine, "auto" for the cluster that this
        machine is part of, or the address of a cluster.
    workers
        Number of clients that compute at the same time, or of Ray workers.
    private
        Show the server sums only, as under secure aggregation.
    seed
        Seed of the methods' random numbers.
    dropout
        Probability that a client does not answer a request during training.
    secure
        Use secure aggregation: the server cannot see more than sums. Implies `private`.
    threshold
        Secure aggregation needs answers of more than this fraction of the clients until its end.
    """

    workers: int = 1
    private: bool = False
    seed: int = 0
    dropout: float = 0.0
    secure: bool = False
    threshold: float = 2 / 3
    kind: Literal["process", "ray"] = "process"
    address: str = "local"

    def __post_init__(self) -> None:
        if self.kind == "ray" and self.secure:
            raise ConfigError(
                "engine.kind = 'ray', engine.secure = true: secure sums run in one process; use "
                "one of the two settings"
            )
        if not 0.5 <= self.threshold < 1:
            raise ConfigError(f"engine.threshold = {self.threshold}: use 0.5 <= threshold < 1")


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a run.

    Parameters
    ----------
    data, grid, engine, metrics, scoring
        Tables of settings.
    methods
        Names of methods, or paths of ``.py`` files with one.
    keep_models
        Models that are written with a record. none: no models. best: what each method shares, and
        the clients' own models of the method with the highest client mean. all: all models.
    calibrate
        Write models that give probabilities: the method is fitted a few more times, each time
        without a part of the training samples, and two numbers that turn scores into probabilities
        maximize the likelihood of the left-out samples. auto has probabilities without this.
    tracker
        Where the run is recorded too: trackio, wandb, mlflow or tensorboard; empty for nowhere.
    every
        A parameter for each method that has it, as every.FIELD.
    method
        Parameters of one method, as method.NAME.FIELD.

    Examples
    --------
    >>> config = read({"data": {"clients": 5}, "methods": ["afl"]})
    >>> config.data.clients, config.methods
    (5, ('afl',))
    >>> read({"data": {"client": 5}})
    Traceback (most recent call last):
    ...
    fedgram.errors.ConfigError: data.client is not a setting; did you mean 'clients'?
    """

    data: Data = Data()
    grid: Grid = Grid()
    engine: EngineConfig = EngineConfig()
    metrics: Metrics = Metrics()
    scoring: ScoringSchedule = ScoringSchedule()
    methods: tuple[str, ...] = DEFAULT_METHODS
    keep_models: KeepModels = "best"
    calibrate: bool = False
    tracker: str = ""
    every: Mapping[str, Any] = field(default_factory=dict)
    method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def make(self, name: str) -> Method[Any]:
        """Return the method of this name with its settings, and those of every method.

        It is created once: methods are frozen values.
        """
        if name not in self._created:
            has = {parameter.name for parameter in parameters(find_method(name))}
            common = {key: value for key, value in self.every.items() if key in has}
            self._created[name] = create_method(name, {**common, **self.method.get(name, {})})
        return self._created[name]

    @cached_property
    def _created(self) -> dict[str, Method[Any]]:
        return {}

    def about(self, name: str) -> dict[str, Any]:
        """Return method, parameters and configuration, as they are recorded for a run."""
        parameters = self.make(name).settings()
        return {"method": name, "parameters": parameters, "config": self.to_dict()}

    def run(
        self,
        name: str,
        federation: FederatedDataset,
        *,
        record: Record,
        on_reply: OnReply | None = None,
        on_round: OnRound | None = None,
    ) -> Result:
        """Run the method of this name on a federation with these settings."""
        return run(
            self.make(name),
            federation,
            name=name,
            seed=self.engine.seed,
            workers=self.engine.workers,
            private=self.engine.private,
            dropout=self.engine.dropout,
            threshold=self.engine.threshold if self.engine.secure else None,
            ray=self.engine.address if self.engine.kind == "ray" else None,
            metrics=self.metrics,
            scoring=self.scoring,
            record=record,
            on_reply=on_reply,
            on_round=on_round,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as in a TOML file."""
        return {
            "version": VERSION,
            "data": stated(asdict(self.data)),
            "grid": asdict(self.grid),
            "engine": asdict(self.engine),
            "metrics": asdict(self.metrics),
            "scoring": asdict(self.scoring),
            "methods": list(self.methods),
            "every": dict(self.every),
            "method": {name: dict(values) for name, values in self.method.items()},
        }


TABLES: Mapping[str, type[Any]] = {
    "data": Data,
    "grid": Grid,
    "engine": EngineConfig,
    "metrics": Metrics,
    "scoring": ScoringSchedule,
}


def read(settings: Mapping[str, Any]) -> Config:
    """Return the configuration of nested plain settings; an invalid one raises ConfigError."""
    known = ["version", *(f.name for f in fields(Config))]
    for key in settings:
        if key not in known:
            raise ConfigError(f"{key} is not a setting; {_meant(key, known)}")
    version = settings.get("version", VERSION)
    if version not in range(1, VERSION + 1):
        raise ConfigError(
            f"the configuration has version {version}, this fedgram reads versions 1 to {VERSION}; "
            "upgrade fedgram"
        )
    settings = upgraded(renamed(settings))
    grid = settings.get("grid", {})
    engine = settings.get("engine", {})
    values = {
        **settings,
        "grid": {"bits": grid} if isinstance(grid, str | int) else grid,
        "engine": {"kind": engine} if isinstance(engine, str) else engine,
    }
    built = {
        name: build(kind, _table(values.get(name, {}), name), name) for name, kind in TABLES.items()
    }
    methods = settings.get("methods", list(DEFAULT_METHODS))
    if not isinstance(methods, list) or not methods or not all(isinstance(m, str) for m in methods):
        raise ConfigError("methods: expected a list of names, such as ['afl', 'apfl']")
    files = {  # a method of one's own is set by its name, as it is listed or as its file is called
        called: name
        for name in methods
        if name.endswith(".py")
        for called in (method_name(name), Path(name).stem)
    }
    method = {
        name if name in methods else files.get(name, name): _table(table, f"method.{name}")
        for name, table in _table(settings.get("method", {}), "method").items()
    }
    every = _table(settings.get("every", {}), "every")
    if built["data"].task == REGRESSION and settings.get("calibrate"):
        raise ConfigError(
            "calibrate = true: expected classes, got data.task = 'regression'; models of numbers "
            "have no probabilities: leave calibrate out"
        )
    config = Config(
        **built,
        methods=tuple(dict.fromkeys(methods)),
        keep_models=_keep_models(settings.get("keep_models", "best")),
        calibrate=_flag(settings.get("calibrate", False), "calibrate"),
        tracker=_tracker(settings.get("tracker", "")),
        every=every,
        method=method,
    )
    for key in every:
        has = sorted({p.name for name in names() for p in parameters(find_method(name))})
        if key not in has:
            raise ConfigError(f"every.{key}: no method has this parameter; {propose(key, has)}")
    for name in {*config.methods, *config.method}:
        config.make(name)
    return config


def _keep_models(value: Any) -> KeepModels:
    known = get_args(KeepModels)
    if value not in known:
        raise ConfigError(f"keep_models = {value!r}: expected one of {', '.join(known)}")
    chosen: KeepModels = value
    return chosen


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} = {value!r}: expected true or false")
    return value


def _tracker(value: Any) -> str:
    if value not in ("", *TRACKERS):
        raise ConfigError(f"tracker = {value!r}: unknown; {propose(str(value), TRACKERS)}")
    return str(value)


def renamed(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings with today's keys, and warn about each renamed one.

    Examples
    --------
    >>> import warnings
    >>> with warnings.catch_warnings(record=True, action="always") as found:
    ...     renamed({"metrics": {"whole": False}})
    {'metrics': {'global_test': False}}
    >>> str(found[0].message)
    'metrics.whole is now called metrics.global_test'
    """
    for (name, old), new in RENAMED.items():
        table = settings.get(name)
        if not isinstance(table, Mapping) or old not in table:
            continue
        if new in table:
            raise ConfigError(f"{name}.{old} is now called {name}.{new}; remove {name}.{old}")
        warnings.warn(f"{name}.{old} is now called {name}.{new}", FutureWarning, stacklevel=2)
        rest = {key: value for key, value in table.items() if key != old}
        settings = {**settings, name: {**rest, new: table[old]}}
    return settings


def _meant(key: str, known: Sequence[str]) -> str:
    """Return the key that is meant, also one whose table was left out."""
    tables = {"data": Data, "grid": Grid, "engine": EngineConfig}
    inside = [name for name, kind in tables.items() if key in {f.name for f in fields(kind)}]
    return f"did you mean '{inside[0]}.{key}'?" if inside else propose(key, known)


def load(path: Path | None, overrides: Iterable[str] = (), methods: Iterable[str] = ()) -> Config:
    """Return the configuration of a TOML file, changed by ``key=value`` texts."""
    settings = read_toml(path) if path else {}
    for text in overrides:
        override(settings, text)
    if chosen := list(methods):
        settings["methods"] = chosen
    return read(settings)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file."""
    try:
        return toml_table(read_text(path, most=MOST_TOML))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid TOML ({error}); the README has an example") from error


def override(settings: dict[str, Any], text: str) -> None:
    """Change nested settings by one ``key=value`` text."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text!r}: write key=value, such as data.clients=50")
    *tables, last = [part.strip() for part in key.split(".")]
    node = settings
    for name in tables:
        node = node.setdefault(name, {})
        if not isinstance(node, dict):
            raise ConfigError(f"--set {text!r}: {name} is a value, not a table")
    node[last] = _value(value.strip())


def _value(text: str) -> Any:
    """Return a TOML value; any other text is a string, so that quotes may be left out."""
    try:
        return toml_table(f"value = {text}")["value"]
    except ValueError:
        return text


def _table(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} = {value!r}: expected a table, such as {name}.key = value")
    return value
