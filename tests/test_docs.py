"""What is written for people: the tutorial runs, and nothing public goes unmentioned."""

import ast
import dataclasses
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import fedgram
from fedgram.cli import main
from fedgram.features import backbones
from fedgram.features.backbones.onnx import Preprocessing
from fedgram.federation.method import find_method, names, parameters, summary
from fedgram.runtime.settings import build

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "by-files.md").read_text(encoding="utf-8")
METHODS = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
FEATURES = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")
FEDERATION = "".join(
    (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("federation.md", "membership.md")
)
TABLES = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
SETTINGS = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def shell(script, folder):
    """Run a script as a reader would, with this environment's commands first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def scripts(page):
    """Return all of a page's commands, as one script."""
    return "\n".join(re.findall(r"```bash\n(.*?)```", page, re.DOTALL))


@pytest.mark.docs
def test_the_tutorial_runs_and_ends_where_a_run_on_the_same_data_does(tmp_path):
    output = shell(scripts(TUTORIAL), tmp_path)
    (solved,) = re.findall(r"^(\w{64})  apfl-linear on", output, re.MULTILINE)
    run = shell("fedgram run -m apfl-linear -s data.clients=3 --json", tmp_path)
    assert f'"shared_digest": "{solved}"' in run
    assert "after the deletion of west, as certified" in output
    predictions = (tmp_path / "north" / "predictions.csv").read_text()
    assert predictions.startswith("item,label,name,score_0")


@pytest.mark.docs
def test_three_hospitals_end_where_one_table_does(tmp_path):
    output = shell(scripts(TABLES), tmp_path)
    (solved,) = re.findall(r"^(\w{64})  afl on", output, re.MULTILINE)
    assert f'"shared_digest": "{solved}"' in output
    assert re.search(r"^1,0,readmitted,.*\n2,1,well,", output, re.MULTILINE)  # the new patients
    assert all((tmp_path / f"{name}.moments").stat().st_size < 1000 for name in ("north", "west"))


@pytest.mark.docs
def test_the_page_on_installation_runs_as_it_is_written(tmp_path):
    shell(scripts((ROOT / "docs" / "installation.md").read_text(encoding="utf-8")), tmp_path)


@pytest.mark.docs
def test_what_is_told_of_reports_works(tmp_path):
    text = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    shell("\n".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)), tmp_path)
    made = {path.name for path in tmp_path.iterdir()}
    assert {"report.html", "partition.svg", "ridge.svg", "figures"} <= made


