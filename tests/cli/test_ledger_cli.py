"""A federation by files alone: contribute, keep a ledger, solve, personalize, predict."""

import contextlib
import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from ledger_support import rows
from safetensors.numpy import save_file

from fedgram.cli import main
from fedgram.core import codec
from fedgram.core.statistics import Statistics
from fedgram.ledger import signing
from fedgram.ledger.ledger import Ledger

CLASSES = np.array(["ant", "bee", "cat", "dog"])
SITES = ("north", "south", "west")
FEATURES = 8
METHODS = ["afl", "fedhip", "apfl-linear"]
LIFTS = {"afl": "lift", "fedhip": "lift", "apfl": "primary"}
# A total answers one sum: nothing can be selected by leave-one-out.
GIVEN = {
    "fedhip": ("-s", "method.fedhip.alpha=10", "-s", "method.fedhip.ridge=100"),
    "apfl": ("-s", "method.apfl.refinement_ridge=300", "-s", "method.apfl.balance=0.5"),
}


def cli(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)), env={"COLUMNS": "120"})


def done(*arguments):
    """Run a command that must succeed, and return what it prints."""
    result = cli(*arguments)
    assert result.exit_code == 0, (arguments, result.output, result.exception)
    return result.stdout


def drawn(samples, seed):
    """Return vectors around the centres of their classes, and the classes."""
    rng = np.random.default_rng(seed)
    centres = 2 * np.random.default_rng(99).normal(size=(len(CLASSES), FEATURES))
    y = rng.permutation(np.arange(samples) % len(CLASSES))
    return centres[y] + rng.normal(size=(samples, FEATURES)), y


