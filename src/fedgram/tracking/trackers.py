"""Trackers with three calls: init, log, finish.

trackio and W&B have these calls themselves. MLflow and TensorBoard get them by small adapters.
Nothing is sent anywhere unless the tracker's own environment variables say so.
"""

from __future__ import annotations

import importlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from fedgram.errors import ConfigError, FedgramError

PROJECT = "fedgram"
Log = Callable[[int, Mapping[str, Any]], None]
_LONGEST = 500  # characters of a parameter in MLflow


class Tracker(Protocol):
    """The calls that trackers share."""

    def init(self, *, project: str, name: str, config: Mapping[str, Any]) -> Any:
        """Begin a run."""

    def log(self, metrics: Mapping[str, float], step: int) -> Any:
        """Record numbers of a round."""

    def finish(self) -> Any:
        """End the run."""


@contextmanager
def track(
    tracker: str, name: str, config: Mapping[str, Any], folder: Path | None
) -> Iterator[Log | None]:
    """Yield a function that records the scores of a round; None without a tracker.

    A tracker that cannot begin is an error. One that fails later is a warning, and the run goes on.

    Parameters
    ----------
    tracker
        Name of the tracker, or empty.
    name
        Name of the run.
    config
        Settings of the run, nested.
    folder
        Folder in which trackers write files; None for the folder of this process.
    """
    if not tracker:
        yield None
        return
    try:
        chosen = TRACKERS[tracker](folder or Path())
        chosen.init(project=PROJECT, name=name, config=_flat(config))
    except ImportError as error:
        raise ConfigError(
            f"tracker = {tracker!r} needs the package {error.name}: pip install "
            f"{_PACKAGES[tracker]}"
        ) from error
    except FedgramError:
        raise
    except Exception as error:  # trackers raise many types
        raise ConfigError(f"tracker = {tracker!r}: cannot begin a run ({error})") from error
    try:
        yield lambda step, scores: _guarded(
            tracker, lambda: chosen.log(_numbers(scores), step=step)
        )
    finally:
        _guarded(tracker, chosen.finish)


def _guarded(tracker: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except Exception as error:
        warnings.warn(
            f"tracker {tracker} failed ({type(error).__name__}: {error}); the run goes on",
            RuntimeWarning,
            stacklevel=2,
        )


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one level with dotted names; lists become texts."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            plain = value is None or isinstance(value, str | int | float | bool)
            found[f"{prefix}{key}"] = value if plain else json.dumps(value, default=str)
    return found


def _numbers(scores: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a summary by name: accuracy/client_mean, bytes/up, seconds."""
    return {
        key.replace(".", "/"): float(value)
        for key, value in _flat(scores).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _module(name: str, **options: Any) -> Any:
    """Return a tracker that is a module with the three calls."""
    module = importlib.import_module(name)

    class ModuleTracker:
        def init(self, *, project: str, name: str, config: Mapping[str, Any]) -> None:
            module.init(project=project, name=name, config=dict(config), **options)

        def log(self, metrics: Mapping[str, float], step: int) -> None:
            module.log(dict(metrics), step=step)

        def finish(self) -> None:
            module.finish()

    return ModuleTracker()


def _trackio(_: Path) -> Tracker:
    tracker: Tracker = _module("trackio")
    return tracker


def _wandb(folder: Path) -> Tracker:
    folder.mkdir(parents=True, exist_ok=True)
    mode = os.environ.get("WANDB_MODE", "offline")
    tracker: Tracker = _module("wandb", mode=mode, dir=str(folder))
    return tracker


class MLflow:
    """MLflow, by default with its file store in ``mlruns``."""

    def __init__(self, folder: Path) -> None:
        # MLflow reports its use over the network unless this is set before it is loaded.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        self._mlflow: Any = importlib.import_module("mlflow")
        self._folder = folder

    def init(self, *, project: str, name: str, config: Mapping[str, Any]) -> None:
        """Begin a run with its settings as parameters."""
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow prefers a database
            store = (self._folder / "mlruns").resolve()
            self._mlflow.set_tracking_uri(store.as_uri())
        self._mlflow.set_experiment(project)
        self._mlflow.start_run(run_name=name)
        given = {key: str(value)[:_LONGEST] for key, value in config.items()}
        items = list(given.items())
        for start in range(0, len(items), 100):  # of one request
            self._mlflow.log_params(dict(items[start : start + 100]))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record numbers of a round."""
        self._mlflow.log_metrics(dict(metrics), step=step)

    def finish(self) -> None:
        """End the run."""
        self._mlflow.end_run()


class TensorBoard:
    """TensorBoard's event files in ``tensorboard``, by the writer of torch or of tensorboardX."""

    def __init__(self, folder: Path) -> None:
        try:
            module = importlib.import_module("torch.utils.tensorboard")
        except ImportError:
            module = importlib.import_module("tensorboardX")
        self._open: Any = module.SummaryWriter
        self._folder = folder
        self._writer: Any = None

    def init(self, *, project: str, name: str, config: Mapping[str, Any]) -> None:
        """Begin a run with its settings as a text."""
        self._writer = self._open(str(self._folder / "tensorboard" / project / name))
        rows = "\n".join(f"| {key} | {value} |" for key, value in config.items())
        self._writer.add_text("settings", f"| key | value |\n|---|---|\n{rows}")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record numbers of a round."""
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, step)

    def finish(self) -> None:
        """Close the file."""
        self._writer.close()


TRACKERS: Mapping[str, Callable[[Path], Tracker]] = {
    "trackio": _trackio,
    "wandb": _wandb,
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
}
_PACKAGES = {
    "trackio": "trackio",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "tensorboard": "tensorboardX",
}
