"""The shape of the code: where modules are, names that stand for one thing, and public texts."""

import ast
import os
import re
from collections import defaultdict
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import fedgram
from fedgram.cli import main

SOURCE = Path(fedgram.__file__).parent
SNAPSHOTS = Path(__file__).parent / "snapshots"
RENEW = "FEDGRAM_RENEW_SNAPSHOTS"


def doubled(sources):
    """Return the names of classes that are defined more than once, and where."""
    places = defaultdict(list)
    for path, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_class_name_stands_for_two_classes():
    paths = SOURCE.rglob("*.py")
    assert doubled({str(p.relative_to(SOURCE)): p.read_text("utf-8") for p in paths}) == {}


def test_a_name_of_two_classes_is_noticed():
    sources = {"a.py": "class A:\n    class B: ...", "b.py": "if True:\n    class B: ..."}
    assert doubled(sources) == {"B": ["a.py", "b.py"]}


def test_modules_are_in_packages():
    assert {path.stem for path in SOURCE.glob("*.py")} <= {"__init__", "__main__", "errors"}


# Snapshots: what others rely on changes only on purpose


def require_stored(name, text):
    """Compare a text with the stored one; renew the stored one where that is asked for."""
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get(RENEW):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    stored = path.read_text("utf-8") if path.is_file() else None
    assert stored == text, (
        f"{path.name} is not what it was; if that is meant, renew it and read the difference: "
        f"{RENEW}=1 pytest -n 0 tests/{Path(__file__).name}; git diff tests/{SNAPSHOTS.name}"
    )


def helps(command, words=("fedgram",)):
    """Yield every command's words and its help text."""
    done = CliRunner().invoke(main, [*words[1:], "--help"], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    yield words, done.output
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from helps(command.get_command(context, name), (*words, name))


HELPS = dict(helps(main))


def test_public_names_are_those_stored():
    require_stored("public_names", "".join(f"{name}\n" for name in sorted(fedgram.__all__)))


@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_a_help_text_is_the_stored_one(words):
    require_stored("help_" + "_".join(words[1:] or words), HELPS[words])


def commands(command, words=("fedgram",)):
    """Yield the words of every command that is not a group."""
    if not isinstance(command, click.Group):
        yield words
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        yield from commands(command.get_command(context, name), (*words, name))


@pytest.mark.parametrize("words", list(commands(main)), ids=" ".join)
def test_every_help_text_has_an_example_of_its_command(words):
    assert f"Example: {' '.join(words)}" in " ".join(HELPS[words].split())


def test_there_are_no_snapshots_of_what_is_gone():
    expected = {"public_names", *("help_" + "_".join(words[1:] or words) for words in HELPS)}
    assert {path.stem for path in SNAPSHOTS.glob("*.txt")} == expected


def test_a_text_that_changed_is_noticed(monkeypatch):
    monkeypatch.delenv(RENEW, raising=False)
    with pytest.raises(AssertionError, match=f"{RENEW}=1"):
        require_stored("public_names", "nothing\n")


@pytest.mark.parametrize("words", [words for words in HELPS if "Commands:" in HELPS[words]])
def test_what_a_command_does_is_not_cut(words):
    listed = HELPS[words].partition("Commands:")[2]
    assert not re.search(r"\.\.\.$", listed, re.MULTILINE)
