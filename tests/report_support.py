"""Run folders written by hand, with numbers that are known."""

import json
from pathlib import Path

import numpy as np

VERSIONS = {"fedgram": "0.1.0", "python": "3.11", "numpy": "2.0", "blas": ["openblas 1"]}
DATA = {"source": "toy", "partition": "dirichlet", "dirichlet": 0.1, "clients": 6}


def summary(accuracy, *, round_=1, valid=None, seconds=None, flops=None, clients=6, **more):
    """Return what one line says of all clients."""
    kinds = ("client_mean", "sample_mean", "worst_decile", "global_test", "balanced")
    return {
        "accuracy": dict.fromkeys(kinds, accuracy),
        "valid": valid,
        "auroc": None,
        "class_accuracy": None,
        "clients": clients,
        "untested_clients": 0,
        "seconds": 0.5 * round_ if seconds is None else seconds,
        "flops": 1_000_000 * round_ if flops is None else flops,
        "bytes": {"up": 1000 * round_, "down": 500 * round_},
        "shared_digest": "5" * 64,
        "model_digest": "7" * 64,
        **more,
    }


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def write_run(
    folder,
    method="afl",
    *,
    seed=0,
    data=None,
    parameters=None,
    clients=None,
    rounds=None,
    holdout=None,
    finished=True,
    classes=("cat", "dog"),
    private=False,
    methods=(),
):
    """Write a run: accuracy by client, or by round and client, on 20 test samples each.

    ``rounds`` is a list of (round, accuracy, valid); the clients' scores are those of each round.
    """
    folder = Path(folder)
    folder.mkdir(parents=True)
    clients = {"c0": 0.5, "c1": 0.9} if clients is None else clients
    config = {
        "version": 1,
        "data": {**(data or DATA), "seed": seed},
        "grid": {"bits": 8, "clip": None},
        "engine": {"workers": 1, "private": private, "seed": seed},
        "methods": list(methods or [method]),
        "method": {},
    }
    about = {
        "format": 2,
        "method": method,
        "parameters": parameters or {"ridge": 1.0},
        "config": config,
        "versions": VERSIONS,
    }
    (folder / "run.json").write_text(json.dumps(about), encoding="utf-8")
    mean = float(np.mean(list(clients.values())))
    lines = []
    for number, accuracy, valid in rounds or [(1, mean, None)]:
        lines += [] if private else _scores(number, "members", clients)
        total = summary(accuracy, round_=number, valid=valid, clients=len(clients))
        lines.append({"round": number, "set": "members", "summary": total})
    if holdout:
        last = lines[-1]["round"]
        total = summary(float(np.mean(list(holdout.values()))), clients=len(holdout))
        lines += [] if private else _scores(last, "holdout", holdout)
        lines.append({"round": last, "set": "holdout", "summary": total})
    write_lines(folder / "scores.jsonl", lines)
    write_lines(folder / "exchanges.jsonl", _exchanges(len(clients), finished=finished))
    if not private:
        dealt = [*((name, False) for name in clients), *((name, True) for name in holdout or {})]
        _write_partition(folder, dealt, classes)
    return folder


def _scores(number, who, clients):
    return [
        {
            "round": number,
            "set": who,
            "client": client,
            "samples": 20,
            "correct": round(20 * accuracy),
            "seconds": 0.01,
            "model_digest": "1" * 64,
            "valid_samples": 5,
            "valid_correct": 4,
        }
        for client, accuracy in clients.items()
    ]


def _exchanges(clients, *, finished):
    one = {"clients": clients, "seconds": 0.1}
    asks = [{"step": "statistics", "phase": "train", "bytes_up": 6000, "bytes_down": 0, **one}]
    if finished:
        asks.append({"step": "deliver", "phase": "deliver", "bytes_up": 0, "bytes_down": 60, **one})
    return asks


def _write_partition(folder, dealt, classes):
    entries = [
        {
            "client": name,
            "holdout": held,
            "train": [7 + place] + [3] * (len(classes) - 1),
            "valid": [1] * len(classes),
            "test": [20 // len(classes)] * len(classes),
        }
        for place, (name, held) in enumerate(dealt)
    ]
    content = {"format": 1, "classes": list(classes), "clients": entries}
    (folder / "partition.json").write_text(json.dumps(content), encoding="utf-8")
