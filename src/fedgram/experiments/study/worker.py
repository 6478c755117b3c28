"""The process that carries out runs of a table, one after the other.

Jobs come as lines of JSON on standard input and answers go as lines of JSON to standard output.
The process ends when its input does: also when whoever started it is killed.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedgram.data.dataset import Dataset
from fedgram.data.sources import load_dataset
from fedgram.errors import DataError, FedgramError, MemoryLimitError
from fedgram.experiments import config
from fedgram.experiments.record import Record
from fedgram.experiments.study.cells import digest_of
from fedgram.features.grid import Grid
from fedgram.federation.federated_dataset import FederatedDataset, federate
from fedgram.runtime import files
from fedgram.runtime.processes import kill_children


class Bench:
    """Cache between runs: one data set and its last partition.

    Parameters
    ----------
    load
        Returns the data set of a source; with the task and the range of a regression.
    """

    def __init__(self, load: Callable[..., Dataset] = load_dataset) -> None:
        self._load = load
        self._data = lru_cache(maxsize=1)(self._loaded)
        self._federation = lru_cache(maxsize=1)(self._federate)

    def run(self, job: Mapping[str, Any], on_round: config.OnRound) -> None:
        """Carry out and record one run; without a folder nothing is recorded."""
        settings = config.read(job["config"])
        (name,) = settings.methods
        folder = Path(job["folder"]) if job["folder"] else None
        federation = self._federation(job["data"], settings.data, settings.grid)
        record = Record(folder, settings.about(name), keep_models=job["keep_models"])
        settings.run(name, federation, record=record, on_round=on_round)

    def _federate(self, digest: str, plan: config.Data, grid: Grid) -> FederatedDataset:
        return federate(self._data(plan.source, plan.task, plan.output_range, digest), plan, grid)

    def _loaded(self, source: str, task: str | None, output_range: Any, digest: str) -> Dataset:
        data = self._load(source, task=task, output_range=output_range)
        if digest_of(data) != digest:
            raise DataError(f"{source}: changed since the study was started; start the study again")
        return data


def main() -> None:
    """Take jobs until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a method prints is not an answer
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    bench = Bench()

    def answer(**what: Any) -> None:
        print(json.dumps(what), file=answers, flush=True)

    while True:
        carry_out(bench, json.loads(jobs.get()), answer)


def _listen(jobs: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        jobs.put(line)
    kill_children()
    os._exit(0)  # also in the middle of a run: an unfinished run is repeated


def carry_out(bench: Bench, job: Mapping[str, Any], answer: Callable[..., None]) -> None:
    """Carry out a run, and answer after each round, at the end, or with the error.

    Parameters
    ----------
    bench
        What is kept between runs.
    job
        The run.
    answer
        Called with the fields of a `WorkerAnswer`, except the number of the job.
    """
    start = time.perf_counter()
    try:
        bench.run(job, lambda round_: answer(round=round_, seconds=time.perf_counter() - start))
        answer(done=True, seconds=time.perf_counter() - start)
    except FedgramError as error:
        answer(failed=str(error), code=error.exit_code)
    except MemoryError as error:
        answer(failed=f"not enough memory ({error})", code=MemoryLimitError.exit_code)
    except Exception as error:  # a method of one's own may raise anything; other runs go on
        where = ""
        if job["folder"]:
            path = Path(job["folder"]) / "error.txt"
            files.write(path, traceback.format_exc())
            where = f"; see {path}"
        answer(failed=f"{type(error).__name__}: {error}{where}", code=FedgramError.exit_code)


if __name__ == "__main__":
    main()
