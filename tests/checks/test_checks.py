"""Laws as a command: what comes with fedgram keeps them, planted mistakes are caught by name."""

import json
import re
from textwrap import dedent, indent

import pytest
from click.testing import CliRunner

from fedgram.checks import LAWS, Finding, check, laws
from fedgram.cli import check as check_command
from fedgram.cli import main
from fedgram.errors import LawError
from fedgram.federation.method import create_method, names

NAMES = [law.__name__.replace("_", " ") for law in LAWS]
FROZEN = "parameters are frozen"
SEED = "same seed same bytes"
ORDER = "order of clients and number of workers do not matter"
PERSONAL = "personalizing changes nothing"
TEST_DATA = "test data do not matter"
TINY = "tiny and one sided clients work"
LATE = "late clients get a model and change no other"
PARTITION = "any partition gives the same totals"
REPLIES = "order of replies does not matter"
REST = "rest may be spread in any way"


def cli(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)), env={"COLUMNS": "200"})


def findings(done):
    """Return the outcome and the detail of each law from the JSON of one method."""
    ((_, found),) = json.loads(done.stdout)["checks"].items()
    return {finding["law"]: (finding["outcome"], finding["detail"]) for finding in found}


def broken(done):
    return {law for law, (outcome, _) in findings(done).items() if outcome == "broken"}


# What comes with fedgram


def test_everything_that_comes_with_fedgram_is_checked(monkeypatch):
    """Here the laws are stubs but for three methods; tests/laws tries each law on each method."""
    real = check_command.check_laws
    tried = {type(create_method(name)) for name in ("afl", "local", "apfl-linear")}

    def some(method):
        return real(method) if type(method) in tried else [Finding(law="stub", outcome="kept")]

    monkeypatch.setattr(check_command, "check_laws", some)
    all_kept_by_every_method(cli("check", "--all"), stubs=len(names()) - 3)


@pytest.mark.wide
def test_everything_that_comes_with_fedgram_keeps_the_laws():
    all_kept_by_every_method(cli("check", "--all"), stubs=0)


def all_kept_by_every_method(done, stubs):
    assert (done.exit_code, done.stderr) == (0, "")
    assert "broken" not in done.stdout
    assert [line for line in done.stdout.splitlines() if not line.startswith(" ")] == names()
    assert done.stdout.count("stub") == stubs
    assert done.stdout.count(SEED) == len(names()) - stubs