def write(path, x, names, listed=CLASSES, **more):
    """Write a feature file that lists its classes in its own order."""
    codes = np.array([list(listed).index(name) for name in names], np.int64)
    np.savez(path, x=x, y=codes, classes=np.array(listed), **more)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Write three sites' files and one of all their samples; each site lists classes its way."""
    folder = tmp_path_factory.mktemp("data")
    x, y = drawn(150, seed=0)
    split = np.arange(150) % 10 // 4  # 60 to train, 60 to validate, 30 to test
    client = np.array(SITES)[np.arange(150) // 7 % 3]
    write(folder / "all.npz", x, CLASSES[y], client=client, split=split)
    for site, listed in zip(SITES, (CLASSES, CLASSES[::-1], CLASSES[[1, 3, 0, 2]]), strict=True):
        own = client == site
        write(folder / f"{site}.npz", x[own], CLASSES[y[own]], listed, split=split[own])
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contribute(source, client, *options, out=None):
    out = out or f"{client}.contribution"
    done("contribute", source, "--client", client, "-o", out, *options)
    return out


def federated(data, *options, ledger="ledger", sites=SITES):
    """Make a ledger of the sites' contributions."""
    sent = [contribute(data / f"{site}.npz", site, *options) for site in sites]
    done("ledger", "init", ledger)
    return done("ledger", "join", ledger, *sent) if sent else ""


def solved(method="afl", *options, ledger="ledger"):
    output = done(
        "ledger",
        "solve",
        ledger,
        "-m",
        method,
        "-o",
        f"{method}.shared",
        "--json",
        *GIVEN.get(method, ()),
        *options,
    )
    return json.loads(output)


def total(ledger="ledger"):
    return json.loads(done("ledger", "show", ledger, "--json"))["total_digest"]


# The same as a run


@pytest.mark.parametrize(("method", "lift"), [*((name, None) for name in METHODS), *LIFTS.items()])
def test_a_federation_by_files_ends_in_the_digest_of_a_run(here, data, method, lift):
    options = [*GIVEN.get(method, ())]
    options += [] if lift is None else ["-s", f"method.{method}.{lift}={{width=20, seed=5}}"]
    federated(data, "-m", method, *options)
    about = solved(method, *options)
    given = ("-s", f"data.source={data / 'all.npz'}", "-s", "data.partition=given")
    (run,) = json.loads(done("run", "-m", method, *given, *options, "--json"))["runs"]
    assert about["shared_digest"] == run["shared_digest"]
    assert (about["method"], about["model"]) == (method, f"{method}.shared")
    assert about["samples"] == np.count_nonzero(np.load(data / "all.npz")["split"] != 2)


def test_the_order_of_joining_does_not_matter(here, data):
    federated(data, ledger="one")
    federated(data, ledger="two", sites=SITES[::-1])
    assert total("one") == total("two")
    assert solved(ledger="one")["shared_digest"] == solved(ledger="two")["shared_digest"]


def test_other_settings_give_another_digest(here, data):
    federated(data)
    digests = {solved("afl", "-s", f"method.afl.ridge={r}")["shared_digest"] for r in (1, 10)}
    assert len(digests) == 2


def test_solving_without_json_says_digest_method_and_file(here, data):
    federated(data)
    shown = done("ledger", "solve", "ledger", "-o", "shared")
    assert re.fullmatch(r"[0-9a-f]{64}  afl on \d+ samples -> shared\n", shown)


# Coming and going


def test_joining_says_the_total_after_each_member(here, data):
    lines = federated(data).splitlines()
    assert [line.split(maxsplit=1)[1].split(" joined")[0] for line in lines] == list(SITES)
    assert lines[-1].split()[0] == total()


@pytest.fixture
def extra(here):
    """More samples of north, which are in nobody's file."""
    x, y = drawn(9, seed=1)
    return write(here / "extra.npz", x, CLASSES[y])


def test_samples_come_and_go_by_files(here, data, extra):
    federated(data)
    before = solved()["shared_digest"]
    more = contribute(extra, "north", out="more")
    less = contribute(extra, "north", "--remove", out="less")
    streamed = done("ledger", "stream", "ledger", more)
    assert streamed.endswith("north: +9 samples\n")
    assert solved()["shared_digest"] != before
    assert done("ledger", "stream", "ledger", less).endswith("north: -9 samples\n")
    assert solved()["shared_digest"] == before
    done("ledger", "verify", "ledger")


def test_an_increment_is_counted_again_with_another_tag_only(here, data, extra):
    federated(data)
    more = contribute(extra, "north", out="more")
    done("ledger", "stream", "ledger", more)
    assert cli("ledger", "stream", "ledger", more).exit_code == 8
    done("ledger", "stream", "ledger", contribute(extra, "north", "--tag", "June", out="more"))
    assert json.loads(done("ledger", "show", "ledger", "--json"))["samples"] == 120 + 2 * 9


def test_a_client_that_leaves_or_is_forgotten_was_never_there(here, data):
    federated(data, ledger="never", sites=SITES[:2])
    federated(data)
    assert done("ledger", "leave", "ledger", "west").endswith("west left\n")
    assert total() == total("never")
    done("ledger", "join", "ledger", "west.contribution")
    done("ledger", "forget", "ledger", "west")
    assert total() == total("never")
    assert solved()["shared_digest"] == solved(ledger="never")["shared_digest"]


def test_a_certificate_is_printed_written_and_verified(here, data):
    federated(data)
    solved()
    shown = done("ledger", "forget", "ledger", "west", "--certificate", "certificate.json")
    certificate = json.loads(shown)
    assert json.loads((here / "certificate.json").read_text(encoding="utf-8")) == certificate
    assert certificate["client"] == "west"
    assert certificate["members"] == ["north", "south"]
    assert certificate["total_digest"] == total()
    (published,) = certificate["published_with"]
    assert (published["event"], published["model"]) == (5, "afl.shared")
    assert json.loads(done("ledger", "certificate", "ledger", "west")) == certificate
    one_line(cli("ledger", "certificate", "ledger", "north"), 8, "was not forgotten")
    for _ in range(2):
        verified = done("ledger", "verify", "ledger", "certificate.json").splitlines()
        assert (
            verified[1]
            == f"{certificate['total_digest']}  after the deletion of west, as certified"
        )
        done("ledger", "join", "ledger", "west.contribution")
        done("ledger", "leave", "ledger", "west")


def test_a_model_is_certified_for_all_it_was_made_of_or_not_published(here, data, monkeypatch):
    publish = Ledger.publish

    def late(self, *arguments, **about):
        done("ledger", "leave", "ledger", "west")
        return publish(self, *arguments, **about)

    federated(data)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "publish", late)
        result = cli("ledger", "solve", "ledger", "-o", "shared")
    certificate = json.loads(done("ledger", "forget", "ledger", "west"))
    models = [entry["model"] for entry in certificate["published_with"]]
    assert models == (["shared"] if result.exit_code == 0 else [])
    assert (here / "shared").exists() == (result.exit_code == 0)


