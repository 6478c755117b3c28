"""Studies of a regression: R2, RMSE and MAE in the table, as in the runs."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import fedgram as fg
from fedgram.cli import main
from fedgram.errors import ConfigError
from fedgram.experiments.reader import read_runs
from fedgram.experiments.study.settings import read

TABLE = {
    "datasets": [{"name": "doses", "source": "doses.npz"}],
    "partitions": ["iid"],
    "clients": [3],
    "seeds": 2,
    "methods": ["local", "afl"],
    "show": ["client_mean", "global_test", "rmse", "mae", "seconds/afl"],
}
DATA = {"task": "regression", "output_range": [-9, 9], "split": "within-client"}
TOML = """
[table]
datasets = [{ name = "doses", source = "doses.npz" }]
partitions = ["iid"]
clients = [3]
seeds = 2
methods = ["local", "afl"]
show = ["client_mean", "rmse", "mae"]
curves = ["bytes"]

[data]
task = "regression"
output_range = [-9, 9]
split = "within-client"

[[sweep]]
parameter = "ridge"
values = [1.0, 10.0]
"""


def write_doses():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(160, 9))
    np.savez("doses.npz", x=x, y=x.sum(axis=1) / 3 + 0.5 * rng.normal(size=160))


def test_a_study_of_numbers_has_the_errors_of_its_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_doses()
    (tmp_path / "s.toml").write_text(TOML, "utf-8")
    done = CliRunner().invoke(main, ["study", "s.toml", "-o", "out", "--jobs", "1"])
    assert done.exit_code == 0, done.output
    for words in ("client-mean R2 in %", "RMSE over all test samples", "MAE over all"):
        assert words in done.output, done.output
    assert "accuracy" not in done.output
    numbers = json.loads((tmp_path / "out" / "table.json").read_text("utf-8"))["numbers"]
    rmse = [n for n in numbers if (n["method"], n["measure"], n["value"]) == ("afl", "rmse", 1.0)]
    runs = [
        run
        for run in read_runs([tmp_path / "out" / "runs"])
        if run.method == "afl" and run.parameters["ridge"] == 1.0
    ]
    assert len(runs) == 2
    found = [run.summary.errors["rmse"] for run in runs]
    assert rmse[0]["mean"] == pytest.approx(np.mean(found))
    assert rmse[0]["rank"] is not None
    # The same as one run by hand.
    data = fg.load_dataset("doses.npz", task="regression", output_range=(-9, 9))
    plan = {"clients": 3, "partition": "iid", "split": "within-client", "seed": 0}
    by_hand = fg.run("afl", fg.federate(data, **plan), ridge=1.0)
    assert by_hand.shared_digest in {run.summary.shared_digest for run in runs}
    pictures = [path.read_text("utf-8") for path in (tmp_path / "out").glob("table-*.svg")]
    assert pictures
    assert all(">R2, %<" in each and "accuracy" not in each for each in pictures)


WRONG = {
    "a method of classes": ({"methods": ["lda"]}, {}, "lda: expected a method for data.task"),
    "a measure of classes": (
        {"show": ["balanced"]},
        {},
        "unknown measure of a regression 'balanced'",
    ),
    "no range": ({}, {"output_range": None}, "doses: data.output_range: expected with"),
    "two tasks": (
        {"datasets": [{"source": "doses.npz", "task": "classification"}]},
        {},
        r"data.task: expected in \[data\], for the whole study",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_study_of_numbers_cannot_have_is_refused(case):
    table, data, words = WRONG[case]
    shared = {key: value for key, value in {**DATA, **data}.items() if value is not None}
    with pytest.raises(ConfigError, match=words):
        read({"table": {**TABLE, **table}, "data": shared})
    assert read({"table": TABLE, "data": DATA}).numbers


def test_errors_are_measures_of_a_regression_only():
    with pytest.raises(ConfigError, match="unknown measure 'rmse'"):
        read({"table": {"show": ["rmse"]}})
