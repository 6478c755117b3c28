"""Models from Python take images, texts and paths, through the backbone that they name."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import fedgram as fg
from fedgram.cli import main
from fedgram.core import codec
from fedgram.errors import ConfigError, DataError, MismatchError
from fedgram.features import inputs as module

COLORS = {"red": (220, 40, 30), "green": (30, 200, 60), "blue": (20, 50, 210)}


def done(*words):
    result = CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def opened(path):
    with Image.open(path) as image:
        return image.copy()


def scores_of(text):
    lines = list(csv.reader(io.StringIO(text)))[1:]
    return np.array([[float(cell) for cell in line[3:]] for line in lines])


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Pictures, and a data set of features of them."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(3)
    for name, color in COLORS.items():
        for k in range(12):
            pixels = np.clip(np.array(color) + rng.integers(-30, 30, (9, 7, 3)), 0, 255)
            path = folder / "known" / name / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(path)
    done("features", folder / "known", "--backbone", "pixels:2", "-o", folder / "known.npz")
    return folder


@pytest.fixture(scope="module")
def model(here):
    data = fg.federate(fg.load_dataset(str(here / "known.npz")), clients=2, partition="iid")
    return fg.run("afl", data).models["c0"]


def test_images_and_paths_of_every_kind_have_the_scores_of_the_command(here, model, tmp_path):
    paths = sorted((here / "known").rglob("*.png"))
    codec.save(tmp_path / "model", model.predictor)
    expected = scores_of(done("predict", tmp_path / "model", here / "known"))
    pictures = [opened(path) for path in paths]
    pixels = [np.asarray(image) for image in pictures]
    given = [
        here / "known",
        str(here / "known"),
        paths,
        [str(path) for path in paths],
        np.array([str(path) for path in paths]),
        pixels,
        np.stack(pixels),
        pictures,
    ]
    first = model.decision_function(paths)
    np.testing.assert_allclose(first, expected, atol=1e-6)  # six digits are written
    for each in given:
        np.testing.assert_array_equal(model.decision_function(each), first)
    assert list(model.predict(paths)) == [path.parent.name for path in paths]
    assert model.predict_proba(paths[:2]).shape == (2, 3)


def test_pixels_of_images_are_features_of_a_model_of_pixels(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = (rng.integers(0, 90, (40, 4, 5)) + 100 * y[:, None, None]).astype(np.uint8)
    np.savez(tmp_path / "gray.npz", x=x, y=y)
    data = fg.load_dataset(str(tmp_path / "gray.npz"))
    model = fg.run("afl", fg.federate(data, clients=2, partition="iid")).models["c0"]
    np.testing.assert_array_equal(model.decision_function(x), model.decision_function(data))
    with pytest.raises(MismatchError, match="3 x 5 pixels: the model was made for 4 x 5"):
        model.predict(x[:, :3])


def test_texts_in_a_list_are_texts(tmp_path):
    texts = {"sun": "what a lovely sunny morning", "bank": "the bank refused my payment"}
    rows = "".join(f"{text} {k},{name}\n" for k in range(8) for name, text in texts.items())
    (tmp_path / "t.csv").write_text("text,label\n" + rows)
    done("features", tmp_path / "t.csv", "--text", "text", "-o", tmp_path / "t.npz")
    data = fg.load_dataset(str(tmp_path / "t.npz"))
    model = fg.run("afl", fg.federate(data, clients=2, partition="iid")).models["c0"]
    assert list(model.predict(list(texts.values()))) == list(texts)
    (tmp_path / "new.txt").write_text("\n".join(texts.values()) + "\n")
    assert list(model.predict(tmp_path / "new.txt")) == list(texts)
    with pytest.raises(DataError, match="expected a path, or texts in a list"):
        model.predict("a lovely morning")
    with pytest.raises(MismatchError, match="images, but wordllama"):
        model.predict(np.zeros((1, 4, 4, 3), np.uint8))


def test_a_model_of_vectors_names_no_backbone():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 9)), np.arange(60) % 2
    for standardize in (True, False):
        data = fg.Dataset(x, y, standardize=standardize)
        model = fg.run("afl", fg.federate(data, clients=2, partition="iid")).models["c0"]
        with pytest.raises(DataError, match=r"got texts; .* vectors that name no backbone"):
            model.predict(["good day"])


def test_a_backbone_that_is_not_there_or_is_another_one_is_named(here, model):
    with pytest.raises(DataError, match=r"nowhere\.png: file not found; expected an image"):
        model.predict([here / "nowhere.png"])
    paths = sorted((here / "known").rglob("*.png"))[:1]

    for name, error, words in (
        ("pixels:2 0123456789abcdef", MismatchError, "use that backbone with the same weights"),
        ("onnx:away.onnx 0123456789abcdef", ConfigError, "away.onnx"),
    ):
        space = replace(model.inputs.space, backbone=name)
        other = replace(model, inputs=replace(model.inputs, space=space))
        with pytest.raises(error, match=words):
            other.predict(paths)


def test_the_backbone_is_loaded_once(here, model, monkeypatch):
    paths = sorted((here / "known").rglob("*.png"))[:1]
    calls = []

    def counted(space):
        calls.append(space)
        return original(space)

    original = module.backbone_of
    module._backbone.cache_clear()
    monkeypatch.setattr(module, "backbone_of", counted)
    model.predict(paths)
    model.predict(paths)
    assert len(calls) == 1


def test_features_of_another_grid_are_refused(here, model):
    data = fg.load_dataset(str(here / "known.npz"))
    if data.grid is not None:
        with pytest.raises(DataError, match="stored on a grid of 4 bits"):
            model.predict(replace(data, grid=(4, data.grid[1])))
