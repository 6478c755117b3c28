"""Names and texts of others on the command line: never a control, never a formula, one member."""

import json
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from report_support import write_run

from fedgram.cli import main
from fedgram.cli.screen import print_runs
from fedgram.core import codec
from fedgram.core.samples import Space
from fedgram.data.table_writer import csv_text
from fedgram.deploy.settings import read_federation, read_site, registered
from fedgram.engines.remote.collector import Deadlines
from fedgram.engines.remote.enrollment import Enrollment
from fedgram.engines.remote.messages import (
    Answer,
    Greeting,
    Refusal,
    refused,
    request_digest,
    shown,
)
from fedgram.errors import ConfigError, DataError
from fedgram.experiments.gains import who_gains
from fedgram.experiments.reader import read_runs

HOSTILE = "ward\x1b[2J\x07\u202e"
ZURICH = unicodedata.normalize("NFC", "Zu\u0308rich")


def cli(*arguments):
    done = CliRunner().invoke(main, list(map(str, arguments)), env={"COLUMNS": "200"})
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    assert printable(done.stdout)
    assert printable(done.stderr)
    return done


def printable(text):
    return text.replace("\n", "").isprintable()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("x.npz", x=rng.normal(size=(20, 3)), y=np.arange(20) % 2)
    assert cli("ledger", "init", "book.ledger").exit_code == 0
    return tmp_path


def contributed(client, out="a.part"):
    return cli("contribute", "x.npz", "--client", client, "-o", out)


def test_spellings_of_a_name_are_one_member(here):
    assert contributed(f" {unicodedata.normalize('NFD', ZURICH)} ").exit_code == 0
    assert codec.load(here / "a.part").client == ZURICH
    assert cli("ledger", "join", "book.ledger", "a.part").exit_code == 0
    other = replace(codec.load(here / "a.part"), client=unicodedata.normalize("NFD", f"{ZURICH} "))
    codec.save(here / "b.part", other)
    again = cli("ledger", "join", "book.ledger", "b.part")
    assert again.exit_code == 8
    members = json.loads(cli("ledger", "show", "book.ledger", "--json").stdout)["members"]
    assert members == [ZURICH]
    left = cli("ledger", "forget", "book.ledger", unicodedata.normalize("NFD", ZURICH))
    assert left.exit_code == 0


def test_a_name_with_controls_is_refused_and_shown_without_them(here):
    done = contributed(HOSTILE)
    assert done.exit_code == 3
    assert "\\x1b" in done.stderr
    assert contributed("north").exit_code == 0
    codec.save(here / "b.part", replace(codec.load(here / "a.part"), client=HOSTILE))
    assert cli("ledger", "join", "book.ledger", "b.part").exit_code == 3


def test_an_error_is_printed_in_one_line_without_controls(here):
    done = cli("ledger", "show", f"{HOSTILE}\n.ledger")
    assert done.exit_code == 8
    assert done.stderr.startswith("fedgram: error: ward\\x1b[2J")
    assert done.stderr.count("\n") == 1


def test_classes_with_controls_are_refused(here):
    rng = np.random.default_rng(0)
    np.savez("y.npz", x=rng.normal(size=(4, 3)), y=np.arange(4) % 2, classes=["a", HOSTILE])
    done = cli("contribute", "y.npz", "--client", "north", "-o", "a.part")
    assert done.exit_code == 3
    assert "class" in done.stderr


def test_a_ledger_of_an_earlier_fedgram_is_shown_without_controls(here):
    from fedgram.ledger.ledger import Ledger

    assert contributed("north").exit_code == 0
    statistics = replace(codec.load(here / "a.part").statistics, classes=("a", f"[red]{HOSTILE}"))
    with Ledger.open(here / "book.ledger") as book:
        book.join(HOSTILE, statistics)
    done = cli("ledger", "show", "book.ledger")
    assert "\\x1b[2J" in done.stdout
    assert "[red]" in done.stdout
    assert cli("ledger", "leave", "book.ledger", HOSTILE).exit_code == 0


def test_recorded_runs_with_hostile_names_are_printed_as_they_are(here, capsys):
    write_run(here / f"[red]{HOSTILE}", f"[bold]{HOSTILE}", clients={HOSTILE: 0.5, "b": 0.7})
    runs = read_runs([here / f"[red]{HOSTILE}"])
    for label in ("method", "run"):
        print_runs(HOSTILE, runs, who_gains(runs), label)
    said = capsys.readouterr().out
    assert printable(said)
    assert "[bold]ward\\x1b[2J" in said
    assert cli("compare", here / f"[red]{HOSTILE}").exit_code == 0
    assert cli("report", here / f"[red]{HOSTILE}", "-o", "page.html").exit_code == 0
    assert "\x1b" not in (here / "page.html").read_text(encoding="utf-8")


def test_the_text_of_a_site_is_shown_in_one_line_without_controls():
    refusal = Refusal(client="a", request_digest="1", error="DataError", text=f"{HOSTILE}\n\rb")
    assert isinstance(refused(refusal), DataError)
    assert str(refused(refusal)) == "ward\\x1b[2J\\x07\\u202e b"
    assert shown("\ud800").encode()


@pytest.mark.parametrize("name", [HOSTILE, " north", unicodedata.normalize("NFD", ZURICH)])
def test_a_site_that_names_itself_otherwise_than_in_its_settings_is_not_admitted(name):
    notes = []
    enrollment = Enrollment(None, Deadlines(), note=lambda who, text: notes.append(text))
    enrollment._hello = b"hello"
    greeting = Greeting(space=Space(width=1, bound=9), classes=("a",))
    about = request_digest(b"hello")
    sound = codec.encode(Answer(client=ZURICH, request_digest=about, value=greeting))
    assert enrollment._introduced(sound)[0] == ZURICH
    with pytest.raises(DataError, match="not a valid site name"):
        enrollment._introduced(
            codec.encode(Answer(client=name, request_digest=about, value=greeting))
        )


def test_predictions_are_cells_and_not_formulas():
    columns = {"item": ["+a.png"], "label": [1], "name": ["@sum"], "score_@sum": [-0.5]}
    lines = csv_text({**columns, "=b": [0.25]}, header=True).splitlines()
    assert lines == ["item,label,name,score_@sum,'=b", "'+a.png,1,'@sum,-0.5,0.25"]


@pytest.mark.parametrize("node", ["-Infinity", '"5"', "true", "null", "1.5", "[]"])
def test_the_node_of_a_site_is_an_integer(tmp_path, node):
    (tmp_path / "nodes.json").write_text(f'{{"north": {{"node": {node}}}}}')
    with pytest.raises(DataError, match=r"nodes\.json: not a list of registered sites"):
        registered(tmp_path)


def test_names_in_settings_are_normalized(tmp_path):
    nfd = unicodedata.normalize("NFD", ZURICH)
    path = tmp_path / "federation.toml"
    path.write_text(f'[federation]\nsites = ["{ZURICH}", " {nfd}", "b"]\n', encoding="utf-8")
    assert read_federation(path)[1].sites == (ZURICH, "b")
    site = tmp_path / "site.toml"
    site.write_text(f'name = " {nfd} "', encoding="utf-8")
    assert read_site(site).name == ZURICH
    site.write_text('name = "a\\u001b"', encoding="utf-8")
    with pytest.raises(ConfigError, match="control character"):
        read_site(site)
