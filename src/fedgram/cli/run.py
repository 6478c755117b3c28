"""Run methods, and compare recorded runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from fedgram.cli.completion import complete_keys, complete_methods
from fedgram.cli.root import OneOf, main, say
from fedgram.cli.screen import OnReply, OnRound, print_runs, print_seeds, progress
from fedgram.core import codec
from fedgram.core.targets import outputs_named
from fedgram.data.dataset import Dataset
from fedgram.data.sources import load_schema
from fedgram.errors import ConfigError, DataError
from fedgram.experiments import config as configuration
from fedgram.experiments.calibration import calibration
from fedgram.experiments.config import TRACKERS, Config
from fedgram.experiments.gains import who_gains
from fedgram.experiments.partition_summary import partition_name
from fedgram.experiments.reader import read_runs
from fedgram.experiments.record import MODELS, MOST_LISTED, RUN, Record
from fedgram.experiments.resume import CARD, clear, forget_models, recorded
from fedgram.experiments.run_record import RunRecord
from fedgram.export.card import write_run_card
from fedgram.federation.federated_dataset import FederatedDataset, federate
from fedgram.federation.method import method_name
from fedgram.federation.shared import Published
from fedgram.models.model import Calibration
from fedgram.models.saved import SavedModel, opened, saved
from fedgram.tracking import track

KEEP = ("none", "best", "all")


@main.command()
@click.argument("source", required=False)
@click.option(
    "-m",
    "--method",
    "methods",
    multiple=True,
    shell_complete=complete_methods,
    help="Method to run, or a .py file with one; may be repeated.",
)
@click.option(
    "-s",
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_keys,
    help="Change a setting ('fedgram settings' lists them).",
)
@click.option("--seeds", metavar="N", help="Number of seeds, or a list such as 0,3,7.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder to record runs in.")
@click.option("--overwrite", is_flag=True, help="Repeat runs that OUT holds already.")
@click.option(
    "--keep-models",
    type=OneOf(KEEP),
    help="Clients' models to write: of no method, of the one with the highest client mean "
    "(default), or of all.",
)
@click.option("--calibrate", is_flag=True, help="Write models that give probabilities.")
@click.option("--tracker", type=OneOf(TRACKERS), help="Record the runs there too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def run(
    source: str | None,
    methods: tuple[str, ...],
    overrides: tuple[str, ...],
    seeds: str | None,
    out: Path | None,
    overwrite: bool,
    keep_models: str | None,
    calibrate: bool,
    tracker: str | None,
    as_json: bool,
) -> None:
    """Run methods on a federation and print their accuracy.

    SOURCE is a file of features or images, a folder of MNIST or CIFAR files, digits, or
    synthetic:ALPHA,BETA; or the settings of a run, a file that ends in .toml. Without arguments:
    the embedded digits, 20 clients with Dirichlet 0.1 label skew, and the methods local, afl,
    fedhip, apfl and auto.

    With --seeds, each method runs with several partitions, and accuracies are shown as mean and
    standard deviation. If OUT holds finished runs with the same settings, they are not repeated:
    give the command again to go on after an interruption.

    Example: fedgram run photos.npz -m afl -m apfl -s data.clients=50 --seeds 5 --out runs/a
    """
    more = [f"keep_models={keep_models}"] if keep_models else []
    more += ["calibrate=true"] if calibrate else []
    more += [f"tracker={tracker}"] if tracker else []
    settings = _settings(source, [*overrides, *more], methods)
    data = settings.data.load()
    numbers = _seeds(seeds, settings)
    _say_own_clients(data, settings, source, overrides)
    work = _Runs(settings, data, out, overwrite=overwrite, several=seeds is not None)
    runs: list[list[RunRecord]] = []
    with progress(shown=not as_json) as follow:
        for seed in numbers:
            runs.append(work.of_seed(seed, follow))
    if as_json:
        flat = [one for some in runs for one in some]
        click.echo(_json(flat, [gain for some in runs for gain in who_gains(some)]))
        return
    partition = f"{partition_name(asdict(settings.data))}, {settings.data.split} split"
    title = f"{data.name}: {work.clients} clients, {partition}"
    if seeds is None:
        print_runs(title, runs[0], who_gains(runs[0]), "method")
    else:
        print_seeds(f"{title}, {len(numbers)} seeds", list(zip(*runs, strict=True)))
    work.say_models()


def _say_own_clients(
    data: Dataset, settings: Config, source: str | None, overrides: Sequence[str]
) -> None:
    """Say that the clients of the data are not used, unless that was asked for."""
    keys = {text.partition("=")[0].strip() for text in overrides}
    asked = (source or "").endswith(".toml") or not keys.isdisjoint(
        {"data.clients", "data.partition", "data.dirichlet"}
    )
    if data.client is not None and settings.data.partition != "given" and not asked:
        own = len(np.unique(data.client))
        say(
            f"{data.name} names {own} clients of its own, but clients are drawn here; use them "
            "with -s data.partition=given -s data.split=within-client",
            err=True,
        )


class _Runs:
    """The runs of one command, seed by seed; those that are recorded already are kept."""

    def __init__(
        self, settings: Config, data: Dataset, out: Path | None, *, overwrite: bool, several: bool
    ) -> None:
        self._settings = settings
        self._data = data
        self._out = out
        self._overwrite = overwrite
        self._several = several
        self._schema = load_schema(settings.data.source)
        self._kept: tuple[float, Path] | None = None  # the best run so far
        self._folders: list[Path] = []
        self.clients = 0

    def of_seed(self, seed: int, follow: Any) -> list[RunRecord]:
        """Return the runs of all methods with one seed."""
        settings = _with_seed(self._settings, seed) if self._several else self._settings
        federation = federate(self._data, settings.data, settings.grid)
        self.clients = len(federation.members)
        return [self._of(name, settings, federation, follow) for name in settings.methods]

    def _of(
        self, name: str, settings: Config, federation: FederatedDataset, follow: Any
    ) -> RunRecord:
        folder = self._folder(name, settings)
        if folder is not None:
            self._folders.append(folder)
        if folder is not None and self._overwrite:
            clear(folder)
        there = None if folder is None else recorded(folder, settings.about(name))
        if there is not None:
            self._again(there, folder, name)
            return there
        about, called = settings.about(name), method_name(name)
        called += f" seed {settings.data.seed}" if self._several else ""
        on_reply: OnReply
        on_round: OnRound
        on_reply, on_round = follow(name, settings.make(name).number_of_rounds())
        with track(settings.tracker, called, about, self._out) as on_scores:
            record = Record(
                folder,
                about,
                keep_models=settings.keep_models != "none",
                prepare=self._prepared(name, settings, federation),
                on_scores=on_scores,
            )
            result = settings.run(
                name, federation, record=record, on_reply=on_reply, on_round=on_round
            )
        if folder is not None:
            write_run_card(folder)
            self._keep_best(result.record, folder)
        return result.record

    def _again(self, run: RunRecord, folder: Path | None, name: str) -> None:
        """Keep a run that is recorded already; say whether what it was made from has changed."""
        if folder is None:
            return
        if self._settings.calibrate and not _have_probabilities(folder):
            raise DataError(
                f"{folder}: holds models without calibration; choose another folder, or use "
                "--overwrite"
            )
        time = (folder / RUN).stat().st_mtime
        given = [Path(self._settings.data.source), Path(name)]
        newer = [str(path) for path in given if path.is_file() and path.stat().st_mtime > time]
        changed = f", before {newer[0]} was changed; --overwrite repeats it" if newer else ""
        say(f"{folder}: recorded already{changed}", err=True)
        self._keep_best(run, folder)
        if not (folder / CARD).is_file():  # the command was ended before it was written
            write_run_card(folder)

    def _prepared(
        self, name: str, settings: Config, federation: FederatedDataset
    ) -> Callable[[Any], Any]:
        """Return the function that adds to a model what it needs besides features."""
        made = federation.made
        inputs = None if made is None else made.inputs
        found: list[Calibration] = []

        def prepared(model: Any) -> Any:
            calibrated = settings.calibrate and _gives_scores(model)
            if calibrated and not found:
                seed = settings.engine.seed
                found.append(calibration(settings.make(name), federation, seed=seed))
            return saved(
                SavedModel(
                    model=model,
                    schema=self._schema,
                    standardization=None if inputs is None else inputs.standardization,
                    columns=() if inputs is None else inputs.columns,
                    calibration=found[0] if calibrated else None,
                )
            )

        return prepared

    def _folder(self, name: str, settings: Config) -> Path | None:
        if self._out is None:
            return None
        seed = f"-seed{settings.data.seed}" if self._several else ""
        return self._out / f"{Path(name).stem}{seed}"

    def _keep_best(self, run: RunRecord, folder: Path | None) -> None:
        """Remove the clients' models of all runs but the one with the highest client mean."""
        if self._settings.keep_models != "best" or folder is None:
            return
        mean = run.summary.score("client_mean")
        ours = (-math.inf if mean is None else mean, folder)
        if self._kept is None:
            self._kept = ours
            return
        worse, self._kept = sorted((self._kept, ours), key=lambda one: one[0])
        if worse[0] == self._kept[0]:  # of equal ones the first is kept
            worse, self._kept = self._kept, worse
        if forget_models(worse[1]):
            write_run_card(worse[1])

    def say_models(self) -> None:
        """Say whose models are in the folders, and how to keep others."""
        unwritten = self._settings.keep_models == "none" or self.clients > MOST_LISTED
        if self._out is None or unwritten:
            return
        there = [folder for folder in self._folders if (folder / MODELS).is_dir()]
        again = "--keep-models all --overwrite"
        if self._settings.keep_models == "best":
            if there and len(self._folders) > 1:
                say(
                    f"clients' models kept: {there[0] / MODELS}, of the highest client mean; to "
                    f"keep those of all: {again}",
                    err=True,
                )
        elif missing := [folder for folder in self._folders if folder not in there]:
            say(
                f"clients' models missing: {', '.join(map(str, missing))}, recorded by an earlier "
                f"command without them; to write them: {again}",
                err=True,
            )