def test_verify_says_the_digest_of_the_total(here, data):
    federated(data)
    assert done("ledger", "verify", "ledger").split()[0] == total()


def test_a_certificate_that_cannot_be_written_stops_the_deletion_or_is_shown(here, data):
    federated(data)
    (here / "file").write_text("in the way", encoding="utf-8")
    result = cli("ledger", "forget", "ledger", "west", "--certificate", "file/certificate.json")
    one_line(result, 3, "file/certificate.json")
    members = json.loads(done("ledger", "show", "ledger", "--json"))["members"]
    assert "west" in members or json.loads(result.stdout)["client"] == "west"


def test_a_history_is_exported_signed_and_checked(here, data):
    federated(data)
    key = done("ledger", "key", "ledger").split()[0]
    assert key in done("ledger", "verify", "ledger")
    done("ledger", "key", "ledger", "--change", "other.key")
    assert key not in done("ledger", "verify", "ledger")
    done("ledger", "forget", "ledger", "west", "--certificate", "certificate.json")
    assert done("ledger", "export", "ledger", "-o", "history.json") == "history.json: 7 events\n"
    script = Path(__file__).parents[2] / "examples" / "check_history.py"
    words = [sys.executable, script, key, "history.json", "certificate.json"]
    checked = subprocess.run(words, capture_output=True, text=True, check=True, cwd=here)
    assert checked.stdout.endswith(": 7 events, chained and signed\n1 certificates, valid\n")


def test_without_cryptography_a_ledger_says_that_it_is_not_signed(here, data, monkeypatch):
    monkeypatch.setattr(signing, "available", lambda: False)
    said = done("ledger", "init", "ledger")
    assert "chained, but not signed; pip install 'fedgram[secure]'" in said
    assert not (here / "history.key").exists()
    one_line(cli("ledger", "init", "other", "--key", "my.key"), 8, "pip install")


# show


def test_show_tells_members_total_and_history(here, data, extra):
    federated(data)
    done("ledger", "stream", "ledger", contribute(extra, "north", out="more"))
    solved()
    shown = done("ledger", "show", "ledger")
    assert "members   north, south, west\n" in shown
    assert "samples   129\n" in shown
    assert "classes   ant, bee, cat, dog\n" in shown
    assert re.search(r"made by   input\(8 features\) -> grid\(8 bits", shown)
    assert f"total     {total()}\n" in shown
    for what in ("init", "join +north +", r"stream +north +\+9", "publish"):
        assert re.search(what, shown), what


def test_show_json_has_the_documented_keys(here, data):
    federated(data)
    content = json.loads(done("ledger", "show", "ledger", "--json"))
    assert set(content) == {
        "members",
        "samples",
        "classes",
        "made_by",
        "total_digest",
        "history",
    }
    assert content["members"] == list(SITES)
    assert content["classes"] == list(CLASSES)
    assert [event["what"] for event in content["history"]] == ["init", "join", "join", "join"]
    assert set(content["history"][0]) == {
        "seq",
        "time",
        "what",
        "client",
        "samples",
        "total_digest",
        "detail",
    }


def test_an_empty_ledger_is_shown(here):
    done("ledger", "init", "ledger")
    shown = done("ledger", "show", "ledger")
    assert "members   none\nsamples   0\nclasses   none\nmade by   nothing yet\n" in shown


def test_names_with_brackets_are_shown_as_they_are(here, data):
    contribute(data / "north.npz", "[red]ward[/red]", out="odd")
    done("ledger", "init", "ledger")
    done("ledger", "join", "ledger", "odd")
    assert done("ledger", "show", "ledger").count("[red]ward[/red]") == 2


# personalize and predict


def predicted(model, source):
    """Return the names that a model predicts."""
    return [line["name"] for line in csv.DictReader(io.StringIO(done("predict", model, source)))]


