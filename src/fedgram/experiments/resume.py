"""Runs that are recorded already: kept if they are finished, repeated if they were interrupted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgram.errors import DataError
from fedgram.experiments.reader import read_runs
from fedgram.experiments.record import (
    EXCHANGES,
    MODELS,
    NOTES,
    PARTITION,
    RUN,
    SCORES,
    SHARED,
    read_lines,
    read_object,
)
from fedgram.experiments.run_record import RunRecord, flat

CARD = "README.md"
_COMPARED = ("data", "grid", "engine", "metrics", "scoring")
_FILES = (EXCHANGES, SCORES, PARTITION, NOTES, SHARED, CARD, RUN)  # without the last it is no run


def recorded(folder: Path, about: Mapping[str, Any]) -> RunRecord | None:
    """Return the finished run with these settings in a folder; None if there is no such run.

    The files of a run with the same settings that was interrupted are removed. A run with other
    settings is an error.

    Parameters
    ----------
    folder
        The folder of the run.
    about
        Method, parameters and configuration, as a record has them.
    """
    if not (folder / RUN).is_file():
        return None
    difference = _difference(read_object(folder / RUN), json.loads(json.dumps(about)))
    if difference:
        raise DataError(
            f"{folder}: holds a run with other settings ({difference}); choose another folder, or "
            "use --overwrite"
        )
    if any("summary" in line for line in read_lines(folder / SCORES)):
        run = read_runs([folder])[0]
        if run.finished:
            return run
    clear(folder)
    return None


def clear(folder: Path) -> None:
    """Remove the files of a run from its folder; other files stay."""
    forget_models(folder)
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)


def forget_models(folder: Path) -> bool:
    """Remove the clients' models from the folder of a run; return whether there were any.

    What is shared stays. The card, which lists them, is removed too: a folder without one gets
    another, also if this is interrupted.
    """
    found = list((folder / MODELS).glob("*.safetensors"))
    if found:
        (folder / CARD).unlink(missing_ok=True)
    for path in found:
        path.unlink()
    if (folder / MODELS).is_dir() and not any((folder / MODELS).iterdir()):
        (folder / MODELS).rmdir()
    return bool(found)


def _difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return the first setting that differs, with both values; empty for the same settings."""
    both = [_compared(there), _compared(here)]
    for key in sorted({*both[0], *both[1]}):
        first, second = (one.get(key) for one in both)
        if first != second:
            return f"{key} = {first!r}, here {second!r}"
    return ""


def _compared(about: Mapping[str, Any]) -> dict[str, Any]:
    config = about.get("config", {})
    tables = {name: config.get(name, {}) for name in _COMPARED}
    parameters = {"method": {about.get("method", ""): about.get("parameters", {})}}
    return {"method": about.get("method"), **flat({**tables, **parameters})}
