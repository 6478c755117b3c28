"""fedgram doctor: what is usable here, and how to get what is not."""

import json
import re
import subprocess
import sys
from importlib import metadata

import pytest
from click.testing import CliRunner

from fedgram.cli import doctor, main
from fedgram.cli.doctor import lacks


def cli(*arguments, columns=80):
    return CliRunner().invoke(main, ["doctor", *arguments], env={"COLUMNS": str(columns)})


@pytest.fixture
def bare(monkeypatch):
    """An installation with the core only, of which one extra has a package that is too old."""
    requires = {
        "fedgram": [
            "numpy>=1.26",
            "torch>=2.2; extra == 'torch'",
            "pyarrow>=15; extra == 'tables'",
            "fedgram[secure]; extra == 'flower'",
            "cryptography>=42; extra == 'secure'",
            "flwr[simulation]<2,>=1.41; extra == 'simulation'",
        ],
        "flwr": ["ray>=2; python_version < '3.14' and extra == 'simulation'", "click>=8"],
    }
    versions = {"pyarrow": "9.0.1", "flwr": "1.41.0", "cryptography": "42.0"}

    def version(name):
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(doctor.metadata, "requires", requires.get)
    monkeypatch.setattr(doctor.metadata, "version", version)
    return versions


def test_an_extra_lacks_what_is_missing_or_too_old(bare):
    assert list(lacks("torch")) == ["torch 2.2 or newer"]
    assert list(lacks("tables")) == ["pyarrow 15 or newer"]
    assert list(lacks("secure")) == []
    bare["pyarrow"] = "15"
    assert list(lacks("tables")) == []


def test_extras_of_extras_count_too(bare):
    assert list(lacks("simulation")) == ["ray 2 or newer"]
    assert list(lacks("flower")) == []
    del bare["cryptography"]
    assert list(lacks("flower")) == ["cryptography 42 or newer"]


def test_what_is_missing_is_named_with_the_command_that_installs_it(bare):
    shown = cli(columns=200).stdout
    assert "no torch 2.2 or newer" in shown
    assert re.search(r"to get an extra: +pip install 'fedgram\[[a-z]+\]'", shown)
    assert "pip install 'fedgram[all]'" in shown
    content = json.loads(cli("--json").stdout)
    extras = {one["name"]: one for one in content["extras"]}
    assert extras["torch"]["state"] == "missing"
    assert extras["torch"]["remedy"] == "pip install 'fedgram[torch]'"
    assert extras["secure"]["state"] == "ready"
    engines = {one["name"]: one["state"] for one in content["engines"]}
    assert (engines["process"], engines["simulate"]) == ("ready", "missing")


def test_everything_is_listed_once():
    content = json.loads(cli("--json").stdout)
    for kind in ("extras", "backbones", "exact products", "engines"):
        names = [one["name"] for one in content[kind]]
        assert names
        assert len(names) == len(set(names))
        states = {one["state"] for one in content[kind]}
        assert states <= {"ready", "not tried", "missing"}
    assert "exact, in use" in [one["about"] for one in content["exact products"]]


@pytest.mark.parametrize("columns", [60, 120])
def test_lines_fit_the_terminal_and_names_are_whole(columns, bare):
    lines = cli(columns=columns).stdout.splitlines()
    tables = [line.rstrip() for line in lines if not line.startswith("AMD")]
    assert max(map(len, tables)) <= max(columns, 60)
    assert any(line.startswith("efficientnet-lite0 ") for line in tables)


def test_nothing_that_takes_long_is_imported():
    script = (
        "import sys; from click.testing import CliRunner; from fedgram.cli import main\n"
        "done = CliRunner().invoke(main, ['doctor']); assert done.exit_code == 0, done.output\n"
        "print(sorted({'torch', 'onnxruntime', 'ray', 'flwr', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
