"""Recorded runs, read back from their folders alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedgram.errors import DataError
from fedgram.experiments.gains import who_gains
from fedgram.experiments.record import FORMAT, read_lines, read_object
from fedgram.federation.protocol import Exchange


def read_runs(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the results of the runs in these folders, or in folders right below them.

    A run that was interrupted before anything was scored is an error where it is asked for by
    name, and left out where others are beside it.
    """
    found = []
    for folder in folders:
        here = [folder] if (folder / "run.json").is_file() else _below(folder)
        if not here:
            raise DataError(f"{folder}: holds no run; give a folder written by 'fedgram run --out'")
        begun = [path for path in here if (path / "scores.jsonl").is_file()]
        some = [_readable(path) for path in begun or here]
        scored = [(result["method"], result.pop("by_client")) for result in some]
        for result, gain in zip(some, who_gains(scored), strict=True):
            result["gains"] = gain  # runs of one folder are of the same clients
        found += some
    return found


def _below(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/run.json"))


def _readable(folder: Path) -> dict[str, Any]:
    try:
        return _result(folder)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{folder}: not a record of a run, or damaged ({error}); run again into another folder"
        ) from error


def _result(folder: Path) -> dict[str, Any]:
    """Return the last scored round of a run; an interrupted run counts as far as it came."""
    about = read_object(folder / "run.json")
    if about.get("format") != FORMAT:
        raise DataError(
            f"{folder}: a record of format {about.get('format')}, this fedgram reads {FORMAT}; "
            "upgrade fedgram"
        )
    lines = read_lines(folder / "scores.jsonl")
    summaries = [line for line in lines if "summary" in line]
    # The last word on a round counts.
    members = {line["round"]: line["summary"] for line in summaries if line["set"] == "members"}
    if not members:
        raise DataError(f"{folder}: the run was interrupted before anything was scored; run again")
    holdout = [line["summary"] for line in summaries if line["set"] == "holdout"]
    for summary in members.values():
        summary["accuracy"]["client_mean"]  # what is none of ours fails here
    last = max(members)
    chosen = max(members, key=lambda number: (members[number].get("valid") or 0.0, -number))
    if members[chosen].get("valid") is None:
        chosen = last
    asks = [Exchange(**line) for line in read_lines(folder / "asks.jsonl")]
    return {
        "run": str(folder),
        "method": _name(about["method"]),
        "finished": any(ask.phase == "deliver" for ask in asks),
        "rounds": last,
        "chosen": chosen,
        **members[chosen],
        "last": members[last],
        "curve": [_point(number, members[number]) for number in sorted(members)],
        "by_client": {
            line["client"]: line["correct"] / line["samples"]
            for line in lines
            if line["set"] == "members" and line["round"] == chosen and line.get("samples")
        },
        "holdout": holdout[-1] if holdout else None,
    }


def _point(number: int, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is drawn of a round."""
    drawn = ("valid", "seconds", "flops", "bytes")
    return {
        "round": number,
        "accuracy": summary["accuracy"]["client_mean"],
        **{key: summary.get(key) for key in drawn},
    }


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("its method is no name")
    return value
