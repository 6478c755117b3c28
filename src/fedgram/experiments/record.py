"""A run's folder, written as it happens: a crash loses one line at most.

``run.json`` holds the configuration, ``partition.json`` each client's number of samples per class
(unless the run is private), ``exchanges.jsonl`` a line per exchange, ``scores.jsonl`` a line per
client and scored round and one for all clients, ``notes.jsonl`` events at remote sites. Models are
safetensors files.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import scipy
from threadpoolctl import threadpool_info

from fedgram.core import codec
from fedgram.errors import DataError
from fedgram.experiments.partition_summary import PartitionSummary
from fedgram.experiments.run_record import (
    HOLDOUT,
    MEMBERS,
    ClientScore,
    RoundCollector,
    RunRecord,
    ScoreSummary,
)
from fedgram.federation.protocol import Exchange
from fedgram.federation.shared import Published
from fedgram.runtime import files
from fedgram.runtime.files import cannot_write
from fedgram.runtime.parse import json_object
from fedgram.runtime.threads import THREADS
from fedgram.runtime.version import own_version

FORMAT = 2
RUN, EXCHANGES, SCORES = "run.json", "exchanges.jsonl", "scores.jsonl"
PARTITION, NOTES = "partition.json", "notes.jsonl"
SHARED, MODELS = "shared.safetensors", "models"
LONGEST_NAME = 150
MOST_LISTED = 10_000  # clients with lines and files of their own in the folder


class Record:
    """Collects the results of a run round by round, and writes them if there is a folder.

    Parameters
    ----------
    folder
        Must not hold a run already.
    settings
        Method, parameters and configuration, for ``run.json``.
    keep_models
        Write what is shared and every client's model: by far the most bytes of a run.
    on_scores
        Called with the round and the summary of its scores, as recorded.
    prepare
        Returns what to write to the file of a model, or of what is shared.
    """

    def __init__(
        self,
        folder: Path | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        keep_models: bool = True,
        prepare: Callable[[Any], Any] | None = None,
        on_scores: Callable[[int, Mapping[str, Any]], None] | None = None,
    ) -> None:
        self._folder = folder
        self._keep_models = keep_models
        self._prepare = prepare or (lambda model: model)
        self._on_scores = on_scores
        self._about = {"format": FORMAT, **(settings or {}), "versions": versions()}
        self._partition: PartitionSummary | None = None
        self._exchanges: list[Exchange] = []
        self._scored = RoundCollector()
        if folder is None:
            return
        try:
            if (folder / RUN).exists():
                raise DataError(f"{folder}: holds a run already; choose another folder")
            folder.mkdir(parents=True, exist_ok=True)
            files.write(folder / RUN, json.dumps(self._about, indent=2) + "\n")
        except OSError as error:
            raise cannot_write(folder, error) from error

    def partition(self, counts: PartitionSummary) -> None:
        """Record the number of samples of each class at each client."""
        self._partition = counts
        if self._folder is not None and len(counts.clients) <= MOST_LISTED:
            files.write(self._folder / PARTITION, json.dumps(counts.to_dict()) + "\n")

    def ask(self, ask: Exchange) -> None:
        """Record an exchange."""
        self._exchanges.append(ask)
        self._append(EXCHANGES, asdict(ask))

    def note(self, client: str, text: str) -> None:
        """Record what happened to a client, for people to read."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._append(NOTES, {"time": now, "client": client, "text": text})

    def scores(
        self, round_: int, who: str, rows: Sequence[ClientScore], summary: ScoreSummary
    ) -> None:
        """Record one scoring of a set of clients: a line for each, if listed, and one for all."""
        self._scored.add_clients(who, round_, rows)
        self._scored.add_summary(who, round_, summary)
        if self._on_scores is not None and who == MEMBERS:
            self._on_scores(round_, summary.to_dict())
        if self._folder is None:
            return
        about = {"round": round_, "set": who}
        if len(rows) > MOST_LISTED:
            self.note("", f"{len(rows)} clients are too many for a line each: none is listed")
            rows = ()
        lines = ({**about, **row.to_dict()} for row in rows)
        self._append(SCORES, *lines, {**about, "summary": summary.to_dict()})

    def models(self, shared: Published, models: Mapping[str, Any]) -> None:
        """Record what is shared and every client's own model."""
        if self._folder is None or not self._keep_models:
            return
        if shared.shared is not None:
            codec.save(self._folder / SHARED, self._prepare(shared))
        if len(models) > MOST_LISTED:
            self.note("", f"{len(models)} models are too many for a file each: none is written")
            return
        written: dict[str, Path] = {}  # of methods with one model for all, clients have equal files
        for client, model in models.items():
            content = codec.encode(self._prepare(model))
            path = self._folder / MODELS / f"{file_name(client)}.safetensors"
            first = written.setdefault(hashlib.sha256(content).hexdigest(), path)
            if first == path or not _linked(first, path):
                files.write(path, content)

    def to_run_record(self, method: str, parameters: Mapping[str, Any]) -> RunRecord:
        """Return everything recorded so far; method and parameters are those that were run."""
        return RunRecord(
            folder=None if self._folder is None else str(self._folder),
            method=method,
            parameters=parameters,
            config=self._about.get("config", {}),
            versions=self._about["versions"],
            rounds=self._scored.rounds(MEMBERS),
            holdout=next(iter(self._scored.rounds(HOLDOUT)), None),
            exchanges=tuple(self._exchanges),
            partition=self._partition,
        )

    def _append(self, name: str, *lines: Mapping[str, Any]) -> None:
        if self._folder is None:
            return
        path = self._folder / name
        try:
            with path.open("a", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(line)}\n" for line in lines)
        except OSError as error:
            raise cannot_write(path, error) from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the content of a recorded JSON file."""
    return _parsed(path, _text(path))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a recorded file; an empty list if the file does not exist."""
    if not path.is_file():
        return []
    texts = _text(path).split("\n")
    return [_parsed(path, text) for text in texts[:-1]]  # a last line without end was cut short


def _text(path: Path) -> str:
    try:
        return files.read_text(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); give another folder") from error


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return json_object(text)
    except ValueError as error:
        raise DataError(
            f"{path}: not a record of a run ({error}); run again into another folder"
        ) from error


def versions() -> dict[str, Any]:
    """Return the versions of packages and Python that a result may depend on."""
    return {
        "fedgram": own_version(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "blas": list(_blas_versions(len(sys.modules))),
        "solve_threads": THREADS,
        "machine": platform.machine(),
    }


@functools.lru_cache(maxsize=1)
def _blas_versions(modules: int) -> tuple[str, ...]:
    """Return the BLAS libraries of this process, which has imported this number of modules.

    A library is loaded by a module, so the libraries are listed again after every import.
    """
    del modules
    blas = {
        f"{lib.get('internal_api')} {lib.get('version')}"
        for lib in threadpool_info()
        if lib.get("user_api") == "blas"
    }
    return tuple(sorted(blas))


def _linked(first: Path, path: Path) -> bool:
    """Make a file a second name of an equal one; return whether the file system allows that."""
    try:
        path.unlink(missing_ok=True)
        path.hardlink_to(first)
    except (OSError, NotImplementedError):
        return False
    return True


def file_name(client: str) -> str:
    """Return a unique file name for a client: percent-encoded, and not too long."""
    safe = quote(client, safe=" ").replace(".", "%2E") or "%"
    if len(safe) <= LONGEST_NAME:
        return safe
    return f"{safe[:LONGEST_NAME]}-{hashlib.sha256(client.encode()).hexdigest()[:16]}"
