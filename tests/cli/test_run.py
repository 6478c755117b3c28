"""`fedgram run`: sources, seeds, resuming, models that are kept; settings, methods, completion."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fedgram.cli import main
from fedgram.core import codec
from fedgram.data.sources import load_dataset
from fedgram.experiments.config import TRACKERS, read
from fedgram.experiments.reader import read_runs
from fedgram.experiments.settings_list import keys, settings_of
from fedgram.federation.method import find_method, names, parameters
from fedgram.models.saved import SavedModel
from fedgram.report.groups import comparisons
from fedgram.tracking import TRACKERS as KNOWN_TRACKERS

FEW = ("-s", "data.clients=3", "-m", "afl")
OWN = '''
from dataclasses import dataclass
import fedgram as fg


@dataclass(frozen=True, kw_only=True)
class Mine(fg.Method):
    """A ridge of one's own.

    Parameters
    ----------
    ridge
        The ridge.
    """

    ridge: float = 1.0

    @fg.step
    def statistics(self, client, _) -> fg.Statistics:
        return fg.Statistics.of(client.train.features, client.train.labels)

    def fit(self, federation):
        yield fg.Linear.of(federation.sum(self.statistics), ridge=self.ridge)

    def personalize(self, client, shared):
        return shared
'''


def cli(*words, **env):
    return CliRunner().invoke(main, [str(word) for word in words], env=env)


def done(*words, **env):
    result = cli(*words, **env)
    assert result.exit_code == 0, result.output
    return result


def refused(text, *words, code=2):
    result = cli(*words)
    assert result.exit_code == code, result.output
    assert text in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.fixture
def runs(tmp_path):
    """Return a function that runs methods, and returns the records."""
    count = iter(range(100))

    def recorded(*words):
        folder = tmp_path / f"recorded{next(count)}"
        done("run", *words, "--out", folder)
        return read_runs([folder])

    return recorded


# What is run


def test_a_source_and_settings_are_recognized_by_their_ending(tmp_path, runs):
    digits = load_dataset("digits")
    np.savez(tmp_path / "own.npz", x=digits.x[:200], y=digits.y[:200])
    (tmp_path / "own.toml").write_text('methods = ["afl"]\n[data]\nclients = 3\n')
    (run,) = runs(tmp_path / "own.npz", *FEW)
    assert run.config["data"]["source"] == str(tmp_path / "own.npz")
    (run,) = runs(tmp_path / "own.toml")
    assert run.config["data"] == {**run.config["data"], "source": "digits", "clients": 3}
    refused("other.toml: file not found; expected a settings file", "run", tmp_path / "other.toml")
    refused("'digitz': not found", "run", "digitz", code=3)
    words = "expected one source, got data.source too; leave one out"
    refused(words, "run", "digits", "-s", "data.source=digits")


def test_seeds_are_runs_of_their_own_and_shown_with_their_deviation(tmp_path):
    shown = done("run", *FEW, "-m", "local", "--seeds", 3, "--out", tmp_path).stdout
    assert "digits: 3 clients, dirichlet 0.1, global split, 3 seeds" in shown
    found = read_runs([tmp_path])
    assert {Path(run.folder).name for run in found} == {
        f"{name}-seed{seed}" for name in ("afl", "local") for seed in range(3)
    }
    for name in ("afl", "local"):
        means = [100 * r.summary.score("client_mean") for r in found if r.method == name]
        expected = f"{np.mean(means):.1f} ± {np.std(means, ddof=1):.1f}"
        assert re.search(rf"{name} +{re.escape(expected)} ", shown)
    (group,) = comparisons(found)
    assert [len(row.runs) for row in group.rows] == [3, 3]


def test_a_list_of_seeds_and_the_seed_of_the_settings(runs):
    seeds = [run.config["data"]["seed"] for run in runs(*FEW, "--seeds", "4,0")]
    assert seeds == [0, 4]  # in the order of the folders
    found = runs(*FEW, "-s", "data.seed=7", "--seeds", "2")
    assert [run.config["data"]["seed"] for run in found] == [7, 8]
    assert [run.config["engine"]["seed"] for run in found] == [7, 8]
    for wrong in ("0", "-2", "x", "1,1", "1,-2"):
        refused(f"--seeds '{wrong}': expected", "run", *FEW, f"--seeds={wrong}")


def test_a_method_of_ones_own_is_set_by_its_name(tmp_path, monkeypatch, runs):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_ridge.py").write_text(OWN)
    for key in ("my-ridge", "my_ridge"):
        given = ("-m", "./my_ridge.py", "-s", f"method.{key}.ridge=7", "-s", "data.clients=3")
        (run,) = runs(*given)
        assert run.parameters == {"ridge": 7.0}
    shown = done("run", *given, COLUMNS="60").stdout
    assert re.search(r"^ my-ridge +\d", shown, re.MULTILINE)


def test_names_of_methods_are_whole_in_narrow_tables():
    shown = done(
        "run", "-m", "apfl-linear", "-m", "closed-pfedme", "-s", "data.clients=3", COLUMNS="60"
    ).stdout
    tables = [
        line for line in shown.splitlines() if re.match(" (apfl-linear|closed-pfedme) ", line)
    ]
    assert len(tables) >= 4  # two tables of some columns each
    assert max(map(len, shown.split("accuracy in %")[0].splitlines())) <= 60


# Again


def test_finished_runs_are_kept_and_interrupted_ones_are_repeated(tmp_path):
    done("run", *FEW, "-m", "local", "--out", tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    result = done("run", *FEW, "-m", "local", "--out", tmp_path)
    assert result.stderr.count("recorded already") == 2
    assert before == {path: path.stat().st_mtime_ns for path in before}
    lines = (tmp_path / "afl" / "exchanges.jsonl").read_text("utf-8").splitlines()
    (tmp_path / "afl" / "exchanges.jsonl").write_text("\n".join(lines[:1]) + "\n")
    (tmp_path / "afl" / "mine.txt").write_text("a file of the user")
    result = done("run", *FEW, "-m", "local", "--out", tmp_path)
    assert "afl: recorded" not in result.stderr
    assert "local: recorded already" in result.stderr
    assert len((tmp_path / "afl" / "exchanges.jsonl").read_text("utf-8").splitlines()) == len(lines)
    assert (tmp_path / "afl" / "mine.txt").exists()
    shutil.rmtree(tmp_path / "afl")
    (tmp_path / "afl").mkdir()
    (tmp_path / "afl" / "run.json").write_text((tmp_path / "local" / "run.json").read_text("utf-8"))
    refused("method = 'local', here 'afl'", "run", *FEW, "--out", tmp_path, code=3)


def test_other_settings_are_refused_unless_they_replace_the_run(tmp_path):
    done("run", *FEW, "--out", tmp_path)
    other = ("run", *FEW, "-s", "method.afl.ridge=3", "--out", tmp_path)
    refused("method.afl.ridge = ", *other, code=3)
    refused("data.clients = 3, here 4", "run", "-m", "afl", "-s", "data.clients=4", "--out",
            tmp_path, code=3)  # fmt: skip
    done(*other, "--overwrite")
    (run,) = read_runs([tmp_path])
    assert run.parameters["ridge"] == 3.0


def test_a_killed_run_goes_on_with_the_next_method(tmp_path):
    code = (
        "import os, sys\nfrom fedgram.experiments import record\n"
        "models = record.Record.models\n"
        "def killed(self, shared, found):\n"
        "    if 'local' in str(self._folder): os._exit(9)\n"
        "    models(self, shared, found)\n"
        "record.Record.models = killed\n"
        "from fedgram.cli import main\nmain(sys.argv[1:])\n"
    )
    words = ["run", *FEW, "-m", "local", "--out", str(tmp_path)]
    killed = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, check=False)
    assert killed.returncode == 9
    assert not (tmp_path / "local" / "models").exists()
    result = done(*words)
    assert "afl: recorded already" in result.stderr
    assert "local: recorded" not in result.stderr
    assert len(list((tmp_path / "local").glob("models/*"))) == 3


def test_a_run_from_before_a_change_of_its_files_says_so(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    words = ("run", "-m", tmp_path / "mine.py", "-s", "data.clients=3", "--out", tmp_path / "r")
    done(*words)
    assert done(*words).stderr.splitlines()[0].endswith("recorded already")
    later = (tmp_path / "r" / "mine" / "run.json").stat().st_mtime + 60
    os.utime(tmp_path / "mine.py", (later, later))
    assert "mine.py was changed; --overwrite repeats it" in done(*words).stderr


def test_a_run_without_calibration_is_not_taken_for_one_with_it(tmp_path):
    done("run", *FEW, "--out", tmp_path)
    words = "holds models without calibration; choose another folder, or use --overwrite"
    refused(words, "run", *FEW, "--calibrate", "--out", tmp_path, code=3)
    done("run", *FEW, "--calibrate", "--overwrite", "--out", tmp_path)
    done("run", *FEW, "--calibrate", "--out", tmp_path)


# Models


def kept(folder):
    return {path.parent.parent.name for path in folder.glob("*/models/*.safetensors")}


def test_models_are_kept_of_the_best_method_of_all_or_of_none(tmp_path):
    three = ("-s", "data.clients=3", "-m", "afl", "-m", "local", "-m", "fedhip")
    done("run", *three, "--out", tmp_path / "best")
    means = {r.method: r.summary.score("client_mean") for r in read_runs([tmp_path / "best"])}
    assert kept(tmp_path / "best") == {max(means, key=means.get)}
    assert (tmp_path / "best" / "afl" / "shared.safetensors").exists()
    assert "fedgram personalize" in (tmp_path / "best" / "afl" / "README.md").read_text("utf-8")
    done("run", *three, "--keep-models", "all", "--out", tmp_path / "all")
    assert kept(tmp_path / "all") == {"afl", "local", "fedhip"}
    again = done("run", *three, "--out", tmp_path / "best").stderr.splitlines()[-1]
    (folder,) = kept(tmp_path / "best")
    assert again.startswith(
        f"clients' models kept: {tmp_path / 'best' / folder / 'models'}, of the"
    )
    more = done("run", *three, "--keep-models", "all", "--out", tmp_path / "best").stderr
    assert "clients' models missing: " in more
    assert again.endswith("--keep-models all --overwrite")
    assert more.strip().endswith("--keep-models all --overwrite")
    again = done("run", *three, "--out", tmp_path / "all", "--keep-models", "all")
    assert "clients' models" not in again.stderr
    done("run", *three, "-s", "keep_models=none", "--out", tmp_path / "none")
    assert not list((tmp_path / "none").rglob("*.safetensors"))
    refused(
        "keep_models = 'some': expected one of none, best, all", "run", "-s", "keep_models=some"
    )


def test_equal_models_take_the_space_of_one(tmp_path):
    done("run", *FEW, "--out", tmp_path)
    inodes = {path.stat().st_ino for path in (tmp_path / "afl" / "models").iterdir()}
    assert len(list((tmp_path / "afl" / "models").iterdir())) == 3
    assert len(inodes) == 1


def test_calibrated_models_give_probabilities(tmp_path):
    done("run", *FEW, "--calibrate", "--out", tmp_path)
    model = tmp_path / "afl" / "models" / "c0.safetensors"
    held = codec.load(model)
    assert isinstance(held, SavedModel)
    assert held.calibration.samples > 1000
    x = load_dataset("digits").x[:20]
    np.savez(tmp_path / "new.npz", x=x)
    first = done("predict", model, tmp_path / "new.npz").stdout.splitlines()
    assert first[0].startswith("item,label,name,probability_0,")
    assert sum(float(cell) for cell in first[1].split(",")[3:]) == pytest.approx(1, abs=1e-4)
    shared = tmp_path / "afl" / "shared.safetensors"  # afl: the same model
    assert done("predict", shared, tmp_path / "new.npz").stdout.splitlines() == first
    result = done("export", model, "--to", "safetensors", "-o", tmp_path / "e")
    assert "to scores and probabilities" in result.stdout
    done("personalize", shared, "digits", "-o", tmp_path / "own")
    assert codec.load(tmp_path / "own").calibration == held.calibration
    done("personalize", shared, "digits", "-o", tmp_path / "other", "-s", "method.afl.ridge=3")
    assert not isinstance(codec.load(tmp_path / "other"), SavedModel)


def test_models_of_raw_columns_take_raw_columns(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 4)) * [1, 1000, 0.01, 30]
    np.savez(tmp_path / "raw.npz", x=x, y=(x[:, 1] > 0).astype(int))
    given = (
        tmp_path / "raw.npz",
        "-m",
        "afl",
        "-s",
        "data.clients=2",
        "-s",
        "data.standardize=true",
    )
    done("run", *given, "--out", tmp_path / "r")
    np.savez(tmp_path / "new.npz", x=x[:30])
    for name in ("shared.safetensors", "models/c0.safetensors"):
        shown = done("predict", tmp_path / "r" / "afl" / name, tmp_path / "new.npz").stdout
        labels = [int(line.split(",")[1]) for line in shown.splitlines()[1:]]
        assert np.mean(np.array(labels) == (x[:30, 1] > 0)) > 0.9
    bare = codec.load(tmp_path / "r" / "afl" / "models" / "c0.safetensors").model
    codec.save(tmp_path / "bare", bare)
    refused(
        "file does not contain their means",
        "predict",
        tmp_path / "bare",
        tmp_path / "new.npz",
        code=3,
    )


# Settings and methods


def test_settings_have_meaning_default_and_value():
    found = json.loads(done("settings", "-s", "grid.bits=6", "-m", "apfl", "--json").stdout)
    entries = {one["key"]: one for one in found["settings"]}
    assert all(one["text"] for one in entries.values())
    assert entries["grid.bits"] == {**entries["grid.bits"], "default": 8, "value": 6}
    assert {f"method.apfl.{p.name}" for p in parameters(find_method("apfl"))} <= set(entries)
    shown = done("settings", "grid", "method.lda.shrinkage", "-s", "grid.bits=6").stdout
    assert "grid.bits = 6  (default 8)" in shown
    assert "method.lda.shrinkage = " in shown
    assert "data.source" not in shown
    assert done("settings", "--changed", "-s", "grid.bits=6").stdout.startswith("grid.bits = 6")
    refused("gird: no such setting; did you mean 'grid'?", "settings", "gird")


def test_every_setting_that_is_listed_is_read_and_the_other_way_round():
    config = read({"methods": ["afl"]})
    listed = {one.key for one in settings_of(config)} - {"every"}
    plain = {k: v for k, v in config.to_dict().items() if k not in ("version", "every", "method")}
    known = {"keep_models", "calibrate", "tracker", "data.standardize", "data.task"}
    known |= {"data.output_range"}
    for table, value in plain.items():
        known |= {f"{table}.{key}" for key in value} if isinstance(value, dict) else {table}
    assert listed == known | {f"method.afl.{p.name}" for p in parameters(find_method("afl"))}
    assert set(TRACKERS) == set(KNOWN_TRACKERS)


def test_one_method_is_shown_whole():
    shown = done("methods", "fedhip").stdout
    assert "The model of client k minimizes" in shown
    assert "Exchanges: the sum of" in shown
    assert "alpha = " in shown
    assert "APFL" not in shown
    assert "\\x0a" not in shown  # lines are folded, not escaped
    refused("method 'apf' is not known; did you mean 'apfl'?", "methods", "apf")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fedgram ex", {"export"}),
        ("fedgram run -m fedh", {"fedhip"}),
        ("fedgram methods log", {"logistic"}),
        ("fedgram run -s grid.", {"grid.bits", "grid.clip"}),
        ("fedgram settings method.local.", {"method.local.ridge", "method.local.lift"}),
        ("fedgram run --keep-models b", {"best"}),
    ],
)
def test_a_shell_completes_commands_methods_and_keys(words, expected):
    env = {"_FEDGRAM_COMPLETE": "bash_complete", "COMP_WORDS": words}
    env["COMP_CWORD"] = str(len(words.split()) - 1)
    result = CliRunner().invoke(main, [], prog_name="fedgram", env=env)
    found = {line.split(",")[1] for line in result.stdout.splitlines()}
    assert found == expected


def test_all_keys_are_completed():
    assert len(keys()) == len(set(keys()))
    for name in names():
        assert {f"method.{name}.{p.name}" for p in parameters(find_method(name))} <= set(keys())


# Reports


def test_one_set_up_is_one_row_however_it_was_spelled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    digits = load_dataset("digits")
    np.savez("own.npz", x=digits.x[:300], y=digits.y[:300])
    spelled = (
        ("own.npz", "-s", "data.clients=20", "-s", "method.afl.ridge=100"),
        ("./own.npz", "-s", "data.shards=7", "-s", "method.afl.ridge=100.0"),
        ("own.npz", "-s", "method.afl={ridge = 1e2, lift = {width = 0, activation = 'tanh'}}"),
    )
    for seed, words in enumerate(spelled):
        given = ("-m", "afl", "-s", f"data.seed={seed}", "-s", f"engine.seed={seed}")
        done("run", *words, *given, "--out", f"r{seed}")
    (group,) = comparisons(read_runs([tmp_path / f"r{k}" for k in range(3)]))
    assert [len(row.runs) for row in group.rows] == [3]
    done("run", "own.npz", "-m", "afl", "-s", "data.clients=10", "--out", "other")
    both = comparisons(read_runs([tmp_path / "r0", tmp_path / "other"]))
    assert len(both) == 2


def test_a_source_below_the_folder_of_data_is_found(tmp_path):
    digits = load_dataset("digits")
    np.savez(tmp_path / "own.npz", x=digits.x[:100], y=digits.y[:100])
    result = cli("run", "own.npz", *FEW, FEDGRAM_DATA=str(tmp_path))
    assert result.exit_code == 0, result.output
    assert not os.path.exists("own.npz")


def test_a_method_is_shown_in_lines_without_escapes():
    shown = CliRunner().invoke(main, ["methods", "apfl"]).output
    assert "x0a" not in shown
    assert "\n\nExchanges: " in shown


def test_clients_of_the_data_that_are_not_used_are_said(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 12)), np.arange(90) % 3
    np.savez(
        tmp_path / "wards.npz", x=x, y=y, client=np.repeat(["n", "s", "w"], 30), backbone="own"
    )
    source = str(tmp_path / "wards.npz")
    note = "names 3 clients of its own"
    assert note in CliRunner().invoke(main, ["run", source, "-m", "afl"]).stderr
    for asked in ("data.partition=given", "data.clients=4"):
        told = CliRunner().invoke(main, ["run", source, "-m", "afl", "-s", asked])
        assert told.exit_code == 0, told.output
        assert note not in told.stderr


def test_a_key_without_its_table_is_completed():
    told = CliRunner().invoke(main, ["run", "-s", "clients=3"])
    assert told.exit_code == 2
    assert "did you mean 'data.clients'?" in told.stderr
