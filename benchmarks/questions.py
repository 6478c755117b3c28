"""What answers to open questions are worth: kernels, adapted projections, depth, ensembles.

FEDGRAM_DATA=... python -m benchmarks.questions run FOLDER [--data ...] [--rows ...] [--seeds 0 1 2]
    [--stored docs/results/open-questions.json]
python -m benchmarks.questions collect FOLDER docs/results/open-questions.json
python -m benchmarks.questions render docs/results/open-questions.json docs/open-questions.md

`run` fits each row and seed that FOLDER and the stored file do not hold yet, and stores which test
samples it classifies correctly, so that differences are paired. Settings are chosen on training
samples; test samples are only counted. `collect` adds the runs of FOLDER to those of the stored
file, with accuracies and paired differences, so that FOLDER is not needed later. `render` writes
them into the page, between its marks.
"""

from __future__ import annotations

import argparse
import base64
import csv
import json
import os
import time
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedgram import Dataset, PartitionPlan, create_method, federate, run
from fedgram.core.samples import Array
from fedgram.experiments.runner import ScoringSchedule
from fedgram.features.backbones.wordllama import load
from fedgram.federation.scoring import Metrics

CLIENTS, SKEW = 20, 0.3
WIDE = {"cifar100": 3072, "banking77": 2048, "mnist": 2048, "pacs": 2048}
MOST_TRAINING = {"mnist": 20_000}
TITLES = {
    "cifar100": "CIFAR-100, EfficientNet-Lite0",
    "banking77": "Banking77, MiniLM",
    "mnist": "MNIST pixels, 20,000 training samples",
    "pacs": "PACS, EfficientNet-Lite0",
}
# Rows of a shared model: (method, settings); W stands for the width of the data set's lifts.
SHARED: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("afl", {"ridge": "auto"}),
    "ReLU lift": ("afl", {"ridge": "auto", "lift": {"width": "W"}}),
    "GELU lift": ("afl", {"ridge": "auto", "lift": {"width": "W", "activation": "gelu"}}),
    "Fourier kernel": ("kernel", {"width": "W"}),
    "landmarks, 1,024": ("kernel", {"width": 1024, "features": "landmarks"}),
    "Fourier kernel, 1,024": ("kernel", {"width": 1024}),
    "adapted projection": ("projected", {}),
    "adapted projection, ReLU lift": ("projected", {"lift": {"width": "W"}}),
    "4 residual blocks": (
        "deepafl-top",
        {"blocks": 4, "width": 1024, "block_ridge": 10.0, "top": {"method": "afl"}},
    ),
    "a quarter of the ReLU lift": ("afl", {"ridge": "auto", "lift": {"width": "Q"}}),
    "ensemble of 4, ReLU lift": ("ensemble", {"members": 4, "lift": {"width": "W"}}),
}
# Rows of two backbones: the second one alone, each, and both.
BOTH: dict[str, tuple[str, dict[str, Any]]] = {
    "second backbone": ("afl", {"ridge": "auto"}),
    "both, whole": ("afl", {"ridge": "auto"}),
    "both, ensemble": ("ensemble", {}),
    "both, ReLU lift": ("afl", {"ridge": "auto", "lift": {"width": "W"}}),
}
# Rows of personal models, on top of nothing and of each map.
PERSONAL = {
    "local": {},
    "prior": {},
    "intercept": {"strength": "auto"},
    "lda": {},
    "closed-ditto": {"strength": "auto"},
    "apfl-linear": {"refinement_ridge": "auto", "balance": "auto"},
    "fedhip": {},
}
MAPS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("", {}),
    "2 residual blocks": ("deepafl-top", {"blocks": 2, "width": 512}),
    "Fourier kernel": ("kernel", {"width": 1024}),
    "adapted projection": ("projected", {}),
}
FIXED = ("linear", "second backbone", "both, whole", "both, ensemble", "adapted projection")
SECOND = {"banking77": "WordLlama", "mnist": "histograms of gradients"}
PERSONAL_DATA = ("banking77", "mnist", "pacs")
FEWER = {"mnist": 6000}  # samples of the personal rows


