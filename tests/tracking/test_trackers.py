"""Trackers: a stand-in module records the calls; real ones are tried where they are installed."""

import json
import os
import sys
import types
import warnings
from contextlib import contextmanager
from importlib.util import find_spec

import pytest
from click.testing import CliRunner

from fedgram.cli import main
from fedgram.errors import ConfigError
from fedgram.tracking import track, trackers

FEW = ("-m", "afl", "-m", "fedavg", "-s", "data.clients=3", "-s", "method.fedavg.rounds=2",
       "-s", "method.fedavg.rate=0.1")  # fmt: skip
SCORES = {"accuracy": {"client_mean": 0.5, "global_test": None}, "seconds": 2, "valid": None,
          "shared_digest": "ab"}  # fmt: skip


@pytest.fixture
def calls(monkeypatch):
    """Stand-ins for trackio and wandb, and the calls that they get."""
    found = []
    for name in ("trackio", "wandb"):
        module = types.ModuleType(name)
        for call in ("init", "log", "finish"):

            def recorded(*given, _call=call, _module=name, **named):
                found.append((_module, _call, given, named))

            setattr(module, call, recorded)
        monkeypatch.setitem(sys.modules, name, module)
    return found


def run(*words):
    return CliRunner().invoke(main, ["run", *map(str, words)])


def test_a_run_is_begun_logged_round_by_round_and_ended(calls, tmp_path):
    result = run(*FEW, "--tracker", "trackio", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert [call for _, call, _, _ in calls if call != "log"] == ["init", "finish"] * 2
    begun = [named for _, call, _, named in calls if call == "init"]
    assert [one["name"] for one in begun] == ["afl", "fedavg"]
    assert {one["project"] for one in begun} == {"fedgram"}
    assert begun[1]["config"]["config.data.clients"] == 3
    assert begun[1]["config"]["parameters.rounds"] == 2
    logged = [(named["step"], given[0]) for _, call, given, named in calls if call == "log"]
    steps = [step for step, _ in logged]
    assert steps[:2] == [1, 1]  # of afl: the scores, then again with the global test
    assert set(steps[2:]) == {1, 2}
    lines = (tmp_path / "afl" / "scores.jsonl").read_text("utf-8").splitlines()
    summary = json.loads(lines[-1])["summary"]
    assert logged[1][1]["accuracy/client_mean"] == summary["accuracy"]["client_mean"]
    assert logged[1][1]["accuracy/global_test"] == summary["accuracy"]["global_test"]
    assert logged[1][1]["bytes/up"] == summary["bytes"]["up"]


def test_a_setting_does_the_same_and_seeds_have_names(calls):
    words = ("-m", "afl", "-s", "data.clients=3", "-s", "tracker=wandb", "--seeds", "2")
    assert run(*words).exit_code == 0
    begun = [named for _, call, _, named in calls if call == "init"]
    assert [one["name"] for one in begun] == ["afl seed 0", "afl seed 1"]
    assert {one["mode"] for one in begun} == {"offline"}


def test_a_run_that_fails_is_ended(calls, tmp_path):
    with pytest.raises(RuntimeError), track("trackio", "a", {}, tmp_path):
        raise RuntimeError
    assert [call for _, call, _, _ in calls] == ["init", "finish"]


def test_a_tracker_that_fails_does_not_end_the_run(calls, tmp_path):
    def full(*_, **__):
        raise OSError("no space left")

    sys.modules["trackio"].log = full
    words = ("-m", "afl", "-s", "data.clients=3", "--tracker", "trackio", "--out", tmp_path)
    with pytest.warns(RuntimeWarning, match=r"failed \(OSError: no space left\); the run goes on"):
        result = run(*words)
    assert result.exit_code == 0
    assert (tmp_path / "afl" / "shared.safetensors").exists()


def test_a_tracker_that_cannot_begin_is_an_error_before_the_run(calls, tmp_path):
    def offline(**_):
        raise OSError("no login")

    sys.modules["trackio"].init = offline
    result = run("-m", "afl", "--tracker", "trackio", "--out", tmp_path)
    assert result.exit_code == 2
    assert "tracker = 'trackio': cannot begin a run (no login)" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["trackio", "wandb", "mlflow", "tensorboard"])
def test_a_tracker_that_is_not_installed_says_how(monkeypatch, tmp_path, name):
    for module in ("trackio", "wandb", "mlflow", "torch.utils.tensorboard", "tensorboardX"):
        monkeypatch.setitem(sys.modules, module, None)
    words = rf"tracker = '{name}' needs the package .*: pip install {name}"
    with pytest.raises(ConfigError, match=words), track(name, "a", {}, tmp_path):
        pass


def test_an_unknown_tracker_is_refused():
    result = run("-s", "tracker=tensorbord")
    assert result.exit_code == 2
    assert "tracker = 'tensorbord': unknown; did you mean 'tensorboard'?" in result.stderr


def test_without_a_tracker_nothing_is_called(calls, tmp_path):
    with track("", "a", {}, tmp_path) as log:
        assert log is None
    assert not calls


# The real ones


@contextmanager
def quiet():
    """Ignore the warnings of other packages."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def missing(name):
    return pytest.mark.skipif(find_spec(name) is None, reason=f"needs {name}: pip install {name}")


@pytest.mark.parametrize("given", [None, "false"])
def test_mlflow_reports_its_use_only_if_the_variable_says_so(monkeypatch, tmp_path, given):
    seen = []
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    if given:
        monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", given)

    def loaded(name):
        seen.append((name, os.environ["MLFLOW_DISABLE_TELEMETRY"]))
        raise ImportError(name=name)

    monkeypatch.setattr(trackers.importlib, "import_module", loaded)
    with pytest.raises(ConfigError), track("mlflow", "a", {}, tmp_path):
        pass
    assert seen == [("mlflow", given or "true")]
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY")


@pytest.mark.wide
@missing("mlflow")
def test_mlflow_keeps_a_run_in_its_file_store(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with quiet(), track("mlflow", "a", {"c": {"d": 3}}, tmp_path) as log:
        log(1, SCORES)
        log(2, {**SCORES, "accuracy": {"client_mean": 0.75}})
    with quiet():
        client = mlflow.MlflowClient((tmp_path / "mlruns").resolve().as_uri())
        (experiment,) = [e for e in client.search_experiments() if e.name == "fedgram"]
        (found,) = client.search_runs([experiment.experiment_id])
        assert found.data.params == {"c.d": "3"}
        assert found.data.metrics["accuracy/client_mean"] == 0.75
        history = client.get_metric_history(found.info.run_id, "accuracy/client_mean")
    assert [(one.step, one.value) for one in history] == [(1, 0.5), (2, 0.75)]
    assert found.info.status == "FINISHED"


@pytest.mark.wide
@missing("trackio")
def test_trackio_keeps_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    with quiet(), track("trackio", "a", {"c": 3}, tmp_path) as log:
        log(1, SCORES)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"client_mean" in path.read_bytes() for path in files)


@pytest.mark.wide
@missing("tensorboardX")
def test_tensorboard_keeps_a_run(tmp_path):
    with quiet(), track("tensorboard", "a", {"c": 3}, tmp_path) as log:
        log(1, SCORES)
    (events,) = (tmp_path / "tensorboard" / "fedgram" / "a").glob("events*")
    assert b"accuracy/client_mean" in events.read_bytes()