def right(model, source):
    """Return the share of a file's samples that a model gets right."""
    with np.load(source) as archive:
        return np.mean(np.array(predicted(model, source)) == archive["classes"][archive["y"]])


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("method", METHODS)
def test_a_site_solves_its_own_model_whatever_the_order_of_its_classes(here, data, method, site):
    federated(data, "-m", method)
    solved(method)
    done("personalize", f"{method}.shared", data / f"{site}.npz", "-o", "model")
    assert right("model", data / f"{site}.npz") > 0.9
    with np.load(data / f"{site}.npz") as archive:
        names = archive["classes"][archive["y"]]
        write(here / "sorted.npz", archive["x"], names, split=archive["split"])
    done("personalize", f"{method}.shared", here / "sorted.npz", "-o", "other")
    one, two = (scores(done("predict", m, data / "all.npz")) for m in ("model", "other"))
    assert one[0] == two[0]
    np.testing.assert_allclose(one[1], two[1], atol=1e-6)


def scores(text):
    """Return the names of the columns and the numbers of predictions in CSV."""
    header, *lines = csv.reader(io.StringIO(text))
    return header, np.array([line[3:] for line in lines], np.float64)


@pytest.mark.parametrize("method", METHODS)
def test_a_site_without_some_of_the_classes_solves_its_own_model(here, data, method):
    federated(data, "-m", method)
    solved(method)
    x, y = drawn(60, seed=2)
    few = y < 2
    source = write(here / "few.npz", x[few], CLASSES[y[few]], CLASSES[:2])
    done("personalize", f"{method}.shared", source, "-o", "model")
    assert right("model", source) > 0.9


@pytest.mark.parametrize("method", ["fedhip", "apfl-linear"])
def test_a_site_with_a_class_that_is_not_shared_is_refused_by_name(here, data, method):
    federated(data, "-m", method)
    solved(method)
    x, y = drawn(20, seed=2)
    names = np.append(CLASSES[:3], "elk")
    source = write(here / "new.npz", x, names[y], names)
    result = cli("personalize", f"{method}.shared", source, "-o", "model")
    one_line(result, 4, "elk")
    assert not (here / "model").exists()


def test_the_shared_head_of_afl_predicts_by_itself(here, data):
    federated(data)
    solved()
    done("personalize", "afl.shared", data / "north.npz", "-o", "model")
    assert predicted("afl.shared", data / "all.npz") == predicted("model", data / "all.npz")


@pytest.fixture
def model(here, data):
    federated(data)
    solved()
    return "afl.shared"


def test_vectors_are_read_from_any_kind_of_file(here, data, model):
    x, _ = drawn(12, seed=3)
    np.savez("new.npz", x=x)
    save_file({"x": x}, "new.safetensors")
    np.savetxt("new.csv", x, delimiter=",", fmt="%.17g")
    header = ",".join(f"x{k}" for k in range(FEATURES))
    np.savetxt("named.csv", x, delimiter=",", fmt="%.17g", header=header, comments="")
    texts = {done("predict", model, f"new.{kind}") for kind in ("npz", "safetensors", "csv")} | {
        done("predict", model, "named.csv")
    }
    (text,) = texts
    assert len(text.splitlines()) == 1 + 12


def test_a_csv_file_with_a_mark_at_its_start_loses_no_row(here, model):
    (here / "new.csv").write_text("1,2,3,4,5,6,7,8\n" * 3, encoding="utf-8-sig")
    assert len(predicted(model, "new.csv")) == 3


def test_predictions_are_written_as_csv_and_json_alike(here, data, model):
    done("predict", model, data / "north.npz", "-o", "out.csv")
    done("predict", model, data / "north.npz", "-o", "out.json")
    text = (here / "out.csv").read_text(encoding="utf-8")
    assert text == done("predict", model, data / "north.npz")
    lines = list(csv.DictReader(io.StringIO(text)))
    entries = json.loads((here / "out.json").read_text(encoding="utf-8"))["predictions"]
    assert list(lines[0]) == ["item", "label", "name", *(f"score_{name}" for name in CLASSES)]
    for line, entry in zip(lines, entries, strict=True):
        assert (int(line["label"]), line["name"]) == (entry["label"], entry["name"])
        assert entry["name"] == CLASSES[entry["label"]]
        scores = {key: entry[key] for key in entry if key.startswith("score_")}
        assert f"score_{entry['name']}" == max(scores, key=scores.get)
        for key, score in scores.items():
            assert float(line[key]) == pytest.approx(score, rel=1e-5)


def test_scale_and_offset_count_in_predictions(here, model):
    x, _ = drawn(12, seed=3)
    np.savez("plain.npz", x=x * 4.0 - 1.0)
    np.savez("coded.npz", x=x, scale=np.array(4.0), offset=np.array(-1.0))
    assert done("predict", model, "plain.npz") == done("predict", model, "coded.npz")