def _gives_scores(model: Any) -> bool:
    """Whether a model, or the model in what is shared, gives scores of classes only."""
    predictor = model.predictor() if isinstance(model, Published) else model
    numbers = outputs_named(getattr(predictor, "classes", ()))
    return callable(predictor) and not hasattr(predictor, "probabilities") and not numbers


def _have_probabilities(folder: Path) -> bool:
    """Whether the clients' models of a run give probabilities, if it has any."""
    for path in (folder / MODELS).glob("*.safetensors"):
        return opened(codec.load(path)).has_probabilities
    return True


def _settings(source: str | None, overrides: Sequence[str], methods: Sequence[str]) -> Config:
    """Return the settings of a TOML file, or of a source of data."""
    if source is None or not source.endswith(".toml"):
        given = [] if source is None else [f"data.source={json.dumps(source)}"]
        if source is not None and any(
            text.split("=")[0].strip() == "data.source" for text in overrides
        ):
            raise ConfigError(f"{source}: expected one source, got data.source too; leave one out")
        return configuration.load(None, [*given, *overrides], methods)
    path = Path(source)
    if not path.is_file():
        raise ConfigError(
            f"{source}: file not found; expected a settings file (.toml), or a source of data"
        )
    return configuration.load(path, overrides, methods)


def _seeds(text: str | None, settings: Config) -> list[int]:
    """Return the seeds: those of a list, or a number of them from the seed of the settings."""
    if text is None:
        return [settings.data.seed]
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = [-1]
    if "," not in text:
        first = settings.data.seed
        numbers = list(range(first, first + numbers[0])) if numbers[0] > 0 else [-1]
    if min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise ConfigError(
            f"--seeds {text!r}: expected a number of seeds such as 5, or different seeds such as "
            "0,3,7"
        )
    return numbers


def _with_seed(settings: Config, seed: int) -> Config:
    data, engine = replace(settings.data, seed=seed), replace(settings.engine, seed=seed)
    return replace(settings, data=data, engine=engine)


@main.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def compare(folders: tuple[Path, ...], as_json: bool) -> None:
    """Show recorded runs side by side.

    Example: fedgram compare runs/a runs/b
    """
    runs, gains = [], []
    for folder in folders:  # runs of one folder are of the same clients
        some = read_runs([folder])
        runs += some
        gains += who_gains(some)
    if as_json:
        click.echo(_json(runs, gains))
        return
    print_runs("recorded runs", runs, gains, "run")


def _json(runs: Sequence[RunRecord], gains: Sequence[dict[str, Any]]) -> str:
    results = [{**run.to_dict(), "gains": gain} for run, gain in zip(runs, gains, strict=True)]
    return json.dumps({"runs": results}, indent=2)