def commands(group=main, prefix=""):
    for name in group.list_commands(None):  # the root loads its commands when they are needed
        command = group.get_command(None, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_every_command_is_documented(name):
    assert f"fedgram {name}" in README + TUTORIAL + TABLES + FEDERATION
    assert dict(commands())[name].help


@pytest.mark.parametrize("name", names())
def test_every_method_is_documented(name):
    assert f"| `{name}` |" in METHODS
    assert summary(find_method(name)).endswith(".")
    assert all(parameter.text for parameter in parameters(find_method(name)))


@pytest.mark.parametrize("name", backbones.names())
def test_every_backbone_is_documented(name):
    assert re.search(rf"^\| `{name}\b", FEATURES, re.MULTILINE)


@pytest.mark.parametrize("option", main.get_command(None, "features").params, ids=lambda p: p.name)
def test_every_option_of_features_is_documented(option):
    spelled = option.opts if isinstance(option, click.Option) else [option.name.upper()]
    assert any(f"{word} " in README + TUTORIAL + FEATURES + TABLES for word in spelled)


def test_the_settings_of_onnx_models_in_the_guide_are_read():
    (example,) = re.findall(r"```json\n(.*?)```", FEATURES, re.DOTALL)
    settings = build(Preprocessing, json.loads(example), "PATH.json")
    assert settings.mean == (0.485, 0.456, 0.406)
    for field in dataclasses.fields(Preprocessing):
        assert f"`{field.name}`" in FEATURES


PROTOCOLS = {"Federation", "Method", "Predictor", "FedgramError", "__version__"}


@pytest.mark.parametrize("name", [n for n in fedgram.__all__ if n not in PROTOCOLS])
def test_everything_public_has_an_example_that_runs(name):
    thing = getattr(fedgram, name)
    where = inspect.getmodule(thing)
    assert ">>>" in inspect.getdoc(thing) or f">>> {name}(" in inspect.getsource(where)


def test_settings_in_the_guide_are_read(tmp_path):
    from fedgram.experiments.config import load

    (toml,) = re.findall(r"```toml\n(.*?)```", SETTINGS, re.DOTALL)
    (tmp_path / "settings.toml").write_text(toml, encoding="utf-8")
    assert load(tmp_path / "settings.toml").method["apfl"]["balance"] == 0.5


def test_the_page_of_results_is_made_of_the_stored_runs(tmp_path):
    command = [sys.executable, "-m", "benchmarks.default", "render"]
    page = tmp_path / "results.md"
    subprocess.run([*command, str(ROOT / "docs" / "results.json"), str(page)], cwd=ROOT, check=True)
    assert page.read_text(encoding="utf-8") == (ROOT / "docs" / "results.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("module", "given", "name"),
    [
        ("paper_studies", ["docs/results/studies"], "reproducing.md"),
        ("claims", [], "claims.md"),
    ],
)
def test_the_pages_of_the_papers_are_made_of_the_stored_results(tmp_path, module, given, name):
    page = tmp_path / name
    command = [sys.executable, "-m", f"benchmarks.{module}", "render", *given, str(page)]
    subprocess.run(command, cwd=ROOT, check=True)
    assert page.read_text(encoding="utf-8") == (ROOT / "docs" / name).read_text("utf-8")


def test_the_pages_of_speed_and_scale_are_made_of_the_stored_results(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "pages", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True)
    for name in ("speed.md", "scale.md"):
        made = (tmp_path / name).read_text(encoding="utf-8")
        assert made == (ROOT / "docs" / name).read_text("utf-8")


def test_the_page_of_open_questions_is_made_of_the_stored_results(tmp_path):
    page, stored = tmp_path / "page.md", ROOT / "docs" / "open-questions.md"
    text = stored.read_text("utf-8")
    page.write_text(re.sub(r"(: begin -->\n).*?(<!--)", r"\1\2", text, flags=re.DOTALL), "utf-8")
    assert "|" not in page.read_text("utf-8").split("## What was chosen")[1]
    command = [sys.executable, "-m", "benchmarks.questions", "render"]
    source = ROOT / "docs" / "results" / "open-questions.json"
    subprocess.run([*command, str(source), str(page)], cwd=ROOT, check=True)
    assert page.read_text(encoding="utf-8") == text


def test_the_keys_in_the_guide_are_those_of_the_code():
    """To renew them: the rows without a method of fedgram settings --markdown."""
    from fedgram.experiments.config import Config
    from fedgram.experiments.settings_list import markdown, settings_of

    (table,) = re.findall(r"<!-- keys -->\n(.*?)<!-- end of keys -->", SETTINGS, re.DOTALL)
    assert table == markdown(settings_of(Config(), []))


def test_every_function_named_in_the_architecture_exists():
    named = re.findall(r"`([\w/]+\.py):([\w.]+)`", ARCHITECTURE)
    assert named
    for path, function in named:
        source = (ROOT / "src" / "fedgram" / path).read_text(encoding="utf-8")
        inside = ast.parse(source).body
        for name in function.split("."):
            found = [node for node in inside if getattr(node, "name", None) == name]
            assert found, f"{path}: {function}"
            inside = found[0].body


def test_the_index_links_to_every_page():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        place = page.relative_to(ROOT / "docs").as_posix()
        elsewhere = place == "index.md" or place.startswith(
            ("decisions/0", "project/", "notebooks/")
        )
        assert elsewhere or f"]({place}) |" in index, place


def test_pages_link_to_pages_that_are_there():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for page in sorted(pages):
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
