"""Exported models: other programs compute the same scores, and what cannot be exported says why."""

import hashlib
import importlib.util
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, save
from PIL import Image
from sklearn.base import clone
from sklearn.metrics import accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import fedgram as fg
from fedgram.cli import main
from fedgram.core import codec
from fedgram.core.samples import Features
from fedgram.errors import ConfigError
from fedgram.export import export_model
from fedgram.export.formula import formula_of
from fedgram.export.graph import Graph
from fedgram.export.onnx_images import _bicubic, _pillow
from fedgram.features.backbones.bicubic import resized
from fedgram.features.backbones.preprocessing import rows_first
from fedgram.features.grid import Grid
from fedgram.features.new_data import NewData
from fedgram.models.adjusted import ClassMasked, Shifted
from fedgram.models.linear import Linear
from fedgram.models.model import Calibration
from fedgram.models.saved import SavedModel

onnxruntime = pytest.importorskip("onnxruntime")
# Settings by method: with lifts, masks, priors, several heads.
METHODS = {
    "afl": {},
    "afl copies": {"lift": {"width": 33, "copies": 5}},
    "afl fourier": {"lift": {"width": 33, "activation": "fourier"}},
    "apfl": {"refinement": {"width": 40, "activation": "gelu", "seed": 3}},
    "auto": {"exchanges": 2},
    "fed3r": {},
    "fedcgs": {},
    "fedhip": {},
    "fedncm": {},
    "intercept": {},
    "lda": {},
    "local": {},
    "logistic": {"exchanges": 2, "prior": True},
    "prior": {},
    "closed-ditto": {},
}
ALL = ("--keep-models", "all")
BLOCK = "import sys; sys.modules['fedgram'] = None\n"


@pytest.fixture(scope="module")
def digits():
    return fg.load_dataset("digits")


@pytest.fixture(scope="module")
def models(digits):
    plan = fg.PartitionPlan(clients=4, partition="dirichlet", dirichlet=0.3)
    federated = fg.federate(digits, plan)
    return {
        name: fg.run(fg.create_method(name.split()[0], settings), federated).predictors["c1"]
        for name, settings in METHODS.items()
    }


def on_grid(model, x):
    return Grid.of(model.space)(x, backbone=model.space.backbone)


