"""Recorded runs, read back from their folders alone: the one reader of what `record` writes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from fedgram.errors import DataError
from fedgram.experiments.partition_summary import PartitionSummary
from fedgram.experiments.record import (
    EXCHANGES,
    FORMAT,
    PARTITION,
    RUN,
    SCORES,
    read_lines,
    read_object,
)
from fedgram.experiments.run_record import (
    HOLDOUT,
    MEMBERS,
    ClientScore,
    Plain,
    RoundCollector,
    RunRecord,
    ScoreSummary,
    real,
    table,
    whole,
)
from fedgram.federation.earlier_names import current_name, upgraded
from fedgram.federation.protocol import Exchange, Phase

# What format 1 called files and keys, and what they are called now.
OLD_FILE = "asks.jsonl"
OLD_ACCURACIES = {"global": "global_test"}
OLD_TUNED = {"setting": "settings", "told": "description", "reasons": "left_out_accuracy"}
OLD_METRICS = {"whole": "global_test"}


def read_runs(folders: Iterable[Path | str], *, clients: bool = True) -> list[RunRecord]:
    """Return the runs in these folders, or in folders right below them, each of them once.

    A run that was interrupted before anything was scored is an error where it is asked for by
    name, and left out where others are beside it.

    Parameters
    ----------
    folders
        As ``fedgram run --out`` or ``fedgram study`` wrote them, in any format so far.
    clients
        Keep the scores of single clients: most of a record of many rounds.

    Examples
    --------
    >>> import subprocess, sys, tempfile
    >>> command = [sys.executable, "-m", "fedgram.cli", "run", "-m", "afl", "-s", "data.clients=3"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = subprocess.run([*command, "--out", folder], capture_output=True)
    ...     (run,) = read_runs([folder])
    >>> run.method, run.summary.clients, sorted(run.summary.accuracy)[:2]
    ('afl', 3, ['balanced', 'client_mean'])
    """
    found: dict[Path, RunRecord] = {}
    for folder in map(Path, folders):
        here = run_folders(folder)
        if not here:
            raise DataError(f"{folder}: holds no run; give a folder written by 'fedgram run --out'")
        begun = [path for path in here if (path / SCORES).is_file()]
        for path in begun or here:
            place = path.resolve()
            if place not in found:
                found[place] = _readable(path, clients=clients)
    return list(found.values())


def run_folders(folder: Path) -> list[Path]:
    """Return the folders of the runs: this one, those right below it, or those of a study."""
    if (folder / RUN).is_file():
        return [folder]
    below = sorted(path.parent for path in folder.glob(f"*/{RUN}"))
    return below or sorted(path.parent for path in folder.glob(f"runs/*/{RUN}"))


def _readable(folder: Path, *, clients: bool) -> RunRecord:
    try:
        return _run(folder, clients=clients)
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise DataError(
            f"{folder}: not a record of a run, or damaged ({error}); run again into another folder"
        ) from error


def _run(folder: Path, *, clients: bool) -> RunRecord:
    """Return a run; of an interrupted run, the rounds that were scored."""
    about = read_object(folder / RUN)
    if about.get("format") not in (1, FORMAT):
        raise DataError(
            f"{folder}: a record of format {about.get('format')}, this fedgram reads 1 to {FORMAT};"
            " upgrade fedgram"
        )
    old = about["format"] == 1
    if old:
        warnings.warn(_OLD, FutureWarning, stacklevel=2)
    scored = RoundCollector()
    for line in read_lines(folder / SCORES):
        who, round_ = str(line["set"]), whole(line["round"])
        if "summary" in line:
            summary = _renamed_summary(line["summary"]) if old else line["summary"]
            scored.add_summary(who, round_, ScoreSummary.from_dict(summary))
        elif clients:
            scored.add_client(who, round_, ClientScore.from_dict(line))
    rounds, holdout = scored.rounds(MEMBERS), scored.rounds(HOLDOUT)
    if not rounds:
        raise DataError(f"{folder}: the run was interrupted before anything was scored; run again")
    exchanges = read_lines(folder / (OLD_FILE if old else EXCHANGES))
    partition, parameters = folder / PARTITION, _table(about, "parameters")
    config = upgraded(_table(about, "config"))
    return RunRecord(
        folder=str(folder),
        method=current_name(_name(about["method"]), parameters),
        parameters=parameters,
        config=_renamed_config(config) if old else config,
        versions=_table(about, "versions"),
        rounds=rounds,
        holdout=holdout[-1] if holdout else None,
        exchanges=tuple(map(_exchange, exchanges)),
        partition=PartitionSummary.read(read_object(partition)) if partition.is_file() else None,
    )


_OLD = (
    f"a record of format 1 is read; format {FORMAT} has the file {EXCHANGES!r} for {OLD_FILE!r}, "
    "and the keys 'global_test' for 'global' and 'metrics.whole', 'tuned' for 'settled', "
    "'settings', 'description' and 'left_out_accuracy' for 'setting', 'told' and 'reasons'"
)


def _renamed_summary(summary: Plain) -> dict[str, Any]:
    """Return the summary of a record of format 1 with the keys of format 2."""
    tuned = summary.get("settled")
    return {
        **{key: value for key, value in summary.items() if key != "settled"},
        "accuracy": _renamed(summary["accuracy"], OLD_ACCURACIES),
        "tuned": _renamed(tuned, OLD_TUNED) if tuned else None,
    }


def _renamed_config(config: Plain) -> dict[str, Any]:
    metrics = config.get("metrics")
    if not isinstance(metrics, Mapping):
        return dict(config)
    return {**config, "metrics": _renamed(metrics, OLD_METRICS)}


def _renamed(table: Plain, names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in table.items()}


def _exchange(line: Plain) -> Exchange:
    numbers = {key: whole(line[key]) for key in ("clients", "bytes_up", "bytes_down")}
    if line["phase"] not in get_args(Phase):
        raise ValueError(f"an exchange of phase {str(line['phase'])[:100]!r}")
    return Exchange(
        step=str(line["step"]),
        phase=line["phase"],
        seconds=real(line["seconds"]),
        flops=whole(line.get("flops", 0)),
        **numbers,
        **{key: whole(line[key]) for key in ("sent_up", "sent_down") if line.get(key) is not None},
    )


def _table(about: Plain, name: str) -> Plain:
    """Return the settings of this name, which are those of a TOML file."""
    found = table(about.get(name, {}))
    for part in ("data", "engine"):
        seed = table(found.get(part, {})).get("seed")
        if isinstance(seed, Mapping | list):
            raise TypeError(f"{part}.seed: expected a number")
    _require_settings(found)
    return found


def _require_settings(value: Any) -> None:
    if isinstance(value, Mapping):
        for item in value.values():
            _require_settings(item)
    elif isinstance(value, list):
        if None in value:
            raise TypeError("a list of settings with null")
        for item in value:
            _require_settings(item)


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"method: expected a name, got {type(value).__name__}")
    return value
