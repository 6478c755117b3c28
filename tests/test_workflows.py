"""Workflows, hooks and templates can be read, and what they run exists."""

import ast
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
SCRIPTS = sorted((ROOT / ".ci").iterdir())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def sessions(source):
    """Return the names of the nox sessions in a source text; nox itself need not be installed."""
    for node in ast.parse(source).body:
        for decorator in getattr(node, "decorator_list", ()):
            call = decorator if isinstance(decorator, ast.Call) else None
            if ast.unparse(call.func if call else decorator) == "nox.session":
                named = [k.value.value for k in call.keywords if k.arg == "name"] if call else []
                yield named[0] if named else node.name


SESSIONS = set(sessions((ROOT / "noxfile.py").read_text(encoding="utf-8")))


def problems(workflow):
    """Yield what is wrong with a workflow: jobs without a runner or steps, commands that miss."""
    if not workflow.get("jobs"):
        yield "no jobs"
    for name, job in workflow.get("jobs", {}).items():
        if not job.get("runs-on"):
            yield f"{name}: no runner"
        if not job.get("steps"):
            yield f"{name}: no steps"
        for step in job.get("steps", ()):
            if ("run" in step) == ("uses" in step):
                yield f"{name}: a step is either an action or a command"
            for line in str(step.get("run", "")).splitlines():
                yield from (f"{name}: {problem}" for problem in missing(line))


def missing(line):
    """Yield what a command names and the repository does not have."""
    words = shlex.split(line, comments=True)
    if words[:1] == ["nox"]:
        asked = words[words.index("-s") + 1 :] if "-s" in words else []
        asked = asked[: asked.index("--")] if "--" in asked else asked
        yield from (f"no session {name}" for name in asked if name not in SESSIONS)
        if not asked:
            yield "nox without sessions"
    for word in words:
        path = ROOT / word
        if re.match(r"(\./)?\.ci/", word) and not os.access(path, os.X_OK):
            yield f"no script {word}"
        if word.endswith(".txt") and not path.is_file():
            yield f"no file {word}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_names_runners_and_steps_and_runs_what_exists(path):
    workflow = read(path)
    assert workflow["name"] == path.stem
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow[True]  # `on`, which YAML 1.1 reads as a truth value
    assert list(problems(workflow)) == []


def test_there_are_workflows_and_sessions():
    assert {path.stem for path in WORKFLOWS} >= {"checks", "nightly", "tests"}
    expected = {"all", "check", "docs", "faults", "flower", "nightly", "test", "vision", "wide"}
    assert expected <= SESSIONS


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ("jobs: {}", "no jobs"),
        ("jobs: {a: {steps: [{run: 'true'}]}}", "a: no runner"),
        ("jobs: {a: {runs-on: x}}", "a: no steps"),
        ("jobs: {a: {runs-on: x, steps: [{name: b}]}}", "a step is either"),
        ("jobs: {a: {runs-on: x, steps: [{run: nox -s chek}]}}", "a: no session chek"),
        ("jobs: {a: {runs-on: x, steps: [{run: nox}]}}", "nox without sessions"),
        ("jobs: {a: {runs-on: x, steps: [{run: .ci/weekly}]}}", "a: no script .ci/weekly"),
        ("jobs: {a: {runs-on: x, steps: [{run: pip install -c c.txt .}]}}", "a: no file c.txt"),
    ],
)
def test_a_broken_workflow_is_noticed(broken, problem):
    (found,) = problems(yaml.safe_load(broken))
    assert problem in found


def test_all_python_versions_are_tested():
    matrix = read(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]["newest"]["strategy"]
    assert matrix["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert PROJECT["requires-python"] == f">={matrix['matrix']['python'][0]}"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_can_be_run_and_stop_at_an_error(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in text
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", path], check=True)


def test_hooks_use_the_tools_that_are_installed():
    for repository in read(ROOT / ".pre-commit-config.yaml")["repos"]:
        assert repository["repo"] == "local"
        for hook in repository["hooks"]:
            assert hook["language"] == "system"
            assert shlex.split(hook["entry"])


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_asks_for_something(path):
    form = read(path)
    assert form["name"]
    assert form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) > 0
    assert all(field["attributes"]["label"] for field in fields)


def test_the_citation_is_of_this_version():
    citation = read(ROOT / "CITATION.cff")
    assert (citation["title"], citation["version"]) == (PROJECT["name"], PROJECT["version"])
    assert citation["license"] == PROJECT["license"]


def required(extra=None):
    """Return the requirements of fedgram, or of an extra and of the extras within it."""
    extras = PROJECT["optional-dependencies"]
    for text in PROJECT["dependencies"] if extra is None else extras[extra]:
        requirement = Requirement(text)
        if requirement.name == PROJECT["name"]:
            for inner in sorted(requirement.extras):
                yield from required(inner)
        else:
            yield requirement


def pinned(name):
    """Return the versions that a file of constraints pins."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    texts = [line.split("#")[0].strip() for line in lines]
    found = [Requirement(text) for text in texts if text]
    return {canonicalize_name(each.name): str(each.specifier)[2:] for each in found}


def test_the_oldest_versions_are_allowed_and_complete():
    oldest = pinned("constraints-oldest.txt")
    wanted = [*required(), *required("dev")]
    assert set(oldest) == {canonicalize_name(requirement.name) for requirement in wanted}
    for requirement in wanted:
        version = oldest[canonicalize_name(requirement.name)]
        assert version in requirement.specifier, requirement