@cache
def dataset(name: str, folder: Path) -> tuple[Array, Array, Array]:
    """Return features, labels and the split (2 for test)."""
    del folder
    files = {
        "cifar100": "cifar100_efficientnet_lite0",
        "banking77": "banking77_minilm_l6",
        "mnist": "mnist_images",
        "pacs": "pacs_efficientnet_lite0",
    }
    with np.load(Path(os.environ["FEDGRAM_DATA"]) / f"{files[name]}.npz") as file:
        x, y, split = file["x"], file["y"].astype(int), file["split"]
        if name == "mnist":
            x = x.reshape(len(x), -1) / 255.0
        else:
            x = x * np.float64(file["scale"]) + file["offset"]
    most, training = MOST_TRAINING.get(name), np.flatnonzero(split < 2)
    if most:
        dropped = np.random.default_rng(0).permutation(training)[most:]
        kept = np.setdiff1d(np.arange(len(y)), dropped)
        x, y, split = x[kept], y[kept], split[kept]
    return x, y, split


def second(name: str, folder: Path) -> Array:
    """Return the features of another backbone for the same samples."""
    path = folder / f"second {name}.npy"
    if not path.exists():
        np.save(
            path, word_vectors() if name == "banking77" else gradients(dataset(name, folder)[0])
        )
    found: Array = np.load(path)
    return found


def word_vectors() -> Array:
    """Return WordLlama's features of the texts, in the order of the feature file."""
    model, texts = load("", ""), []
    for part in ("train", "test"):
        path = Path(os.environ["FEDGRAM_DATA"]) / f"banking77_{part}.csv"
        with path.open(encoding="utf-8", newline="") as file:
            texts += [row["text"] for row in csv.DictReader(file)]
    return model(texts)


def gradients(x: Array) -> Array:
    """Return histograms of 8 gradient directions in 7 x 7 cells of images of 28 x 28."""
    images = x.reshape(-1, 28, 28)
    down, across = np.gradient(images, axis=(1, 2))
    size = np.hypot(down, across)
    angle = (np.arctan2(down, across) / (2 * np.pi) * 8).round().astype(int) % 8
    cells = [
        (size * (angle == k)).reshape(-1, 7, 4, 7, 4).sum(axis=(2, 4)).reshape(len(x), -1)
        for k in range(8)
    ]
    return np.concatenate(cells, axis=1)


def of_size_one(x: Array) -> Array:
    sizes = np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=1, keepdims=True))
    return x / np.where(sizes > 0, sizes, 1.0)


def shared_row(name: str, row: str, seed: int, folder: Path) -> dict[str, Any]:
    """Fit a shared model; the seed draws the lift."""
    method, settings = {**SHARED, **BOTH}[row]
    x, y, split = dataset(name, folder)
    if row in BOTH:
        more = second(name, folder)
        x = more if row == "second backbone" else np.hstack([of_size_one(x), of_size_one(more)])
        if method == "ensemble":
            settings = {"parts": [x.shape[1] - more.shape[1], more.shape[1]]}
    settings = _filled(settings, WIDE[name], seed, method)
    plan = PartitionPlan(
        clients=CLIENTS, partition="dirichlet", dirichlet=SKEW, seed=0, split="global"
    )
    data = Dataset(x, y, split=np.where(split == 2, 2, 0), standardize=False, name=name)
    start = time.process_time()
    result = run(
        create_method(method, settings),
        federate(data, plan),
        scoring=ScoringSchedule(),
        metrics=Metrics(),
    )
    seconds = time.process_time() - start
    model = result.predictors[next(iter(result.predictors))]  # all clients have the same
    test = federate(data, plan).test
    right = model(test.features).argmax(axis=1) == test.labels.codes
    return {
        "accuracy": float(right.mean()),
        "seconds": round(seconds, 1),
        "tuned": result.shared.tuned.description if _tuned(result) else "",
        "held_out": _tuned(result).left_out_accuracy if _tuned(result) else {},
        "losses": _tuned(result).notes.get("held_out_loss", {}) if _tuned(result) else {},
        "samples": len(right),
        "right": np.packbits(right).tobytes().hex(),
    }


