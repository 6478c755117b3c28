"""What the default reaches beside every closed form and beside trained rivals, stored as JSON.

FEDGRAM_DATA=... python -m benchmarks.default tables FOLDER
FEDGRAM_DATA=... python -m benchmarks.default run FOLDER [--cells ...] [--methods ...] [--seeds ...]
python -m benchmarks.default render FOLDER

`tables` makes feature files of the two tables of hospitals. `run` runs every method of every cell
and seed that FOLDER does not hold yet: a file for each, with every client's accuracy, so that
differences are paired. `render` writes Markdown tables of what is there. Three quarters of each
client's samples are for training; accuracy is the mean over clients, in %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedgram import Plan, load, make, run, sites
from fedgram.evaluation import Metrics

FILES = {
    "cifar100": "cifar100_efficientnet_lite0.npz",
    "banking77": "banking77_minilm_l6.npz",
    "pacs": "pacs_efficientnet_lite0.npz",
    "digits": "digits",
    "mnist": "mnist_images.npz",
}
TABLES = {
    "heart": [
        "heart_disease.csv",
        "--label",
        "disease",
        "--client",
        "hospital",
        "--without",
        "stage",
    ],
    "covid": ["covid_testing.csv", "--label", "result", "--client", "clinic_name"],
}
SKEWS = (0.1, 0.5, 1.0)
CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"{name} {skew:g}": (
            name,
            {"clients": clients, "partition": "dirichlet", "dirichlet": skew},
        )
        for name, clients in (("cifar100", 100), ("banking77", 50))
        for skew in SKEWS
    },
    "pacs": ("pacs", {"clients": None, "partition": "domain"}),
    "digits": ("digits", {"clients": 20, "partition": "dirichlet", "dirichlet": 0.1}),
    "mnist": ("mnist", {"clients": 50, "partition": "dirichlet", "dirichlet": 0.5}),
    "heart": ("heart", {"clients": None, "partition": "given"}),
    "covid": ("covid", {"clients": None, "partition": "given"}),
}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "local": ("local", {}),
    "afl": ("afl", {"ridge": "auto"}),
    "fed3r": ("fed3r", {"ridge": "auto"}),
    "fedcgs": ("fedcgs", {}),
    "lda": ("lda", {}),
    "prior": ("prior", {}),
    "intercept": ("intercept", {}),
    "closed-ditto": ("closed-ditto", {}),
    "closed-pfedme": ("closed-pfedme", {}),
    "closed-maml": ("closed-maml", {}),
    "fedhip": ("fedhip", {"alpha": "auto", "ridge": "auto"}),
    "apfl": ("apfl", {"ridge": "auto", "refinement_ridge": "auto", "balance": "auto"}),
    "logistic": ("logistic", {}),
    "logistic x prior": ("logistic", {"prior": True}),
    "auto, 0 exchanges": ("auto", {"exchanges": 0}),
    "auto, 2 exchanges": ("auto", {"exchanges": 2}),
    "auto, 4 exchanges": ("auto", {"exchanges": 4}),
    "auto": ("auto", {}),
    "auto, high effort": ("auto", {"effort": "high"}),
    "fedavg": ("fedavg", {}),
    "fedavg-ft": ("fedavg-ft", {}),
    "ditto": ("ditto", {}),
    "feddbe": ("feddbe", {}),
    "pfedme": ("pfedme", {}),
}
TRAINED = ("fedavg", "fedavg-ft", "ditto", "feddbe", "pfedme")
SLOW = ("cifar100", "mnist")  # of trained rivals one seed is run, and no pFedMe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["tables", "run", "render"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cells", nargs="*", default=list(CELLS))
    parser.add_argument("--methods", nargs="*", default=list(ROWS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.what == "tables":
        for name, words in TABLES.items():
            make_table(arguments.folder, name, words)
    elif arguments.what == "run":
        for cell in arguments.cells:
            for seed in arguments.seeds:
                run_cell(arguments.folder, cell, seed, arguments.methods)
    else:
        for line in rendered(arguments.folder):
            print(line)


def make_table(folder: Path, name: str, words: list[str]) -> None:
    source = str(Path(os.environ["FEDGRAM_DATA"]) / words[0])
    command = [sys.executable, "-m", "fedgram.cli", "features", source, *words[1:]]
    subprocess.run([*command, "-o", str(folder / f"{name}.npz")], check=True)


def run_cell(folder: Path, cell: str, seed: int, methods: list[str]) -> None:
    name, plan = CELLS[cell]
    missing = [row for row in methods if wanted(name, row, seed)]
    missing = [row for row in missing if not place(folder, cell, row, seed).exists()]
    if not missing:
        return
    source = FILES.get(name) or str(folder / f"{name}.npz")
    members = sites(load(source), Plan(split="within-client", seed=seed, **plan))
    for row in missing:
        method, settings = ROWS[row]
        before, start = time.process_time(), time.perf_counter()
        result = run(
            make(method, settings),
            members,
            name=method,
            seed=seed,
            metrics=Metrics(whole=False),
        )
        found = {
            "cell": cell,
            "row": row,
            "seed": seed,
            "method": method,
            "settings": settings,
            "process_seconds": time.process_time() - before,  # scoring included
            "wall_seconds": time.perf_counter() - start,
            **result.plain(),
            "clients": {each.client: [each.correct, each.samples] for each in result.scores.rows},
            "calibration": calibration(result.models, members.members),
            "asks": [
                [ask.step, ask.phase, ask.clients, ask.bytes_up, ask.bytes_down, ask.seconds]
                for ask in result.asks
            ]
            if row not in TRAINED
            else [],
        }
        found.pop("last")
        place(folder, cell, row, seed).write_text(json.dumps(found, indent=1) + "\n")
        print(
            cell,
            seed,
            row,
            f"{100 * result.accuracy['client_mean']:.2f}",
            f"{found['process_seconds']:.1f} s",
            flush=True,
        )


def wanted(name: str, row: str, seed: int) -> bool:
    if row in TRAINED and name in SLOW:
        return seed == 0 and row != "pfedme"
    return True


def place(folder: Path, cell: str, row: str, seed: int) -> Path:
    words = f"{cell} {row} {seed}".replace(",", "").replace(" ", "_")
    return folder / f"{words}.json"


def calibration(models: dict[str, Any], members: list[Any], bins: int = 15) -> float | None:
    """Return the expected calibration error of the softmax of the scores, over all test samples."""
    sure, right = [], []
    for site in members:
        if not len(site.test):
            continue
        scores = models[site.id](site.test.features)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        sure.append(shares.max(axis=1))
        right.append(scores.argmax(axis=1) == site.test.labels.codes)
    chance, hit = np.concatenate(sure), np.concatenate(right)
    place = np.minimum((chance * bins).astype(int), bins - 1)
    error = 0.0
    for k in range(bins):
        here = place == k
        if here.any():
            error += here.mean() * abs(chance[here].mean() - hit[here].mean())
    return float(error)


# Tables


def rendered(folder: Path) -> Iterator[str]:
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    cells = [cell for cell in CELLS if any(each["cell"] == cell for each in found)]
    rows = [row for row in ROWS if any(each["row"] == row for each in found)]
    runs = {(each["cell"], each["row"], each["seed"]): each for each in found}
    yield "| method | " + " | ".join(cells) + " |"
    yield "|---|" + "---|" * len(cells)
    for row in rows:
        yield f"| `{row}` | " + " | ".join(accuracy(runs, cell, row) for cell in cells) + " |"
    yield ""
    yield "Paired differences of `auto` (8 exchanges) to each, with standard errors over clients:"
    yield ""
    yield "| method | " + " | ".join(cells) + " |"
    yield "|---|" + "---|" * len(cells)
    for row in rows:
        if row != "auto":
            yield (
                f"| `{row}` | "
                + " | ".join(paired(runs, cell, "auto", row) for cell in cells)
                + " |"
            )
    yield ""
    yield "Expected calibration error, in %:"
    yield ""
    yield "| method | " + " | ".join(cells) + " |"
    yield "|---|" + "---|" * len(cells)
    for row in rows:
        yield (
            f"| `{row}` | "
            + " | ".join(mean_of(runs, cell, row, "calibration", 100) for cell in cells)
            + " |"
        )
    yield ""
    yield "Bytes per client, up and down, in MB, and operations, in 10^9:"
    yield ""
    yield "| method | " + " | ".join(cells) + " |"
    yield "|---|" + "---|" * len(cells)
    for row in rows:
        yield f"| `{row}` | " + " | ".join(cost(runs, cell, row) for cell in cells) + " |"


def seeds_of(runs: dict[Any, Any], cell: str, row: str) -> list[int]:
    return sorted(seed for c, r, seed in runs if (c, r) == (cell, row))


def accuracy(runs: dict[Any, Any], cell: str, row: str) -> str:
    values = [
        100 * runs[cell, row, s]["accuracy"]["client_mean"] for s in seeds_of(runs, cell, row)
    ]
    return f"{np.mean(values):.2f}" + ("" if len(values) > 1 else " (one seed)") if values else ""


def difference(runs: dict[Any, Any], cell: str, one: str, other: str) -> tuple[float, float] | None:
    """Return the mean over clients and seeds of the difference in accuracy, and its error."""
    gaps = []
    for seed in set(seeds_of(runs, cell, one)) & set(seeds_of(runs, cell, other)):
        mine, theirs = (runs[cell, row, seed]["clients"] for row in (one, other))
        gaps += [
            100 * (mine[c][0] / mine[c][1] - theirs[c][0] / theirs[c][1])
            for c in mine
            if mine[c][1]
        ]
    if len(gaps) < 2:
        return None
    return float(np.mean(gaps)), float(np.std(gaps, ddof=1) / np.sqrt(len(gaps)))


def paired(runs: dict[Any, Any], cell: str, one: str, other: str) -> str:
    found = difference(runs, cell, one, other)
    return "" if found is None else f"{found[0]:+.2f} ± {found[1]:.2f}"


def mean_of(runs: dict[Any, Any], cell: str, row: str, key: str, times: float = 1.0) -> str:
    values = [runs[cell, row, s][key] for s in seeds_of(runs, cell, row)]
    return f"{times * np.mean(values):.1f}" if values else ""


def cost(runs: dict[Any, Any], cell: str, row: str) -> str:
    seeds = seeds_of(runs, cell, row)
    if not seeds:
        return ""
    each = [runs[cell, row, seed] for seed in seeds]
    up, down = (np.mean([e["bytes"][way] for e in each]) / 1e6 for way in ("up", "down"))
    return f"{up:.2f} / {down:.2f}, {np.mean([e['flops'] for e in each]) / 1e9:.0f}"


if __name__ == "__main__":
    main()
