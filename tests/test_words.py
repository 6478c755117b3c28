"""Plain words: private expressions of earlier versions do not come back into code or prose."""

import ast
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

import fedgram

ROOT = Path(__file__).parent.parent
SOURCE = Path(fedgram.__file__).parent
SPACE = r"[\s#]+"
SUFFIXES = (".py", ".toml", ".md", ".txt", ".js", ".css", ".html")

# Expressions as regular expressions, each with what to write instead. A space stands for any white
# space, also in a comment of several lines. An expression is found as a part of a name as well
# (`_dealt`, `GridCarrier`), with or without a capital at its beginning.
WORDS = {
    "deal(t|s|ing)": "partition, partitioned",
    "everybody('s)?": "all clients, federation, global",
    "told": "shown, recorded, description",
    "so many(?! that)": "number of",
    "(is|are) wanted": "expected",
    "of no sense": "invalid",
    "weighs? more": "the name of the method, such as FedHiP",
    "ballots?": "CorrectCounts",
    "settled": "tuned",
    "unsettled": "unwrap",
    "tailored": "per client",
    "cabinets?": "site store",
    "(by )?letters?(?!-spacing)": "message, request; character",
    "carriers?": "transport, engine",
    "plausible": "validation, valid",
    "pictured": "image_backbone_name",
    r"steady\(": "single_threaded_blas",
    "jointly": "batched, together",
}
# Expressions with exactly these letters, small or capital.
EXACT = {
    r"(?<!there\s)\b(is|are)[\s#]+none\b": "is missing, is invalid, is not a",
    "NOWHERE": "NO_SPACE",
    "(Deepening|OnTop)": "ResidualBlocks, StackedMethod",
    "Layered": "LayerwiseSolver",
}
# Names of classes, which are ordinary words elsewhere.
CLASSES = {
    "Hat": "HatMatrix",
    "Held": "a name that says what is held",
    "Office": "SiteEndpoint",
    "Roll": "Enrollment",
    "Shelf": "DiskStore",
    "Whole": "NormalEquations",
}


class Allowed(NamedTuple):
    """A true use: in files of this name, in lines with this regular expression."""

    path: str
    line: str
    reason: str


ALLOWED = (
    Allowed("src/fedgram/methods/fedala.py", "settled", "the key of a setting"),
    Allowed("src/fedgram/experiments/reader.py", "'(told|settled)'|\"told\"", "old record keys"),
    Allowed("src/fedgram/experiments/reader.py", '"settled"', "old record keys"),
    Allowed("src/fedgram/core/wire_types.py", r'"\w+": "fedgram\.', "wire names"),
    Allowed("*.py", r'@(codec\.)?register\("\w+/\d+"', "wire names"),
    Allowed("src/fedgram/secure/*.py", "letter", "a key's name in messages and in what is sealed"),
    Allowed("*", r"letters? (a-z|or digit|and digits)|(capital|small) letters?", "of a name"),
)


def patterns():
    """Yield a pattern for each expression, with what to write instead."""
    for word, advice in WORDS.items():
        first = re.search("[a-z]", word)
        assert first is not None
        at, letter = first.start(), first.group().upper()
        capital = word[:at] + letter + word[at + 1 :]
        spaced = word.replace(" ", SPACE), capital.replace(" ", SPACE)
        lower, upper = rf"(?<![A-Za-z]){spaced[0]}", rf"(?<![A-Z]){spaced[1]}"
        yield re.compile(f"(?:{lower}|{upper})(?![a-z])"), advice
    for word, advice in EXACT.items():
        yield re.compile(word), advice


PATTERNS = list(patterns())


