"""Recorded runs: what the folder holds, what survives a crash, and how runs are compared."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from fedgram.core import codec
from fedgram.data.plan import PartitionPlan
from fedgram.data.sources import load_dataset
from fedgram.errors import DataError
from fedgram.experiments.reader import read_runs
from fedgram.experiments.record import FORMAT, Record
from fedgram.experiments.runner import run
from fedgram.federation.client import Site
from fedgram.federation.federated_dataset import FederatedDataset, federate
from fedgram.federation.method import create_method, names
from fedgram.federation.protocol import Exchange


@pytest.fixture(scope="module")
def everybody():
    return federate(load_dataset("digits"), PartitionPlan(clients=12, holdout_clients=2))


def recorded(folder, everybody, name="fedhip", **options):
    record = Record(folder, {"method": name, "parameters": {}, "config": {}})
    given = {"alpha": 10.0, "ridge": 100.0} if name == "fedhip" else {}
    method = create_method(name, given).shortened()
    return run(method, everybody, name=name, record=record, **options)


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs" / "one"


# What the folder holds


def test_a_folder_holds_the_run_its_exchanges_its_scores_and_its_models(folder, everybody):
    result = recorded(folder, everybody)
    found = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    models = {f"models/{client}.safetensors" for client in result.predictors}
    assert len(models) == 12
    assert found == {
        "run.json",
        "partition.json",
        "exchanges.jsonl",
        "scores.jsonl",
        "shared.safetensors",
        *models,
    }


def test_the_run_says_what_was_asked_for_and_what_it_ran_on(folder):
    Record(folder, {"method": "afl", "parameters": {"ridge": 3.0}})
    about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert (about["format"], about["method"], about["parameters"]) == (FORMAT, "afl", {"ridge": 3})
    assert {"fedgram", "python", "numpy", "scipy", "blas", "machine"} <= set(about["versions"])


def test_exchanges_are_recorded_as_they_were(folder, everybody):
    result = recorded(folder, everybody)
    exchanges = [Exchange(**line) for line in lines(folder / "exchanges.jsonl")]
    assert tuple(exchanges) == result.record.exchanges
    seen = [(exchange.phase, exchange.clients) for exchange in exchanges]
    assert seen == [("train", 10), ("score", 10), ("score", 2), ("deliver", 10)]


def test_scores_are_a_line_per_client_and_one_for_all(folder, everybody):
    result = recorded(folder, everybody)
    found = lines(folder / "scores.jsonl")
    rows = [line for line in found if "summary" not in line]
    assert [row["client"] for row in rows if row["set"] == "members"] == [
        site.id for site in everybody.members
    ]
    assert len([row for row in rows if row["set"] == "holdout"]) == 2
    summaries = {line["set"]: line["summary"] for line in found if "summary" in line}
    assert summaries == {
        "members": result.scores.summary().to_dict(),
        "holdout": result.holdout.summary().to_dict(),
    }


def test_a_private_run_records_no_client_and_nobodys_classes(folder, everybody):
    recorded(folder, everybody, private=True)
    assert all("client" not in line for line in lines(folder / "scores.jsonl"))
    assert not (folder / "partition.json").exists()


@pytest.mark.parametrize("name", names())
def test_models_load_back_and_predict_the_same(folder, everybody, name):
    result = recorded(folder, everybody, name)
    for client, model in result.predictors.items():
        again = codec.load(folder / "models" / f"{client}.safetensors")
        rows = everybody.test.features
        np.testing.assert_array_equal(again(rows), model(rows))
        assert codec.digest(again) == codec.digest(model)
    shared = folder / "shared.safetensors"
    if result.shared is None:
        assert not shared.exists()
    else:
        published = codec.load(shared)
        assert codec.digest(published.shared) == codec.digest(result.shared)


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch, everybody):
    monkeypatch.chdir(tmp_path)
    run(create_method("local"), everybody)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "clients", [("a/b", "../../up"), ("a.b", "a%2eb"), ("", "%"), ("\u20ac", " ac")]
)
def test_any_names_of_clients_give_files_of_their_own_inside_the_folder(
    tmp_path, folder, everybody, clients
):
    members = [
        Site(id=name, train=site.train, valid=site.valid, test=site.test)
        for name, site in zip(clients, everybody.members, strict=False)
    ]
    recorded(folder, FederatedDataset(members=members, holdout=[], test=everybody.test), "local")
    files = list(tmp_path.rglob("*.safetensors"))
    assert len(files) == 2
    assert all(path.parent == folder / "models" for path in files)


# Where nothing can be written


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(folder, everybody):
    recorded(folder, everybody)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(DataError, match="holds a run already"):
        recorded(folder, everybody)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_a_folder_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    for where in ("file", "file/below", "file/far/below"):
        with pytest.raises(DataError, match="cannot be written"):
            Record(tmp_path / where)


def test_a_name_too_long_for_a_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be written"):
        Record(tmp_path / ("a" * 300))


# Comparing


def test_a_comparison_tells_what_the_result_told(folder, everybody):
    result = recorded(folder, everybody)
    (found,) = read_runs([folder])
    assert found.finished
    assert found == replace(result.record, parameters={})  # which this test does not record
    plain = found.to_dict()
    assert plain == result.to_dict()
    assert plain["curve"] == [
        {
            "round": 1,
            "accuracy": result.accuracy["client_mean"],
            **{key: plain[key] for key in ("valid", "seconds", "flops", "bytes")},
        }
    ]


def test_runs_are_found_right_below_a_folder(folder, everybody):
    recorded(folder / "b", everybody, "local")
    recorded(folder / "a", everybody, "afl")
    assert [found.method for found in read_runs([folder])] == ["afl", "local"]
    assert [found.method for found in read_runs([folder / "b", folder / "a"])] == [
        "local",
        "afl",
    ]


def test_a_comparison_needs_the_folder_only(tmp_path, folder, everybody):
    recorded(folder, everybody)
    (before,) = read_runs([folder])
    shutil.move(folder, tmp_path / "moved")
    (after,) = read_runs([tmp_path / "moved"])
    assert after == replace(before, folder=str(tmp_path / "moved"))


def test_a_comparison_writes_nothing(folder, everybody):
    recorded(folder, everybody)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    read_runs([folder])
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize("kind", ["missing", "empty", "file"])
def test_a_folder_without_a_run_is_refused(tmp_path, kind):
    where = tmp_path / "x"
    if kind == "empty":
        where.mkdir()
    if kind == "file":
        where.write_text("x")
    with pytest.raises(DataError, match="holds no run"):
        read_runs([where])


# Interrupted runs


def cut_last_line(path):
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rpartition(b"\n")[2]
    path.write_bytes(whole[: len(whole) - len(last) // 2 - 1])


def test_a_run_without_its_delivery_counts_as_unfinished(folder, everybody):
    result = recorded(folder, everybody)
    path = folder / "exchanges.jsonl"
    kept = [line for line in lines(path) if line["phase"] != "deliver"]
    path.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    (found,) = read_runs([folder])
    assert not found.finished
    assert found.summary.accuracy == result.accuracy
    assert found.summary.bytes == result.scores.bytes


def test_a_last_line_cut_in_half_is_left_out(folder, everybody):
    result = recorded(folder, everybody)
    for name in ("exchanges.jsonl", "scores.jsonl"):
        cut_last_line(folder / name)
    (found,) = read_runs([folder])
    assert found.summary.accuracy == result.accuracy
    assert found.holdout is None  # its summary was the line that was cut


def test_wherever_a_record_is_cut_it_counts_as_far_as_it_came(folder, everybody):
    recorded(folder, everybody, "local")
    path = folder / "scores.jsonl"
    whole = path.read_bytes()
    for end in range(0, len(whole), 97):
        path.write_bytes(whole[:end])
        if b'"summary"' in whole[:end].rpartition(b"\n")[0]:
            assert read_runs([folder])[0].last.round == 1
        else:
            with pytest.raises(DataError, match="interrupted before anything was scored"):
                read_runs([folder])


class Interruption(BaseException):
    """What Ctrl-C would be."""


def interrupted(folder, everybody, exchange):
    """Record a run that is broken off at the first reply of one of its exchanges."""
    seen = []

    def on_reply(step, done, total):
        seen.append(done)
        if seen.count(1) == exchange:
            raise Interruption

    with pytest.raises(Interruption):
        recorded(folder, everybody, "afl", on_reply=on_reply)


def test_a_run_interrupted_while_training_is_told_so(folder, everybody):
    interrupted(folder, everybody, exchange=1)
    assert lines(folder / "exchanges.jsonl")[0]["clients"] == 10  # they are summed together
    with pytest.raises(DataError, match="interrupted before anything was scored"):
        read_runs([folder])


def test_a_run_interrupted_before_its_models_were_written_is_not_finished(folder, everybody):
    interrupted(folder, everybody, exchange=3)  # the held-out clients
    (found,) = read_runs([folder])
    assert not (folder / "models").exists()
    assert found.summary.accuracy["client_mean"] > 0.5
    assert not found.finished


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"format": 3}', "\x00"])
def test_a_run_that_cannot_be_read_is_refused_by_name(folder, everybody, content):
    recorded(folder, everybody, "local")
    (folder / "run.json").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match="one"):
        read_runs([folder])


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("run.json", '{"format": 2}'),
        ("scores.jsonl", '{"summary": {}}'),
        ("scores.jsonl", "[]"),
        ("exchanges.jsonl", "{}"),
        ("exchanges.jsonl", '{"step": 1, "other": 2}'),
        ("exchanges.jsonl", "null"),
    ],
)
def test_lines_of_another_program_are_refused_by_name(folder, everybody, name, line):
    recorded(folder, everybody, "local")
    (folder / name).write_text(line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="one"):
        read_runs([folder])
