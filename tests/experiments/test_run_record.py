"""The record of a run: one reader for both formats, data frames, old names with a warning."""

import json
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from report_support import write_run

from fedgram.cli import main
from fedgram.data.plan import PartitionPlan
from fedgram.data.sources import load_dataset
from fedgram.errors import ConfigError
from fedgram.experiments import config
from fedgram.experiments.measures import SCORES, measure
from fedgram.experiments.reader import read_runs
from fedgram.experiments.record import Record
from fedgram.experiments.runner import run
from fedgram.experiments.seeds import mean_curve
from fedgram.experiments.study import settings as study
from fedgram.experiments.study.cells import Source, cells
from fedgram.federation.federated_dataset import federate
from fedgram.federation.method import create_method
from fedgram.runtime import files

STORED = Path(__file__).parents[1] / "stored"


def cli(*arguments):
    done = CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def written_in_format_1(folder):
    """Rename the files and keys of a record as format 1 had them."""
    about = json.loads((folder / "run.json").read_text())
    metrics = about["config"].get("metrics")
    if metrics:
        metrics["whole"] = metrics.pop("global_test")
    (folder / "run.json").write_text(json.dumps({**about, "format": 1}))
    (folder / "exchanges.jsonl").rename(folder / "asks.jsonl")
    lines = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    for summary in (line["summary"] for line in lines if "summary" in line):
        summary["accuracy"]["global"] = summary["accuracy"].pop("global_test")
        tuned = summary.pop("tuned", None)
        summary["settled"] = tuned and {
            "setting": tuned["settings"],
            "told": tuned["description"],
            "reasons": tuned["left_out_accuracy"],
            "notes": tuned["notes"],
        }
    (folder / "scores.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


# One record, one reader


def test_a_run_prints_the_json_that_is_read_from_its_folder(tmp_path):
    few = ("-s", "data.clients=4", "-s", "data.holdout_clients=1", "-s", "every.rounds=2")
    chosen = ("-s", "data.valid_fraction=0.2", "-s", "every.pilot=1", "-s", "metrics.classes=true")
    methods = ("-m", "afl", "-m", "auto", "-m", "fedavg", "-m", "local")
    said = cli("run", *methods, *few, *chosen, "--out", tmp_path, "--json")
    assert said == cli("compare", tmp_path, "--json")
    runs = {found["method"]: found for found in json.loads(said)["runs"]}
    assert set(runs["auto"]["tuned"]) == {"settings", "description", "left_out_accuracy", "notes"}
    assert set(runs["fedavg"]["rate_search"]) == {"rate", "reason", "pilots"}


def test_every_file_is_read_once(tmp_path, monkeypatch):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", "local")
    opened = Counter()
    original = files.read_text

    def read_text(path, **options):
        opened[path] += 1
        return original(path, **options)

    monkeypatch.setattr(files, "read_text", read_text)
    runs = read_runs([tmp_path, tmp_path / "a"])
    assert [one.method for one in runs] == ["afl", "local"]
    names = ("run.json", "scores.jsonl", "exchanges.jsonl", "partition.json")
    assert opened == {tmp_path / one / name: 1 for one in "ab" for name in names}


def test_without_clients_everything_else_is_read(tmp_path):
    folder = write_run(tmp_path / "a", rounds=[(1, 0.5, None), (2, 0.6, None)])
    (full,), (short,) = read_runs([folder]), read_runs([folder], clients=False)
    assert all(one.clients for one in full.rounds)
    assert not any(one.clients for one in short.rounds)
    assert short.to_dict() == full.to_dict()


def test_a_record_has_the_clients_of_every_round(tmp_path):
    folder = write_run(tmp_path / "a", rounds=[(1, 0.5, 0.9), (2, 0.5, 0.1)], clients={"a": 0.5})
    (found,) = read_runs([folder])
    assert [(one.round, one.by_client()) for one in found.rounds] == [
        (1, {"a": 0.5}),
        (2, {"a": 0.5}),
    ]
    assert (found.chosen.round, found.last.round) == (1, 2)


def test_exchanges_are_added_up_step_by_step(tmp_path):
    folder = write_run(tmp_path / "a")
    path = folder / "exchanges.jsonl"
    path.write_text(path.read_text() * 2)
    (found,) = read_runs([folder])
    train, deliver = found.step_totals()
    assert (train.step, train.exchanges, train.bytes_up) == ("statistics", 2, 12_000)
    assert (deliver.phase, deliver.clients, deliver.bytes_down) == ("deliver", 2, 120)


# Format 1


@pytest.mark.parametrize("method", ["afl", "auto", "fedavg", "local"])
def test_a_record_of_format_1_has_the_content_of_format_2(tmp_path, method):
    words = ("-m", method, "-s", "data.clients=4", "-s", "every.rounds=2", "-s", "every.pilot=1")
    cli("run", *words, "--out", tmp_path)
    (new,) = read_runs([tmp_path])
    written_in_format_1(tmp_path / method)
    with pytest.warns(FutureWarning, match="'exchanges.jsonl' for 'asks.jsonl'"):
        (old,) = read_runs([tmp_path])
    assert old == new
    assert old.config["metrics"]["global_test"] is True


@pytest.mark.parametrize("folder", sorted((STORED / "run").iterdir()), ids=lambda path: path.name)
def test_every_stored_run_has_all_accuracies_and_its_exchanges(folder):
    with pytest.warns(FutureWarning, match="format 1"):
        (found,) = read_runs([folder])
    assert found.finished == (folder / "asks.jsonl").is_file()  # kept of a few only
    assert set(found.summary.accuracy) == set(SCORES) - {"auroc"}
    assert "whole" not in found.config["metrics"]
    first = (folder / "scores.jsonl").read_text()
    assert (found.summary.tuned is None) == ('"settled": {' not in first)


def test_a_new_record_is_read_without_a_warning(tmp_path):
    write_run(tmp_path / "a")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_runs([tmp_path])


# Old names


def test_an_old_setting_is_taken_and_the_new_name_said():
    with pytest.warns(FutureWarning, match=r"metrics\.whole is now called metrics\.global_test"):
        found = config.read({"metrics": {"whole": False, "auroc": True}})
    assert (found.metrics.global_test, found.metrics.auroc) == (False, True)


def test_old_and_new_together_are_refused():
    with pytest.raises(ConfigError, match=r"metrics\.global_test"):
        config.read({"metrics": {"whole": False, "global_test": True}})


def test_an_old_measure_is_taken_and_the_new_name_said():
    with pytest.warns(FutureWarning, match="'global' is now called 'global_test'"):
        assert measure("global") == measure("global_test")


def test_the_command_line_shows_a_warning_in_one_line_and_json_stays_json(tmp_path):
    run_it = [sys.executable, "-m", "fedgram.cli", "run", "-m", "afl", "-s", "metrics.whole=false"]
    done = subprocess.run(
        [*run_it, "-s", "data.clients=3", "--json"], capture_output=True, text=True, check=True
    )
    told = "fedgram: warning: metrics.whole is now called metrics.global_test\n"
    assert done.stderr == told
    assert json.loads(done.stdout)["runs"][0]["accuracy"]["global_test"] is None


def test_many_old_records_are_warned_of_once():
    runs = [STORED / "run" / name for name in ("afl", "local", "fedavg")]
    done = subprocess.run(
        [sys.executable, "-m", "fedgram.cli", "compare", *runs, "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(json.loads(done.stdout)["runs"]) == 3
    assert done.stderr.startswith("fedgram: warning: a record of format 1 is read; ")
    assert done.stderr.count("\n") == 1


def digests(settings):
    source = {"digits": Source.of(load_dataset("digits"))}
    table = study.read({"table": {"methods": ["afl"], "seeds": 1}, **settings})
    return [run.digest for cell in cells(table, source) for run in cell.runs.values()]


@pytest.mark.parametrize("wanted", [True, False])
def test_a_table_knows_its_runs_by_either_name_of_the_setting(wanted):
    new = digests({"metrics": {"global_test": wanted}})
    with pytest.warns(FutureWarning, match="global_test"):
        assert digests({"metrics": {"whole": wanted}}) == new
    assert (digests({}) == new) == (not wanted)


# Over seeds


def test_seeds_that_were_scored_at_other_rounds_are_drawn_by_the_first(tmp_path):
    write_run(tmp_path / "0", seed=0, rounds=[(2, 0.5, None), (4, 0.6, None)])
    write_run(tmp_path / "1", seed=1, rounds=[(3, 0.9, None)])
    assert mean_curve(read_runs([tmp_path]), "rounds") == [(2.0, 0.5, 0.0), (4.0, 0.6, 0.0)]


def test_no_runs_have_no_curve():
    assert mean_curve([], "rounds") == []


# Data frames


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    data = federate(load_dataset("digits"), PartitionPlan(clients=5, holdout_clients=1))
    settings = {"config": {"data": {"clients": 5, "seed": 3}}}
    return run(
        create_method("fedhip", {"ridge": 3.0}),
        data,
        record=Record(tmp_path_factory.mktemp("runs") / "one", settings),
    )


def test_a_frame_has_a_row_for_the_run(result):
    pytest.importorskip("pandas")
    frame = result.record.to_frame()
    assert len(frame) == 1
    row = frame.iloc[0]
    assert row["client_mean"] == result.accuracy["client_mean"]
    assert row["bytes_up"] == result.scores.bytes["up"]
    assert (row["data.seed"], row["method.ridge"], row["chosen"]) == (3, 3.0, 1)


def test_frames_of_several_runs_go_together(tmp_path):
    pandas = pytest.importorskip("pandas")
    for seed in (0, 1):
        write_run(tmp_path / str(seed), seed=seed, clients={"a": 0.5 + 0.1 * seed})
    frame = pandas.concat([one.to_frame() for one in read_runs([tmp_path])])
    assert list(frame["data.seed"]) == [0, 1]
    assert frame.groupby("method")["client_mean"].mean()["afl"] == pytest.approx(0.55)


def test_a_frame_of_clients_has_a_row_for_each(result):
    pytest.importorskip("pandas")
    frame = result.record.clients_frame()
    assert list(frame["set"]) == ["members"] * 4 + ["holdout"]
    members = frame[frame["set"] == "members"].set_index("client")
    assert dict(members["accuracy"]) == result.record.chosen.by_client()
    counts = {one.client: sum(one.train) for one in result.record.partition.clients}
    assert dict(frame.set_index("client")["train_samples"]) == counts


def test_a_private_run_has_an_empty_frame_of_clients(tmp_path):
    pytest.importorskip("pandas")
    (found,) = read_runs([write_run(tmp_path / "a", private=True)])
    assert len(found.clients_frame()) == 0


@pytest.mark.parametrize("frame", ["to_frame", "clients_frame"])
def test_without_pandas_the_error_says_what_to_install(result, monkeypatch, frame):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        getattr(result.record, frame)()