def found_words(path, text):
    """Yield line and advice for each expression of a text that is to be replaced."""
    lines = text.splitlines()
    for pattern, advice in PATTERNS:
        for match in pattern.finditer(text):
            number = text.count("\n", 0, match.start()) + 1
            if not is_allowed(path, lines[number - 1]):
                yield number, f"{' '.join(match.group().split())!r}: write {advice}"
    if path.endswith(".py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and (advice := CLASSES.get(node.name.strip("_"))):
                yield node.lineno, f"class {node.name}: write {advice}"


def is_allowed(path, line):
    """Return whether a line of a file is one of the true uses."""
    return any(fnmatch(path, one.path) and re.search(one.line, line) for one in ALLOWED)


def texts():
    """Return the files that people read, by part: packages of the source, and pages."""
    parts = {}
    for path in sorted(SOURCE.rglob("*")):
        if path.suffix in SUFFIXES:
            inside = path.relative_to(SOURCE)
            part = inside.parts[0] if len(inside.parts) > 1 else "fedgram"
            parts.setdefault(part, {})[f"src/fedgram/{inside.as_posix()}"] = path
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for path in pages:
        name = path.relative_to(ROOT).as_posix()
        parts.setdefault("pages", {})[name] = path
    return parts


TEXTS = texts()


@pytest.mark.parametrize("part", TEXTS)
def test_words_are_plain(part):
    found = [
        f"{name}:{number}: {advice}"
        for name, path in TEXTS[part].items()
        for number, advice in found_words(name, path.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("def _dealt(): ...", "dealt"),
        ("dealt_samples = 1", "dealt"),
        ("# Everybody's samples", "Everybody's"),
        ('"""Return what is told."""', "told"),
        ("# so\n# many samples", "so # many"),
        ('error = f"{x}: a table is wanted"', "is wanted"),
        ("x = 1  # an answer of no sense", "of no sense"),
        ("# what is none", "is none"),
        ("# the own sample weighs more", "weighs more"),
        ("class BallotBox: ...", "Ballot"),
        ("def unsettled(x): ...", "unsettled"),
        ("Settled = 1", "Settled"),
        ("Tailored = 1", "Tailored"),
        ("class Cabinet: ...", "Cabinet"),
        ("# every request is a letter", "letter"),
        ("# remote means by letter", "by letter"),
        ("class GridCarrier: ...", "Carrier"),
        ("class Carrier: ...", "Carrier"),
        ("import plausible", "plausible"),
        ("def pictured(): ...", "pictured"),
        ("with steady(): ...", "steady("),
        ("import jointly", "jointly"),
        ("NOWHERE = 1", "NOWHERE"),
        ("class Deepening: ...", "Deepening"),
        ("class OnTop: ...", "OnTop"),
        ("class Layered: ...", "Layered"),
        ("class Hat: ...", "class Hat"),
        ("class _Whole: ...", "class _Whole"),
        ("class Shelf: ...", "class Shelf"),
        ("class Office: ...", "class Office"),
        ("class Roll: ...", "class Roll"),
        ("class Held: ...", "class Held"),
    ],
)
def test_a_planted_word_is_found(text, word):
    found = [advice for _, advice in found_words("src/fedgram/core/planted.py", text)]
    assert len(found) == 1
    assert word in found[0]


def test_the_line_of_a_word_is_given_and_what_to_write():
    found = found_words("docs/page.md", "# Title\n\nSamples are dealt.\n")
    assert list(found) == [(3, "'dealt': write partition, partitioned")]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/fedgram/core/a.py", "# The hat matrix is held whole: idealtypes, ready and steady."),
        ("src/fedgram/core/a.py", "# so many that a sum overflows; 0 where there is none; is None"),
        ("src/fedgram/core/a.py", '@register("Settled/1")\nclass Tuned: ...'),
        ("src/fedgram/experiments/reader.py", 'OLD = {"told": "description"}'),
        ("src/fedgram/report/page.css", "h1 { letter-spacing: 0; }"),
        ("docs/page.md", "Use up to 63 letters a-z, digits and '-'."),
    ],
)
def test_true_uses_are_allowed(path, text):
    assert list(found_words(path, text)) == []


def test_a_true_use_is_allowed_in_its_file_only():
    assert list(found_words("src/fedgram/core/a.py", 'OLD = {"told": "description"}'))
