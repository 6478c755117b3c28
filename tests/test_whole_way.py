"""From own data to predictions, as a new user goes: one script with public names and commands."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedgram as fg

pytestmark = pytest.mark.wide
pandas = pytest.importorskip("pandas")
image = pytest.importorskip("PIL.Image")


def command(*words, code=0):
    """Run a command as a user does, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "fedgram", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def rows(text):
    return list(csv.DictReader(text.splitlines()))


@pytest.fixture(autouse=True)
def away(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDGRAM_DATA", raising=False)
    return np.random.default_rng(0)


def test_arrays_with_labels_in_text_become_a_frame_and_a_figure(away):
    y = away.choice(["cat", "dog", "owl"], size=300)
    x = away.normal(size=(300, 16)) + (y == "dog")[:, None] + 2 * (y == "owl")[:, None]
    ids = away.choice(["north", "south", "west"], size=300)
    result = fg.run("auto", fg.federate(fg.Dataset(x, y, clients=ids)))
    frame = result.to_frame().set_index("client")
    assert sorted(frame.index) == ["north", "south", "west"]
    assert frame.accuracy.mean() == pytest.approx(result.accuracy["client_mean"])
    assert result.plot().save("clients.svg").read_text("utf-8").startswith("<svg")
    model = result.models["north"]
    shares = model.predict_proba(x[:5])
    assert shares.sum(axis=1) == pytest.approx(1)
    assert (model.classes_[shares.argmax(axis=1)] == model.predict(x[:5])).all()
    np.savez("own.npz", x=x, y=y, client=ids)  # the same on the command line
    command("run", "own.npz", "-m", "auto", "-s", "data.partition=given", "--out", "runs")
    np.savetxt("new.csv", x[:5], delimiter=",")  # without a line of names
    found = rows(command("predict", "runs/auto/models/north.safetensors", "new.csv"))
    assert [row["name"] for row in found] == model.predict(x[:5]).tolist()
    pandas.DataFrame(x[:5]).to_csv("frame.csv", index=False)  # its columns are named 0, 1, ...
    again = rows(command("predict", "runs/auto/models/north.safetensors", "frame.csv"))
    assert len(again) == 5


def paint(folder, number, away):
    folder.mkdir(parents=True)
    colors = np.array([[200, 60, 60], [60, 60, 200]])
    for k in range(number):
        pixels = colors[k % 2] + away.normal(0, 40, (12, 12, 3))
        path = folder / f"{k:03}.png"
        image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path)


@pytest.mark.parametrize(
    "backbone", ["pixels:8", pytest.param("", marks=pytest.mark.vision, id="embedded")]
)
def test_images_without_labels_get_classes_with_probabilities(away, backbone):
    paint(Path("new"), 200, away)
    paint(Path("all"), 80, away)
    for k, path in enumerate(sorted(Path("all").iterdir())):
        target = Path("photos") / ("red", "blue")[k % 2] / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    given = ("--backbone", backbone) if backbone else ()
    command("features", "photos", "-o", "photos.npz", *given)
    command("run", "photos.npz", "-m", "auto", "-s", "data.clients=3", "--out", "runs")
    model = "runs/auto/shared.safetensors"
    command("predict", model, "new", "-o", "new.csv")
    found = rows(Path("new.csv").read_text("utf-8"))
    assert len(found) == 200
    right = [row["name"] == ("red", "blue")[k % 2] for k, row in enumerate(found)]
    assert np.mean(right) > 0.95
    sums = [float(row["probability_red"]) + float(row["probability_blue"]) for row in found]
    assert sums == pytest.approx(np.ones(200), abs=1e-4)
    command("features", "new", "-o", "new.npz", *given)
    later = rows(command("predict", model, "new.npz"))
    assert [row["name"] for row in later] == [row["name"] for row in found]
    other = fg.run("apfl-linear", fg.federate(fg.load_dataset("photos.npz"), clients=3))
    assert other.shared_model.predict_proba("new/").shape == (200, 2)
    Path("empty").mkdir()
    command("predict", model, "empty", code=3)