def run_onnx(folder, **inputs):
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def standalone(folder):
    spec = importlib.util.spec_from_file_location("exported_model", folder / "model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["exported_model"] = module  # to be pickled
    spec.loader.exec_module(module)
    return module.ExportedClassifier


# The same scores


@pytest.mark.parametrize("name", METHODS)
def test_onnx_has_the_scores_of_the_model(models, digits, tmp_path, name):
    model, x = models[name], digits.x[:200].astype(np.float64)
    done = export_model(model, tmp_path, to="onnx")
    found, expected = run_onnx(tmp_path, features=x), model(on_grid(model, x))
    np.testing.assert_allclose(
        found["scores"], expected, rtol=0, atol=1e-9 * np.abs(expected).max()
    )
    np.testing.assert_array_equal(found["label"], expected.argmax(axis=1))
    names = np.array(model.classes)[expected.argmax(axis=1)]
    np.testing.assert_array_equal(found["class"], names)
    assert done.probabilities == ("probabilities" in found) == (name == "auto")
    if name == "auto":
        shares = model.probabilities(on_grid(model, x))
        np.testing.assert_allclose(found["probabilities"], shares, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_the_estimator_has_the_scores_of_the_model(models, digits, tmp_path, name):
    model, x = models[name], digits.x[:200].astype(np.float64)
    export_model(model, tmp_path, to="sklearn")
    estimator = standalone(tmp_path)(str(tmp_path))
    expected = model(on_grid(model, x))
    found = estimator.decision_function(x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    if name == "auto":
        shares = model.probabilities(on_grid(model, x))
        np.testing.assert_allclose(estimator.predict_proba(x), shares, atol=1e-12)
    else:
        with pytest.raises(AttributeError, match="scores only"):
            estimator.predict_proba(x)


@pytest.mark.wide
@pytest.mark.parametrize("name", METHODS)
def test_the_pytorch_program_has_the_scores_of_the_model(models, digits, tmp_path, name):
    torch = pytest.importorskip("torch")
    model, x = models[name], digits.x[:200].astype(np.float64)
    export_model(model, tmp_path, to="torch")
    extra = {"classes.json": ""}
    program = torch.export.load(str(tmp_path / "model.pt2"), extra_files=extra).module()
    assert json.loads(extra["classes.json"]) == list(model.classes)
    expected = model(on_grid(model, x))
    for rows in (200, 1):
        found = program(torch.as_tensor(x[:rows]))
        scores = found[0] if name == "auto" else found
        atol = 1e-11 * np.abs(expected).max()
        np.testing.assert_allclose(scores.numpy(), expected[:rows], rtol=0, atol=atol)
    if name == "auto":
        shares = model.probabilities(on_grid(model, x[:1]))
        np.testing.assert_allclose(found[1].numpy(), shares, atol=1e-12)


SIZES = [1e-300, 1.0, 2.0**-7, 1 - 2**-53, np.nextafter(8.0, 0), 8.0, 3e17, 0.0]


@pytest.mark.parametrize("bits", [8, 12, "off", "raw"])
def test_rows_of_every_size_are_rounded_alike(tmp_path, bits):
    """Powers of two and their neighbours: the logarithm in the graph is not exact."""
    rng, grid = np.random.default_rng(3), Grid(bits=bits)
    rows = rng.normal(size=(40, 6))
    rows /= np.abs(rows).max(axis=1, keepdims=True)
    x = np.concatenate([size * rows for size in SIZES])
    space = grid.space(6)
    model = Linear(weights=rng.normal(size=(space.width, 3)), space=space, classes=("a", "b", "c"))
    export_model(model, tmp_path, to="onnx")
    expected = model(grid(x))
    found = run_onnx(tmp_path, features=x)["scores"]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    export_model(model, tmp_path / "arrays", to="sklearn")
    again = standalone(tmp_path / "arrays")(str(tmp_path / "arrays"))
    np.testing.assert_allclose(again.decision_function(x), expected, rtol=1e-12, atol=1e-12)


def test_integers_of_a_feature_file_are_taken_as_they_are(models, digits, tmp_path):
    model = models["apfl"]
    rows = on_grid(model, digits.x[:50].astype(np.float64))
    stored = rows.values[:, :-1]
    for to in ("onnx", "sklearn"):
        done = export_model(model, tmp_path / to, to=to, stored=True)
        assert done.input == "grid"
    found = run_onnx(tmp_path / "onnx", grid=stored.astype(np.int16))["scores"]
    np.testing.assert_allclose(found, model(rows), atol=1e-12)
    estimator = standalone(tmp_path / "sklearn")(str(tmp_path / "sklearn"), stored=True)
    np.testing.assert_allclose(estimator.decision_function(stored), model(rows), atol=1e-12)


def test_a_process_without_fedgram_predicts_the_same(models, digits, tmp_path):
    x = digits.x[:300].astype(np.float64)
    np.save(tmp_path / "x.npy", x)
    for name in ("auto", "logistic", "apfl", "fedhip"):
        export_model(models[name], tmp_path / name, to="onnx")
    code = BLOCK + (
        "import numpy as np, onnxruntime, pathlib\n"
        "here = pathlib.Path(sys.argv[1]); x = np.load(here / 'x.npy')\n"
        "for path in here.glob('*/model.onnx'):\n"
        "    session = onnxruntime.InferenceSession(path)\n"
        "    label, _, scores, *_ = session.run(None, {'features': x})\n"
        "    np.savez(path.parent / 'found.npz', label=label, scores=scores)\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, capture_output=True)
    for name in ("auto", "logistic", "apfl", "fedhip"):
        expected = models[name](on_grid(models[name], x))
        with np.load(tmp_path / name / "found.npz") as found:
            np.testing.assert_allclose(found["scores"], expected, atol=1e-9)
            np.testing.assert_array_equal(found["label"], expected.argmax(axis=1))


def test_the_estimator_works_in_scikit_learn(models, digits, tmp_path):
    model, x = models["auto"], digits.x[:100].astype(np.float64)
    export_model(model, tmp_path, to="sklearn")
    estimator = standalone(tmp_path)(str(tmp_path))
    names = np.array(digits.classes)[digits.y[:100]]
    half = make_pipeline(FunctionTransformer(lambda rows: rows / 2), estimator)
    assert accuracy_score(names, half.predict(2 * x)) == estimator.score(x, names)
    for same in (clone(estimator), pickle.loads(pickle.dumps(estimator))):
        np.testing.assert_array_equal(same.predict(x), estimator.predict(x))
    for bad in (x[:, :5], np.where(x > 3, np.nan, x)):
        with pytest.raises(ValueError, match="X: expected"):
            estimator.predict(bad)


# Calibration and raw columns


def require_like(model, x, folder):
    """Export a model of a result, and compare scores and probabilities on raw samples."""
    export_model(model, folder / "onnx", to="onnx")
    export_model(model, folder / "sklearn", to="sklearn")
    found = run_onnx(folder / "onnx", features=x)
    estimator = standalone(folder / "sklearn")(str(folder / "sklearn"))
    scores, shares = model.decision_function(x), model.predict_proba(x)
    for again in (found["scores"], estimator.decision_function(x)):
        np.testing.assert_allclose(again, scores, atol=1e-11 * np.abs(scores).max())
    for again in (found["probabilities"], estimator.predict_proba(x)):
        np.testing.assert_allclose(again, shares, atol=1e-12)


@pytest.mark.parametrize("method", ["apfl-linear", "logistic"])
def test_a_calibrated_model_has_its_probabilities(digits, tmp_path, method):
    federated = fg.federate(digits, fg.PartitionPlan(clients=3, partition="iid"))
    model = fg.run(method, federated).models["c1"]
    require_like(model, digits.x[:80].astype(np.float64), tmp_path)


@pytest.mark.parametrize(("power", "sharpness"), [(3.0, 0.0), (2.0, 4.0), (0.5, 64.0)])
def test_every_calibration_is_the_same(tmp_path, power, sharpness):
    rng = np.random.default_rng(2)
    space = Grid().space(4)
    head = Linear(weights=rng.normal(size=(5, 3)), space=space, classes=("a", "b", "c"))
    calibration = Calibration(power=power, sharpness=sharpness)
    held = SavedModel(model=head, calibration=calibration)
    x = rng.normal(size=(60, 4))
    export_model(held, tmp_path, to="onnx")
    shares = run_onnx(tmp_path, features=x)["probabilities"]
    np.testing.assert_allclose(shares, held.probabilities(Grid()(x)), atol=1e-12)


def test_raw_columns_are_standardized_in_the_file(tmp_path):
    rng = np.random.default_rng(8)
    x = rng.normal(size=(150, 5)) * [1, 1000, 0.01, 5, 30] + [0, 5000, 1, -3, 7]
    y = np.where(x[:, 1] > 5000, "high", "low")
    data = fg.Dataset(x, y, np.arange(150) % 3, standardize=True)
    model = fg.run("afl", fg.federate(data)).models["1"]
    assert model.inputs.standardization is not None
    require_like(model, x[:40], tmp_path)
    with pytest.raises(ConfigError, match="whose columns are not features yet"):
        export_model(model.predictor, tmp_path)


@pytest.mark.wide
@pytest.mark.parametrize("method", ["afl", "apfl-linear"])
def test_a_recorded_model_of_raw_columns_predicts_as_in_the_run_with_every_target(tmp_path, method):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(8)
    x = rng.normal(size=(150, 9)) * np.logspace(-2, 3, 9) + np.arange(9)
    y = (x[:, 8] > 8).astype(int)
    np.savez(
        tmp_path / "raw.npz", x=x, y=y, client=np.array(["north", "south"])[np.arange(150) % 2]
    )
    settings = ["-s", "data.partition=given", "-s", "data.standardize=true"]
    done("run", tmp_path / "raw.npz", "-m", method, *settings, "--out", tmp_path / "r")
    data = fg.load_dataset(str(tmp_path / "raw.npz"))
    result = fg.run(method, fg.federate(data, partition="given", standardize=True))
    expected = result.models["north"].decision_function(x)
    file = tmp_path / "r" / method / "models" / "north.safetensors"
    for target in ("onnx", "sklearn", "torch", "safetensors"):
        done("export", file, "--to", target, "-o", tmp_path / target)
    program = torch.export.load(str(tmp_path / "torch" / "model.pt2")).module()
    for found in (
        run_onnx(tmp_path / "onnx", features=x)["scores"],
        standalone(tmp_path / "sklearn")(str(tmp_path / "sklearn")).decision_function(x),
        program(torch.as_tensor(x)).numpy(),
    ):
        np.testing.assert_allclose(found, expected, atol=1e-9 * np.abs(expected).max())
        np.testing.assert_array_equal(found.argmax(axis=1), expected.argmax(axis=1))
    same = [
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("sklearn", "safetensors")
    ]
    assert same[0] == same[1]
    np.savez(tmp_path / "new.npz", x=x)
    lines = done("predict", file, tmp_path / "new.npz").stdout.splitlines()[1:]
    assert [int(line.split(",")[1]) for line in lines] == expected.argmax(axis=1).tolist()


# Images


@pytest.mark.parametrize(("height", "width"), [(32, 32), (1, 1), (5, 300), (224, 224), (301, 97)])
def test_bicubic_resizing_has_the_same_pixels(height, width):
    images = np.random.default_rng(1).integers(0, 256, (2, height, width, 3), np.uint8)
    found = pixels_of(lambda graph, given: _bicubic(graph, given, 48), images, TensorProto.FLOAT)
    expected = [resized(image, 48).transpose(1, 2, 0) for image in images]
    np.testing.assert_array_equal(found, np.stack(expected))


@pytest.mark.parametrize(("height", "width"), [(32, 32), (1, 1), (5, 300), (64, 64), (301, 97)])
def test_pillows_resizing_has_the_same_pixels(height, width):
    images = np.random.default_rng(1).integers(0, 256, (2, height, width, 3), np.uint8)

    def resize(graph, given):
        return _pillow(graph, _pillow(graph, given, 2, 64), 1, 64)

    found = pixels_of(resize, images, TensorProto.UINT8)
    size = (64, 64)
    expected = [rows_first(Image.fromarray(image), size, "bicubic") for image in images]
    expected = [np.asarray(image) for image in expected]
    np.testing.assert_array_equal(found, np.stack(expected))


def pixels_of(resize, images, kind):
    graph = Graph()
    graph.op("Identity", resize(graph, "image"), out="pixels")
    axes = ["n", "h", "w", 3]
    made = helper.make_graph(
        graph.nodes,
        "resize",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, axes)],
        [helper.make_tensor_value_info("pixels", kind, None)],
        initializer=graph.constants,
    )
    opsets = [helper.make_opsetid("", graph.opset)]
    content = helper.make_model(made, opset_imports=opsets, ir_version=8).SerializeToString()
    return onnxruntime.InferenceSession(content).run(None, {"image": images})[0]


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A small network of one convolution, as a backbone."""
    folder = tmp_path_factory.mktemp("network")
    rng = np.random.default_rng(4)
    weights = rng.normal(size=(7, 3, 5, 5)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["images", "weights"], ["maps"], strides=[3, 3]),
        helper.make_node("Relu", ["maps"], ["positive"]),
        helper.make_node("GlobalAveragePool", ["positive"], ["features"]),
    ]
    made = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, 20, 20])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", 7, 1, 1])],
        initializer=[
            helper.make_tensor("weights", TensorProto.FLOAT, weights.shape, weights.ravel())
        ],
    )
    opsets = [helper.make_opsetid("", 15)]
    save(helper.make_model(made, opset_imports=opsets, ir_version=8), folder / "small.onnx")
    settings = {"size": 20, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.2]}
    (folder / "small.onnx.json").write_text(json.dumps(settings))
    return folder / "small.onnx"


def cli(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def done(*words):
    result = cli(*words)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def pictures(tmp_path_factory, network):
    """Runs on pictures of many sizes, with the network and with means of cells."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(6)
    for k in range(24):
        name, size = ("dark", "light")[k % 2], (int(rng.integers(3, 60)), int(rng.integers(3, 60)))
        pixels = rng.integers(0, 130, (*size, 3)) + 120 * (k % 2)
        path = folder / "known" / name / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    for name, backbone in (("network", f"onnx:{network}"), ("cells", "pixels:4")):
        source = folder / f"{name}.npz"
        done("features", folder / "known", "--backbone", backbone, "-o", source)
        given = ["-s", f"data.source={source}", "-s", "data.clients=2", "-s", "data.partition=iid"]
        done("run", "-m", "auto", "-m", "apfl", *given, *ALL, "--out", folder / name)
    return folder


@pytest.mark.parametrize("method", ["auto", "apfl"])
@pytest.mark.parametrize("name", ["network", "cells"])
def test_images_of_any_size_go_through_the_backbone_in_the_file(
    pictures, network, tmp_path, name, method
):
    path = pictures / name / method / "models" / "c0.safetensors"
    words = ["--backbone", f"onnx:{network}"] if name == "network" else []
    result = done("export", path, "--to", "onnx", "--input", "image", *words, "-o", tmp_path)
    assert "from image to scores" in result.stdout
    model = codec.load(path)
    given = NewData(backbone=words[1] if words else "")
    (batch,) = given.batches(str(pictures / "known"), model.space)
    expected = model(batch.features)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for item, row in zip(batch.names, expected, strict=True):
        image = np.asarray(Image.open(pictures / "known" / item).convert("RGB"))
        label, _, scores, *_ = session.run(None, {"image": image[None]})
        np.testing.assert_allclose(scores[0], row, atol=1e-6)
        assert label[0] == row.argmax()
    both = np.stack([image, image[::-1]])
    assert session.run(["scores"], {"image": both})[0].shape == (2, 2)


# The card


def test_the_card_says_what_the_files_are_and_how_they_were_made(pictures, tmp_path):
    folder = pictures / "cells" / "auto"
    done("export", folder / "models" / "c1.safetensors", "--to", "onnx", "-o", tmp_path)
    text = (tmp_path / "README.md").read_text("utf-8")
    head, body = text.removeprefix("---\n").split("\n---\n", 1)
    assert "pipeline_tag: image-classification" in head
    assert 'name: "auto of c1"' in head
    digest = hashlib.sha256((tmp_path / "model.onnx").read_bytes()).hexdigest()
    last = json.loads((folder / "scores.jsonl").read_text("utf-8").splitlines()[-1])
    for words in (digest, last["summary"]["shared_digest"], "| training samples of c1 | 9 |",
                  "`exchanges = 8`", "own model of client **c1**", "pixels:4"):  # fmt: skip
        assert words in body, words
    other = tmp_path / "other"
    done("export", folder / "shared.safetensors", "--to", "safetensors", "-o", other)
    assert "own model of" not in (other / "README.md").read_text("utf-8")


def test_a_run_and_a_personal_model_have_a_card(pictures, tmp_path):
    folder = pictures / "cells" / "apfl"
    text = (folder / "README.md").read_text("utf-8")
    digest = hashlib.sha256((folder / "shared.safetensors").read_bytes()).hexdigest()
    for words in (digest, "- apfl\n", "| clients | 2 |", "fedgram predict models/c0.safetensors"):
        assert words in text, words
    done(
        "personalize", folder / "shared.safetensors", pictures / "cells.npz", "-o", tmp_path / "own"
    )
    text = (tmp_path / "own.md").read_text("utf-8")
    for words in (
        "own model of client **own**",
        "| own samples | 24 |",
        "it reveals which classes",
    ):
        assert words.lower() in text.lower(), words


def test_foreign_names_do_not_become_markup(tmp_path):
    model = Linear(weights=np.ones((3, 2)), space=Grid().space(2), classes=("[a](b)", "<script>|"))
    export_model(model, tmp_path, to="safetensors")
    text = (tmp_path / "README.md").read_text("utf-8")
    assert "\\[a](b), &lt;script>\\|" in text


# Refusals


def refused(text, *words):
    result = cli(*words)
    assert result.exit_code == 2, result.output
    assert text in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_what_cannot_be_exported_says_why(tmp_path, digits):
    federated = fg.federate(digits, fg.PartitionPlan(clients=2, partition="iid"))
    trained = fg.run(fg.create_method("fedavg", {"rounds": 1, "rate": 0.1}), federated).predictors[
        "c0"
    ]
    with pytest.raises(ConfigError, match="a TrainedModel cannot be exported: expected linear"):
        export_model(trained, tmp_path)
    deep = fg.run(fg.create_method("deepafl", {"blocks": 1}), federated).predictors["c0"]
    with pytest.raises(ConfigError, match="cannot be exported"):
        export_model(deep, tmp_path)
    lift = fg.create_method("afl", {"lift": {"width": 20}})
    plain = fg.federate(digits, fg.PartitionPlan(clients=2, partition="iid"), fg.Grid(bits="off"))
    with pytest.raises(ConfigError, match="off the grid; use grid"):
        export_model(fg.run(lift, plain).predictors["c0"], tmp_path)
    masked = ClassMasked(
        model=Linear(weights=np.ones((3, 2)), space=Grid().space(2), classes=("a", "b")),
        allowed=np.array([True, False]),
    )
    with pytest.raises(ConfigError, match="a model of some classes only is shifted"):
        formula_of(Shifted(model=masked, shift=np.ones(2)))
    assert not list(tmp_path.iterdir())


def test_inputs_and_targets_that_do_not_fit_are_refused(pictures, network, tmp_path):
    path = pictures / "cells" / "apfl" / "models" / "c0.safetensors"
    out = ("-o", tmp_path / "x")
    words = "a backbone in the exported model needs to='onnx', got 'sklearn'"
    refused(words, "export", path, "--to", "sklearn", "--input", "image", *out)
    words = "--backbone: used with --input image only"
    refused(words, "export", path, "--to", "onnx", "--backbone", "pixels:4", *out)
    path = pictures / "network" / "apfl" / "models" / "c0.safetensors"
    words = "neither here nor beside the model; give its path: --backbone onnx:PATH/small.onnx"
    refused(words, "export", path, "--to", "onnx", "--input", "image", *out)
    result = cli("export", path, "--to", "onnx", "--input", "image", "--backbone", "pixels:4", *out)
    assert result.exit_code == 4
    assert "use that backbone with the same weights" in result.stderr
    with pytest.raises(ConfigError, match="to = 'tflite': expected one of onnx, torch"):
        export_model(codec.load(path), tmp_path, to="tflite")
    assert not (tmp_path / "x").exists()


def test_a_model_of_a_table_takes_the_integers_of_its_features(tmp_path):
    lines = [f"{k},{k % 7},{'ill' if k % 7 > 3 else 'well'}" for k in range(40)]
    (tmp_path / "t.csv").write_text("age,dose,outcome\n" + "\n".join(lines) + "\n")
    done("features", tmp_path / "t.csv", "--label", "outcome", "-o", tmp_path / "t.npz")
    given = ["-s", f"data.source={tmp_path / 't.npz'}", "-s", "data.clients=1"]
    done("run", "-m", "afl", *given, "--out", tmp_path / "r")
    path = tmp_path / "r" / "afl" / "models" / "c0.safetensors"
    refused("--input grid", "export", path, "--to", "onnx", "-o", tmp_path / "o")
    done("export", path, "--to", "onnx", "--input", "grid", "-o", tmp_path / "o")
    x = fg.load_dataset(str(tmp_path / "t.npz")).x
    model = codec.load(path)
    stored = Grid.of(model.space).stored(x, backbone=model.space.backbone)
    assert isinstance(stored, Features)
    found = run_onnx(tmp_path / "o", grid=x.astype(np.int16))["scores"]
    np.testing.assert_allclose(found, model(stored), atol=1e-12)
