"""Training time of FedACnnL and of methods that train, on equal terms: CPU seconds of one core.

FEDGRAM_DATA=... python -m benchmarks.training_time docs/results/training-time.json [CASE ...]

The settings are those of the presets of FedACnnL: same samples, same validation samples, every
method until its validation accuracy is flat, at most `ROUNDS` rounds. A rate is searched for first,
and what the search costs is stored apart. Then all methods take turns with given rates, each
`TURNS` times, and the least time of each counts. The clock of the record is replaced by that of the
process, so that other programs on the machine do not count. Scoring does not count either, making
personal models does. Convolutions need torch.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch
from zipfile import ZipFile

import numpy as np

from fedgram.data.dataset import Dataset
from fedgram.data.sources import load_dataset
from fedgram.experiments.record import Record
from fedgram.experiments.study.cells import CellRun, Source, cells, needed
from fedgram.experiments.study.settings import load
from fedgram.federation.federated_dataset import federate

ROUNDS, PILOT, TURNS, PARTITION = 100, 5, 2, "classes 2"
FEWER = {"convolutions, MNIST": (20, 2, 1)}  # rounds, rounds of a pilot, and turns
SOLVED = ("fedacnnl", "pfedacnnl")
TRAINED = ("fedavg", "fedprox", "pfedme", "perfedavg", "lcfed")
# The preset, the data with a number of samples, and the rows.
CASES: dict[str, tuple[str, str, int, tuple[str, ...]]] = {
    "linear, MNIST": ("fedacnnl-convex", "mnist", 3000, (*SOLVED, *TRAINED)),
    "linear, CIFAR-10": ("fedacnnl-convex", "cifar10", 2000, (*SOLVED, *TRAINED)),
    "linear, synthetic": ("fedacnnl-synthetic", "synthetic:0.5,0.5", 0, (*SOLVED, *TRAINED)),
    "one hidden layer, MNIST": ("fedacnnl-mlp", "mnist", 3000, (*SOLVED, *TRAINED)),
    "one hidden layer, CIFAR-10": ("fedacnnl-mlp", "cifar10", 1000, (*SOLVED, *TRAINED)),
    "convolutions, MNIST": ("fedacnnl-cnn", "mnist", 600, (*SOLVED, *TRAINED[:4])),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stored", type=Path)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    given = parser.parse_args()
    found = json.loads(given.stored.read_text("utf-8")) if given.stored.exists() else {"cases": {}}
    for name in given.cases:
        limits = FEWER.get(name, (ROUNDS, PILOT, TURNS))
        found["partition"] = PARTITION
        found["cases"][name] = measured(*CASES[name], *limits)
        given.stored.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def samples(name: str, number: int) -> Dataset:
    """Return some samples of a data set, drawn with a public seed."""
    if not number:
        return load_dataset(name)
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.npz"
        np.savez(file, **{"mnist": digits, "cifar10": photographs}[name](number))
        return load_dataset(str(file))


def digits(number: int) -> dict[str, Any]:
    """Return images of MNIST, with labels."""
    with np.load(Path(os.environ["FEDGRAM_DATA"]) / "mnist_images.npz") as file:
        rows = np.sort(np.random.default_rng(0).permutation(len(file["y"]))[:number])
        return {"x": file["x"][rows], "y": file["y"][rows]}


def photographs(number: int) -> dict[str, Any]:
    """Return images of CIFAR-10, with labels and names of classes."""
    from PIL import Image

    with ZipFile(Path(os.environ["FEDGRAM_DATA"]) / "cifar10_jpeg.zip") as archive:
        names = sorted(archive.namelist())
        rows = np.sort(np.random.default_rng(0).permutation(len(names))[:number])
        chosen = [names[row] for row in rows]
        pixels = [np.asarray(Image.open(BytesIO(archive.read(each)))) for each in chosen]
    classes, y = np.unique([each.split("/")[1] for each in chosen], return_inverse=True)
    return {"x": np.stack(pixels), "y": y, "classes": classes}


def measured(
    preset: str,
    name: str,
    number: int,
    rows: tuple[str, ...],
    rounds: int = ROUNDS,
    pilot: int = PILOT,
    turns: int = TURNS,
) -> dict[str, Any]:
    """Return seconds, operations, bytes, rounds and accuracy of each row."""
    data = samples(name, number)
    limits = (f"every.rounds={rounds}", f"every.pilot={pilot}")
    once = {row: described(timed(run_of(preset, row, data, *limits), data)) for row in rows}
    rates = {
        row: (f"every.rate={each['rate']}",) if each["rate"] else () for row, each in once.items()
    }
    timings: dict[str, list[dict[str, Any]]] = {row: [] for row in rows}
    for _ in range(turns):
        for row in rows:
            found = described(timed(run_of(preset, row, data, *limits, *rates[row]), data))
            timings[row].append(found)
            print(preset, name, row, found, flush=True)
    return {
        "preset": preset,
        "data": name,
        "samples": len(data),
        "features": data.x.shape[1],
        "rounds": rounds,
        "turns": turns,
        "rows": {
            row: {
                **min(each, key=lambda found: float(found["seconds"])),
                "rate": once[row]["rate"],
                "seconds_of_turns": [found["seconds"] for found in each],
                "search_flops": once[row]["flops"] - each[0]["flops"],
            }
            for row, each in timings.items()
        },
    }


def run_of(preset: str, row: str, data: Dataset, *changes: str) -> CellRun:
    """Return the run of a row of a preset."""
    if data.client is None:
        changes = (*changes, "table.clients=20", f'table.partitions=["{PARTITION}"]')
    study = load(preset, ["table.seeds=1", *changes], sources=["data=digits"], methods=[row])
    (found,) = needed(cells(study, {"digits": Source.of(data)}))
    return found


def timed(run: CellRun, data: Dataset) -> Any:
    """Return the result, whose seconds are those of the process."""
    members = federate(data, run.settings.data, run.settings.grid)
    with patch.object(time, "perf_counter", time.process_time):
        return run.settings.run(run.method, members, record=Record())


def described(result: Any) -> dict[str, Any]:
    chosen = result.record.chosen
    summary = chosen.summary
    return {
        "seconds": round(summary.seconds, 3),
        "flops": summary.flops,
        "bytes": sum(summary.bytes.values()),
        "round": chosen.round,
        "accuracy": round(summary.accuracy["client_mean"], 5),
        "rate": summary.rate_search.rate if summary.rate_search else None,
    }


if __name__ == "__main__":
    main()
