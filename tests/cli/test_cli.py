"""The command line: tables, JSON, exit codes, one-line errors, and what Ctrl-C leaves behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fedgram.cli import main
from fedgram.experiments.config import DEFAULT_METHODS
from fedgram.experiments.reader import read_runs
from fedgram.federation.method import names
from fedgram.report.page import page as report_page

ACCURACIES = {"client_mean", "sample_mean", "worst_decile", "global_test", "balanced"}
KEYS = {
    "run",
    "finished",
    "curve",
    "method",
    "rate_search",
    "rounds",
    "chosen",
    "last",
    "valid",
    "accuracy",
    "clients",
    "untested_clients",
    "seconds",
    "flops",
    "shared_digest",
    "model_digest",
    "holdout",
    "tuned",
    "bytes",
    "auroc",
    "class_accuracy",
    "gains",
}
SMALL = ("-s", "data.clients=4")
FEW_ROUNDS = ("-s", "every.rounds=2", "-s", "every.pilot=1", "-s", "every.blocks=1")


def cli(*arguments, columns=80):
    return CliRunner().invoke(main, list(map(str, arguments)), env={"COLUMNS": str(columns)})


def process(*arguments, **options):
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "fedgram.cli", *map(str, arguments)],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


ROW = re.compile(r"(\S+)" + 5 * r"\s+([\d.]+)" + 2 * r"\s+([\d.]+ \w+)" + r"\s+([\d.]+)")


def table(output):
    """Return the cells of each row between the rule and the caption; none may be wrapped."""
    body = re.split(r"\n\s*\u2500+\s*\n", output)[1].split("accuracy in %")[0]
    rows = [ROW.fullmatch(line.strip()) for line in body.splitlines() if line.strip()]
    assert all(rows), body
    return [row.groups() for row in rows]


# run


@pytest.mark.wide
def test_without_arguments_a_table_of_the_default_methods_fits_80_columns():
    done = process("run")
    assert done.returncode == 0
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stdout.startswith("digits: 20 clients, dirichlet 0.1, global split")
    rows = table(done.stdout)
    assert [row[0] for row in rows] == list(DEFAULT_METHODS)
    for row in rows:
        assert all(0 <= float(cell) <= 100 for cell in row[1:6])


LONGEST = sorted(names(), key=len)[-3:]  # a shorter name needs no wider column


@pytest.mark.parametrize(
    "name",
    [name if name in LONGEST else pytest.param(name, marks=pytest.mark.wide) for name in names()],
)
def test_the_name_of_no_method_is_wrapped_at_80_columns(name):
    rows = table(cli("run", "-m", name, *SMALL, *FEW_ROUNDS).stdout)
    assert [row[0] for row in rows] == [name]


def test_json_is_all_that_is_printed_and_has_the_documented_keys():
    done = process("run", "--json", "-m", "afl", "-m", "local", "-s", "data.holdout_clients=2")
    assert (done.returncode, done.stderr) == (0, "")
    content = json.loads(done.stdout)
    assert set(content) == {"runs"}
    assert [result["method"] for result in content["runs"]] == ["afl", "local"]
    for result in content["runs"]:
        assert set(result) == KEYS
        assert set(result["accuracy"]) == set(result["holdout"]["accuracy"]) == ACCURACIES
        assert set(result["bytes"]) == {"up", "down"}
        assert (result["clients"], result["holdout"]["clients"]) == (18, 2)


def test_the_table_shows_what_the_json_says():
    arguments = ("run", "-m", "afl", *SMALL)
    (row,) = table(cli(*arguments).stdout)
    (result,) = json.loads(cli(*arguments, "--json").stdout)["runs"]
    accuracy = result["accuracy"]
    keys = ("client_mean", "sample_mean", "worst_decile", "global_test", "balanced")
    assert list(row[1:6]) == [f"{100 * accuracy[key]:.1f}" for key in keys]
    assert row[6] == f"{result['bytes']['up'] / 1000:.1f} kB"


def test_json_has_no_numbers_that_are_none_even_without_test_samples():
    done = cli("run", "--json", "-m", "afl", "-s", "data.test_fraction=0.0001")

    def refuse(text):
        raise AssertionError(f"{text} is not JSON")

    assert json.loads(done.stdout, parse_constant=refuse)["runs"]


def test_a_table_without_test_samples_is_printed_all_the_same():
    done = cli("run", "-m", "afl", "-s", "data.test_fraction=0.0001")
    assert done.exit_code == 0
    assert "20 of 20 clients have no test samples" in done.stdout


def test_held_out_clients_are_told_of_below_the_table():
    done = cli("run", "-m", "afl", *SMALL, "-s", "data.holdout_clients=1")
    assert "afl: 1 client held out of training, client mean" in done.stdout


def test_settings_come_from_a_file_and_from_the_command_line(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('methods = ["local"]\n[data]\nclients = 3\n', encoding="utf-8")
    (result,) = json.loads(cli("run", path, "--json").stdout)["runs"]
    assert (result["method"], result["clients"]) == ("local", 3)
    changed = cli("run", path, "--json", "-m", "afl", "-s", "data.clients=5")
    (result,) = json.loads(changed.stdout)["runs"]
    assert (result["method"], result["clients"]) == ("afl", 5)


def test_a_file_of_features_is_run_on(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(200) % 4
    np.savez(tmp_path / "own.npz", x=rng.normal(size=(200, 8)) + y[:, None], y=y)
    done = cli("run", "-m", "afl", "-s", f"data.source={tmp_path / 'own.npz'}", *SMALL, "--json")
    assert json.loads(done.stdout)["runs"][0]["accuracy"]["sample_mean"] > 0.4


def test_a_method_in_a_file_of_ones_own_is_run(tmp_path):
    (tmp_path / "endless.py").write_text(ENDLESS.replace("while True", "for _ in [1]"))
    done = cli("run", "-m", tmp_path / "endless.py", *SMALL, "--out", tmp_path / "runs")
    assert done.exit_code == 0
    assert (tmp_path / "runs" / "endless" / "run.json").is_file()


def test_a_method_written_by_following_the_contributors_page_is_set_run_and_checked(tmp_path):
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = [c for c in re.findall("```python\n(.*?)```", page, re.DOTALL) if "Method[" in c]
    assert set(re.findall("from (fedgram[.a-z_]*) import", code)) == {"fedgram"}
    (tmp_path / "pulled.py").write_text(code, encoding="utf-8")
    setting = ("-s", "method.pulled.strength=30")
    done = cli("run", "-m", tmp_path / "pulled.py", *SMALL, *setting, "--out", tmp_path / "runs")
    assert done.exit_code == 0, done.output
    about = json.loads((tmp_path / "runs" / "pulled" / "run.json").read_text(encoding="utf-8"))
    assert about["parameters"]["strength"] == 30.0
    assert cli("check", tmp_path / "pulled.py").exit_code == 0


# Errors


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "-m", "alf"], 2, "did you mean 'afl'"),
        (["run", "-s", "data.client=3"], 2, "did you mean 'clients'"),
        (["run", "-s", "data.clients=many"], 2, "data.clients = 'many'"),
        (["run", "-s", "data.clients"], 2, "write key=value"),
        (["run", "-s", "engine.workers=0"], 2, "engine.workers"),
        (["run", "-s", "engine.seed=-1"], 2, "seed"),
        (["run", "-s", "data.seed=-1"], 2, "seed"),
        (["run", "-s", "method.afl=3"], 2, "method.afl"),
        (["run", "-s", "methods=[3]"], 2, "methods"),
        (["run", "-s", "method.apfl.balance=nan", "-m", "apfl"], 2, "balance"),
        (["run", "missing.toml"], 2, "missing.toml"),
        (["run", "-m", "missing.py"], 2, "missing.py"),
        (["run", "-s", "data.source=missing.npz"], 3, "missing.npz"),
        (["run", "-s", "data.clients=5000"], 3, "use fewer clients (data.clients)"),
        (["compare", "missing"], 3, "holds no run"),
        (["run", "-m", "afl", "-s", "method.afl.ridge=0"], 6, "use a larger ridge"),
        (["run", "-m", "afl", "-s", "method.afl.ridge=-1"], 6, "ridge"),
        (["run", "-m", "central", "-s", "engine.private=true"], 7, "private"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_an_error_is_one_line_that_names_the_cause_and_has_its_code(
    tmp_path, monkeypatch, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    done = cli(*arguments)
    assert done.exit_code == code, done.exception
    assert done.stdout == ""
    assert done.stderr.startswith("fedgram: error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


@pytest.mark.parametrize(
    "arguments", [["run", "--nonsense"], ["nonsense"], ["compare"], ["run", "a.toml", "b.toml"]]
)
def test_wrong_usage_has_code_2(arguments):
    done = cli(*arguments)
    assert done.exit_code == 2
    assert "Usage:" in done.stderr


def test_an_error_of_a_process_has_no_traceback():
    done = process("run", "-m", "afl", "-s", "method.afl.ridge=0")
    assert (done.returncode, done.stdout) == (6, "")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_an_error_at_a_client_names_it():
    done = cli("run", "-m", "local", "-s", "method.local.ridge=0", *SMALL)
    assert done.exit_code == 6
    assert "client c0: " in done.stderr


def test_json_prints_nothing_on_standard_output_when_it_fails():
    done = cli("run", "--json", "-m", "central", "-s", "engine.private=true")
    assert (done.exit_code, done.stdout) == (7, "")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    done = cli("run", "-m", "afl", *SMALL, "--out", tmp_path / "file" / "below")
    assert done.exit_code == 3
    assert "cannot be written" in done.stderr


def test_a_folder_that_holds_another_run_is_refused(tmp_path):
    assert cli("run", "-m", "afl", *SMALL, "--out", tmp_path).exit_code == 0
    done = cli("run", "-m", "afl", *SMALL, "-s", "data.seed=9", "--out", tmp_path)
    assert done.exit_code == 3
    assert "holds a run with other settings (data.seed = 0, here 9)" in done.stderr


def test_the_search_for_a_rate_is_printed_recorded_and_reported(tmp_path):
    short = ("run", "-m", "fedavg", *SMALL, *FEW_ROUNDS)
    shown = " ".join(cli(*short, "--out", tmp_path).stdout.split())
    *_, last = (tmp_path / "fedavg" / "scores.jsonl").read_text().splitlines()
    search = json.loads(last)["summary"]["rate_search"]
    assert f"fedavg uses rate {search['rate']:g}, {search['reason']}; validation loss" in shown
    assert len(search["pilots"]) > 1
    page = report_page(read_runs([tmp_path]))
    for pilot in search["pilots"]:
        assert f"rate {pilot['rate']:g}: {pilot['outcome']}" in shown
        assert f"{pilot['rate']:g}: {pilot['outcome']}" in page
    (given,) = json.loads(cli(*short, "-s", "every.rate=0.1", "--json").stdout)["runs"]
    assert given["rate_search"] is None


def test_a_round_that_was_chosen_before_the_last_is_told():
    trained = ("-m", "fedavg", "-s", "method.fedavg.rate=100", "-s", "method.fedavg.rounds=6")
    # At this rate accuracy jumps, and which round is best depends on the last bits of a machine.
    for seed in range(8):
        more = ("-s", "data.valid_fraction=0.2", "-s", f"data.seed={seed}")
        arguments = ("run", *trained, *SMALL, *more)
        (result,) = json.loads(cli(*arguments, "--json").stdout)["runs"]
        if result["chosen"] < 6:
            break
    assert result["chosen"] < result["rounds"] == 6
    shown = cli(*arguments).stdout
    last = 100 * result["last"]["accuracy"]["client_mean"]
    note = f"fedavg: round {result['chosen']} of 6, the best on validation samples; client mean of"
    assert note in " ".join(shown.split())
    assert f"{last:.1f} %" in shown


def test_scoring_and_dropout_are_settings():
    trained = ("-m", "fedavg", "-s", "method.fedavg.rate=0.1", "-s", "method.fedavg.rounds=5")
    more = ("-s", "scoring.every=5", "-s", "engine.dropout=0.5", "-s", "metrics.global_test=false")
    (result,) = json.loads(cli("run", *trained, *SMALL, *more, "--json").stdout)["runs"]
    assert result["accuracy"]["global_test"] is None
    done = cli("run", "-m", "afl", "-s", "scoring.evry=2")
    assert (done.exit_code, "did you mean 'every'" in done.stderr) == (2, True)


TRAINED = """
import sys
from fedgram.cli import main
for arguments in {commands!r}:
    main(arguments, standalone_mode=False)
