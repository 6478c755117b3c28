"""Exported models of numbers: programs without fedgram predict the same values."""

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.base import clone, is_regressor
from sklearn.metrics import r2_score

import fedgram as fg
from fedgram.cli import main
from fedgram.export import export_model
from fedgram.federation.method import find_method, names

pytest.importorskip("onnxruntime")
ABLE = [name for name in names() if find_method(name).predicts_numbers]
BLOCK = "import sys; sys.modules['fedgram'] = None\n"
PREDICT = (
    BLOCK
    + """
import importlib.util, json, pathlib
import numpy as np, onnxruntime
here = pathlib.Path(sys.argv[1])
x = np.load(here / "x.npy")
found = {}
for folder in sorted(each for each in here.iterdir() if each.is_dir()):
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    assert [each.name for each in session.get_outputs()] == ["values"]
    found[folder.name + "-onnx"] = session.run(None, {"features": x})[0]
    spec = importlib.util.spec_from_file_location("model", folder / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found[folder.name + "-sklearn"] = module.ExportedRegressor().predict(x)
np.savez(here / "found.npz", **found)
"""
)


def table(outputs=1):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(180, 9)) * np.logspace(-1, 2, 9)
    ids = rng.choice(["north", "south", "west"], size=180)
    y = (
        (x / np.logspace(-1, 2, 9)) @ rng.normal(size=(9, outputs))
        + 40
        + 3 * (ids == "north")[:, None]
    )
    return x, (y + 0.3 * rng.normal(size=y.shape)).squeeze(), ids


def models(outputs=1):
    x, y, ids = table(outputs)
    data = fg.Dataset(x, y, clients=ids, task="regression", output_range=(0, 100), standardize=True)
    federated = fg.federate(data)
    return x, {name: fg.run(name, federated).models["north"] for name in ABLE}


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_process_without_fedgram_predicts_the_same_numbers(tmp_path, outputs):
    x, found = models(outputs)
    np.save(tmp_path / "x.npy", x)
    for name, model in found.items():
        for to in ("onnx", "sklearn"):
            done = export_model(model, tmp_path / name, to=to)
            assert not done.probabilities
    run = [sys.executable, "-c", PREDICT, tmp_path]
    subprocess.run(run, check=True, capture_output=True)
    with np.load(tmp_path / "found.npz") as again:
        assert len(again) == 2 * len(ABLE)
        for name, model in found.items():
            expected = model.predict(x)
            assert np.ptp(expected) > 5
            onnx = again[f"{name}-onnx"]
            assert onnx.shape == (len(x), outputs)
            np.testing.assert_allclose(onnx.squeeze(), expected, rtol=0, atol=1e-9)
            np.testing.assert_allclose(again[f"{name}-sklearn"], expected, rtol=0, atol=1e-9)


@pytest.mark.wide
def test_the_pytorch_program_predicts_the_same_numbers(tmp_path):
    torch = pytest.importorskip("torch")
    x, found = models(2)
    for name, model in found.items():
        export_model(model, tmp_path / name, to="torch")
        extra = {"outputs.json": ""}
        file = str(tmp_path / name / "model.pt2")
        program = torch.export.load(file, extra_files=extra).module()
        assert json.loads(extra["outputs.json"]) == ["y 0", "y 1"]
        values = program(torch.as_tensor(x)).numpy()
        np.testing.assert_allclose(values, model.predict(x), rtol=0, atol=1e-9)


def standalone(folder):
    scope = {"__name__": "exported_numbers", "__file__": str(folder / "model.py")}
    module = type(sys)("exported_numbers")
    module.__dict__.update(scope)
    sys.modules["exported_numbers"] = module  # to be pickled
    exec((folder / "model.py").read_text("utf-8"), module.__dict__)
    return module


def test_the_estimator_is_a_regressor_of_scikit_learn(tmp_path):
    x, y, ids = table()
    data = fg.Dataset(x, y, clients=ids, task="regression", output_range=(0, 100), standardize=True)
    model = fg.run("fedhip", fg.federate(data)).models["north"]
    export_model(model, tmp_path, to="sklearn")
    module = standalone(tmp_path)
    estimator = module.ExportedRegressor()
    assert is_regressor(estimator)
    assert estimator.outputs_ == ("y",)
    assert estimator.score(x, y) == pytest.approx(r2_score(y, model.predict(x)))
    for same in (clone(estimator), pickle.loads(pickle.dumps(estimator))):
        np.testing.assert_array_equal(same.predict(x), estimator.predict(x))
    with pytest.raises(ValueError, match="expected a model with classes, got another one"):
        module.ExportedClassifier()


def cli(*words):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.parametrize("method", ["fedhip", "auto"])
def test_a_recorded_model_of_numbers_is_predicted_and_exported(tmp_path, method):
    x, y, ids = table()
    np.savez(tmp_path / "doses.npz", x=x, y=y, client=ids)
    settings = ("data.partition=given", "data.standardize=true", "data.task=regression")
    given = [word for text in (*settings, "data.output_range=[0, 100]") for word in ("-s", text)]
    cli("run", tmp_path / "doses.npz", "-m", method, *given, "--out", tmp_path / "r")
    file = tmp_path / "r" / method / "models" / "north.safetensors"
    out = tmp_path / "out"
    assert "from features to numbers" in cli("export", file, "--to", "sklearn", "-o", out).stdout
    lines = cli("predict", file, tmp_path / "doses.npz").stdout.splitlines()
    assert lines[0] == "item,y"
    predicted = [float(line.split(",")[1]) for line in lines[1:]]
    assert r2_score(y[ids == "north"], np.array(predicted)[ids == "north"]) > 0.9
    found = standalone(out).ExportedRegressor(str(out)).predict(x)
    np.testing.assert_allclose(found, predicted, rtol=0, atol=1e-9)
    for path in (out / "README.md", file.parent.parent / "README.md"):
        card = path.read_text("utf-8")
        for words in (
            "pipeline_tag: tabular-regression",
            "type: r_squared",
            "## R2 and errors",
            "- **Outputs** (1): y in \\[0.0, 100.0]",
            "| RMSE over the test",
        ):
            assert words in card, words
        assert "which classes" not in card
