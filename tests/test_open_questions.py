"""Runs of the open questions are added to those that are stored, and none gets lost."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
SHARED = ("ReLU lift", "GELU lift", "linear", "4 residual blocks")
PERSONAL = ("plain / prior", "Fourier kernel / prior")


@pytest.fixture(scope="module")
def questions():
    """Import the script; benchmarks are no part of the package."""
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks import questions
    finally:
        sys.path.remove(str(ROOT))
    return questions


def fit(name, row, seed):
    """Return an invented run, the same each time."""
    rng = np.random.default_rng([len(name), *map(ord, row), seed])
    right = rng.random(203) < 0.8
    found = {"accuracy": float(right.mean()), "seconds": 1.0 + seed, "tuned": f"scale {seed}: x"}
    if " / " in row:
        return found
    bits = np.packbits(right).tobytes().hex()
    return {**found, "samples": len(right), "right": bits, "losses": {"0.5": 1.0}}


def runs(folder, seeds, rows=(*SHARED, *PERSONAL), name="banking77"):
    folder.mkdir(exist_ok=True)
    for row in rows:
        for seed in seeds if row != "linear" else [0]:
            found = {"data": name, "row": row, "seed": seed, **fit(name, row, seed)}
            (folder / f"{name} {row.replace('/', '-')} {seed}.json").write_text(json.dumps(found))
    return folder


def rows(path):
    return {(row["data"], row["row"]): row for row in json.loads(path.read_text())["rows"]}


def test_runs_collected_one_after_another_are_those_collected_at_once(tmp_path, questions):
    questions.collect(runs(tmp_path / "all", [0, 1, 2]), tmp_path / "once.json")
    for seed in (2, 0, 1):
        questions.collect(runs(tmp_path / f"{seed}", [seed]), tmp_path / "added.json")
    assert (tmp_path / "added.json").read_bytes() == (tmp_path / "once.json").read_bytes()


def test_differences_are_paired_by_sample_or_by_seed(tmp_path, questions):
    questions.collect(runs(tmp_path / "runs", [0, 1, 2]), tmp_path / "stored.json")
    found = rows(tmp_path / "stored.json")
    gelu, relu = (
        np.mean([bits(fit("banking77", row, seed)) for seed in range(3)], axis=0)
        for row in ("GELU lift", "ReLU lift")
    )
    one = found["banking77", "GELU lift"]
    assert one["difference"] == pytest.approx((gelu - relu).mean(), abs=1e-5)
    assert one["error"] == pytest.approx((gelu - relu).std() / np.sqrt(203), abs=1e-5)
    gaps = [
        fit("banking77", PERSONAL[1], seed)["accuracy"]
        - fit("banking77", PERSONAL[0], seed)["accuracy"]
        for seed in range(3)
    ]
    other = found["banking77", PERSONAL[1]]
    assert other["difference"] == pytest.approx(np.mean(gaps), abs=1e-5)
    assert other["error"] == pytest.approx(np.std(gaps, ddof=1) / np.sqrt(3), abs=1e-5)


def bits(found):
    packed = np.frombuffer(bytes.fromhex(found["right"]), np.uint8)
    return np.unpackbits(packed)[: found["samples"]].astype(float)


def test_a_row_without_its_base_of_the_same_seed_is_not_compared(tmp_path, questions):
    """Another seed has another partition; only a base in which nothing is random has one seed."""
    runs(tmp_path / "runs", [0], [PERSONAL[0], "linear"])
    runs(tmp_path / "runs", [1], [PERSONAL[1], "4 residual blocks"])
    questions.collect(tmp_path / "runs", tmp_path / "stored.json")
    found = rows(tmp_path / "stored.json")
    assert "difference" not in found["banking77", PERSONAL[1]]
    assert "difference" in found["banking77", "4 residual blocks"]


def test_summaries_whose_runs_are_gone_stay_until_all_their_seeds_are_run_again(
    tmp_path, questions
):
    stored = tmp_path / "stored.json"
    questions.collect(runs(tmp_path / "old", [0, 1], name="mnist"), stored)
    summaries = json.loads(stored.read_text())
    for row in summaries["rows"]:
        del row["runs"]
    stored.write_text(json.dumps(summaries))
    before = rows(stored)

    added = {"GELU lift": [0], "4 residual blocks": [], "ReLU lift": []}
    for seeds, row in [([0], "GELU lift"), ([1], "GELU lift"), ([0], "ReLU lift")]:
        questions.collect(runs(tmp_path / f"{row} {seeds}", seeds, [row], name="mnist"), stored)
        added[row] = sorted({*added[row], *seeds})
        after = rows(stored)  # seeds are not there, or those of the base
        held = {row: after["mnist", row].pop("runs", []) for row in added}
        assert {row: [run["seed"] for run in found] for row, found in held.items()} == added
        assert after == before
    questions.collect(runs(tmp_path / "new", [1], ["ReLU lift"], name="mnist"), stored)
    after = rows(stored)
    assert after.keys() == before.keys()
    for row in ("GELU lift", "ReLU lift"):
        assert [run["seed"] for run in after["mnist", row].pop("runs")] == [0, 1]
    assert after == before  # the same runs again


def test_runs_that_are_stored_are_not_made_again(tmp_path, questions, monkeypatch):
    questions.collect(runs(tmp_path / "runs", [0], ["linear", "ReLU lift"]), tmp_path / "stored")
    made = []

    def fitted(name, row, seed, folder):
        made.append((row, seed))
        return fit(name, row, seed)

    monkeypatch.setattr(questions, "shared_row", fitted)
    monkeypatch.setattr(questions, "personal_row", fitted)
    for _ in range(2):  # the second time everything is in the folder
        questions.do(
            tmp_path / "new", ["banking77"], ["linear", "ReLU"], [0, 1], tmp_path / "stored"
        )
    assert made == [("ReLU lift", 1)]