"""


@pytest.mark.parametrize(
    "name",
    ["fedavg", *(pytest.param(name, marks=pytest.mark.wide) for name in ("fedpcl", "fed3r"))],
)
def test_trained_models_are_read_by_a_process_that_trained_none(tmp_path, name):
    options = ("-s", "method.fed3r.only_local_labels=true") if name == "fed3r" else ()
    done = cli("run", "-m", name, *SMALL, *FEW_ROUNDS, *options, "--out", tmp_path)
    assert done.exit_code == 0
    rng = np.random.default_rng(0)
    own = tmp_path / "own.npz"
    classes = np.array([str(digit) for digit in range(10)])
    np.savez(own, x=rng.normal(size=(30, 64)), y=np.arange(30) % 3, classes=classes)
    folder, made = tmp_path / name, tmp_path / "made.safetensors"
    commands = [
        ["personalize", str(folder / "shared.safetensors"), str(own), "-o", str(made)],
        ["predict", str(made), str(own), "-o", str(tmp_path / "new.csv")],
        ["predict", str(folder / "models" / "c0.safetensors"), str(own)],
    ]
    done = subprocess.run(
        [sys.executable, "-c", TRAINED.format(commands=commands)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    predictions = (tmp_path / "new.csv").read_text(encoding="utf-8").splitlines()
    assert len(predictions) == 31
    if name in ("fedpcl", "fed3r"):  # keep to the classes of one's own samples
        assert {line.split(",")[1] for line in predictions[1:]} <= {"0", "1", "2"}


@pytest.mark.parametrize("name", ["fedrep", "fedpcl"])
def test_what_is_shared_without_a_head_does_not_predict(tmp_path, name):
    assert cli("run", "-m", name, *SMALL, *FEW_ROUNDS, "--out", tmp_path).exit_code == 0
    done = cli("predict", tmp_path / name / "shared.safetensors", "digits")
    assert done.exit_code == 3
    assert "expected a model that predicts" in done.stderr


# methods


def test_methods_are_listed_with_parameters_and_defaults():
    done = cli("methods")
    assert done.exit_code == 0
    for name in names():
        assert re.search(rf"^{name}  \w", done.stdout, re.MULTILINE)
    assert "    ridge = 100.0\n" in done.stdout
    lift = 'lift = {width = 0, activation = "relu", seed = 0, scale = 1.0, copies = 1}'
    assert lift in done.stdout


def test_methods_are_listed_as_json():
    content = json.loads(cli("methods", "--json").stdout)
    assert [entry["name"] for entry in content["methods"]] == names()
    for entry in content["methods"]:
        assert set(entry) == {"name", "summary", "parameters"}
        assert all(set(p) == {"name", "default", "text"} for p in entry["parameters"])
        assert all(p["text"] for p in entry["parameters"])


def test_help_and_version_say_what_there_is():
    shown = cli("--help").stdout
    assert all(command in shown for command in ("run", "methods", "compare", "Exit codes"))
    assert re.search(r"\d+\.\d+", cli("--version").stdout)


# compare


def test_recorded_runs_are_compared(tmp_path):
    run = cli("run", "-m", "afl", "-m", "local", *SMALL, "--out", tmp_path / "one", "--json")
    results = {result["method"]: result for result in json.loads(run.stdout)["runs"]}
    found = json.loads(cli("compare", tmp_path / "one", "--json").stdout)["runs"]
    assert {result["method"] for result in found} == {"afl", "local"}
    for result in found:
        assert set(result) == KEYS | {"run", "finished", "curve"}
        told = {**results[result["method"]], "run": result["run"], "finished": True}
        assert {**told, "curve": result["curve"]} == result
        assert [point["round"] for point in result["curve"]] == [1]


def test_recorded_runs_are_shown_in_a_table(tmp_path):
    cli("run", "-m", "afl", "-m", "local", *SMALL, "--out", tmp_path / "one")
    done = cli("compare", tmp_path / "one", columns=200)
    rows = table(done.stdout)
    assert [row[0] for row in rows] == [str(tmp_path / "one" / name) for name in ("afl", "local")]


def test_what_is_recorded_says_how_to_repeat_it(tmp_path):
    cli("run", "-m", "afl", *SMALL, "-s", "method.afl.ridge=3", "--out", tmp_path)
    about = json.loads((tmp_path / "afl" / "run.json").read_text(encoding="utf-8"))
    assert about["method"] == "afl"
    assert about["parameters"]["ridge"] == 3.0
    assert about["config"]["data"]["clients"] == 4


# Ctrl-C

ENDLESS = '''
from dataclasses import dataclass

from fedgram import Linear, Method, Statistics, step


@dataclass(frozen=True, kw_only=True)
class Endless(Method[Linear]):
    """Endless: a round after each round."""

    @step
    def statistics(self, client, _):
        return Statistics.of(client.samples.features, client.samples.labels)

    def fit(self, federation):
        while True:
            yield Linear.of(federation.sum(self.statistics), ridge=100.0)

    def personalize(self, client, shared):
        return shared
'''
# A process started in the background may be deaf to Ctrl-C: let it hear.
LISTENING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from fedgram.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_run_ends_with_130_and_can_be_compared(tmp_path, workers):
    (tmp_path / "endless.py").write_text(ENDLESS)
    arguments = ["run", "-m", str(tmp_path / "endless.py"), "--out", str(tmp_path / "runs")]
    running = subprocess.Popen(
        [sys.executable, "-c", LISTENING, *arguments, "-s", f"engine.workers={workers}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    scores = tmp_path / "runs" / "endless" / "scores.jsonl"
    patience = time.monotonic() + 60
    while not (scores.is_file() and '"round": 2' in scores.read_text(encoding="utf-8")):
        assert running.poll() is None
        assert time.monotonic() < patience
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert output == ""
    assert errors == "fedgram: interrupted; what was recorded is kept\n"
    (found,) = json.loads(cli("compare", tmp_path / "runs", "--json").stdout)["runs"]
    assert not found["finished"]
    assert found["rounds"] >= 1
    assert found["accuracy"]["sample_mean"] > 0.9
    shown = cli("compare", tmp_path / "runs", columns=300).stdout
    assert f"interrupted after round {found['rounds']}" in shown
