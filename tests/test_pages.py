"""Every block of code of every page: it runs, or it is a command that cannot run here, and is read.

Blocks of `bash` and `python` of a page run in their order, in one folder with the files that the
page supposes. A block without a language is for commands that need a network, other machines or a
service: each of its `fedgram` commands must exist, with its options.
"""

import doctest
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import pytest

import fedgram as fg
from fedgram.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LANGUAGES = {"", "bash", "python", "toml", "json", "bibtex"}
ELSEWHERE = {  # pages whose commands run in another test, which looks at what they print
    "by-files.md": "tests/test_docs.py",
    "tables.md": "tests/test_docs.py",
    "report.md": "tests/test_docs.py",
    "federation.md": "tests/deploy/test_federation_flower.py",
}
DOCTESTED = ("README.md", "python.md")  # in every run of the tests: pyproject.toml
NEED_VISION = {"tutorial.md", "README.md"}  # the embedded backbone for images, torch among it


class Block(NamedTuple):
    """A block of code of a page."""

    page: Path
    line: int
    language: str
    file: str  # where a reader saves it, if the page says so
    text: str

    def __str__(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page):
    """Return the fenced blocks of a page."""
    found, start = [], None
    for number, line in enumerate(page.read_text("utf-8").split("\n"), 1):
        if start is None and (fence := re.fullmatch(r"```(\w*)(?: file=(\S+))?", line)):
            start, lines = (number, *fence.groups()), []
        elif line == "```" and start is not None:
            found.append(Block(page, start[0], start[1], start[2] or "", "\n".join(lines) + "\n"))
            start = None
        elif start is not None:
            lines.append(line)
        else:
            assert not line.lstrip().startswith("```"), f"{page.name}:{number}: {line}"
    assert start is None, f"{page}: a block without an end"
    return found


BLOCKS = [block for page in PAGES for block in blocks(page)]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.py"))
RUN = [page for page in PAGES if any(b.language in ("bash", "python") for b in blocks(page))]


def commands(text):
    """Yield the fedgram commands of a shell text, as lists of words."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        words = words[:-1] if words and words[-1] == "&" else words
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words and Path(words[0]).name == "fedgram":
            yield words[1:]


def read(words, command=main):
    """Read the words of a command as the program does, without running it."""
    context = click.Context(command, info_name="fedgram")
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.get_command(context, words[0])
        assert inner is not None, f"{words[0]}: no such command"
        return read(words[1:], inner)
    command.make_parser(context).parse_args(list(words))
    return None


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_code_that_can_be_read(block):
    assert block.language in LANGUAGES
    if block.language == "python" and ">>>" not in block.text:
        compile(block.text, str(block), "exec")
    if block.language == "toml":
        tomllib.loads(block.text)
    shown = re.search(r"[│─]|^(for|python) |<<'END'", block.text, re.MULTILINE)  # output, scripts
    if block.language in ("", "bash") and not shown:
        for words in commands(block.text):
            read(words)


def named_commands(text):
    """Yield the commands that sentences and indented lines of a page name, as lists of words.

    `fedgram federation status|publish` names two. What stands for something is in capitals.
    """
    outside = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    lines = re.findall(r"^ {4,}(fedgram .*)$", outside, re.M)
    for found in [*re.findall(r"`(fedgram [^`]+)`", outside), *lines]:
        *first, last = found.partition("  #")[0].replace("\\", " ").split(" ")
        for end in last.split("|"):
            yield shlex.split(" ".join([*first, end]))[1:]


def unknown(words, command=main):
    """Return the words of a command that the program does not have: commands and options."""
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.get_command(click.Context(command), words[0])
        return [words[0]] if inner is None else unknown(words[1:], inner)
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    known |= {"-h", "--help", "--version"}
    asked = [word.partition("=")[0] for word in words if re.match("--?[a-z]", word)]
    short = {option for option in known if re.fullmatch("-[a-z]", option)}
    return [one for one in asked if one not in known and one[:2] not in short]


NO_COMMANDS = {"history", "history,"}  # the first words of files and of what is signed


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_commands_that_sentences_name_exist(page):
    found = [words for words in named_commands(page.read_text("utf-8")) if words[0].islower()]
    assert not [words for words in found if words[0] not in NO_COMMANDS and unknown(words)]


def test_a_command_in_a_sentence_that_does_not_exist_is_found():
    text = "Call `fedgram federation status|publishh` or\n\n    fedgram ledger joi a  # note\n"
    named = list(named_commands(text))
    assert named == [["federation", "status"], ["federation", "publishh"], ["ledger", "joi", "a"]]
    assert [unknown(words) for words in named] == [[], ["publishh"], ["joi"]]
    assert unknown(["run", "--metod", "afl", "-sdata.clients=3"]) == ["--metod"]


INTERNAL = {"report.md": {"fedgram.report.charts.curves"}}  # the page says that it may change


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_import_what_is_public(page):
    text = "\n".join(block.text for block in blocks(page))
    found = set(re.findall(r"^(?:>>> )?(?:from|import) (fedgram[\w.]*)", text, re.M))
    assert found <= {"fedgram", "fedgram.checks"} | INTERNAL.get(page.name, set())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_names_in_pages_exist(page):
    named = set(re.findall(r"\bfg\.(\w+)", page.read_text("utf-8")))
    assert named <= set(fg.__all__)


def test_a_command_that_does_not_exist_is_found():
    (words,) = commands("fedgram run --metod afl  # a comment\n")
    with pytest.raises(click.NoSuchOption, match="--metod"):
        read(words)
    with pytest.raises(AssertionError, match="runn"):
        read(["runn"])


def shell(script, folder):
    """Run a script as a reader would, with this environment's commands first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def run(page, folder):
    """Run the blocks of a page in their order; those of Python share their names."""
    session = doctest.DocTestParser()
    globs, names = {}, {"__name__": "__main__"}
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.text, "utf-8")
        elif block.language == "bash":
            shell(block.text, folder)
        elif block.language == "python" and ">>>" in block.text:
            if page.name in DOCTESTED:
                continue
            options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
            runner = doctest.DocTestRunner(optionflags=options)
            test = session.get_doctest(block.text, globs, str(block), str(page), block.line)
            failed = runner.run(test, clear_globs=False)
            globs.update(test.globs)
            assert not failed.failed, f"{block}: see the output of doctest"
        elif block.language == "python":
            exec(compile(block.text, str(block), "exec"), names)


