"""The package: what a wheel holds, what it says of itself, and the extras that it names."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from fedgram.cli import doctor
from fedgram.features.backbones import registry

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = set(PROJECT["optional-dependencies"])
FOR_DEVELOPERS = {"dev", "docs"}
NAMED = re.compile(r"(?:fedgram|\.)\[([a-z][a-z,]*)\]")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
SOURCES = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.md"), *SOURCE.rglob("*.toml")]


def named_extras(text):
    return {extra for found in NAMED.findall(text) for extra in found.split(",")}


@pytest.mark.parametrize("path", SOURCES + PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_extra_that_is_named_exists(path):
    assert named_extras(path.read_text("utf-8")) <= EXTRAS


def test_an_extra_that_does_not_exist_is_noticed():
    assert named_extras("pip install 'fedgram[visoin]' or '.[text,tables]'") == {
        *("visoin", "text", "tables")
    }


def test_errors_name_extras():
    """A missing package leads to an extra in a good number of places: the pattern finds them."""
    found = [path for path in SOURCE.rglob("*.py") if named_extras(path.read_text("utf-8"))]
    assert len(found) >= 12


def test_all_is_every_extra_for_users():
    (line,) = PROJECT["optional-dependencies"]["all"]
    assert named_extras(line) == EXTRAS - FOR_DEVELOPERS - {"all"}


def test_doctor_knows_every_extra_and_every_backbone():
    """A new extra gets a line in cli/doctor.py that says what it is for."""
    assert set(doctor.EXTRAS) == EXTRAS - FOR_DEVELOPERS - {"all"}
    assert set(doctor.BACKBONES) == set(registry.names())
    extras = {extra for extra, _ in [*doctor.BACKBONES.values(), *doctor.ENGINES.values()]}
    assert extras - {None} <= EXTRAS


def test_the_page_on_installation_names_every_extra():
    page = (ROOT / "docs" / "installation.md").read_text("utf-8")
    rows = "".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", rows)) == EXTRAS - FOR_DEVELOPERS


@pytest.mark.parametrize("name", [n for n, (extra, _) in doctor.BACKBONES.items() if extra])
def test_doctor_and_the_error_of_a_backbone_name_the_same_extra(name):
    module = registry._SOURCES[name]
    text = (SOURCE / "fedgram" / "features" / "backbones" / f"{module}.py").read_text("utf-8")
    assert set(re.findall(r"missing\([^,]+, \"(\w+)\"", text)) == {doctor.BACKBONES[name][0]}


def test_versions_agree():
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    recipe = (ROOT / "conda" / "recipe.yaml").read_text("utf-8")
    assert re.search(r"^version: (.+)$", citation, re.M)[1] == PROJECT["version"]
    assert re.search(r'^  version: "(.+)"$', recipe, re.M)[1] == PROJECT["version"]


def test_the_conda_recipe_requires_what_the_package_requires():
    recipe = (ROOT / "conda" / "recipe.yaml").read_text("utf-8")
    run = re.search(r"^  run:\n((?:    - .+\n)+)", recipe, re.M)[1]
    required = {line.strip(" -").replace(" ", "") for line in run.splitlines()}
    assert required == {*PROJECT["dependencies"], f"python{PROJECT['requires-python']}"}
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]
    assert all(f"- {one.replace('>=', ' >=')}\n" in recipe for one in backend["requires"])


def test_the_container_installs_extras_that_exist():
    text = (ROOT / "Containerfile").read_text("utf-8")
    named = re.findall(r"EXTRAS=([a-z,]+)", text)
    assert named
    assert {extra for found in named for extra in found.split(",")} <= EXTRAS


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel without the C library; needs the build backend only, and no network."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    environment = {"CC": "false", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_a_wheel_holds_the_package_and_nothing_else(wheel):
    names = set(wheel.namelist())
    about = {name for name in names if name.startswith(f"fedgram-{PROJECT['version']}.dist-info/")}
    kept = {
        path.relative_to(SOURCE).as_posix()
        for path in (SOURCE / "fedgram").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".1"
    }
    assert names - about == kept
    assert not [name for name in names if re.search(r"test_|conftest|benchmark", name)]
    assert {name.rpartition("/")[2] for name in about} >= {"LICENSE", "NOTICE", "METADATA"}


def test_the_long_description_has_no_link_that_leads_nowhere(wheel):
    (name,) = (one for one in wheel.namelist() if one.endswith("/METADATA"))
    metadata = wheel.read(name).decode("utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)", metadata)
    assert [link for link in links if not re.match(r"https?://|#", link)] == []
    assert "docs/choosing.md" in metadata
    assert "Classifier: Typing :: Typed" in metadata
