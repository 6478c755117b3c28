"""Regression on the command line, and columns of tables: results and refusals."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import fedgram as fg
from fedgram.cli import main
from fedgram.core import codec
from fedgram.data.sources import load_dataset
from fedgram.errors import DataError
from fedgram.federation.federated_dataset import training_batches


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 9))
    y = 10 * x[:, 0] + 50 + rng.normal(size=200)
    np.savez("doses.npz", x=x, y=y, client=rng.choice(["north", "south"], size=200))
    np.savez("new.npz", x=x[:5])
    np.savez("codes.npz", x=x, y=np.arange(200) * 3)
    return tmp_path


def command(*words):
    return CliRunner().invoke(main, list(words), env={"COLUMNS": "100"})


RUN = ("run", "-s", "data.source=doses.npz", "-s", "data.partition=given")
NUMBERS = (*RUN, "-s", "data.task=regression", "-s", "data.output_range=[0,100]")


def test_a_run_is_recorded_compared_reported_and_predicts(here):
    done = command(*NUMBERS, "-m", "afl", "-m", "fedhip", "-o", "runs")
    assert done.exit_code == 0, done.output
    assert "RMSE" in done.output
    assert "R2 in %, bytes per client; RMSE and MAE in the units of the outputs" in done.output
    assert "bal." not in done.output
    found = json.loads(command("compare", "runs", "--json").stdout)["runs"]
    assert {run["method"] for run in found} == {"afl", "fedhip"}
    assert all(run["errors"]["rmse"] < 8 for run in found)
    assert command("report", "runs", "-o", "report.html").exit_code == 0
    page = (here / "report.html").read_text("utf-8")
    assert "RMSE" in page
    assert "accura" not in page.split("<section")[1].split("</section")[0]
    model = "runs/fedhip/models/north.safetensors"
    rows = list(csv.DictReader(io.StringIO(command("predict", model, "new.npz").stdout)))
    assert list(rows[0]) == ["item", "y"]
    truth = np.load("doses.npz")["y"][:5]
    assert np.abs([float(row["y"]) for row in rows] - truth).max() < 15
    written = command("export", model, "--to", "onnx", "-o", "out")
    assert "out/model.onnx: 2" in written.output
    assert "from features to numbers" in written.output


def test_numbers_without_the_task_name_it(here):
    done = command(*RUN, "-m", "afl")
    assert done.exit_code == 3
    assert "data.task=regression" in done.output
    done = command("run", "-m", "afl", "-s", "data.source=codes.npz")
    assert done.exit_code == 3
    assert "200 different numbers such as 0, which look like a quantity" in done.output


def test_refusals_name_the_cause_and_the_remedy(here):
    for change, words in (
        ("data.output_range=[0,60]", "declare a wider output_range"),
        ("data.output_range=[0]", "data.output_range = [0]: expected a list of 2"),
        ("data.task=regresion", "data.task = 'regresion': expected 'classification' or"),
        ("data.source=digits", "digits: task: expected classification, got regression"),
    ):
        done = command(*NUMBERS, "-m", "afl", "-s", change)
        assert done.exit_code in (2, 3)
        assert words in done.output
    done = command(*NUMBERS, "-m", "lda")
    assert "method lda: expected classes, got numbers of a regression" in done.output
    with pytest.warns(UserWarning, match="the range of the outputs is taken from the data"):
        command(*NUMBERS[:-2], "-m", "afl")


def test_a_model_of_standardized_columns_takes_raw_ones_if_its_file_has_their_means(here):
    done = command(*NUMBERS, "-m", "afl", "-s", "data.standardize=true", "-o", "standard")
    assert done.exit_code == 0, done.output
    model = "standard/afl/models/north.safetensors"
    assert command("predict", model, "new.npz").exit_code == 0
    codec.save(Path("bare"), codec.load(Path(model)).model)
    done = command("predict", "bare", "new.npz")
    assert done.exit_code == 3
    assert "made for standardized columns (data.standardize)" in done.output
    assert "fedgram features" in done.output
    assert command("export", model, "--to", "onnx", "-o", "out").exit_code == 0
    done = command("export", "bare", "--to", "onnx", "-o", "out")
    assert done.exit_code == 2
    assert "whose columns are not features yet" in done.output


def test_columns_of_a_table_that_become_features_are_named(here):
    rows = "".join(f"{k},{20 + k % 30},{'no' if k % 2 else 'yes'}\n" for k in range(40))
    (here / "t.csv").write_text("patient_id,age,outcome\n" + rows, "utf-8")
    done = command("features", "t.csv", "--label", "outcome", "-o", "t.npz")
    assert done.exit_code == 0, done.output
    assert "columns that become features: patient_id, age; leave others out with" in done.stderr
    assert "warning: column 'patient_id' becomes a feature" in done.stderr
    done = command(
        "features", "t.csv", "--label", "outcome", "--without", "patient_id", "-o", "u.npz"
    )
    assert "warning" not in done.stderr


def test_combinations_that_a_regression_does_not_have_are_refused_by_name(here):
    assert command(*NUMBERS, "-m", "auto", "-o", "runs").exit_code == 0
    for words, text in (
        ((*NUMBERS, "-m", "afl", "--calibrate"), "calibrate = true: expected classes"),
        ((*NUMBERS, "-s", "metrics.auroc=true"), "metrics.auroc: expected classes"),
        ((*NUMBERS, "-s", "metrics.classes=true"), "metrics.classes: expected classes"),
    ):
        done = command(*words)
        assert done.exit_code == 2, done.output
        assert text in done.output
    done = command("contribute", "doses.npz", "--client", "north", "-o", "north.contribution")
    assert done.exit_code == 3
    assert "for numbers use data.task=regression" in done.output


def test_a_partition_of_numbers_shows_groups(here):
    done = command("partition", *NUMBERS[1:])
    assert done.exit_code == 0, done.output
    assert "10 groups of samples with similar outputs" in done.output
    assert "y, tenth" in done.output


def test_numbers_that_features_wrote_as_classes_are_numbers_again(here):
    rows = "".join(f"{20 + k % 40},{'mf'[k % 2]},{k * 1.5 + 0.25}\n" for k in range(60))
    (here / "t.csv").write_text("age,sex,dose\n" + rows, "utf-8")
    assert command("features", "t.csv", "--label", "dose", "-o", "t.npz").exit_code == 0
    data = load_dataset("t.npz", task="regression", output_range=(0, 100))
    assert np.abs(data.targets.real()[:, 0] - (np.arange(60) * 1.5 + 0.25)).max() < 0.01
    assert command("features", "t.csv", "--label", "sex", "-o", "s.npz").exit_code == 0
    with pytest.raises(DataError, match="expected numbers, got classes such as 'f'"):
        load_dataset("s.npz", task="regression", output_range=(0, 100))


def test_a_shared_model_of_raw_columns_is_personalized_with_raw_columns(here):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(240, 9)) * 10.0 ** np.arange(9)
    content = {
        "x": x,
        "y": (x[:, 0] + x[:, 1] / 10 > 0).astype(int),
        "client": rng.choice(["north", "south"], size=240),
        "columns": np.array([f"c{k}" for k in range(9)]),
        "split": np.repeat([0, 2], [200, 40]),
    }
    np.savez("raw.npz", **content)
    run = ("run", "-m", "apfl-linear", "-s", "data.source=raw.npz", "-s", "data.partition=given")
    done = command(*run, "-s", "data.standardize=true", "-o", "r")
    assert done.exit_code == 0, done.output
    own = content["client"] == "north"
    other = [3, 1, 0, 2, 8, 7, 6, 5, 4]  # found by their names
    site = {name: array[own] for name, array in content.items() if name not in ("columns", "x")}
    np.savez("north.npz", x=x[own][:, other], columns=content["columns"][other], **site)
    shared = "r/apfl-linear/shared.safetensors"
    done = command("personalize", shared, "north.npz", "-o", "own.safetensors")
    assert done.exit_code == 0, done.output
    np.savez("new.npz", x=x[:7])
    model = "r/apfl-linear/models/north.safetensors"
    assert command("predict", "own.safetensors", "new.npz").stdout == (
        command("predict", model, "new.npz").stdout
    )
    codec.save(Path("bare"), codec.load(Path(shared)).model)
    done = command("personalize", "bare", "north.npz", "-o", "other")
    assert done.exit_code == 3
    assert "its file does not contain their means" in done.output


@pytest.mark.parametrize("method", ["fedhip", "auto", "apfl-linear"])
def test_a_shared_model_of_numbers_is_personalized(here, method):
    content = dict(np.load("doses.npz"))
    content["split"] = np.repeat([0, 2], [150, 50])
    np.savez("doses.npz", **content)
    done = command(*NUMBERS, "-m", method, "-o", "r", "--overwrite")
    assert done.exit_code == 0, done.output
    own = content["client"] == "north"
    np.savez("north.npz", **{name: array[own] for name, array in content.items()})
    done = command("personalize", f"r/{method}/shared.safetensors", "north.npz", "-o", "own")
    assert done.exit_code == 0, done.output
    found, expected = (
        command("predict", name, "new.npz").stdout
        for name in ("own", f"r/{method}/models/north.safetensors")
    )
    assert found == expected
    assert "item,y" in found
    content["y"] = content["y"] + 1000
    np.savez("far.npz", **content)
    done = command("personalize", f"r/{method}/shared.safetensors", "far.npz", "-o", "own")
    assert done.exit_code == 3
    assert "y: expected values in [0, 100]" in done.output


def test_contributions_of_numbers_end_where_a_run_does(here):
    content = dict(np.load("doses.npz"))
    content["split"] = np.zeros(200, int)
    for name in ("north", "south"):
        own = content["client"] == name
        np.savez(f"{name}.npz", **{key: array[own] for key, array in content.items()})
    assert command("ledger", "init", "study.ledger").exit_code == 0
    task = ("-s", "data.task=regression", "-s", "data.output_range=[0,100]")
    for name in ("north", "south"):
        given = ("contribute", f"{name}.npz", "--client", name, "-m", "apfl-linear")
        done = command(*given, *task, "-o", f"{name}.contribution")
        assert done.exit_code == 0, done.output
        done = command("ledger", "join", "study.ledger", f"{name}.contribution")
        assert done.exit_code == 0, done.output
    solved = command("ledger", "solve", "study.ledger", "-m", "apfl-linear", "-o", "shared")
    assert solved.exit_code == 0, solved.output
    rows = list(csv.DictReader(io.StringIO(command("predict", "shared", "new.npz").stdout)))
    assert np.abs([float(row["y"]) for row in rows] - content["y"][:5]).max() < 15
    assert command("personalize", "shared", "north.npz", "-o", "own").exit_code == 0
    federated = [
        fg.Site(id=name, train=samples, valid=samples.take([]), test=samples)
        for name in ("north", "south")
        for samples in training_batches(f"{name}.npz", fg.Grid(), output_range=(0, 100))
    ]
    total = sum(
        (fg.Statistics.of(site.train.features, site.train.labels) for site in federated[1:]),
        start=fg.Statistics.of(federated[0].train.features, federated[0].train.labels),
    )
    expected = fg.Linear.of(total, ridge=fg.create_method("apfl-linear").ridge)
    found = codec.load(Path("shared"))
    np.testing.assert_array_equal(found.predictor().weights, expected.weights)
    far = command(
        "contribute",
        "north.npz",
        "--client",
        "far",
        "-m",
        "apfl-linear",
        "-s",
        "data.task=regression",
        "-s",
        "data.output_range=[0,500]",
        "-o",
        "far",
    )
    assert far.exit_code == 0, far.output
    refused = command("ledger", "join", "study.ledger", "far")
    assert refused.exit_code == 4
    assert "outputs differ" in refused.output
    assert "use the same task, outputs and output_range everywhere" in refused.output
    none = command("contribute", "north.npz", "--client", "a", "-o", "a", *task[:2])
    assert none.exit_code == 2
    assert "expected the range that all sites agreed on" in none.output