# Errors


def one_line(result, code, *words):
    assert result.exit_code == code, (result.output, result.exception)
    assert result.stderr.startswith("fedgram: error: "), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    for word in words:
        assert word in result.stderr


@pytest.fixture(scope="module")
def props(data, tmp_path_factory):
    """A ledger of two members, what they sent, models of all methods, and odd files."""
    folder = tmp_path_factory.mktemp("props")
    with contextlib.chdir(folder):
        _put_there(folder, data)
    return folder


def _put_there(here, data):
    federated(data, sites=SITES[:2])
    contribute(data / "west.npz", "west")
    contribute(data / "west.npz", "west", "-s", "grid.bits=6", out="six")
    contribute(data / "west.npz", "west", "-s", "method.afl.lift={width=9}", out="lifted")
    contribute(data / "west.npz", "west", "--remove", out="debt")
    contribute(data / "west.npz", "north", "--remove", "--tag", "wrong", out="wrong")
    x, y = drawn(20, seed=4)
    upper = np.array([name.title() for name in CLASSES])
    contribute(write(here / "upper.npz", x, upper[y], upper), "west", out="upper")
    np.savez("numbered.npz", x=x, y=y)
    contribute("numbered.npz", "west", out="numbered")
    write(here / "resnet.npz", x, CLASSES[y], backbone=np.array("resnet"))
    contribute("resnet.npz", "west", out="resnet")
    write(here / "wide.npz", np.hstack([x, x]), CLASSES[y])
    contribute("wide.npz", "west", out="wide")
    for method in METHODS:
        solved(method)
    (here / "text").write_text("just a text\n", encoding="utf-8")
    (here / "certificate.json").write_text("{}", encoding="utf-8")
    (here / "short.csv").write_text("1,2,3\n", encoding="utf-8")
    (here / "holes.csv").write_text(",2,3,4,5,6,7,8\n1,2,3,4,5,6,7,8\n", encoding="utf-8")
    np.savez("texts.npz", x=np.array([["a"] * FEATURES]))
    np.savez("scaled.npz", x=x, scale=np.ones(3))
    np.savez("tested.npz", x=x, y=y, split=np.full(len(y), 2))