def test_json_tells_of_every_law_of_every_method():
    done = cli("check", "afl", "local", "afl", "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    checks = json.loads(done.stdout)["checks"]
    assert list(checks) == ["afl", "local"]  # each once
    for found in checks.values():
        assert [finding["law"] for finding in found] == NAMES
        assert all(set(finding) == {"law", "outcome", "detail"} for finding in found)
    assert {finding["outcome"] for finding in checks["afl"]} == {"kept"}


def test_laws_of_sums_do_not_apply_where_nothing_is_summed():
    outcomes = {finding.law: finding.outcome for finding in check(create_method("local"))}
    apart = {law for law, outcome in outcomes.items() if outcome == "does not apply"}
    assert apart == {PARTITION, REPLIES, REST}
    assert {outcomes[law] for law in outcomes.keys() - apart} == {"kept"}


# Planted mistakes

HEADER = '''
import sys
import threading
from dataclasses import dataclass, replace

import numpy as np

from fedgram.models.adjusted import Blend
from fedgram.models.linear import Linear
from fedgram.methods.afl import AFL
from fedgram.core.statistics import Statistics

CALLS = []


@dataclass(frozen=True, kw_only=True)
class Planted(AFL):
    """Planted: a method with one mistake."""
'''
STATEFUL = """
def statistics(self, client, _):
    client.state["seen"] = np.zeros(2)
    return super().statistics(client, _)
"""


@pytest.fixture
def plant(tmp_path):
    def write(body, header=HEADER):
        """Return the path of a file with a method of this body."""
        path = tmp_path / "planted.py"
        path.write_text(header + indent(dedent(body), "    "), encoding="utf-8")
        return path

    return write


def test_the_method_that_mistakes_are_planted_in_keeps_the_laws(plant):
    done = cli("check", plant(STATEFUL), "--json")
    assert (done.exit_code, broken(done)) == (0, set())


PLANTED = {
    "peeks at test data in the sites of the federation": (
        """
        def fit(self, federation):
            sites = getattr(federation, "_engine", federation)._sites
            codes = np.concatenate([site.test.labels.codes for site in sites])
            (shared,) = super().fit(federation)
            yield replace(shared, weights=shared.weights + np.mean(codes))
        """,
        {TEST_DATA},
    ),
    "peeks at test data in its caller": (
        """
        def personalize(self, client, shared):
            caller = sys._getframe(1).f_locals.values()
            codes = next(value.test.labels.codes for value in caller if hasattr(value, "test"))
            return replace(shared, origin=str(codes.sum()))
        """,
        {TEST_DATA},
    ),
    "keeps the first reply": (
        """
        def fit(self, federation):
            _, total = next(federation.gather(self.statistics))
            yield Linear.of(total, ridge=self.ridge)
        """,
        {PARTITION, REPLIES, REST},
    ),
    "prefers the client that was listed first": (
        """
        def fit(self, federation):
            frame, first = sys._getframe(), "c0"
            while frame := frame.f_back:
                if hasattr(frame.f_locals.get("sites"), "members"):
                    first = frame.f_locals["sites"].members[0].id
            (shared,) = super().fit(federation)
            yield replace(shared, weights=shared.weights * (1 + (first == "c0")))
        """,
        {ORDER},
    ),
    "depends on the thread it runs in": (
        """
        def personalize(self, client, shared):
            alone = threading.current_thread() is threading.main_thread()
            return replace(shared, weights=shared.weights * (1 + alone))
        """,
        {ORDER},
    ),
    "counts its runs": (
        """
        def fit(self, federation):
            CALLS.append(1)
            yield Linear.of(federation.sum(self.statistics), ridge=self.ridge * len(CALLS))
        """,
        {SEED, ORDER, TEST_DATA, LATE, PARTITION, REPLIES, REST},
    ),
    "draws numbers that nobody seeded": (
        """
        def personalize(self, client, shared):
            noise = np.random.default_rng().normal(size=shared.weights.shape)
            return replace(shared, weights=shared.weights + noise)
        """,
        {SEED, ORDER, PERSONAL, TEST_DATA, LATE, REPLIES, REST},
    ),
    "writes inside its state while personalizing": (
        STATEFUL
        + """
def personalize(self, client, shared):
    for seen in client.state.values():
        seen += 1
    return shared
""",
        {PERSONAL},
    ),
    "averages local heads and calls it a total": (
        """
        def fit(self, federation):
            parts = [part for _, part in sorted(federation.gather(self.statistics))]
            heads = [part.solve(self.ridge) for part in parts]
            shared = Linear.of(sum(parts), ridge=self.ridge)
            yield replace(shared, weights=np.mean(heads, axis=0))
        """,
        {REST},
    ),
    "takes a ridge for each client": (
        """
        def fit(self, federation):
            ridge = self.ridge * len(federation.clients)
            yield Linear.of(federation.sum(self.statistics), ridge=ridge)
        """,
        {PARTITION, REST},
    ),
    "changes what is shared while personalizing": (
        """
        def personalize(self, client, shared):
            shared.weights[-1] = 0
            return shared
        """,
        {PERSONAL},
    ),
    "has no usable model where a class is absent": (
        """
        def personalize(self, client, shared):
            counts = np.bincount(client.samples.labels.codes, minlength=10)
            with np.errstate(all="ignore"):
                return replace(shared, weights=shared.weights + 0 / counts)
        """,
        {TINY},
    ),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_method_is_caught_that(plant, mistake):
    body, expected = PLANTED[mistake]
    done = cli("check", plant(body), "--json")
    assert broken(done) == expected
    assert done.exit_code == LawError.exit_code == 9
    assert done.stderr == f"fedgram: error: number of broken laws: {len(expected)}\n"


def test_a_broken_law_is_named_in_the_table_with_what_was_found(plant):
    body, _ = PLANTED["takes a ridge for each client"]
    path = plant(body)
    done = cli("check", "local", path)
    assert done.exit_code == 9
    first, shown = done.stdout.split(f"{path}\n")
    assert "broken" not in first
    assert re.findall(r"^  broken +(.*): (.*)$", shown, re.MULTILINE) == [
        (PARTITION, "3 different digests over 9 partitions"),
        (REST, "3 different models of a client whose own data are fixed"),
    ]


# Planted mistakes that end in an exception: whichever law meets it is broken, and says how


@pytest.mark.parametrize(
    ("change", "error"),
    [('client.state["seen"] = 1', "TypeError"), ("client.state = {}", "FrozenInstanceError")],
)
def test_a_method_that_sets_state_while_personalizing_is_caught(plant, change, error):
    body = f"def personalize(self, client, shared):\n    {change}\n    return shared\n"
    done = cli("check", plant(body), "--json")
    assert done.exit_code == 9
    assert findings(done)[FROZEN] == ("kept", "")
    outcome, detail = findings(done)[PERSONAL]
    assert outcome == "broken"
    assert detail.startswith(f"{error}: ")


def test_a_method_that_crashes_where_there_is_only_one_class_is_caught(plant):
    body = """
        def statistics(self, client, _):
            1 / (len(np.unique(client.samples.labels.codes)) - 1)
            return super().statistics(client, _)
    """
    done = cli("check", plant(body), "--json")
    assert done.exit_code == 9
    assert findings(done)[TINY] == ("broken", "ZeroDivisionError: division by zero")
    assert findings(done)[REST] == ("kept", "")  # nobody has one class only there


def test_a_method_that_fails_a_late_client_is_caught(plant):
    body = STATEFUL + dedent(
        """
        def personalize(self, client, shared):
            return replace(shared, origin=str(client.state["seen"]))
        """
    )
    done = cli("check", plant(body), "--json")
    assert done.exit_code == 9
    assert findings(done)[LATE] == ("broken", "KeyError: 'seen'")
    assert broken(done) <= {LATE, TEST_DATA}  # the other law that has late clients


def test_a_late_client_without_a_usable_model_is_caught(plant):
    body = STATEFUL + dedent(
        """
        def personalize(self, client, shared):
            return shared if client.state else replace(shared, weights=shared.weights + np.nan)
        """
    )
    done = cli("check", plant(body), "--json")
    assert broken(done) == {LATE}
    assert findings(done)[LATE][1] == "the late client has no usable model"


def test_a_method_that_crashes_breaks_every_law_but_that_of_its_parameters(plant):
    body = """
        def fit(self, federation):
            raise RuntimeError("not today\\nnor tomorrow")
    """
    done = cli("check", plant(body), "--json")
    assert done.exit_code == 9
    assert broken(done) == set(NAMES) - {FROZEN}
    assert {detail for _, detail in findings(done).values()} == {"", "RuntimeError: not today"}


# A method is a frozen, keyword-only dataclass with a docstring

OPEN = """
from dataclasses import dataclass

from fedgram import Method
from fedgram.methods.afl import AFL


@dataclass{settings}
class Planted(Method):
    {doc}ridge: float = 100.0
    lift = AFL.lift
    shared_lift = AFL.shared_lift
    statistics, fit, personalize = AFL.statistics, AFL.fit, AFL.personalize
"""
DOC = '"""Planted: a method with one mistake."""\n    '


def loose(plant, settings="(frozen=True, kw_only=True)", doc=DOC):
    return plant("", OPEN.format(settings=settings, doc=doc))


def test_a_method_that_can_be_changed_is_caught(plant):
    done = cli("check", loose(plant, settings="(kw_only=True)"), "--json")
    assert (done.exit_code, broken(done)) == (9, {FROZEN})


def test_a_frozen_keyword_only_dataclass_with_a_docstring_is_as_it_should_be(plant):
    laws.parameters_are_frozen(create_method(str(loose(plant))))


def test_a_method_whose_parameters_have_places_is_caught(plant):
    with pytest.raises(LawError, match="keyword"):
        laws.parameters_are_frozen(create_method(str(loose(plant, settings="(frozen=True)"))))


def test_a_method_without_a_docstring_is_caught(plant):
    with pytest.raises(LawError, match="docstring"):
        laws.parameters_are_frozen(create_method(str(loose(plant, doc=""))))


UNDECLARED = """
def sums(self, client, _):
    return super().statistics(client, _)

def fit(self, federation):
    yield Linear.of(federation.sum(self.sums), ridge=self.ridge, lift=self.lift)
"""


def test_a_step_that_is_not_declared_is_caught(plant):
    header = HEADER.replace("import numpy", "from fedgram import Linear\nimport numpy", 1)
    with pytest.raises(LawError, match="without @step: sums"):
        laws.steps_are_declared(create_method(str(plant(UNDECLARED, header))))


# Laws that do not apply


def test_a_method_that_does_not_claim_to_stand_on_sums_may_depend_on_the_partition(plant):
    body = """
        def fit(self, federation):
            parts = [part for _, part in sorted(federation.gather(self.statistics))]
            heads = [part.solve(self.ridge) for part in parts]
            shared = Linear.of(sum(parts), ridge=self.ridge)
            yield replace(shared, weights=np.mean(heads, axis=0), origin="")
    """
    done = cli("check", plant(body), "--json")
    assert (done.exit_code, broken(done)) == (0, set())
    outcomes = {law: outcome for law, (outcome, _) in findings(done).items()}
    assert {outcomes[law] for law in (PARTITION, REPLIES, REST)} == {"does not apply"}


# What cannot be checked

UNUSABLE = {
    "not Python": ("def def", "SyntaxError"),
    "an import that fails": ("import no_such_module", "no_such_module"),
    "an error of several lines": ('raise ValueError("one\\ntwo")', "one two"),
    "no method": ("x = 1", "found 0"),
    "two methods": (
        "from fedgram.methods.afl import AFL\nclass A(AFL): ...\nclass B(AFL): ...",
        "found 2",
    ),
    "no dataclass": (
        "from fedgram import Method\nclass A(Method):\n    def fit(self, f): ...",
        "one that is not a dataclass",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_a_file_without_a_usable_method_gives_one_line(tmp_path, case):
    content, cause = UNUSABLE[case]
    path = tmp_path / "planted.py"
    path.write_text(content, encoding="utf-8")
    done = cli("check", path)
    assert done.exit_code == 2, done.exception
    assert done.stderr.startswith(f"fedgram: error: {path}: ")
    assert cause in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ([], "name a method"),
        (["alf"], "did you mean 'afl'"),
        (["missing.py"], "missing.py: there is no such file"),
        (["folder.py"], "folder.py: "),
    ],
)
def test_what_is_not_there_gives_one_line(tmp_path, monkeypatch, arguments, cause):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.py").mkdir()
    done = cli("check", *arguments, "--json")
    assert (done.exit_code, done.stdout) == (2, ""), done.exception
    assert done.stderr.startswith("fedgram: error: ")
    assert cause in done.stderr
    assert done.stderr.count("\n") == 1