# Files that pages suppose


def photos(folder, *, names=("photos",), number=150):
    """Draw digits into folders of classes."""
    image = pytest.importorskip("PIL.Image")
    digits = fg.load_dataset("digits")
    for name in names:
        for i in range(number):
            place = folder / name / f"digit {digits.y[i]}" / f"{i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.repeat(np.repeat(16 * digits.x[i].reshape(8, 8), 4, 0), 4, 1)
            image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place)


def idx(folder):
    """Write the digits as MNIST's files."""
    digits = fg.load_dataset("digits")
    folder.mkdir()
    for part, rows in {"train": slice(0, 300), "t10k": slice(300, 400)}.items():
        images = digits.x[rows].reshape(-1, 8, 8).astype(np.uint8) * 15
        head = b"".join(n.to_bytes(4, "big") for n in (2051, len(images), 8, 8))
        (folder / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        labels = digits.y[rows].astype(np.uint8)
        head = b"".join(n.to_bytes(4, "big") for n in (2049, len(labels)))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


def reviews(folder):
    """Write a table of texts."""
    texts = {
        "good": "a wonderful stay and friendly people",
        "bad": "dirty rooms and a cold breakfast",
    }
    rows = [f"{i},{label},{text} {i}" for i in range(20) for label, text in texts.items()]
    (folder / "reviews.csv").write_text("\n".join(["id,stars,text", *rows, ""]))


def patients(folder):
    """Write a table of numbers."""
    rng = np.random.default_rng(0)
    rows = [
        f"{age:.0f},{marker:.2f},{'well' if age / 50 + marker < 2 else 'readmitted'}"
        for age, marker in zip(rng.normal(60, 15, 120), rng.normal(1, 0.4, 120), strict=True)
    ]
    (folder / "patients.csv").write_text("\n".join(["age,marker,outcome", *rows, ""]))


def features(folder):
    digits = fg.load_dataset("digits")
    np.savez(folder / "features.npz", x=digits.x[:300], y=digits.y[:300], classes=digits.classes)


def for_deep(folder):
    photos(folder, number=60)
    idx(folder / "mnist")
    digits = fg.load_dataset("digits")
    np.savez(
        folder / "images.npz",
        x=15 * digits.x[:300].reshape(-1, 8, 8).astype(np.uint8),
        y=digits.y[:300],
    )


def for_export(folder):
    photos(folder)
    (folder / "new.png").write_bytes(next((folder / "photos").rglob("*.png")).read_bytes())
    shell(
        "fedgram features photos --backbone pixels:8 -o photos.npz\n"
        "fedgram run -m auto -m afl -s data.source=photos.npz -s data.clients=3 --out runs/first\n"
        "cp runs/first/afl/shared.safetensors north.safetensors",
        folder,
    )


def for_python(folder):
    photos(folder)
    (folder / "new").mkdir()
    for k, path in enumerate(sorted((folder / "photos").rglob("*.png"))[:2], 1):
        (folder / "new" / f"{k}.png").write_bytes(path.read_bytes())
    shell("fedgram features photos --backbone pixels:8 -o photos.npz", folder)


def for_predict(folder):
    photos(folder, names=("photos", "unlabelled"))
    reviews(folder)
    patients(folder)
    shell(
        "run() { fedgram run -m afl -s data.source=$1.npz -s data.clients=2 --out runs/$1\n"
        "  cp runs/$1/afl/shared.safetensors $1.safetensors; }\n"
        "fedgram features photos --backbone pixels:16 -o photos.npz; run photos\n"
        "fedgram features reviews.csv --text text --label stars -o reviews.npz; run reviews\n"
        "fedgram features patients.csv --label outcome -o patients.npz; run patients\n"
        "cp photos.npz features.npz; cp photos.safetensors south.safetensors",
        folder,
    )


def for_readme(folder):
    photos(folder, names=("photos", "new_photos"))
    reviews(folder)
    patients(folder)


PREPARED = {
    "README.md": for_readme,
    "deep.md": for_deep,
    "deepafl.md": features,
    "export.md": for_export,
    "python.md": for_python,
    "predict.md": for_predict,
    "report.md": lambda folder: None,
}


@pytest.mark.docs
@pytest.mark.parametrize(
    "page", [page for page in RUN if page.name not in ELSEWHERE], ids=lambda page: page.name
)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    if page.name in NEED_VISION:
        pytest.importorskip("efficientnet_lite_pytorch", reason="needs the extra [vision]")
    monkeypatch.chdir(tmp_path)
    PREPARED.get(page.name, lambda folder: None)(tmp_path)
    run(page, tmp_path)


@pytest.mark.docs
@pytest.mark.parametrize("script", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(script, tmp_path):
    shell(f"python {shlex.quote(str(script))}", tmp_path)


def test_every_notebook_has_a_page():
    shown = [
        name
        for page in (ROOT / "docs" / "notebooks").glob("*.md")
        for name in re.findall(r"^<!-- notebook: (\w+) -->$", page.read_text("utf-8"), re.M)
    ]
    assert sorted(shown) == [path.stem for path in NOTEBOOKS]


@pytest.mark.parametrize("page", DOCTESTED)
def test_what_is_doctested_always_is_among_the_settings_of_the_tests(page, pytestconfig):
    found = [Path(name).name for name in pytestconfig.getini("testpaths")]
    assert page in found


@pytest.mark.parametrize("page", ELSEWHERE)
def test_what_runs_elsewhere_is_read_there(page):
    text = (ROOT / ELSEWHERE[page]).read_text("utf-8")
    assert f'"docs" / "{page}"' in text


FIGURE = ROOT / "docs" / "clients.svg"
RENEW = "FEDGRAM_RENEW_SNAPSHOTS"


def accuracies(text):
    """Return the rows of accuracies of the table of a run."""
    return re.findall(r"^ (\w+ +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+) ", text, re.MULTILINE)


@pytest.mark.docs
def test_the_table_and_the_figure_of_the_readme_are_those_of_a_run(tmp_path):
    stored = accuracies((ROOT / "README.md").read_text("utf-8"))
    assert len(stored) == 5
    assert accuracies(shell("COLUMNS=80 fedgram run", tmp_path)) == stored
    federated = fg.federate(fg.load_dataset("digits"), clients=20, alpha=0.1)
    results = fg.run(["local", "afl", "fedhip", "apfl", "auto"], federated)
    results.plot().save(tmp_path / "clients.svg")
    made = (tmp_path / "clients.svg").read_text("utf-8")
    if os.environ.get(RENEW):
        FIGURE.write_text(made, "utf-8")
    assert made == FIGURE.read_text("utf-8"), f"renew it: {RENEW}=1, this test; git diff {FIGURE}"
