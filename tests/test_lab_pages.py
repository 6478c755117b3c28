"""Measured numbers of the pages come from stored measurements, and none is typed by hand."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedgram as fg

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Pages that a script writes whole; other tests compare them with their sources.
WHOLE = {DOCS / f"{name}.md" for name in ("results", "claims", "reproducing", "speed", "scale")}
PAGES = sorted({ROOT / "README.md", *DOCS.rglob("*.md")} - WHOLE)

MARKED = re.compile(r"^<!-- ([\w -]+): begin -->.*?^<!-- \1: end -->$", re.M | re.S)
# From code: a block, a word in a line, the address of a link, the version of a paper.
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`|\]\([^)]*\)|arXiv \d{4}\.\d+", re.M | re.S)
UNIT = r"(?:%|percent\b|points?\b|times\b|m?s\b|(?:milli|micro)?seconds?\b|[kMGT]i?B\b|hours?\b)"
DIGITS = rf"\b\d[\d,]*(?:\.\d+)? ?{UNIT}"
WORDS = r"\b(?:half a|one|two|three|four|five|six|several) (?:points?|times as \w+|percent)\b"
DECIMALS = r"\b\d+\.\d\d+\b|^\|.*\b\d+\.\d"
MEASURED = re.compile(rf"{DIGITS}|{WORDS}|{DECIMALS}", re.M)

# What looks like a measurement and is none, by the start of the page's path.
GIVEN = {
    "README.md": ["3.11"],
    "docs/choosing.md": [
        "2 MB per client for 1,024, 8 MB for 2,048, 34 MB for 4,096",
        "3.5 MB for 1,280",
    ],  # sizes
    "docs/deepafl.md": ["16 times finer"],
    "docs/features.md": ["| 0.5 |"],
    "docs/federation-faults.md": ["(1.41)"],
    "docs/installation.md": ["3.11"],
    "docs/leave-one-out.md": ["from 0.01 to", "within 1 %"],
    "docs/membership.md": ["1.0 waits"],
    "docs/methods.md": ["0.03, 0.1, 0.3", "1 GiB of either", "several times as many"],
    "docs/notebooks/": ["80 %"],
    "docs/python.md": ["80 %"],
    "docs/releases.md": ["95 %", "97 %"],  # a limit; an outcome with its date
    "docs/scale-out.md": ["64 MB of features", "64 times"],
    "docs/security.md": ["a count of 1.5", "10^6 times"],
    "docs/settings.md": ["| worst 10 %"],
    "docs/softmax.md": ["c = 0.03"],
    "docs/stability.md": ["3.11", "3.12", "3.13", "3.14"],
    "docs/terms.md": ["Dirichlet 0.1"],
    "docs/tutorial.md": ["3.11"],
    "docs/validation.md": ["a count of 1.5", "by -0.9", "10^6 times", "64 times"],
}


def typed(text, given=()):
    """Return the measured numbers of a page that no mark and no code surrounds."""
    text = CODE.sub("", MARKED.sub("", text))
    for phrase in given:
        text = text.replace(phrase, "")
    return MEASURED.findall(text)


@pytest.fixture(scope="module")
def lab_pages():
    """Import the module that makes the tables; benchmarks are no part of the package."""
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks import lab_pages
    finally:
        sys.path.remove(str(ROOT))
    return lab_pages


@pytest.fixture(scope="module")
def lab(lab_pages):
    """Return the module that stores rows."""
    return sys.modules["benchmarks.lab"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_measured_number_is_typed(page):
    name = page.relative_to(ROOT).as_posix()
    given = [one for start, phrases in GIVEN.items() if name.startswith(start) for one in phrases]
    assert typed(page.read_text("utf-8"), given) == []


@pytest.mark.parametrize(
    "planted",
    [
        "It has 97.86 on test images.",
        "It takes 98 % less work.",
        "A gain of 1.9 points, in 28 s and 42 MB.",
        "| `afl` | 68.8 |",
        "It was 5 times as fast.",
        "Cells add two points.",
    ],
)
def test_a_typed_number_is_found(planted):
    page = DOCS / "benchmarks" / "deep.md"
    assert typed(page.read_text("utf-8")) == []
    assert typed(page.read_text("utf-8").replace("\n\n", f"\n\n{planted}\n\n", 1))


def test_pages_are_made_of_the_stored_rows(tmp_path, lab_pages):
    command = [sys.executable, "-m", "benchmarks", "pages", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    pages = list(lab_pages.marked())
    assert pages
    for page in pages:
        made = (tmp_path / page.relative_to(DOCS)).read_text("utf-8")
        assert made == page.read_text("utf-8"), f"{page.name}: python -m benchmarks pages"


def test_every_table_is_on_a_page_and_every_stored_file_is_shown(lab, lab_pages):
    found = [
        mark["name"]
        for page in PAGES
        for mark in lab_pages.MARKED.finditer(page.read_text("utf-8"))
        if mark["name"] in lab_pages.TABLES
    ]
    assert sorted(found) == sorted(lab_pages.TABLES)
    stored = {path.stem for path in lab.LAB.glob("*.json")}
    assert stored == {table.source for table in lab_pages.TABLES.values()}


def test_a_changed_measurement_changes_the_page(tmp_path, monkeypatch, lab, lab_pages):
    folder = shutil.copytree(lab.LAB, tmp_path / "lab")
    path = folder / "grid.json"
    found = json.loads(path.read_text("utf-8"))
    found["rows"][0]["8 bits"] = 12.345
    path.write_text(json.dumps(found), encoding="utf-8")
    monkeypatch.setattr(lab, "LAB", folder)
    page = (DOCS / "benchmarks" / "features.md").read_text("utf-8")
    assert "12.35" not in page
    assert "12.35" in lab_pages.filled(page) or "12.34" in lab_pages.filled(page)


@pytest.mark.wide
@pytest.mark.parametrize(
    "command",
    [
        "layers filters --data images.npz --layers dense_8 --filters principal none",
        "layers personal --data images.npz --layers dense_8 --seeds 1 --methods fedacnnl",
        "secure --quick",
        "patches --quick",
        "tables --repeats 1",
        "grid",
    ],
)
def test_a_benchmark_runs_and_stores_its_rows(command, tmp_path):
    digits = fg.load_dataset("digits")
    images = digits.x.reshape(-1, 8, 8).astype(np.uint8)[:600]
    split = np.where(np.arange(600) < 400, 0, 2).astype(np.uint8)  # training and test
    np.savez(tmp_path / "images.npz", x=images, y=digits.y[:600], split=split)
    module, *arguments = [word.replace("_", " ") for word in command.split()]
    script = (
        f"from benchmarks import lab, {module}\n"
        f"lab.LAB = lab.Path({str(tmp_path)!r})\n"
        f"{module}.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments, "--store", "tried"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "tried.json").read_text("utf-8"))
    assert found["rows"]
    assert found["command"].endswith(shlex.join(arguments))