@pytest.fixture
def stage(here, props):
    shutil.copytree(props, here, dirs_exist_ok=True)
    return here


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        ("ledger init ledger", 8, "exists already"),
        ("ledger init new --classes ant,Ant", 4, "differ only in case"),
        ("ledger init new --classes ant,bee,ant", 4, "ant"),
        ("ledger init text/new", 8, "text/new"),
        ("ledger join missing west.contribution", 8, "no such ledger"),
        ("ledger join text west.contribution", 8, "not a ledger"),
        ("ledger join ledger missing", 3, "missing"),
        ("ledger join ledger text", 3, "text: not a fedgram file"),
        ("ledger join ledger afl.shared", 3, "not a contribution"),
        ("ledger join ledger north.contribution", 8, "client north: is a member already"),
        ("ledger join ledger debt", 8, "more would be removed than was contributed"),
        ("ledger join ledger six", 4, "client west: "),
        ("ledger join ledger lifted", 4, "lift(width 9"),
        ("ledger join ledger wide", 4, "16 features"),
        ("ledger join ledger resnet", 4, "resnet"),
        ("ledger join ledger upper", 4, "differ only in case"),
        ("ledger join ledger numbered", 4, "only class numbers"),
        ("ledger stream ledger west.contribution", 8, "client west: not a member"),
        ("ledger stream ledger north.contribution", 8, "use another tag to add it again"),
        ("ledger stream ledger wrong", 8, "client north: more would be removed"),
        ("ledger leave ledger west", 8, "client west: not a member; members: north, south"),
        ("ledger forget ledger west", 8, "client west: no contributions of this client"),
        ("ledger show missing", 8, "no such ledger"),
        ("ledger show text", 8, "not a ledger"),
        ("ledger verify missing", 8, "no such ledger"),
        ("ledger verify ledger missing", 3, "missing"),
        ("ledger verify ledger text", 3, "text"),
        ("ledger verify ledger certificate.json", 3, "not a certificate"),
        ("ledger solve missing -o out", 8, "no such ledger"),
        ("ledger solve ledger -o out -m local", 2, "local"),
        ("ledger solve ledger -o out -m alf", 2, "did you mean 'afl'"),
        ("ledger solve ledger -o out -s method.afl.rigde=3", 2, "did you mean 'ridge'"),
        ("ledger solve ledger -o out -m fedhip", 2, 'give numbers for settings that are "auto"'),
        ("ledger solve ledger -o out -m central", 7, "use a method that needs sums only"),
        ("ledger solve ledger -o out -m fedncm", 2, "a sum of another kind (ClassSums)"),
        ("ledger solve ledger -o out -m closed-maml", 2, "a sum of another kind (Quadratic)"),
        ("ledger solve ledger -o out -s method.afl.lift={width=9}", 4, "lift(width 9"),
        ("ledger solve ledger -o out -m fedhip -s method.fedhip.lift={width=9}", 4, "lift(width 9"),
        (
            "ledger solve ledger -o out -m apfl-linear -s method.apfl-linear.primary={width=9}",
            2,
            "use the method apfl",
        ),
        (
            "ledger solve ledger -o out -m apfl -s method.apfl.refinement_ridge=300 "
            "-s method.apfl.balance=0.5 -s method.apfl.primary={width=9}",
            4,
            "lift(width 9",
        ),
        ("ledger solve ledger -o text/out", 3, "text/out: cannot be written"),
        ("contribute missing.npz --client a -o out", 3, "missing.npz"),
        ("contribute text --client a -o out", 3, "text"),
        ("contribute tested.npz --client a -o out", 3, "no training samples"),
        (
            "contribute numbered.npz --client a -o out -m local",
            2,
            "has no statistics to contribute",
        ),
        ("contribute numbered.npz --client a -o out -s grid.bits=99", 2, "grid.bits"),
        ("contribute numbered.npz --client a -o text/out", 3, "text/out: cannot be written"),
        ("personalize missing numbered.npz -o out", 3, "missing"),
        ("personalize text numbered.npz -o out", 3, "text: not a fedgram file"),
        ("personalize west.contribution upper.npz -o out", 3, "west.contribution"),
        ("personalize apfl-linear.shared wide.npz -o out", 4, "16 features"),
        ("personalize fedhip.shared wide.npz -o out", 4, "16 features"),
        ("personalize apfl-linear.shared missing.npz -o out", 3, "missing.npz"),
        ("predict afl.shared wide.npz", 3, "as the model was fitted on, got 16"),
        ("predict afl.shared short.csv", 3, "as the model was fitted on, got 3"),
        ("predict afl.shared holes.csv", 3, "holes.csv"),
        ("predict afl.shared texts.npz", 3, "texts.npz"),
        ("predict afl.shared scaled.npz", 3, "scale"),
        ("predict afl.shared text", 3, "text"),
        ("predict afl.shared missing.csv", 3, "missing.csv"),
        ("predict west.contribution upper.npz", 3, "expected a model that predicts"),
        ("predict text upper.npz", 3, "text: not a fedgram file"),
        ("predict afl.shared upper.npz -o out.txt", 2, "ends in .csv, .parquet, .jsonl, .json"),
        ("predict afl.shared upper.npz -o text/out.csv", 3, "text/out.csv: cannot be written"),
    ],
)
def test_an_error_is_one_line_with_its_code_and_leaves_the_ledger_alone(
    stage, arguments, code, word
):
    before = {path: path.read_bytes() for path in sorted(stage.iterdir())}
    result = cli(*arguments.split())
    one_line(result, code, word)
    assert result.stdout == ""
    assert {path: path.read_bytes() for path in sorted(stage.iterdir())} == before


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_ledger_has_nothing_to_solve(here, method):
    done("ledger", "init", "ledger")
    result = cli("ledger", "solve", "ledger", "-m", method, "-o", "out")
    one_line(result, 6, "nothing to solve")
    assert not (here / "out").exists()


def test_of_several_contributions_those_before_the_wrong_one_are_in(here, data):
    federated(data, sites=SITES[:1])
    contribute(data / "south.npz", "south")
    result = cli("ledger", "join", "ledger", "south.contribution", "north.contribution")
    one_line(result, 8, "client north: is a member already")
    assert json.loads(done("ledger", "show", "ledger", "--json"))["members"] == ["north", "south"]