def personal_row(name: str, row: str, seed: int, folder: Path) -> dict[str, Any]:
    """Fit personal models; the seed draws partition and lift."""
    base, top = row.split(" / ")
    method, settings = MAPS[base]
    if method:
        settings = {
            **_filled(settings, 0, seed, method),
            "top": {"method": top, "settings": PERSONAL[top]},
        }
    else:
        method, settings = top, PERSONAL[top]
        if top in ("prior", "closed-ditto", "apfl-linear"):
            settings = {**settings, "ridge": "auto"}
    x, y, _ = dataset(name, folder)
    some = np.random.default_rng(seed).permutation(len(y))[: FEWER.get(name, len(y))]
    data = Dataset(x[some], y[some], standardize=False, name=name)
    plan = PartitionPlan(
        clients=CLIENTS, partition="dirichlet", dirichlet=SKEW, seed=seed, split="within-client"
    )
    start = time.process_time()
    result = run(
        create_method(method, settings),
        federate(data, plan),
        scoring=ScoringSchedule(),
        metrics=Metrics(global_test=False),
    )
    return {
        "accuracy": result.accuracy["sample_mean"],
        "client_mean": result.accuracy["client_mean"],
        "seconds": round(time.process_time() - start, 1),
        "tuned": result.shared.tuned.description if _tuned(result) else "",
    }


def _tuned(result: Any) -> Any:
    return getattr(result.shared, "tuned", None)


