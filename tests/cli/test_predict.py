"""Predictions of new samples without labels: images, texts, rows of tables, vectors."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import fedgram as fg
from fedgram.cli import main
from fedgram.core import codec
from fedgram.data.sources import load_dataset, load_schema
from fedgram.data.tabular.schema import Schema
from fedgram.models.saved import SavedModel

COLORS = {"red": (220, 40, 30), "green": (30, 200, 60), "blue": (20, 50, 210)}
SEED = 5


def cli(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def done(*words):
    result = cli(*words)
    assert result.exit_code == 0, result.output
    return result


def refused(code, text, *words):
    result = cli(*words)
    assert result.exit_code == code, result.output
    assert text in result.stderr
    assert len(result.stderr.splitlines()) == 1


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


def picture(path, name, rng):
    pixels = np.clip(np.array(COLORS[name]) + rng.integers(-30, 30, (9, 7, 3)), 0, 255)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with labelled and new pictures, and a model of the labelled ones."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(SEED)
    for name in COLORS:
        for k in range(12):
            picture(folder / "known" / name / f"{k}.png", name, rng)
    for k in range(10):
        picture(folder / "new" / f"day{k % 2}" / f"{k}.png", list(COLORS)[k % 3], rng)
    done("features", folder / "known", "--backbone", "pixels:2", "-o", folder / "known.npz")
    own = ["-s", f"data.source={folder / 'known.npz'}", "-s", "data.clients=2"]
    own += ["-s", "data.partition=iid"]
    done("run", "-m", "afl", "-m", "auto", *own, "--keep-models", "all", "--out", folder / "runs")
    return folder


@pytest.fixture
def model(here):
    return here / "runs" / "auto" / "models" / "c0.safetensors"


# Images


def test_new_images_get_a_class_and_probabilities(here, model):
    lines = table(done("predict", model, here / "new").stdout)
    assert [line["item"] for line in lines] == sorted(f"day{k % 2}/{k}.png" for k in range(10))
    for line in lines:
        assert line["name"] == list(COLORS)[int(line["item"][5]) % 3]
        shares = [float(line[f"probability_{name}"]) for name in COLORS]
        assert sum(shares) == pytest.approx(1, abs=1e-4)
        assert float(line[f"probability_{line['name']}"]) == max(shares)


def test_images_and_their_features_have_the_same_scores(here, model, tmp_path):
    done(
        "features", here / "new", "--label", "x", "--backbone", "pixels:2", "-o", tmp_path / "f.npz"
    )
    for name in ("afl", "auto"):
        head = here / "runs" / name / "models" / "c1.safetensors"
        by_image, by_vector = (
            table(done("predict", head, source, "--batch", 3).stdout)
            for source in (here / "new", tmp_path / "f.npz")
        )
        assert [{**line, "item": ""} for line in by_image] == [
            {**line, "item": ""} for line in by_vector
        ]


def test_several_images_are_named_as_given(here, model):
    names = [str(here / "new" / "day0" / "4.png"), str(here / "new" / "day1" / "7.png")]
    lines = table(done("predict", model, *names).stdout)
    assert [line["item"] for line in lines] == names
    lines = table(done("predict", model, names[0], here / "new").stdout)
    assert [line["item"] for line in lines][:2] == [names[0], str(here / "new/day0/0.png")]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json", "parquet"])
def test_every_format_has_the_same_predictions(here, model, tmp_path, kind):
    out = tmp_path / ("new.out" if kind == "csv" else f"new.{kind}")
    shown = table(done("predict", model, here / "new").stdout)
    chosen = ["--format", "csv"] if kind == "csv" else []
    assert "10 predictions" in done("predict", model, here / "new", "-o", out, *chosen).stderr
    if kind == "parquet":
        from pyarrow import parquet

        lines = parquet.read_table(out).to_pylist()
    elif kind == "json":
        lines = json.loads(out.read_text("utf-8"))["predictions"]
    else:
        text = out.read_text("utf-8")
        lines = table(text) if kind == "csv" else list(map(json.loads, text.splitlines()))
    assert [line["item"] for line in lines] == [line["item"] for line in shown]
    for line, other in zip(lines, shown, strict=True):
        assert list(line) == list(other)
        assert float(line["probability_red"]) == pytest.approx(
            float(other["probability_red"]), rel=1e-4
        )


def test_a_broken_image_is_refused_or_left_out_and_no_file_is_half_written(here, model, tmp_path):
    rng = np.random.default_rng(SEED)
    picture(tmp_path / "two" / "a.png", "red", rng)
    (tmp_path / "two" / "b.png").write_bytes(b"not an image")
    out = tmp_path / "out.csv"
    refused(3, "b.png: cannot be read as an image", "predict", model, tmp_path / "two", "-o", out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["two"]
    result = done("predict", model, tmp_path / "two", "-o", out, "--skip-broken")
    assert "skipped b.png" in result.stderr
    assert [line["item"] for line in table(out.read_text("utf-8"))] == ["a.png"]


def test_another_backbone_and_another_kind_of_data_are_refused(here, model, tmp_path):
    new = here / "new"
    refused(4, "the model was made with pixels:2", "predict", model, new, "--backbone", "pixels:3")
    done("features", new / "day0", "--backbone", "pixels:3", "-o", tmp_path / "other.npz")
    words = "features of pixels:3 pixels:3, but the model was made with pixels:2 pixels:2"
    refused(4, words, "predict", model, tmp_path / "other.npz")
    with np.load(tmp_path / "other.npz") as archive:
        arrays = dict(archive)
    np.savez(tmp_path / "named.npz", **{**arrays, "x": arrays["x"][:, :12]})
    refused(4, words, "predict", model, tmp_path / "named.npz")
    np.savez(tmp_path / "wide.npz", x=arrays["x"])
    words = "expected 12 features, as the model was fitted on, got 27"
    refused(3, words, "predict", model, tmp_path / "wide.npz")
    (tmp_path / "new.txt").write_text("good\nbad\n")
    words = "new.txt: texts, but pixels:2, the backbone of the model, takes images"
    refused(4, words, "predict", model, tmp_path / "new.txt")


def test_images_for_a_model_of_unnamed_vectors_are_refused(here, tmp_path):
    run = ["-m", "afl", "-s", "data.clients=2", "--out", tmp_path / "r"]
    done("run", *run)
    head = tmp_path / "r" / "afl" / "shared.safetensors"
    refused(2, "names no backbone; give vectors", "predict", head, here / "new")


def test_arrays_of_images_are_their_pixels(tmp_path):
    rng = np.random.default_rng(SEED)
    y = np.arange(30) % 3
    x = np.clip(
        np.array(list(COLORS.values()))[y][:, None, None] + rng.integers(-9, 9, (30, 4, 5, 3)),
        0,
        255,
    )
    np.savez(tmp_path / "known.npz", x=x.astype(np.uint8), y=y)
    source = ["-s", f"data.source={tmp_path / 'known.npz'}", "-s", "data.clients=1"]
    done("run", "-m", "afl", *source, "--out", tmp_path / "r")
    np.savez(tmp_path / "new.npz", x=x[:6].astype(np.uint8))
    (tmp_path / "png").mkdir()
    for k in range(6):
        Image.fromarray(x[k].astype(np.uint8)).save(tmp_path / "png" / f"{k}.png")
    head = tmp_path / "r" / "afl" / "shared.safetensors"
    found = [table(done("predict", head, tmp_path / n).stdout) for n in ("new.npz", "png")]
    assert [line["label"] for line in found[0]] == [str(label) for label in y[:6]]
    assert [line["score_0"] for line in found[0]] == [line["score_0"] for line in found[1]]
    Image.fromarray(x[0, :3].astype(np.uint8)).save(tmp_path / "png" / "small.png")
    refused(4, "3 x 5 pixels: the model was made for 4 x 5", "predict", head, tmp_path / "png")


# Features without labels


def test_features_of_images_without_classes_are_for_prediction_only(here, model, tmp_path):
    rng = np.random.default_rng(SEED)
    picture(tmp_path / "flat" / "a.png", "red", rng)
    picture(tmp_path / "flat" / "b.png", "blue", rng)
    out = tmp_path / "f.npz"
    result = done("features", tmp_path / "flat", "--backbone", "pixels:2", "-o", out)
    assert "2 samples, pixels:2, without labels: for 'fedgram predict'" in result.output
    assert [line["name"] for line in table(done("predict", model, out).stdout)] == ["red", "blue"]
    refused(3, "array 'y' is missing: without labels", "run", "-s", f"data.source={out}")


def test_a_table_without_its_label_column(tmp_path):
    (tmp_path / "t.csv").write_text("text\ngood day\nbad day\n")
    result = done("features", tmp_path / "t.csv", "--text", "text", "--backbone", "wordllama",
                  "-o", tmp_path / "t.npz")  # fmt: skip
    assert "without labels" in result.output
    words = ["features", tmp_path / "t.csv", "--text", "text", "--label", "stars"]
    refused(3, "column 'stars' is missing", *words, "-o", tmp_path / "u.npz")
    (tmp_path / "n.csv").write_text("a,b\n1,2\n3,4\n")
    words = "without a class, give the --schema of the model's features"
    refused(3, words, "features", tmp_path / "n.csv", "-o", tmp_path / "n.npz")


# Texts


def test_texts_go_through_the_backbone_of_the_model(tmp_path):
    good, bad = "what a lovely sunny morning", "the bank refused my payment"
    rows = "".join(
        f"{text} {k},{name}\n" for k in range(8) for text, name in ((good, "sun"), (bad, "bank"))
    )
    (tmp_path / "t.csv").write_text("text,label\n" + rows)
    done("features", tmp_path / "t.csv", "--text", "text", "-o", tmp_path / "t.npz")
    source = ["-s", f"data.source={tmp_path / 't.npz'}", "-s", "data.clients=2"]
    done("run", "-m", "afl", *source, "-s", "data.partition=iid", "--out", tmp_path / "r")
    head = tmp_path / "r" / "afl" / "shared.safetensors"
    (tmp_path / "new.txt").write_text(f"{good}\n{bad}\n")
    (tmp_path / "new.csv").write_text(f"id,review\na7,{good}\nb9,{bad}\n")
    (tmp_path / "new.jsonl").write_text(
        "".join(json.dumps({"text": t, "id": i}) + "\n" for t, i in ((good, "a7"), (bad, "b9")))
    )
    first = table(done("predict", head, tmp_path / "new.txt").stdout)
    assert [(line["item"], line["name"]) for line in first] == [("1", "sun"), ("2", "bank")]
    named = done("predict", head, tmp_path / "new.csv", "--text", "review", "--name", "id")
    again = table(done("predict", head, tmp_path / "new.jsonl", "--name", "id").stdout)
    assert table(named.stdout) == again
    assert [line["item"] for line in again] == ["a7", "b9"]
    assert [line["score_sun"] for line in again] == [line["score_sun"] for line in first]
    words = "the model takes texts; name their column with --text"
    refused(3, words, "predict", head, tmp_path / "new.csv")


# Raw columns with names


@pytest.fixture(scope="module")
def beds(tmp_path_factory):
    """Models of raw columns with names: one saved from Python, one of a recorded run."""
    tmp_path = tmp_path_factory.mktemp("beds")
    rng = np.random.default_rng(SEED)
    x = rng.normal(size=(120, 3)) * [1, 1000, 30] + [0, 0, 50]
    y = np.where(x[:, 1] > 0, "ill", "well")
    names = ("age", "dose", "weight")
    data = fg.Dataset(x, y, np.arange(120) % 2, columns=names, standardize=True)
    model = fg.run("afl", fg.federate(data)).models["0"]
    codec.save(tmp_path / "python.safetensors", model)
    codes = (y == "well").astype(int)
    named = {"classes": ["ill", "well"], "columns": names}
    np.savez(tmp_path / "beds.npz", x=x, y=codes, **named)
    raw = ["-s", "data.clients=2", "-s", "data.partition=iid", "-s", "data.standardize=true"]
    done("run", tmp_path / "beds.npz", "-m", "afl", *raw, "--out", tmp_path / "r")
    return tmp_path, x[:20], model


def rows_of(path, names, rows):
    lines = [",".join(names), *(",".join(map(repr, row)) for row in rows.tolist())]
    path.write_text("\n".join(lines) + "\n")
    return path


def labels_of(*words):
    return [line["name"] for line in table(done("predict", *words).stdout)]


@pytest.mark.parametrize("file", ["python.safetensors", "r/afl/shared.safetensors"])
def test_columns_of_a_table_are_found_by_their_names(beds, file):
    folder, x, model = beds
    head = folder / file
    expected = model.predict(x).tolist() if file.startswith("python") else None
    ordered = rows_of(folder / "a.csv", ["age", "dose", "weight"], x)
    plain = labels_of(head, ordered)
    assert expected in (None, plain)
    assert {"ill", "well"} == set(plain)
    bed = np.arange(len(x))[:, None] * 1.0
    others = np.hstack([x[:, [1]], bed, x[:, [2, 0]]])
    moved = rows_of(folder / "b.csv", ["dose", "bed", "weight", "age"], others)
    assert labels_of(head, moved) == plain
    assert labels_of(head, moved, "--name", "bed") == plain
    text = "".join(
        json.dumps(dict(zip(("dose", "weight", "age"), row, strict=True))) + "\n"
        for row in x[:, [1, 2, 0]].tolist()
    )
    (folder / "c.jsonl").write_text(text)
    assert labels_of(head, folder / "c.jsonl") == plain
    rows_of(folder / "d.csv", map(repr, x[0].tolist()), x[1:])  # no names: by position
    assert labels_of(head, folder / "d.csv") == plain
    missing = rows_of(folder / "e.csv", ["age", "does", "weight"], x)
    refused(
        3,
        "expected a column 'dose', which is missing; did you mean 'does'?",
        *("predict", head, missing),
    )


def test_a_path_in_python_is_ordered_by_names_too(beds):
    folder, x, model = beds
    moved = rows_of(folder / "b.csv", ["weight", "age", "dose"], x[:, [2, 0, 1]])
    assert model.predict(moved).tolist() == model.predict(x).tolist()


def test_names_of_columns_that_are_not_names_are_refused(beds):
    folder, x, _ = beds
    value = codec.load(folder / "r" / "afl" / "shared.safetensors")
    codec.save(folder / "bad", replace(value, columns=(1, [2], 3)))
    given = rows_of(folder / "a.csv", ["age", "dose", "weight"], x)
    refused(3, "expected names of columns", "predict", folder / "bad", given)


# Tables


@pytest.fixture
def ward(tmp_path):
    """A table of patients, its features with their schema, and runs."""
    rng = np.random.default_rng(SEED)
    age, dose = rng.uniform(20, 90, 60), rng.uniform(0, 5, 60)
    outcome = np.where(age + 9 * dose > 78, "ill", "well")
    lines = [f"{a:.1f},{d:.2f},{o}" for a, d, o in zip(age, dose, outcome, strict=True)]
    (tmp_path / "ward.csv").write_text("age,dose,outcome\n" + "\n".join(lines) + "\n")
    (tmp_path / "new.csv").write_text("id,dose,age\np1,4.5,85\np2,0.2,25\n")
    done("features", tmp_path / "ward.csv", "--label", "outcome", "-o", tmp_path / "ward.npz")
    source = ["-s", f"data.source={tmp_path / 'ward.npz'}", "-s", "data.clients=2"]
    done("run", "-m", "afl", *source, "-s", "data.partition=iid", "--out", tmp_path / "r")
    return tmp_path


def test_the_files_of_a_run_have_the_schema_and_predict_rows(ward):
    schema = Schema.load(ward / "ward.schema.toml")
    assert Schema.parsed(load_schema(str(ward / "ward.npz"))) == schema
    for name in ("shared.safetensors", "models/c0.safetensors"):
        model = ward / "r" / "afl" / name
        held = codec.load(model)
        assert isinstance(held, SavedModel)
        assert Schema.parsed(held.schema) == schema
        lines = table(done("predict", model, ward / "new.csv", "--name", "id").stdout)
        assert [(line["item"], line["name"]) for line in lines] == [("p1", "ill"), ("p2", "well")]
    shared = ward / "r" / "afl" / "shared.safetensors"
    done("personalize", shared, ward / "ward.npz", "-o", ward / "own")
    assert Schema.parsed(codec.load(ward / "own").schema) == schema
    assert codec.load(ward / "own").model.space.backbone == schema.backbone


def test_rows_without_outcome_become_features_with_the_schema(ward):
    chosen = ["--schema", ward / "ward.schema.toml", "-o", ward / "new.npz"]
    assert "without labels" in done("features", ward / "new.csv", *chosen).output
    model = ward / "r" / "afl" / "models" / "c1.safetensors"
    rows, vectors = (
        table(done("predict", model, ward / f"new.{kind}").stdout) for kind in ("csv", "npz")
    )
    assert rows == vectors
    with pytest.raises(Exception, match="'y' is missing"):
        load_dataset(str(ward / "new.npz"))


def test_a_missing_column_and_another_schema_are_refused(ward):
    model = ward / "r" / "afl" / "models" / "c1.safetensors"
    (ward / "bad.csv").write_text("id,age\np1,85\n")
    refused(3, "column 'dose' is missing", "predict", model, ward / "bad.csv")
    text = (ward / "ward.schema.toml").read_text("utf-8")
    (ward / "other.toml").write_text(text.replace("outcome", "result"))
    words = ["predict", model, ward / "new.csv", "--schema", ward / "other.toml"]
    refused(4, "use the schema that its features were made with", *words)
