"""The command group: listed without imports, loaded when used, and named alike everywhere."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from fedgram.cli import main
from fedgram.cli.root import ALIASES, COMMANDS

HEAVY = "numpy scipy rich safetensors flwr torch"


def loaded(*words):
    code = (
        "import sys\nfrom fedgram.cli import main\n"
        f"main({list(words)!r}, standalone_mode=False)\n"
        f"print([name for name in {HEAVY.split()!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def test_help_and_version_import_nothing_heavy():
    assert loaded("--help") == "[]"
    assert loaded("--version") == "[]"


def test_importing_fedgram_imports_nothing_heavy():
    code = f"import sys, fedgram\nprint([n for n in {HEAVY.split()!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_listed_line_is_the_first_of_the_commands_own_help(name):
    command = main.get_command(click.Context(main), name)
    assert command.name == name
    assert command.help.split("\n\n")[0].replace("\n", " ") == COMMANDS[name][1]


@pytest.mark.parametrize("former", ALIASES)
def test_a_former_name_works_and_is_not_listed(former):
    context = click.Context(main)
    assert main.get_command(context, former) is main.get_command(context, ALIASES[former])
    assert f"\n  {former} " not in CliRunner().invoke(main, ["--help"]).output


@pytest.mark.parametrize(
    ("words", "proposal"),
    [
        (["metods"], "there is no command 'metods'; did you mean 'methods'?"),
        (["xyz"], "there is no command 'xyz'; there are: check, compare, contribute"),
        (["export", "m", "--to", "onx"], "sklearn, safetensors, got 'onx'; did you mean 'onnx'?"),
        (["run", "--keep-models", "bst"], "got 'bst'; did you mean 'best'?"),
        (
            ["export", "m", "--to", "?"],
            "one of onnx, torch, sklearn, safetensors, got '?'",
        ),
    ],
)
def test_a_misspelt_word_has_a_proposal(words, proposal):
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert proposal in " ".join(done.output.split())


def test_the_module_can_be_run():
    words = [sys.executable, "-m", "fedgram", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("fedgram, version ")


def test_public_names_are_those_that_type_checkers_see():
    import ast
    from pathlib import Path

    import fedgram

    tree = ast.parse(Path(fedgram.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert seen == fedgram._HOME
    for name in fedgram.__all__:
        assert getattr(fedgram, name) is not None
