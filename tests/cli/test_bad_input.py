"""Bad input on the command line: one line, the documented code, and nothing lost or left behind."""

import io
import json
import os
import pickle
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import zipfile
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from fedgram.cli import main

CONFIG, DATA, MISMATCH, SOLVE, LEDGER, MEMORY = 2, 3, 4, 6, 8, 10


def cli(*arguments):
    done = CliRunner().invoke(main, list(map(str, arguments)), env={"COLUMNS": "80"})
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    return done


def made(*arguments):
    done = cli(*arguments)
    assert done.exit_code == 0, done.stderr
    return done


def contents():
    """Return the bytes of every file here and below, without the bytecode of methods in files."""
    found = (path for path in sorted(Path().rglob("*")) if path.is_file())
    return {str(path): path.read_bytes() for path in found if path.suffix != ".pyc"}


def one_line(stderr, *words):
    assert stderr.startswith("fedgram: error: "), stderr
    assert stderr.count("\n") == 1, stderr
    assert "Traceback" not in stderr
    for word in words:
        assert word in stderr


def refused(code, words, *arguments):
    """Assert that a command is refused with this code in one line, and that no file changes."""
    before = contents()
    done = cli(*arguments)
    assert done.exit_code == code, done.output
    assert done.stdout == ""
    assert contents() == before
    one_line(done.stderr, *words)


PROCESS = """
import resource, signal, sys
from fedgram.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it may be ignored
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
if sys.argv[1] != "unlimited":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
main(sys.argv[2:])
"""