def test_a_damaged_contribution_is_named_by_its_client(here, data):
    federated(data)
    rows("ledger", "UPDATE contributions SET sha256 = 'x' WHERE client = 'south'")
    one_line(cli("ledger", "verify", "ledger"), 8, "client south is damaged")


def test_a_fixed_class_list_refuses_other_classes(here, data):
    done("ledger", "init", "ledger", "--classes", "dog,ant,bee")
    result = cli("ledger", "join", "ledger", contribute(data / "north.npz", "north"))
    one_line(result, 4, "cat")
    done("ledger", "init", "other", "--classes", "dog,cat,ant,bee,elk")
    done("ledger", "join", "other", "north.contribution")
    assert "classes   ant, bee, cat, dog, elk\n" in done("ledger", "show", "other")


@pytest.mark.parametrize(
    "arguments",
    [
        ["contribute"],
        ["contribute", "a.npz", "-o", "out"],
        ["ledger", "join", "ledger"],
        ["ledger", "solve", "ledger"],
        ["ledger", "erase"],
        ["predict", "model"],
        ["ledger", "forget", "ledger"],
    ],
)
def test_wrong_usage_has_code_2(here, arguments):
    result = cli(*arguments)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


def test_an_error_of_a_process_has_no_traceback(here):
    result = subprocess.run(
        [sys.executable, "-m", "fedgram.cli", "ledger", "show", "missing"],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (8, "")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr


# Contributions from elsewhere


def negative_direction(sums):
    """Return a Gram matrix that satisfies Cauchy-Schwarz, and has a negative direction."""
    gram, width = sums.gram.copy(), sums.space.width
    place = iter(range(len(gram)))
    rows = {(i, j): next(place) for i in range(width) for j in range(i, width)}
    sizes = sums.diagonal().astype(float)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        gram[rows[i, j]] = int(-0.9 * np.sqrt(sizes[i] * sizes[j]))
    return gram


FOREIGN = {
    "an int8 Gram matrix": (lambda s: {"gram": s.gram.astype(np.int8)}, "type int64, got int8"),
    "a Gram matrix of NaN": (lambda s: {"gram": np.full(s.gram.shape, np.nan)}, "got float64"),
    "a count of 1.5": (lambda s: {"count": 1.5}, "expected int, got float"),
    "a count that is a text": (lambda s: {"count": "40"}, "damaged or foreign"),
    "a count that is true": (lambda s: {"count": True}, "expected int, got bool"),
    "an energy of 1.5": (lambda s: {"energy": 1.5}, "expected int, got float"),
    "sums that wrap": (
        lambda s: {"gram": np.full_like(s.gram, 2**63 - 1)},
        "larger than its samples",
    ),
    "a count that wraps": (lambda s: {"count": 2**63}, "may not be exact"),
    "another class list": (lambda s: {"classes": ("ant", "bee", "cat", 5)}, "different names"),
    "a class twice": (lambda s: {"classes": ("ant", "bee", "cat", "cat")}, "different names"),
    "a negative direction": (lambda s: {"gram": negative_direction(s)}, "semi-definite"),
    "labels times 10^6": (lambda s: {"moment": s.moment * 10**6}, "class sums"),
    "no statistics": (None, "expected a name, statistics"),
}


@pytest.mark.parametrize("command", ["join", "stream"])
@pytest.mark.parametrize("name", FOREIGN)
def test_a_contribution_that_no_samples_give_is_refused_by_name(here, data, name, command):
    federated(data, sites=SITES[: 1 if command == "join" else 2])
    contribute(data / "south.npz", "south")
    part, (change, reason) = codec.load(here / "south.contribution"), FOREIGN[name]
    bad = {} if change is None else change(part.statistics)
    forged = object.__new__(Statistics)  # what another program may write
    for each in ("count", "energy", "space", "classes", "gram", "moment"):
        object.__setattr__(forged, each, bad.get(each, getattr(part.statistics, each)))
    value = replace(part, statistics=None if change is None else forged, tag="forged")
    codec.save(here / "south.contribution", value)
    before = (here / "ledger").read_bytes()
    result = cli("ledger", command, "ledger", "south.contribution")
    assert result.exit_code
    assert reason in result.stderr
    assert "south" in result.stderr
    assert (here / "ledger").read_bytes() == before


def test_a_total_cannot_wrap_although_each_contribution_is_possible(here, data):
    """What is limited is the sum to be made: the second contribution has no room left."""
    federated(data, sites=[])
    part = codec.load(contribute(data / "south.npz", "south"))
    sums = part.statistics
    times = sums.space.most_samples // sums.count
    most = {name: getattr(sums, name) * times for name in sums.summed_fields()}
    codec.save(here / "south.contribution", replace(part, statistics=replace(sums, **most)))
    done("ledger", "join", "ledger", "south.contribution")
    contribute(data / "north.npz", "north")
    before = (here / "ledger").read_bytes()
    one_line(cli("ledger", "join", "ledger", "north.contribution"), 5, "may not be exact")
    assert (here / "ledger").read_bytes() == before


def test_a_removal_is_checked_like_what_it_removes(here, data):
    federated(data)
    contribute(data / "south.npz", "south", "--remove", "--tag", "2")
    part = codec.load(here / "south.contribution")
    gram = -negative_direction(-part.statistics)
    bad = replace(part, statistics=replace(part.statistics, gram=gram))
    codec.save(here / "bad.contribution", bad)
    one_line(cli("ledger", "stream", "ledger", "bad.contribution"), 3, "semi-definite")
    done("ledger", "stream", "ledger", "south.contribution")


def test_a_ledger_is_screened_and_the_bad_contribution_taken_back(here, data):
    """Poisoned, warned of, forgotten; then the total is that of a ledger that never had it."""
    x, y = drawn(300, seed=5)
    for k in range(5):
        own = slice(60 * k, 60 * k + 60)
        write(here / f"site{k}.npz", x[own], CLASSES[(y[own] + (k == 2)) % 4])
        contribute(here / f"site{k}.npz", f"site{k}")
    done("ledger", "init", "ledger")
    done("ledger", "join", "ledger", *(f"site{k}.contribution" for k in (0, 1, 3, 4)))
    never = total()
    clean = json.loads(done("ledger", "screen", "ledger", "--json"))
    assert [report["name"] for report in clean] == ["site0", "site1", "site3", "site4"]
    assert not [report for report in clean if report["warnings"]]
    done("ledger", "join", "ledger", "site2.contribution")
    reports = json.loads(done("ledger", "screen", "ledger", "--json"))
    (bad,) = [report for report in reports if report["warnings"]]
    assert bad["name"] == "site2"
    assert "contradict" in bad["warnings"][0]
    assert "contradict" in done("ledger", "screen", "ledger")
    done("ledger", "forget", "ledger", "site2")
    assert total() == never
    assert json.loads(done("ledger", "screen", "ledger", "--json")) == clean


def test_two_sites_are_not_screened(here, data):
    federated(data, sites=SITES[:2])
    assert "at least 3 sites" in done("ledger", "screen", "ledger")
    assert json.loads(done("ledger", "screen", "ledger", "--json")) == []


@pytest.mark.parametrize("command", ["predict", "personalize"])
def test_a_model_that_no_fedgram_has_written_is_refused(here, data, command):
    federated(data)
    solved("afl")
    published = codec.load(here / "afl.shared")
    head = published.shared
    for weights, reason in (
        (np.full_like(head.weights, np.nan), "finite"),
        (head.weights[1:], "of shape"),
        (head.weights.astype(np.int8), "int8"),
    ):
        codec.save(here / "bad", replace(published, shared=replace(head, weights=weights)))
        options = ("-o", "out") if command == "personalize" else ()
        one_line(cli(command, "bad", data / "north.npz", *options), 3, reason)


# Help


def commands(group, *names):
    """Yield the words of every command, of groups too."""
    yield names
    if isinstance(group, click.Group):
        for name, command in group.commands.items():
            yield from commands(command, *names, name)


@pytest.mark.parametrize("names", list(commands(main)), ids=" ".join)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_has_help(names, option):
    shown = done(*names, option)
    assert shown.startswith("Usage:")
    assert re.search(r"\n\n  [A-Z]", shown), "no text says what it does"


def test_the_commands_of_a_ledger_are_listed():
    shown = done("ledger", "--help")
    for name in (
        *("init", "join", "stream", "leave", "forget", "show", "verify", "export", "screen"),
        "solve",
    ):
        assert re.search(rf"^  {name} +[A-Z]", shown, re.MULTILINE), name