def _filled(settings: dict[str, Any], width: int, seed: int, method: str) -> dict[str, Any]:
    """Return the settings with the width, and with the seed of what is random."""
    filled: dict[str, Any] = json.loads(
        json.dumps(settings).replace('"W"', str(width)).replace('"Q"', str(width // 4))
    )
    if "lift" in filled:
        filled["lift"]["seed"] = seed
    elif method == "kernel":
        filled["seed"] = seed
    elif method == "deepafl-top":
        filled["seed"] = 1 + 100 * seed
    return filled


def rows_of(name: str) -> Iterator[tuple[str, Any]]:
    for row in SHARED:
        yield row, shared_row
    for row in BOTH if name in SECOND else ():
        yield row, shared_row
    if name in PERSONAL_DATA:
        for base in MAPS:
            for top in PERSONAL:
                yield f"{base} / {top}", personal_row


def do(
    folder: Path, names: list[str], chosen: list[str], seeds: list[int], stored: Path | None
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    done = runs_of(rows_in(stored))
    for seed in seeds:
        for name in names:
            for row, fit in rows_of(name):
                if chosen and not any(row.startswith(each) for each in chosen):
                    continue
                if row in FIXED and seed:
                    continue  # nothing in it is random
                path = folder / f"{name} {row.replace('/', '-')} {seed}.json"
                if path.exists() or seed in done.get((name, row), {}):
                    continue
                found = fit(name, row, seed, folder)
                path.write_text(json.dumps({"data": name, "row": row, "seed": seed, **found}))
                print(
                    name, row, seed, found["accuracy"], found["seconds"], found["tuned"], flush=True
                )


Runs = dict[tuple[str, str], dict[int, dict[str, Any]]]  # by data and row, then by seed


def rows_in(stored: Path | None) -> list[dict[str, Any]]:
    """Return the rows of the stored file, none if it is not there."""
    if stored is None or not stored.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(stored.read_text(encoding="utf-8"))["rows"]
    return rows


def runs_of(rows: list[dict[str, Any]]) -> Runs:
    return {
        (row["data"], row["row"]): {run["seed"]: run for run in row["runs"]}
        for row in rows
        if "runs" in row
    }


def collect(folder: Path, target: Path) -> None:
    """Add runs, and summarize each row; a row of which only a summary is stored keeps it until all
    its seeds, and those of its base, were run again."""
    before = rows_in(target)
    runs = runs_of(before)
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        run = {key: found[key] for key in KEPT if key in found}
        if "right" in run:
            run["right"] = packed(bytes.fromhex(run["right"]))
        runs.setdefault((found["data"], found["row"]), {})[found["seed"]] = run
    old = {(row["data"], row["row"]): row for row in before}
    kept = {key for key, row in old.items() if not set(row["seeds"]) <= runs.get(key, {}).keys()}
    kept |= {key for key in old if (key[0], _base(key[1])) in kept}
    rows = [
        {**old[key], **runs_in(runs, key)} if key in kept else summary(*key, runs)
        for key in sorted(runs.keys() | old.keys(), key=_place)
    ]
    target.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps({"clients": CLIENTS, "dirichlet": SKEW, "rows": []}, indent=1)
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    target.write_text(head.replace("[]", f"[\n  {lines}\n ]") + "\n", encoding="utf-8")


def runs_in(runs: Runs, key: tuple[str, str]) -> dict[str, Any]:
    """Return the runs of a row by seed, for the stored file, if there are some."""
    found = [run for _, run in sorted(runs.get(key, {}).items())]
    return {"runs": found} if found else {}


KEPT = ("seed", "accuracy", "client_mean", "seconds", "tuned", "losses", "samples", "right")


def _place(key: tuple[str, str]) -> tuple[int, int]:
    """Return the place of a row in the stored file: data sets and rows in their order here."""
    name, row = key
    return list(TITLES).index(name), [row for row, _ in rows_of(name)].index(row)


def summary(name: str, row: str, runs: Runs) -> dict[str, Any]:
    """Return means over seeds, the difference to the base row, and the runs themselves."""
    seeds = dict(sorted(runs[name, row].items()))
    accuracies = [run["accuracy"] for run in seeds.values()]
    return {
        "data": name,
        "row": row,
        "seeds": list(seeds),
        "accuracy": round(float(np.mean(accuracies)), 5),
        "spread": round(float(np.std(accuracies)), 5),
        "seconds": round(float(np.median([run["seconds"] for run in seeds.values()])), 1),
        "chosen": [run["tuned"].split(":")[0] for run in seeds.values()],
        "base": _base(row),
        **_difference(seeds, runs.get((name, _base(row)), {}), fixed=_base(row) in FIXED),
        **runs_in(runs, (name, row)),
    }


def _base(row: str) -> str:
    if " / " in row:
        return f"plain / {row.split(' / ')[1]}"
    if row.startswith("both") or row == "second backbone":
        return "ReLU lift" if "ReLU" in row else "linear"
    if row in ("linear", "adapted projection", "4 residual blocks"):
        return "linear"
    return "ReLU lift"


def _difference(
    seeds: dict[int, dict[str, Any]], base: dict[int, dict[str, Any]], *, fixed: bool
) -> dict[str, float]:
    """Return the mean difference to the base and its standard error.

    With stored test samples the error is that of the mean over samples of a difference that is
    averaged over seeds; else that over seeds. A base in which nothing is random has seed 0 only.
    """
    same = {seed: 0 if fixed else seed for seed in seeds}
    pairs = [(run, base[same[seed]]) for seed, run in seeds.items() if same[seed] in base]
    if not pairs:
        return {}
    if "right" in pairs[0][0]:
        each = [_right(one) - _right(other) for one, other in pairs]
        by_sample = np.mean(each, axis=0)
        error = float(by_sample.std() / np.sqrt(len(by_sample)))
        return {"difference": round(float(by_sample.mean()), 5), "error": round(error, 5)}
    gaps = np.array([one["accuracy"] - other["accuracy"] for one, other in pairs])
    error = float(gaps.std(ddof=1) / np.sqrt(len(gaps))) if len(gaps) > 1 else float("nan")
    found = {"difference": round(float(gaps.mean()), 5)}
    return found if np.isnan(error) else {**found, "error": round(error, 5)}


def packed(bits: bytes) -> str:
    return base64.b64encode(zlib.compress(bits, 9)).decode()


def _right(found: dict[str, Any]) -> Array:
    bits = np.frombuffer(zlib.decompress(base64.b64decode(found["right"])), np.uint8)
    return np.unpackbits(bits)[: found["samples"]].astype(float)


BEGIN, END = "<!-- {}: begin -->\n", "<!-- {}: end -->"
TABLES = {
    "kernels": [
        "linear",
        "ReLU lift",
        "GELU lift",
        "Fourier kernel",
        "Fourier kernel, 1,024",
        "landmarks, 1,024",
    ],
    "projections": ["linear", "adapted projection", "ReLU lift", "adapted projection, ReLU lift"],
    "depth": ["linear", "ReLU lift", "4 residual blocks"],
    "ensembles": [
        "a quarter of the ReLU lift",
        "ReLU lift",
        "ensemble of 4, ReLU lift",
        "linear",
        "second backbone",
        "both, whole",
        "both, ensemble",
        "both, ReLU lift",
    ],
}


def render(source: Path, page: Path) -> None:
    """Write the tables into the page, between the marks of each."""
    found = {(row["data"], row["row"]): row for row in json.loads(source.read_text())["rows"]}
    text = page.read_text(encoding="utf-8")
    tables = {name: _table(rows, found) for name, rows in TABLES.items()}
    tables |= {f"personal {base}": _personal(base, found) for base in MAPS if base != "plain"}
    tables["chosen"], tables["seeds"] = _chosen(found), _seeds(found)
    for name, table in tables.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, _, rest = text.partition(begin)
        _, mark, after = rest.partition(end)
        if not mark:
            raise SystemExit(f"{page}: no marks {begin.strip()} and {end}")
        text = f"{before}{begin}{table}{end}{after}"
    page.write_text(text, encoding="utf-8")


Found = dict[tuple[str, str], dict[str, Any]]


def _seeds(found: Found) -> str:
    """Return how many seeds the rows have that draw something at random, by question."""
    questions = {name: [row for row in rows if row not in FIXED] for name, rows in TABLES.items()}
    questions["personal models"] = [f"{base} / {top}" for base in MAPS for top in PERSONAL]
    lines = []
    for question, rows in questions.items():
        parts = []
        for name in TITLES:
            there = [found[name, row] for row in rows if (name, row) in found]
            counts = sorted({len(row["seeds"]) for row in there})
            words = " or ".join(map(str, counts))
            missing = "" if len(there) in (0, len(rows)) else f", {len(there)} of {len(rows)} rows"
            if counts and len(there) > 1:
                parts.append(f"{_short(name)} {words}{missing}")
        lines.append(f"- {question}: {'; '.join(parts)}")
    return "\n".join(lines) + "\n"


def _table(rows: list[str], found: Found) -> str:
    names = [name for name in TITLES if any((name, row) in found for row in rows[1:])]
    names = [name for name in names if (name, "ReLU lift") in found]
    lines = [
        "| | " + " | ".join(TITLES[name] for name in names) + " |",
        "|---|" + "---|" * len(names),
    ]
    for row in rows:
        cells = [_cell(found.get((name, row))) for name in names]
        if any(cell != "" for cell in cells):
            lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _personal(base: str, found: Found) -> str:
    names = [name for name in PERSONAL_DATA if (name, f"{base} / prior") in found]
    lines = [
        "| on top | " + " | ".join(f"{_short(name)}: plain | {base}" for name in names) + " |",
        "|---|" + "---|---|" * len(names),
    ]
    for top in PERSONAL:
        cells = [
            _cell(found.get((name, f"{each} / {top}")))
            for name in names
            for each in ("plain", base)
        ]
        lines.append(f"| `{top}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _short(name: str) -> str:
    return TITLES[name].split(",")[0]


def _cell(row: dict[str, Any] | None) -> str:
    """Return accuracy in %, and the difference to the base with its standard error."""
    if row is None:
        return ""
    text = f"{100 * row['accuracy']:.2f}"
    if row["row"] == row["base"] or "difference" not in row:
        return text
    error = f" ± {100 * row['error']:.2f}" if "error" in row else ""
    return f"{text} ({100 * row['difference']:+.2f}{error})"


def _chosen(found: Found) -> str:
    lines = [
        f"- {TITLES[row['data']]}, {row['row']}: {', '.join(dict.fromkeys(row['chosen']))} "
        f"(seeds {', '.join(map(str, row['seeds']))})"
        for row in found.values()
        if " / " not in row["row"] and any(row["chosen"])
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["run", "collect", "render"])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--data", nargs="*", default=["banking77", "mnist", "cifar100"])
    parser.add_argument("--rows", nargs="*", default=[])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--stored", type=Path, help="runs that are not made again")
    given = parser.parse_args()
    if given.what == "run":
        do(given.paths[0], given.data, given.rows, given.seeds, given.stored)
    elif given.what == "collect":
        collect(given.paths[0], given.paths[1])
    else:
        render(given.paths[0], given.paths[1])


if __name__ == "__main__":
    main()