def process(*arguments, most="unlimited"):
    """Run a command in a process that cannot make files of more than so many bytes."""
    return subprocess.run(
        [sys.executable, "-c", PROCESS, str(most), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def room_for(most):
    """Let this process make no file of more than so many bytes; Python ignores the signal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# What is there before anything goes wrong


def arrays(seed=0):
    """Sixty samples of three classes, at four clients."""
    rng = np.random.default_rng(seed)
    y = np.arange(60) % 3
    return {
        "x": rng.normal(size=(60, 6)) + y[:, None],
        "y": y,
        "client": np.array([f"ward {k % 4}" for k in range(60)]),
    }


def npz(name, **changes):
    np.savez(name, **{**arrays(), **changes})
    return name


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with one good file of every kind."""
    folder, back = tmp_path_factory.mktemp("good"), Path.cwd()
    os.chdir(folder)
    try:
        for seed, name in enumerate(("north", "south")):
            own = {key: value for key, value in arrays(seed).items() if key != "client"}
            np.savez(f"{name}.npz", **own)
            save_file(own, f"{name}.safetensors")
            made("contribute", f"{name}.npz", "--client", name, "-o", f"{name}.part1")
        made("ledger", "init", "book.ledger")
        made("ledger", "join", "book.ledger", "north.part1")
        made("ledger", "solve", "book.ledger", "-m", "apfl-linear", "-o", "shared.model")
        made("personalize", "shared.model", "north.npz", "-m", "apfl-linear", "-o", "own.model")
        made("predict", "own.model", "north.npz", "-o", "scores.csv")
        made("run", "-m", "afl", "-s", "data.source=north.npz", "-s", "data.clients=3", *OUT)
    finally:
        os.chdir(back)
    return folder


OUT = ("--out", "runs")


@pytest.fixture
def here(prepared, tmp_path, monkeypatch):
    """A copy of the good files, as the current folder."""
    folder = tmp_path / "here"
    shutil.copytree(prepared, folder)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("FEDGRAM_DATA", raising=False)
    return folder


READERS = {
    "run": ("run", "-m", "afl", "-s", "data.source={}", "-s", "data.clients=4", "--out", "new"),
    "contribute": ("contribute", "{}", "--client", "north", "-o", "new"),
    "personalize": ("personalize", "shared.model", "{}", "-m", "apfl-linear", "-o", "new"),
    "predict": ("predict", "own.model", "{}", "-o", "new.csv"),
}


def reading(command, name):
    return [word.format(name) for word in READERS[command]]


# Samples


def with_feature(value):
    x = arrays()["x"]
    x[5, 2] = value
    return {"x": x}


def with_label(value, **more):
    y = arrays()["y"]
    y[5] = value
    return {"y": y, **more}


NAMES = np.array(["ant", "bee", "cat"])
SAMPLES = {
    "NaN": (with_feature(np.nan), ["client ward 1", "row 5", "NaN"]),
    "infinity": (with_feature(-np.inf), ["client ward 1", "row 5", "infinite"]),
    "a negative label": (with_label(-1), ["client ward 1", "-1"]),
    "a label without a class": (with_label(3, classes=NAMES), ["client ward 1", "3 classes"]),
    "a label far out of range": (with_label(10**9), ["1000000000"]),
    "labels that are not whole": ({"y": arrays()["y"] + 0.5}, ["float64", "class codes"]),
    "regression targets": ({"y": arrays()["x"][:, 0]}, ["float64", "class codes"]),
    "labels in words, with a list of classes": (
        {"y": NAMES[arrays()["y"]], "classes": NAMES},
        ["y: expected", "codes of the array 'classes'"],
    ),
    "fewer labels than rows": ({"y": arrays()["y"][1:]}, ["y has shape (59,)", "60 rows"]),
    "fewer clients than rows": ({"client": arrays()["client"][1:]}, ["client", "60 rows"]),
    "features off the grid they are said to be on": (
        {"x": arrays()["x"], "grid": np.array([8.0, 6.0])},
        ["the grid"],
    ),
    "a grid that is not a number": ({"grid": np.array([np.nan, 6.0])}, ["grid"]),
}


@pytest.mark.parametrize("command", ["run", "contribute", "personalize"])
@pytest.mark.parametrize("case", SAMPLES)
def test_unusable_samples_are_refused(here, case, command):
    changes, words = SAMPLES[case]
    refused(DATA, ["bad.npz", *words], *reading(command, npz("bad.npz", **changes)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_that_are_not_finite_are_not_predicted(here, value):
    npz("bad.npz", **with_feature(value))
    refused(DATA, ["bad.npz", "row 5"], *reading("predict", "bad.npz"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,2,3,4,5,nan\n", ["row 0", "NaN"]),
        ("1,2,3,4,5,many\n", ["row 1", "6 numbers"]),
        ("1,2,3,4,5,6\n1,2\n", ["row 2", "6 numbers"]),
        ("1,2\n", ["expected 6 features", "got 2"]),
        ("a,b,c,d,e,f\n", ["no rows"]),
        ("", ["no rows"]),
    ],
)
def test_tables_that_are_not_vectors_are_not_predicted(here, text, words):
    Path("bad.csv").write_text(text, encoding="utf-8")
    refused(DATA, ["bad.csv", *words], *reading("predict", "bad.csv"))


def test_a_client_with_test_samples_only_is_named(here):
    split = np.where(arrays()["client"] == "ward 2", 2, 0)
    given = ("-s", "data.partition=given")
    words = ["client ward 2", "no training samples"]
    refused(DATA, words, *reading("run", npz("bad.npz", split=split)), *given)


def test_a_site_with_test_samples_only_has_nothing_to_contribute(here):
    npz("bad.npz", split=np.full(60, 2))
    for command in ("contribute", "personalize"):
        refused(DATA, ["bad.npz", "no training samples"], *reading(command, "bad.npz"))


def test_one_class_in_all_is_refused(here):
    npz("bad.npz", y=np.zeros(60, int))
    refused(DATA, ["bad.npz", "one class"], *reading("run", "bad.npz"))


# Ridges and memory


def twins():
    """Features that come in equal pairs: their Gram matrix is singular."""
    return {"x": np.repeat(arrays()["x"], 2, axis=1)}


@pytest.mark.parametrize(
    ("method", "ridge", "words"),
    [
        ("afl", 0, ["singular"]),
        ("afl", -1, ["ridge = -1"]),
        ("local", 0, ["client ward 0", "singular"]),
        ("local", -1, ["ridge = -1"]),
    ],
)
def test_a_ridge_that_solves_nothing_is_refused(here, method, ridge, words):
    source = ("-s", f"data.source={npz('bad.npz', **twins())}", "-s", "data.partition=given")
    refused(SOLVE, words, "run", "-m", method, *source, "-s", f"method.{method}.ridge={ridge}")


def test_what_is_recorded_of_a_run_that_could_not_be_solved_is_whole(here):
    done = cli(*reading("run", npz("bad.npz", **twins())), "-s", "method.afl.ridge=0")
    assert done.exit_code == SOLVE
    assert json.loads(Path("new/afl/run.json").read_text(encoding="utf-8"))["method"] == "afl"
    lines = Path("new/afl/exchanges.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["phase"] for line in lines] == ["train"]
    written = {path.name for path in Path("new/afl").iterdir()}
    assert written == {"run.json", "partition.json", "exchanges.jsonl"}
    refused(DATA, ["new/afl", "before anything was scored"], "compare", "new")


def test_a_total_that_cannot_be_solved_leaves_ledger_and_model_alone(here):
    made("contribute", npz("bad.npz", **twins()), "--client", "a", "-o", "a.part1")
    made("ledger", "init", "other.ledger")
    made("ledger", "join", "other.ledger", "a.part1")
    for ridge in (0, -1):
        solve = ("solve", "other.ledger", "-o", "shared.model", "-s", f"method.afl.ridge={ridge}")
        refused(SOLVE, ["ridge"], "ledger", *solve)


def test_a_model_of_ones_own_that_cannot_be_solved_is_not_written(here):
    own = ("-s", "method.apfl-linear.refinement_ridge=-1")
    refused(SOLVE, ["ridge"], *reading("personalize", "north.npz"), *own)


def test_what_would_not_fit_in_memory_is_refused(here):
    np.savez("tiny.npz", x=arrays()["x"][:6, :2], y=arrays()["y"][:6])
    before = contents()
    contribute = ("contribute", "tiny.npz", "--client", "a", "-o", "new")
    run = ("run", "-m", "local", "-s", "data.source=tiny.npz", "-s", "data.clients=2")
    run += ("-s", "data.standardize=false")  # two columns: without it there is a warning
    for command, setting, words in (
        (contribute, "method.afl.lift.width=10000000", ["a Gram matrix of 10000001 features"]),
        (run, f"method.local.lift.width={10**14}", ["client c0", "a lift of"]),
    ):
        done = process(*command, "-s", setting)
        assert (done.returncode, done.stdout) == (MEMORY, "")
        assert contents() == before
        one_line(done.stderr, *words, "use a")
        assert re.search(r" needs [\d.]+ [TPE]B of memory, [\d.]+ [kMGT]?B are free; ", done.stderr)


# Damaged and foreign files

JOIN = ("ledger", "join", "book.ledger", "south.part1")
SOLVED = ("ledger", "solve", "book.ledger", "-m", "apfl-linear", "-o", "shared.model")
PERSONALIZED = ("personalize", "shared.model", "north.npz", "-m", "apfl-linear", "-o", "own.model")
PREDICTED = ("predict", "own.model", "north.npz", "-o", "scores.csv")
USES = {  # of each kind of file: the code of a refusal, and the commands that read it
    "north.npz": (DATA, [reading(command, "north.npz") for command in READERS]),
    "north.safetensors": (DATA, [reading(command, "north.safetensors") for command in READERS]),
    "south.part1": (DATA, [JOIN, ("ledger", "stream", "book.ledger", "south.part1")]),
    "shared.model": (DATA, [PERSONALIZED, ("predict", "shared.model", "north.npz")]),
    "own.model": (DATA, [PREDICTED]),
    "book.ledger": (
        LEDGER,
        [
            JOIN,
            SOLVED,
            ("ledger", "stream", "book.ledger", "south.part1"),
            ("ledger", "leave", "book.ledger", "north"),
            ("ledger", "forget", "book.ledger", "north", "--certificate", "new"),
            ("ledger", "show", "book.ledger"),
            ("ledger", "verify", "book.ledger"),
        ],
    ),
    "runs/afl/run.json": (DATA, [("compare", "runs"), ("compare", "runs/afl", "--json")]),
}
DAMAGE = {
    "empty": lambda _: b"",
    "cut in half": lambda data: data[: len(data) // 2],
    "cut by a byte": lambda data: data[:-1].rstrip(b"}"),
    "foreign": lambda _: b"To whom it may concern\n" * 99,
    "noise": lambda data: np.random.default_rng(0).bytes(len(data)),
}


def damaged(name, damage):
    path = Path(name)
    path.write_bytes(damage(path.read_bytes()))


@pytest.mark.parametrize(
    ("name", "damage"),
    # SQLite may not need a ledger's last byte: see below.
    [pair for pair in product(USES, DAMAGE) if pair != ("book.ledger", "cut by a byte")],
)
def test_a_damaged_file_is_refused_by_name(here, name, damage):
    damaged(name, DAMAGE[damage])
    code, commands = USES[name]
    for command in commands:
        refused(code, [name], *command)


def flipped(place):
    """Return the damage of one wrong byte, at this share of the file."""

    def damage(data):
        spot = int(place * (len(data) - 1))
        return data[:spot] + bytes([data[spot] ^ 0xFF]) + data[spot + 1 :]

    return damage


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("name", ["south.part1", "shared.model", "own.model"])
def test_one_wrong_byte_in_a_message_or_model_is_noticed(here, name, place):
    damaged(name, flipped(place))
    code, commands = USES[name]
    refused(code, [name], *commands[0])


def test_one_wrong_byte_in_an_archive_is_noticed(here):
    damaged("north.npz", flipped(0.5))
    for command in READERS:
        refused(DATA, ["north.npz"], *reading(command, "north.npz"))


@pytest.mark.parametrize("table", ["total", "contributions"])
def test_one_wrong_byte_in_a_ledgers_sums_is_noticed(here, table):
    with sqlite3.connect("book.ledger") as db:
        (value,) = db.execute(f"SELECT value FROM {table}").fetchone()
    db.close()
    spot = Path("book.ledger").read_bytes().index(value) + len(value) - 2
    damaged("book.ledger", lambda data: data[:spot] + bytes([data[spot] ^ 1]) + data[spot + 1 :])
    refused(LEDGER, ["book.ledger"], "ledger", "verify", "book.ledger")
    if table == "total":
        refused(LEDGER, ["book.ledger"], *SOLVED)
        refused(LEDGER, ["book.ledger"], *JOIN)


def test_a_ledger_damaged_anywhere_is_read_or_refused_never_worse(here):
    whole = Path("book.ledger").read_bytes()
    used = np.flatnonzero(np.frombuffer(whole, np.uint8)) / (len(whole) - 1)
    wrong = [flipped(place)(whole) for place in used[:: len(used) // 60]]
    short = [whole[:-missing] for missing in (1, 2, 100, 4096)]
    for content in (*wrong, *short):
        Path("book.ledger").write_bytes(content)
        for command in ("show", "verify"):
            assert cli("ledger", command, "book.ledger").exit_code in (0, LEDGER)


FOREIGN = {
    "a contribution as a model": (DATA, ("predict", "south.part1", "north.npz")),
    "a model as a contribution": (DATA, ("ledger", "join", "book.ledger", "shared.model")),
    "data as a model": (DATA, ("predict", "north.safetensors", "north.npz")),
    "data as a contribution": (DATA, ("ledger", "join", "book.ledger", "south.safetensors")),
    "data as a ledger": (LEDGER, ("ledger", "join", "north.npz", "south.part1")),
    "a model as data": (DATA, ("predict", "own.model", "own.model")),
    "data as a run": (DATA, ("compare", "north.npz")),
    "a folder without runs": (DATA, ("compare", "runs/afl/models")),
    **{
        f"a contribution as what {method} shares": (
            DATA,
            ("personalize", "south.part1", "north.npz", "-m", method, "-o", "new"),
        )
        for method in ("afl", "apfl-linear", "fedhip")
    },
    "a client's own model as what apfl shares": (
        DATA,
        ("personalize", "own.model", "north.npz", "-m", "apfl-linear", "-o", "new"),
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_file_of_another_kind_is_refused(here, case):
    code, command = FOREIGN[case]
    refused(code, [], *command)


def test_the_database_of_another_program_is_refused_and_left_alone(here):
    with sqlite3.connect("other.db") as db:
        db.execute("CREATE TABLE meta (key TEXT, value TEXT)")
    db.close()
    for command in ("show", "verify"):
        refused(LEDGER, ["other.db"], "ledger", command, "other.db")
    refused(LEDGER, ["other.db"], "ledger", "join", "other.db", "south.part1")


def test_data_of_another_shape_than_the_model_are_refused(here):
    np.savez("wide.npz", x=np.ones((6, 9)), y=np.arange(6) % 3)
    refused(DATA, ["wide.npz", "9", "6"], *reading("predict", "wide.npz"))
    refused(MISMATCH, ["9 features", "6 features"], *reading("personalize", "wide.npz"))
    made("contribute", "wide.npz", "--client", "wide", "-o", "wide.part1")
    words = ["client wide", "9 features", "6 features"]
    refused(MISMATCH, words, "ledger", "join", "book.ledger", "wide.part1")


RECORDS = {
    "run.json": ["[]", '{"format": 2}', '{"format": 2, "method": ["afl"]}'],
    "scores.jsonl": [
        "not JSON\n",
        "[]\n",
        '{"round": 1, "set": "members", "summary": {}}\n',
        '{"round": 1, "set": "members", "summary": 3}\n',
        '{"summary": {}}\n',
    ],
    "exchanges.jsonl": ["not JSON\n", "[]\n", "{}\n"],
}


@pytest.mark.parametrize(
    ("name", "content"), [(name, text) for name, texts in RECORDS.items() for text in texts]
)
def test_a_record_that_is_none_is_refused_by_its_folder(here, name, content):
    (Path("runs/afl") / name).write_text(content, encoding="utf-8")
    refused(DATA, ["runs/afl"], "compare", "runs")


# Pickles


class Payload:
    """Leaves a file where it is unpickled."""

    def __reduce__(self):
        return open, ("unpickled", "w")


def test_the_payload_of_the_next_tests_is_alive(here):
    pickle.loads(pickle.dumps(Payload())).close()
    assert Path("unpickled").exists()


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("array", ["x", "y", "client", "classes"])
def test_pickled_objects_in_an_archive_are_refused_and_not_unpickled(here, array, command):
    if command == "predict" and array != "x":
        array = "scale"  # of what is not read nothing is refused
    npz("bad.npz", **{array: np.array([Payload()] * 60, dtype=object)})
    refused(DATA, ["bad.npz", "pickle"], *reading(command, "bad.npz"))


@pytest.mark.parametrize("name", USES)
def test_a_pickle_under_any_name_is_refused_and_not_unpickled(here, name):
    damaged(name, lambda _: pickle.dumps(Payload()))
    code, commands = USES[name]
    for command in commands:
        refused(code, [name], *command)


def test_nobody_is_advised_to_unpickle(here):
    damaged("north.npz", lambda _: pickle.dumps(Payload()))
    assert "unsafely" not in cli(*reading("run", "north.npz")).stderr


# Later versions, settings


def test_files_of_a_later_version_ask_for_an_upgrade(here):
    for name in ("south.part1", "shared.model", "own.model"):
        damaged(name, lambda data: data.replace(b'\\"format\\":1', b'\\"format\\":2'))
        refused(DATA, [name, "format 2", "upgrade fedgram"], *USES[name][1][0])


def test_a_ledger_of_a_later_version_asks_for_an_upgrade(here):
    with sqlite3.connect("book.ledger") as db:
        db.execute("UPDATE meta SET value = '3' WHERE key = 'format'")
    db.close()
    for command in USES["book.ledger"][1]:
        refused(LEDGER, ["book.ledger", "format 3", "upgrade fedgram"], *command)


def test_a_run_of_a_later_version_asks_for_an_upgrade(here):
    damaged("runs/afl/run.json", lambda data: data.replace(b'"format": 2', b'"format": 3'))
    refused(DATA, ["runs/afl", "format 3", "upgrade fedgram"], "compare", "runs")


SETTINGS = {
    "a later version": (b"version = 3", ["version 3", "upgrade fedgram"]),
    "no TOML": (b"methods = [", ["bad.toml", "TOML"]),
    "a key twice": (b"version = 1\nversion = 1", ["bad.toml", "TOML"]),
    "not text": (b"\xff\xfe", ["bad.toml", "TOML"]),
    "an unknown method": (b'methods = ["alf"]', ["'alf'", "did you mean 'afl'"]),
    "an unknown key": (b"[data]\nclient = 3", ["data.client ", "did you mean 'clients'"]),
    "an unknown table": (b"[dato]\nclients = 3", ["dato", "did you mean 'data'"]),
    "an unknown parameter": (b"[method.afl]\nrigde = 3", ["method.afl.rigde", "'ridge'"]),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_that_cannot_be_used_are_refused_by_name(here, case):
    content, words = SETTINGS[case]
    Path("bad.toml").write_bytes(content)
    refused(CONFIG, words, "run", "bad.toml", "--out", "new")


# Remedies


def broken_name(name, damage="cut in half"):
    return lambda: damaged(name, DAMAGE[damage])


def toml(content):
    return lambda: Path("bad.toml").write_text(content, encoding="utf-8")


REMEDIES = {  # one way to meet each message; what cannot be told in general is told here
    "NaN": (lambda: npz("bad.npz", **with_feature(np.nan)), reading("run", "bad.npz")),
    "a label out of range": (lambda: npz("bad.npz", **with_label(-1)), reading("run", "bad.npz")),
    "one class": (lambda: npz("bad.npz", y=np.zeros(60, int)), reading("run", "bad.npz")),
    "test samples only": (
        lambda: npz("bad.npz", split=np.full(60, 2)),
        reading("contribute", "bad.npz"),
    ),
    "no such data": (None, reading("run", "missing.npz")),
    "a damaged archive": (broken_name("north.npz"), reading("run", "north.npz")),
    "damaged safetensors": (broken_name("north.safetensors"), reading("run", "north.safetensors")),
    "an empty table": (lambda: Path("bad.csv").touch(), reading("predict", "bad.csv")),
    "a short row": (lambda: Path("bad.csv").write_text("1,2\n"), reading("predict", "bad.csv")),
    "a foreign message": (broken_name("south.part1", "foreign"), JOIN),
    "a message cut by a byte": (broken_name("south.part1", "cut by a byte"), JOIN),
    "not a contribution": (None, ("ledger", "join", "book.ledger", "shared.model")),
    "not a model": (None, ("predict", "south.part1", "north.npz")),
    "a model for other features": (None, reading("personalize", "digits")),
    "no such ledger": (None, ("ledger", "show", "missing")),
    "a damaged ledger": (broken_name("book.ledger"), ("ledger", "show", "book.ledger")),
    "not a ledger": (None, ("ledger", "show", "north.npz")),
    "not a member": (None, ("ledger", "leave", "book.ledger", "south")),
    "no run": (None, ("compare", "missing")),
    "a damaged run": (broken_name("runs/afl/run.json"), ("compare", "runs")),
    "a run of other content": (
        lambda: Path("runs/afl/scores.jsonl").write_text("[]\n"),
        ("compare", "runs"),
    ),
    "no TOML": (toml("methods = ["), ("run", "bad.toml")),
    "an unknown method": (None, ("run", "-m", "alf")),
    "an unknown key": (None, ("run", "-s", "data.client=3")),
    "a later version": (toml("version = 3"), ("run", "bad.toml")),
    "a place below a file": (None, ("run", "-m", "afl", "--out", "north.npz/new")),
    "a singular matrix": (None, ("run", "-m", "afl", "-s", "method.afl.ridge=0")),
}
# What comes last is no advice in these.
NO_REMEDY = ("nothing else was changed", "there is nothing to learn")


@pytest.mark.parametrize("case", REMEDIES)
def test_a_refusal_ends_with_a_remedy(here, case):
    prepare, command = REMEDIES[case]
    if prepare:
        prepare()
    done = cli(*command)
    assert done.exit_code != 0
    _, semicolon, remedy = done.stderr.strip().rpartition("; ")
    assert semicolon
    assert remedy not in NO_REMEDY


# A message is one line whatever is in it


def test_an_error_of_several_lines_is_told_in_one(here):
    fields = np.dtype([(f"a field with a long name {k}", float) for k in range(2000)])
    header = io.BytesIO()
    np.lib.format.write_array(header, np.zeros(1, fields), version=(2, 0))
    with zipfile.ZipFile("bad.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    refused(DATA, ["bad.npz"], *reading("run", "bad.npz"))


def test_an_error_about_a_row_in_a_step_names_the_client(here):
    Path("mine.py").write_text(OWN_GRID, encoding="utf-8")
    refused(DATA, ["client c0", "row 0", "NaN"], "run", "-m", "mine.py", "-s", "data.clients=2")


OWN_GRID = """
import numpy as np
from fedgram.features.grid import Grid
from fedgram.methods.afl import AFL


class Mine(AFL):
    def statistics(self, client, _):
        return Grid()(np.full((2, 2), np.nan))
"""


# A full disk


def whole_lines(path):
    """Return the lines of a record; a last one that was cut short is left out."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


@pytest.mark.parametrize(
    ("most", "file"),
    [(100, ""), (1500, "partition.json"), (2300, "scores.jsonl"), (5000, "shared.safetensors")],
)
def test_a_run_on_a_full_disk_leaves_whole_files(here, most, file):
    with room_for(most):
        done = cli("run", "-m", "afl", "-s", "data.clients=12", "--out", "new")
    assert (done.exit_code, done.stdout) == (DATA, "")
    one_line(done.stderr, f"new/afl/{file}".rstrip("/"), "cannot be written")
    for path in Path("new").rglob("*.*"):
        assert path.suffix in (".json", ".jsonl")  # no part of a model
        json.loads(path.read_text("utf-8")) if path.suffix == ".json" else whole_lines(path)
    assert cli("compare", "new").exit_code == (0 if file == "shared.safetensors" else DATA)


def test_a_folder_that_was_too_full_can_be_used_later(here):
    with room_for(100):
        assert cli(*reading("run", "north.npz")).exit_code == DATA
    made(*reading("run", "north.npz"))
    made("compare", "new")


@pytest.mark.parametrize(
    "command",
    [("contribute", "north.npz", "--client", "a", "-o", "south.part1"), PREDICTED, PERSONALIZED],
    ids=lambda command: command[0],
)
def test_a_full_disk_keeps_the_old_file(here, command):
    with room_for(100):
        refused(DATA, [command[-1], "cannot be written"], *command)


@pytest.mark.parametrize("most", [1000, 16_000])
def test_a_ledger_on_a_full_disk_keeps_what_it_had(here, most):
    before, shown = contents(), made("ledger", "show", "book.ledger", "--json").stdout
    done = process(*JOIN, most=most)
    assert (done.returncode, done.stdout) == (LEDGER, "")
    made("ledger", "verify", "book.ledger")
    assert made("ledger", "show", "book.ledger", "--json").stdout == shown
    assert contents() == before
    made(*JOIN)
    one_line(done.stderr, "book.ledger", "nothing was changed")


@pytest.mark.parametrize("most", [100, 4000], ids=["nothing", "the model alone"])
def test_a_model_that_the_ledger_cannot_record_does_not_replace_the_old_one(here, most):
    before = contents()
    with room_for(most):
        done = cli(*SOLVED, "-s", "method.apfl-linear.ridge=7")
    assert done.exit_code in (DATA, LEDGER)
    made("ledger", "verify", "book.ledger")
    assert contents() == before
    one_line(done.stderr)


def test_a_ledger_that_could_not_be_made_is_not_there(here):
    with room_for(1000):
        assert cli("ledger", "init", "new.ledger").exit_code == LEDGER
    assert not list(Path().glob("new.ledger*"))
    made("ledger", "init", "new.ledger")


# A place that cannot be written: below a file, since root may write anywhere else

BELOW = "north.npz/new"
WRITERS = {
    "run": (DATA, ("run", "-m", "afl", "-s", "data.clients=2", "--out", BELOW)),
    "contribute": (DATA, ("contribute", "north.npz", "--client", "a", "-o", BELOW)),
    "personalize": (DATA, (*PERSONALIZED[:-1], BELOW)),
    "predict": (DATA, (*PREDICTED[:-1], f"{BELOW}.csv")),
    "ledger init": (LEDGER, ("ledger", "init", BELOW)),
    "ledger solve": (DATA, (*SOLVED[:-1], BELOW)),
    "ledger forget": (
        DATA,
        ("ledger", "forget", "book.ledger", "north", "--certificate", BELOW),
    ),
}


@pytest.mark.parametrize("command", WRITERS)
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_lost(here, command):
    code, arguments = WRITERS[command]
    refused(code, [BELOW], *arguments)


# Ctrl-C

ENDLESS = """
from fedgram.methods.afl import AFL


class Endless(AFL):
    def fit(self, federation):
        while True:
            yield from super().fit(federation)
"""


def test_an_interrupted_run_leaves_what_was_done_to_compare(here):
    Path("endless.py").write_text(ENDLESS, encoding="utf-8")
    command = [*reading("run", "north.npz"), "-m", "endless.py", "-s", "data.standardize=false"]
    running = subprocess.Popen(
        [sys.executable, "-c", PROCESS, "unlimited", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    scores, patience = Path("new/endless/scores.jsonl"), time.monotonic() + 60
    while not (scores.is_file() and '"round": 2' in scores.read_text(encoding="utf-8")):
        assert running.poll() is None
        assert time.monotonic() < patience
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    assert running.communicate(timeout=60) == (
        "",
        "fedgram: interrupted; what was recorded is kept\n",
    )
    assert running.returncode == 130
    assert not list(Path("new").rglob("*.part"))
    found = json.loads(made("compare", "new", "--json").stdout)["runs"]
    assert [(run["method"], run["finished"]) for run in found] == [
        ("afl", True),
        ("endless.py", False),
    ]
    assert found[1]["rounds"] >= 1
    # On everybody's test samples models are tried at the end only.
    assert found[1]["accuracy"] == {**found[0]["accuracy"], "global_test": None}