def test_texts_without_labels_get_classes_with_probabilities(away):
    pytest.importorskip("wordllama")
    words = {
        "good": ["great film", "wonderful and happy", "superb acting", "delightful story"],
        "bad": ["awful film", "terrible and sad", "bad acting", "boring story"],
    }
    texts = [
        (" ".join(away.choice(some, 2)), kind) for _ in range(30) for kind, some in words.items()
    ]
    pandas.DataFrame(texts, columns=["text", "label"]).to_csv("reviews.csv", index=False)
    new = [(k, " ".join(away.choice(words[("bad", "good")[k % 2]], 2))) for k in range(50)]
    pandas.DataFrame(new, columns=["id", "comment"]).to_csv("new.csv", index=False)
    command("features", "reviews.csv", "--text", "text", "-o", "reviews.npz")
    command("run", "reviews.npz", "-m", "afl", "-s", "data.clients=3", "--calibrate", "--out", "r")
    found = rows(
        command(
            "predict", "r/afl/shared.safetensors", "new.csv", "--text", "comment", "--name", "id"
        )
    )
    assert [row["item"] for row in found] == [str(k) for k in range(50)]
    assert np.mean([row["name"] == ("bad", "good")[k % 2] for k, row in enumerate(found)]) > 0.9
    assert "probability_good" in found[0]


def test_a_table_of_numbers_is_studied_reported_exported_and_predicted(away):
    count = 400
    table = pandas.DataFrame(
        {
            "age": away.integers(20, 80, count),
            "income": away.normal(40_000, 9000, count),
            **{f"z{k}": away.normal(size=count) for k in range(7)},
            "city": away.choice(["a", "b", "c"], size=count),
        }
    )
    table["rent"] = 300 + 0.01 * table.income + 40 * table.z0 + 30 * (table.city == "a")
    inputs, limits = table.drop(columns=["rent", "city"]), (0, 2000)
    data = fg.Dataset(
        inputs,
        table["rent"],
        clients=table["city"],
        task="regression",
        output_range=limits,
        standardize=True,
    )
    result = fg.run("auto", fg.federate(data))
    assert result.to_frame().r2.min() > 0.9
    mine = table.city == "a"
    assert np.abs(result.models["a"].predict(inputs[mine]) - table.rent[mine]).mean() < 15
    table.to_csv("rent.csv", index=False)
    command("features", "rent.csv", "--label", "rent", "--client", "city", "-o", "rent.npz")
    task = ("-s", "data.task=regression", "-s", "data.output_range=[0,2000]")
    given = (*task, "-s", "data.partition=given")
    command("run", "rent.npz", *given, "-m", "auto", "-m", "local", "--out", "runs")
    command("report", "runs", "-o", "report.html")
    assert "RMSE" in Path("report.html").read_text("utf-8")
    Path("study.toml").write_text(
        '[table]\ndatasets = [{ name = "rent", source = "rent.npz" }]\npartitions = ["iid"]\n'
        'clients = [3]\nmethods = ["local", "afl"]\nshow = ["client_mean", "rmse"]\n'
        '[data]\ntask = "regression"\noutput_range = [0, 2000]\n',
        "utf-8",
    )
    command("study", "study.toml", "-o", "study", "--jobs", "1")
    numbers = json.loads(Path("study/table.json").read_text("utf-8"))["numbers"]
    assert {(row["method"], len(numbers)) for row in numbers} == {("local", 4), ("afl", 4)}
    model = "runs/auto/models/a.safetensors"
    found = rows(command("predict", model, "rent.csv"))  # its other columns are ignored
    wrong = np.array([float(row["y"]) for row in found]) - table.rent
    assert np.abs(wrong[mine]).mean() < 15
    kinds = {"onnx": "onnx", "sklearn": "numpy", "torch": "torch", "safetensors": "numpy"}
    for kind, needs in kinds.items():
        pytest.importorskip(needs)
        command("export", model, "--to", kind, "--input", "grid", "-o", kind)
        assert (Path(kind) / "README.md").exists()
        fg.export_model(result.models["a"], f"own-{kind}", to=kind)
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession("own-onnx/model.onnx")
    (values,) = session.run(None, {session.get_inputs()[0].name: inputs.to_numpy(np.float64)})
    np.testing.assert_allclose(values[:, 0], result.models["a"].predict(inputs), rtol=0, atol=1e-6)
