"""The ledger: any course of joining and leaving ends in the sum of those who are left."""

import contextlib
import json
import shutil
import sqlite3
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from ledger_support import (
    BOUND,
    CLASSES,
    CLIENTS,
    Operation,
    Reference,
    Sent,
    contents,
    found,
    rows,
    summed,
)

from fedgram import Features, Grid, Labels, Lift, Statistics
from fedgram.core import codec
from fedgram.errors import DataError, ExactnessError, FedgramError, LedgerError, MismatchError
from fedgram.ledger import store
from fedgram.ledger.certificate import Certificate
from fedgram.ledger.contribution import Contribution, random_tag
from fedgram.ledger.ledger import Ledger

WIDTH = 9

labels = st.lists(st.sampled_from(CLASSES), min_size=1, max_size=4)
lists = st.lists(st.sampled_from(CLASSES), unique=True)


def files(path):
    return [file.name for file in path.parent.iterdir()]


# Any course of events


class Course(RuleBasedStateMachine):
    """A ledger beside its reference, which holds nothing but lists of samples."""

    @initialize(fixed=st.sampled_from([None, CLASSES]))
    def create(self, fixed):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "ledger"
        self.ledger = Ledger.create(self.path, classes=fixed)
        self.reference = Reference(WIDTH, fixed)
        self.numbers = 0
        self.certificates = []

    def fresh(self, labels, listed):
        first, self.numbers = self.numbers, self.numbers + len(labels)
        numbered = tuple((first + k, name) for k, name in enumerate(labels))
        return Sent(numbered, tuple(dict.fromkeys([*listed, *labels])))

    def perform(self, what, client, sent=None):
        operation = Operation(what, client, sent)
        self.reference.apply(operation)
        return operation.apply(self.ledger, WIDTH)

    def member(self, data):
        return data.draw(st.sampled_from(sorted(self.reference.held)))

    @precondition(lambda self: len(self.reference.held) < len(CLIENTS))
    @rule(data=st.data(), labels=labels, listed=lists)
    def join(self, data, labels, listed):
        client = data.draw(st.sampled_from(sorted(set(CLIENTS) - set(self.reference.held))))
        self.perform("join", client, self.fresh(labels, listed))

    @precondition(lambda self: set(self.reference.left) - set(self.reference.held))
    @rule(data=st.data())
    def rejoin_with_the_very_same(self, data):
        gone = sorted(set(self.reference.left) - set(self.reference.held))
        client = data.draw(st.sampled_from(gone))
        self.perform("join", client, data.draw(st.sampled_from(self.reference.left[client])))

    @precondition(lambda self: self.reference.held)
    @rule(data=st.data(), labels=labels, listed=lists)
    def stream(self, data, labels, listed):
        self.perform("stream", self.member(data), self.fresh(labels, listed))

    @precondition(lambda self: self.reference.held)
    @rule(data=st.data(), labels=labels, listed=lists)
    def replace(self, data, labels, listed):
        self.perform("replace", self.member(data), self.fresh(labels, listed))

    @precondition(lambda self: self.reference.held)
    @rule(data=st.data(), listed=lists)
    def remove(self, data, listed):
        client = self.member(data)
        held = self.reference.samples(client)
        if held:
            some = data.draw(st.lists(st.sampled_from(held), unique=True, min_size=1))
            names = dict.fromkeys([*listed, *(name for _, name in some)])
            self.perform("remove", client, Sent(tuple(some), tuple(names)))

    @precondition(lambda self: self.reference.held)
    @rule(data=st.data())
    def leave(self, data):
        self.perform("leave", self.member(data))

    @precondition(lambda self: self.reference.held or self.reference.left)
    @rule(data=st.data())
    def forget(self, data):
        known = sorted({*self.reference.held, *self.reference.left})
        certificate = self.perform("forget", data.draw(st.sampled_from(known)))
        assert certificate.total_digest == self.reference.total.digest()
        self.certificates.append(certificate)

    @rule()
    def reopen(self):
        states = [state(self.ledger, self.path)]
        for _ in range(2):  # the first one may compact the file
            self.ledger.__exit__(None, None, None)
            self.ledger = Ledger.open(self.path)
            states.append(state(self.ledger, self.path))
        assert states[0][:-2] == states[1][:-2]
        assert states[1] == states[2]

    @invariant()
    def the_total_is_that_of_the_surviving_samples_summed_at_once(self):
        expected = self.reference.total
        assert self.ledger.total == expected
        assert self.ledger.verify() == expected.digest()
        assert self.ledger.members == sorted(self.reference.held)
        assert [(e.what, e.client) for e in self.ledger.history()[1:]] == self.reference.history

    @invariant()
    def what_is_kept_is_in_the_file_and_what_is_erased_is_not(self):
        data = contents(self.path)
        assert files(self.path) == ["ledger"]
        assert all(found(sent, WIDTH, data) for sent in self.reference.kept() if sent.samples)
        assert not any(found(sent, WIDTH, data) for sent in self.reference.gone())

    @invariant()
    def every_certificate_stays_good(self):
        for certificate in self.certificates:
            self.ledger.verify(certificate)

    def teardown(self):
        if hasattr(self, "folder"):
            self.ledger.__exit__(None, None, None)
            self.folder.cleanup()


TestCourse = Course.TestCase
TestCourse.settings = settings(stateful_step_count=20)


# A small ledger to try things on


def of(*names, number=1, width=WIDTH):
    """Return the statistics of a sample of each of these classes, numbered from `number`."""
    samples = [(number + k, name) for k, name in enumerate(names)]
    return summed(samples, tuple(dict.fromkeys(names)), width)


def loud(count):
    """Return the statistics of samples with the largest features there are."""
    like = of("ant")
    rows = Features(np.full((count, WIDTH), BOUND, np.int8), like.space)
    return Statistics.of(rows, Labels(np.zeros(count, int), ("ant",)))


NORTH, SOUTH = of("ant", "bee", "bee", number=10), of("cat", "ant", number=20)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger"


@pytest.fixture
def ledger(path):
    with Ledger.create(path) as ledger:
        ledger.join("north", NORTH)
        ledger.join("south", SOUTH)
        yield ledger


def state(ledger, path):
    """Return all there is to know of a ledger."""
    known = (codec.encode(ledger.total), ledger.history(), ledger.members, ledger.verify())
    return (*known, ledger.space, path.read_bytes(), files(path))


@contextlib.contextmanager
def refused(ledger, path, error, match):
    """Expect an error that says so, and that nothing at all was changed."""
    before = state(ledger, path)
    with pytest.raises(error, match=match):
        yield
    assert state(ledger, path) == before


# Refusals


REFUSALS = {
    "joining twice": (
        lambda book: book.join("north", of("ant", number=30)),
        LedgerError,
        "client north: is a member already; add an increment with 'stream'",
    ),
    "streaming without joining": (
        lambda book: book.stream("east", of("ant")),
        LedgerError,
        "client east: not a member; members: north, south",
    ),
    "removing without joining": (
        lambda book: book.stream("east", -of("ant")),
        LedgerError,
        "client east: not a member",
    ),
    "leaving without joining": (
        lambda book: book.leave("east"),
        LedgerError,
        "client east: not a member; members: north, south",
    ),
    "forgetting an unknown client": (
        lambda book: book.forget("east"),
        LedgerError,
        "client east: no contributions of this client; members: north, south",
    ),
    "removing more samples than there are": (
        lambda book: book.stream("south", -of("ant", "ant", "ant", number=30)),
        LedgerError,
        "client south: more would be removed than was contributed",
    ),
    "removing larger samples than there are": (
        lambda book: book.stream("south", -loud(1)),
        LedgerError,
        "client south: more would be removed than was contributed",
    ),
    "removing what another client has": (
        lambda book: book.stream("south", -NORTH),
        LedgerError,
        "client south: more would be removed than was contributed",
    ),
    "taking away more than is brought": (
        lambda book: book.stream("south", of("ant", "ant", "ant", number=30) - loud(2)),
        LedgerError,
        "client south: more would be removed than was contributed",
    ),
    "joining with a debt": (
        lambda book: book.join("east", -of("ant")),
        LedgerError,
        "client east: more would be removed than was contributed",
    ),
    "joining with nothing": (
        lambda book: book.join("east", Statistics.zero()),
        LedgerError,
        "client east: the contribution is empty",
    ),
    "streaming nothing": (
        lambda book: book.stream("north", Statistics.zero()),
        LedgerError,
        "client north: the contribution is empty",
    ),
    "streaming what was joined with": (
        lambda book: book.stream("north", NORTH),
        LedgerError,
        "client north: this contribution was added already; use another tag to add it again",
    ),
    "another width": (
        lambda book: book.join("east", of("ant", width=WIDTH + 1)),
        MismatchError,
        r"client east: .*\(9 features\) and .*\(10 features\); contribute again",
    ),
    "another width of an increment": (
        lambda book: book.stream("north", of("ant", width=WIDTH + 1)),
        MismatchError,
        "client north: made with other settings",
    ),
    "another width of a removal": (
        lambda book: book.stream("north", -of("ant", width=WIDTH + 1)),
        MismatchError,
        "client north: made with other settings",
    ),
    "classes that differ in case": (
        lambda book: book.join("east", of("Cat")),
        MismatchError,
        "classes 'cat' and 'Cat' differ only in case or spaces; agree on one name",
    ),
    "classes that differ in case in an increment": (
        lambda book: book.stream("north", of("ANT")),
        MismatchError,
        "differ only in case",
    ),
    "numbered classes": (
        lambda book: book.join("east", of("0", "1")),
        MismatchError,
        "one site has class names and the other only class numbers",
    ),
}


def impossible(statistics):
    """Return statistics with an entry beside the diagonal that no samples can have."""
    gram = statistics.gram.copy()
    gram[1] = 10**6
    return replace(statistics, gram=gram)


REFUSALS |= {
    f"{verb} with sums that no samples have": (
        lambda book, verb=verb, who=who: getattr(book, verb)(who, impossible(of("ant", number=30))),
        DataError,
        f"client {who}: a Gram matrix with an entry larger than its diagonal allows; contribute",
    )
    for verb, who in {"join": "east", "replace": "north", "stream": "north"}.items()
} | {
    "removing what leaves sums that no samples have": (
        lambda book: book.stream("north", -impossible(of("bee", number=11))),
        LedgerError,
        "client north: more would be removed than was contributed",
    ),
    "withdrawing what leaves sums that no samples have": (
        lambda book: book.withdraw(
            "a", impossible(of("bee", number=11)), within="north", tag="b", mark="c"
        ),
        LedgerError,
        "client a: more would be removed than was contributed",
    ),
    "withdrawing more samples than there are": (
        lambda book: book.withdraw("a", of(*"abcd", number=30), within="north", tag="b", mark="c"),
        LedgerError,
        "client a: more would be removed than was contributed",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_does_not_fit_is_refused_and_changes_nothing(ledger, path, name):
    attempt, error, match = REFUSALS[name]
    with refused(ledger, path, error, match):
        attempt(ledger)


def test_the_very_same_increment_counts_once_unless_it_has_another_tag(ledger, path):
    increment = of("dog", number=30)
    ledger.stream("north", increment)
    with refused(ledger, path, LedgerError, "this contribution was added already"):
        ledger.stream("north", increment)
    ledger.stream("north", increment, tag="again")
    with refused(ledger, path, LedgerError, "this contribution was added already"):
        ledger.stream("north", increment, tag="again")
    ledger.stream("south", increment)
    assert ledger.total.count == 8


@pytest.mark.parametrize("tag", ["", random_tag()], ids=["none", "random"])
def test_after_a_removal_increments_with_random_tags_are_still_recognized(ledger, path, tag):
    """The ids of others are erased: they would confirm a guess of what was removed."""
    ledger.stream("north", of("dog", number=30), tag=tag)
    ledger.stream("north", -of("ant", number=10))
    if tag:
        with refused(ledger, path, LedgerError, "this contribution was added already"):
            ledger.stream("north", of("dog", number=30), tag=tag)
    else:
        ledger.stream("north", of("dog", number=30), tag=tag)
        ledger.verify()


def test_the_very_same_removal_counts_once(ledger, path):
    ledger.join("east", of(*["ant"] * 20, number=30))
    tag = random_tag()
    ledger.stream("east", -of("ant", number=30), tag=tag)
    with refused(ledger, path, LedgerError, "client east: this contribution was added already"):
        ledger.stream("east", -of("ant", number=30), tag=tag)


@pytest.mark.parametrize("labels", [("dog",), ("bee", "bee"), ("ant", "bee", "bee")])
def test_removing_more_of_a_class_than_there_is_of_it_is_refused(path, labels):
    def made(labels):
        rows = np.random.default_rng(0).normal(size=(20, 5))[: len(labels)]
        classes = tuple(dict.fromkeys(labels))
        return Statistics.of(
            Grid()(rows), Labels(np.array(list(map(classes.index, labels))), classes)
        )

    with Ledger.create(path) as ledger:
        ledger.join("north", made(["ant"] * 9 + ["bee"]))
        with refused(ledger, path, LedgerError, "client north: more would be removed than"):
            ledger.stream("north", -made(labels))


def test_a_client_leaves_once(ledger, path):
    ledger.leave("north")
    with refused(ledger, path, LedgerError, "client north: not a member; members: south"):
        ledger.leave("north")
    with refused(ledger, path, LedgerError, "client north: not a member"):
        ledger.stream("north", of("ant", number=30))


def test_a_client_is_forgotten_once(ledger, path):
    ledger.forget("north")
    with refused(
        ledger, path, LedgerError, "client north: no contributions of this client; members: south"
    ):
        ledger.forget("north")
    ledger.forget("south")
    with refused(ledger, path, LedgerError, "members: none"):
        ledger.forget("south")


def test_a_client_that_was_joined_meanwhile_by_somebody_else_is_refused(ledger, path, monkeypatch):
    transaction = store.LedgerFile.transaction

    def late(self):
        monkeypatch.undo()
        with Ledger.open(path) as other:
            other.join("east", of("ant", number=30))
        return transaction(self)

    monkeypatch.setattr(store.LedgerFile, "transaction", late)
    with pytest.raises(LedgerError, match="client east: is a member already"):
        ledger.join("east", of("ant", number=40))
    assert ledger.total.count == 6


wide = partial(of, width=80)  # a contribution fills more than a page of the file


def interrupted(path, operation, at):
    """Perform an operation; let somebody else join before its statement number `at`, if it may.

    Return whether there is such a statement, and whether somebody joined.
    """
    with Ledger.create(path) as ledger, Ledger.open(path) as other:
        other._file._db.execute("PRAGMA busy_timeout = 0")
        ledger.join("north", wide("ant", "bee", number=10))
        ledger.join("south", wide("cat", number=20))
        statements = 0

        def count(statement):
            nonlocal statements
            statements += 1
            if statements == at + 1:
                with contextlib.suppress(LedgerError):
                    other.join("east", wide("dog", number=30))

        ledger._file._db.set_trace_callback(count)
        operation(ledger)
        ledger._file._db.set_trace_callback(None)
    with Ledger.open(path) as ledger:
        ledger.verify()
        return statements > at, [e.what for e in ledger.history() if e.client == "east"] == ["join"]


@pytest.mark.parametrize(
    "operation",
    [
        lambda book: book.join("west", wide("cat", number=40)),
        lambda book: book.stream("north", wide("cat", number=40)),
        lambda book: book.stream("north", -wide("ant", number=10)),
        lambda book: book.leave("south"),
        lambda book: book.forget("south"),
        lambda book: book.publish(shared_digest="0" * 64, model="model"),
        lambda book: book.verify(),
    ],
    ids=["join", "stream", "remove", "leave", "forget", "publish", "verify"],
)
def test_somebody_else_may_join_between_any_two_statements(tmp_path, operation):
    joined = []
    for at in range(1000):
        more, somebody = interrupted(tmp_path / str(at), operation, at)
        if not more:
            break
        joined.append(somebody)
    assert joined[0]
    assert not more


def test_a_ledger_that_is_being_made_cannot_be_made_by_somebody_else(path, monkeypatch):
    connect = store._connect

    def late(where):
        monkeypatch.undo()
        with pytest.raises(LedgerError, match="exists already"):
            Ledger.create(path)
        return connect(where)

    monkeypatch.setattr(store, "_connect", late)
    with Ledger.create(path) as ledger:
        ledger.join("north", NORTH)
        assert ledger.verify() == NORTH.digest()


def test_sums_that_are_not_exact_are_refused_or_verified_all_the_same(tmp_path):
    def made(seed):
        rows = Grid(bits="off")(np.random.default_rng(seed).normal(size=(9, 5)))
        return Statistics.of(rows, Labels(np.arange(9) % 2, ("ant", "bee")))

    with Ledger.create(tmp_path / "ledger") as ledger, contextlib.suppress(ExactnessError):
        for seed, client in enumerate(CLIENTS):
            ledger.join(client, made(seed))
        ledger.leave(CLIENTS[0])
        ledger.verify()


# Spaces


def made(grid=None, lift=None, features=5, **named):
    rows = (grid or Grid())(np.random.default_rng(0).normal(size=(6, features)), **named)
    return Statistics.of((lift or Lift())(rows), Labels(np.arange(6) % 2, ("ant", "bee")))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"grid": Grid(bits=7)}, "8 bits.* and .*7 bits"),
        ({"grid": Grid(clip=2.5)}, "clip 6.* and .*clip 2.5"),
        ({"grid": Grid(bits="off")}, "8 bits.* and .*off"),
        ({"lift": Lift(width=9)}, "lift.*width 9.* on one side only"),
        ({"features": 6}, "5 features.* and .*6 features"),
        ({"backbone": "resnet"}, "5 features.* and .*5 features of resnet"),
    ],
)
def test_what_was_made_in_another_way_is_refused_by_name(path, settings, named):
    with Ledger.create(path) as ledger:
        ledger.join("north", made())
        with refused(ledger, path, MismatchError, f"client south: .*{named}"):
            ledger.join("south", made(**settings))
        with refused(ledger, path, MismatchError, f"client north: .*{named}"):
            ledger.stream("north", made(**settings))


@pytest.mark.parametrize(
    ("ours", "theirs", "named"),
    [
        ({"lift": Lift(width=9)}, {"lift": Lift(width=8)}, "width 9.* and .*width 8"),
        ({"lift": Lift(width=9)}, {"lift": Lift(width=9, seed=1)}, "seed 0.* and .*seed 1"),
        ({"lift": Lift(width=9)}, {}, "lift.* on one side only"),
        ({"backbone": "vit"}, {"backbone": "resnet"}, "of vit.* and .*of resnet"),
    ],
)
def test_other_lifts_and_backbones_are_refused_by_name(path, ours, theirs, named):
    with Ledger.create(path) as ledger:
        ledger.join("north", made(**ours))
        with refused(ledger, path, MismatchError, f"client south: .*{named}"):
            ledger.join("south", made(**theirs))


# Classes


def test_classes_grow_and_shrink_with_the_members_whatever_their_order(ledger):
    ledger.join("east", of("dog", "bee", number=30))
    assert ledger.total.classes == ("ant", "bee", "cat", "dog")
    ledger.leave("south")
    assert ledger.total.classes == ("ant", "bee", "dog")
    ledger.forget("east")
    assert ledger.total == NORTH.with_classes(["ant", "bee"])
    ledger.leave("north")
    assert ledger.total == Statistics.zero()


def test_a_fixed_list_refuses_other_classes_and_keeps_its_own(path):
    with Ledger.create(path, classes=["dog", "ant", "bee"]) as ledger:
        ledger.join("north", of("bee"))
        assert ledger.total.classes == ("ant", "bee", "dog")
        with refused(
            ledger, path, MismatchError, "classes cat are not in the fixed list of classes"
        ):
            ledger.join("south", of("ant", "cat"))
        with refused(ledger, path, MismatchError, "Bee"):
            ledger.stream("north", of("Bee"))
    with Ledger.open(path) as ledger:
        with refused(ledger, path, MismatchError, "cat are not in the fixed list of classes"):
            ledger.join("south", of("cat"))
        ledger.forget("north")
        assert ledger.total == Statistics.zero()


@pytest.mark.parametrize("classes", [["ant", "ANT"], ["ant", "bee", "ant"], ["ant", "ant "]])
def test_a_fixed_list_is_refused_where_it_names_a_class_twice(path, classes):
    with pytest.raises(FedgramError, match="ant"):
        Ledger.create(path, classes=classes)
    assert not path.exists()


# Bytes


@pytest.mark.parametrize("width", [WIDTH, 150])
def test_a_client_that_left_is_kept_and_one_that_is_forgotten_is_not(path, width):
    sent = Sent(((1, "ant"), (2, "bee")), ("ant", "bee"))
    with Ledger.create(path) as ledger:
        ledger.join("north", sent.statistics(width))
        ledger.join("south", of("cat", number=20, width=width))
        ledger.leave("north")
        assert found(sent, width, contents(path))
        ledger.forget("north")
        assert not found(sent, width, contents(path))
        assert ledger.total == of("cat", number=20, width=width)


def test_the_whole_contribution_is_in_the_file_until_it_is_forgotten(ledger, path):
    blob = codec.encode(Contribution(client="north", statistics=NORTH))
    assert blob in contents(path)
    ledger.leave("north")
    assert blob in contents(path)
    ledger.forget("north")
    assert blob not in contents(path)
    assert rows(path, "SELECT samples, detail, salt FROM events WHERE seq = 2") == [
        (None, "{}", "")
    ]


@pytest.mark.parametrize("width", [WIDTH, 150])
def test_a_removal_erases_the_sums_with_and_of_the_removed_samples(path, width):
    whole = Sent(((1, "ant"), (2, "bee"), (3, "bee")), ("ant", "bee"))
    removed, rest = Sent(whole.samples[:1], ("ant",)), Sent(whole.samples[1:], ("ant", "bee"))
    with Ledger.create(path) as ledger:
        ledger.join("north", whole.statistics(width))
        ledger.join("south", of("cat", number=20, width=width))
        ledger.stream("north", -removed.statistics(width))
        data = contents(path)
        assert found(rest, width, data)
        assert not found(whole, width, data)
        assert not found(removed, width, data)


def test_a_removal_erases_what_the_client_sent_before_it_left_and_came_back(path):
    whole = Sent(((1, "ant"), (2, "bee"), (3, "bee")), ("ant", "bee"))
    with Ledger.create(path) as ledger:
        ledger.join("north", whole.statistics(WIDTH))
        ledger.leave("north")
        ledger.join("north", whole.statistics(WIDTH), keep=True)
        ledger.stream("north", -of("ant"))
        assert not found(whole, WIDTH, contents(path))


@pytest.mark.parametrize("width", [WIDTH, 150])
def test_what_is_forgotten_is_overwritten_before_the_file_is_compacted(path, width, monkeypatch):
    monkeypatch.setattr(store.LedgerFile, "compact", lambda self: None)
    sent = Sent(((1, "ant"), (2, "bee")), ("ant", "bee"))
    with Ledger.create(path) as ledger:
        ledger.join("north", sent.statistics(width))
        ledger.join("south", of("cat", number=20, width=width))
        ledger.forget("north")
        assert not found(sent, width, contents(path))


def test_the_search_finds_bytes_that_are_deleted_but_not_overwritten(path, monkeypatch):
    connect = store._connect

    def careless(path):
        db = connect(path)
        db.execute("PRAGMA secure_delete = OFF")
        return db

    monkeypatch.setattr(store, "_connect", careless)
    monkeypatch.setattr(store.LedgerFile, "compact", lambda self: None)
    sent = Sent(((1, "ant"), (2, "bee")), ("ant", "bee"))
    with Ledger.create(path) as ledger:
        ledger.join("north", sent.statistics(150))
        ledger.join("south", of("cat", number=20, width=150))
        ledger.forget("north")
    assert found(sent, 150, contents(path))


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("before", ["member", "has left"])
def test_a_replaced_contribution_is_erased_unless_it_is_kept(path, keep, before):
    whole = Sent(((1, "ant"), (2, "bee"), (3, "bee")), ("ant", "bee"))
    rest = Sent(whole.samples[1:], ("ant", "bee"))
    with Ledger.create(path) as ledger:
        ledger.join("south", of("cat", number=20))
        ledger.join("north", whole.statistics(WIDTH), tag="old fingerprint")
        if before == "has left":
            ledger.leave("north")
            ledger.admit("north")
        ledger.replace("north", rest.statistics(WIDTH), tag="new fingerprint", keep=keep)
        assert ledger.total == summed([*rest.samples, (20, "cat")], ("ant", "bee", "cat"), WIDTH)
        assert ledger.tag("north") == "new fingerprint"
        assert ledger.history()[-1].what == ("replace" if before == "member" else "join")
        ledger.verify()
        data = contents(path)
        assert found(rest, WIDTH, data)
        assert found(whole, WIDTH, data) == (b"old fingerprint" in data) == keep


@pytest.mark.parametrize("keep", [False, True])
def test_a_client_that_joins_again_leaves_no_contribution_of_before_unless_it_is_kept(path, keep):
    whole = Sent(((1, "ant"), (2, "bee"), (3, "bee")), ("ant", "bee"))
    rest = Sent(whole.samples[1:], ("ant", "bee"))
    with Ledger.create(path) as ledger:
        ledger.join("south", of("cat", number=20))
        ledger.join("north", whole.statistics(WIDTH))
        before = ledger.total.digest()
        ledger.leave("north")
        assert found(whole, WIDTH, contents(path))
        ledger.join("north", rest.statistics(WIDTH), keep=keep)
        data = contents(path)
        assert found(rest, WIDTH, data)
        assert found(whole, WIDTH, data) == (before.encode() in data) == keep
        ledger.verify()


def test_a_ledger_shrinks_when_a_client_is_forgotten(path):
    with Ledger.create(path) as ledger:
        ledger.join("north", of("ant", width=150))
        size = path.stat().st_size
        ledger.join("south", of("cat", number=20, width=150))
        ledger.forget("south")
        assert path.stat().st_size == size


# Files that are not a sound ledger


def test_making_a_ledger_where_there_is_one_is_refused(ledger, path):
    with refused(ledger, path, LedgerError, "ledger: exists already; choose another name"):
        Ledger.create(path)


def test_a_missing_ledger_is_not_made_by_opening_it(path):
    for missing in (path, path / "below", path.parent):
        with pytest.raises(LedgerError, match="no such ledger; create one with 'fedgram ledger"):
            Ledger.open(missing)
    assert files(path) == []


def foreign(path, *statements):
    with sqlite3.connect(path) as db:
        for statement in statements:
            db.execute(statement)
    db.close()
    return path.read_bytes()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"just a text\n" * 100,
        b"SQLite format 3\0" + b"\xff" * 5000,
        codec.encode(Contribution(client="north", statistics=NORTH)),
    ],
    ids=["empty", "text", "damaged", "a contribution"],
)
def test_a_foreign_file_is_refused_and_left_alone(path, data):
    path.write_bytes(data)
    with pytest.raises(LedgerError, match="ledger: not a ledger"):
        Ledger.open(path)
    assert path.read_bytes() == data
    assert files(path) == ["ledger"]


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE TABLE songs (name TEXT)",),
        ("CREATE TABLE meta (name TEXT)",),
        ("CREATE TABLE meta (key TEXT, value TEXT)",),
        ("CREATE TABLE meta (key TEXT, value TEXT)", "INSERT INTO meta VALUES ('format', 'png')"),
        ("CREATE TABLE meta (key TEXT, value TEXT)", "INSERT INTO meta VALUES ('format', NULL)"),
    ],
)
def test_a_database_of_somebody_else_is_refused_and_left_alone(path, statements):
    data = foreign(path, *statements)
    with pytest.raises(LedgerError, match=r"ledger: (not a|a) ledger"):
        Ledger.open(path)
    assert path.read_bytes() == data


def test_a_ledger_of_another_format_asks_for_an_upgrade(ledger, path):
    ledger.__exit__(None, None, None)
    rows(path, "UPDATE meta SET value = '3' WHERE key = 'format'")
    with pytest.raises(LedgerError, match="of format 3; upgrade fedgram, which reads 1 to 2"):
        Ledger.open(path)


def test_a_file_that_is_refused_is_not_held_open(path, monkeypatch):
    opened = []

    class Watched(sqlite3.Connection):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            opened.append(self)
            self.closed = False

        def close(self):
            super().close()
            self.closed = True

    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *a, **options: connect(*a, factory=Watched, **options)
    )
    path.write_bytes(b"just a text\n" * 100)
    with pytest.raises(LedgerError):
        Ledger.open(path)
    assert opened
    assert all(db.closed for db in opened)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.9])
def test_a_ledger_cut_short_is_refused(path, share):
    with Ledger.create(path) as ledger:
        for number, client in enumerate(CLIENTS):
            ledger.join(client, of("ant", number=number, width=100))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(LedgerError, match=r"ledger: (not a ledger|damaged)"):  # noqa: SIM117
        with Ledger.open(path) as ledger:
            ledger.verify()


@pytest.mark.parametrize("member", [True, False])
def test_a_damaged_contribution_is_named_by_its_client(ledger, path, member):
    if not member:
        ledger.leave("south")
    ((value,),) = rows(path, "SELECT value FROM contributions WHERE client = 'south'")
    damaged = value[:-5] + bytes([value[-5] ^ 1]) + value[-4:]
    rows(path, "UPDATE contributions SET value = ? WHERE client = 'south'", damaged)
    with pytest.raises(LedgerError, match="a contribution of client south is damaged; restore"):
        ledger.verify()
    before = path.read_bytes()
    if member:
        with pytest.raises(LedgerError, match="a contribution of client south is damaged"):
            ledger.leave("south")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("UPDATE total SET value = ?", codec.encode(NORTH)),
        ("UPDATE total SET value = ?", codec.encode(Statistics.zero())),
        ("UPDATE openings SET value = ?", f"{'0' * 64} 5"),
        ("DELETE FROM contributions WHERE client = ?", "north"),
        ("UPDATE contributions SET member = 0 WHERE client = ?", "north"),
    ],
)
def test_a_total_that_is_not_the_sum_is_found(ledger, path, statement, value):
    rows(path, statement, value)
    with pytest.raises(LedgerError, match="ledger: the total is not the sum of its contributions"):
        ledger.verify()


def test_a_total_that_cannot_be_read_is_named(ledger, path):
    rows(path, "UPDATE total SET value = ?", b"nothing of ours")
    with pytest.raises(FedgramError, match="not a fedgram file"):
        ledger.verify()


def test_damage_anywhere_is_refused_by_an_error_of_our_own_or_does_no_harm(tmp_path):
    rng = np.random.default_rng(0)
    with Ledger.create(tmp_path / "sound") as ledger:
        for number, client in enumerate(CLIENTS):
            ledger.join(client, of("ant", "bee", number=number, width=30))
        ledger.publish(shared_digest="0" * 64, model="shared")
        digest = ledger.verify()
    whole = (tmp_path / "sound").read_bytes()
    for trial in range(150):
        damaged, path = bytearray(whole), tmp_path / f"damaged {trial}"
        if trial < 100:
            damaged[rng.integers(len(whole))] ^= rng.integers(1, 256)
        else:
            page = 4096 * int(rng.integers(len(whole) // 4096))
            damaged[page : page + 4096] = bytes(4096)
        path.write_bytes(damaged)
        with contextlib.suppress(FedgramError), Ledger.open(path) as ledger:
            assert ledger.verify() == digest
        with contextlib.suppress(FedgramError), Ledger.open(path) as ledger:
            ledger.history()
            ledger.forget(ledger.members[0])


# Certificates


def without(path, **members):
    """Return the digest of a ledger that never had anybody else."""
    with Ledger.create(path) as ledger:
        for client, statistics in members.items():
            ledger.join(client, statistics)
        return ledger.total.digest()


def published(ledger, name):
    ledger.publish(shared_digest=name * 64, model=f"{name}.safetensors")


def test_a_certificate_shows_the_total_of_a_ledger_that_never_had_the_client(ledger, tmp_path):
    ledger.stream("south", of("dog", number=30))
    certificate = ledger.forget("south")
    assert certificate.total_digest == without(tmp_path / "other", north=NORTH)
    assert certificate.total_digest == ledger.total.digest() == ledger.verify(certificate)
    assert (certificate.client, certificate.samples) == ("south", 3)
    assert certificate.members == ["north"]
    assert certificate.event == ledger.history()[-1].seq


def test_a_certificate_of_the_last_client_is_that_of_an_empty_ledger(ledger, tmp_path):
    ledger.forget("north")
    certificate = ledger.forget("south")
    assert certificate.total_digest == without(tmp_path / "other") == Statistics.zero().digest()
    assert (certificate.samples, certificate.members) == (0, [])


def test_a_client_that_left_can_be_forgotten_and_certified(ledger, tmp_path):
    ledger.leave("south")
    ledger.join("south", of("dog", number=30))
    ledger.leave("south")
    certificate = ledger.forget("south")
    assert certificate.total_digest == without(tmp_path / "other", north=NORTH)
    ledger.verify(certificate)


def test_a_certificate_lists_the_models_made_with_the_client_and_no_others(ledger):
    ledger.join("east", of("dog", number=30))
    published(ledger, "a")
    ledger.leave("south")
    published(ledger, "b")
    ledger.join("south", SOUTH, tag="again")
    published(ledger, "c")
    certificate = ledger.forget("south")
    assert [entry["model"] for entry in certificate.published_with] == [
        "a.safetensors",
        "c.safetensors",
    ]
    assert certificate.published_with[0]["members"] == ["east", "north", "south"]
    assert "shared_digest" not in certificate.published_with[0]  # it would confirm a guess
    assert ledger.forget("east").published_with[1]["model"] == "b.safetensors"


def test_a_certificate_stays_good_after_later_operations_and_when_the_client_is_back(ledger, path):
    certificate = ledger.forget("south")
    ledger.join("east", of("dog", number=30))
    ledger.stream("north", -of("ant", number=10))
    published(ledger, "a")
    assert ledger.verify(certificate) == ledger.total.digest()
    ledger.join("south", SOUTH)
    ledger.verify(certificate)
    ledger.leave("south")
    second = ledger.forget("south")
    with Ledger.open(path) as again:
        again.verify(certificate)
        again.verify(second)


def test_a_certificate_is_refused_where_something_of_the_client_is_stored_after_all(ledger, path):
    certificate = ledger.forget("south")
    part = Contribution(client="south", statistics=SOUTH)
    with ledger._file.transaction():
        ledger._file.store(part)
        ledger._file.retire("south")
    with pytest.raises(LedgerError, match="client south: contributions are still stored"):
        ledger.verify(certificate)


@pytest.mark.parametrize(
    "change",
    [
        {"client": "north"},
        {"event": 1},
        {"event": 99},
        {"total_digest": "0" * 64},
        {"time": "2001-01-01T00:00:00+00:00"},
        {"samples": 7},
        {"members": ["north", "south"]},
        {"published_with": []},
    ],
    ids=str,
)
def test_a_forged_certificate_is_refused(ledger, path, change):
    published(ledger, "a")
    certificate = ledger.forget("south")
    with refused(ledger, path, LedgerError, "the certificate belongs to another ledger"):
        ledger.verify(replace(certificate, **change))


def test_an_older_copy_of_a_ledger_is_found_by_a_certificate_and_repaired(ledger, path):
    restored = path.with_name("restored")  # from a backup that was made before the deletion
    restored.write_bytes(path.read_bytes())
    handed_out = ledger.forget("south")
    with Ledger.open(restored) as book:
        book.verify()
        assert "south" in book.members
        with pytest.raises(LedgerError, match=r"older copy.* forget client south again"):
            book.verify(handed_out)
        again = book.forget("south")
        book.verify(again)
        assert again.total_digest == handed_out.total_digest
        with pytest.raises(LedgerError, match="belongs to another ledger"):
            book.verify(handed_out)  # of a history that is gone


def test_a_certificate_of_another_ledger_is_refused(ledger, path, tmp_path):
    ledger.forget("south")
    with Ledger.create(tmp_path / "other") as other:
        other.join("north", SOUTH)
        other.join("south", NORTH)
        certificate = other.forget("south")
    with refused(ledger, path, LedgerError, "the certificate belongs to another ledger"):
        ledger.verify(certificate)


def test_a_certificate_comes_through_json_unchanged(ledger):
    published(ledger, "a")
    certificate = ledger.forget("south")
    text = json.dumps(certificate.to_dict())
    assert Certificate.read(json.loads(text)) == certificate
    ledger.verify(Certificate.read(json.loads(text)))


def test_reading_a_certificate_leaves_the_plain_one_as_it_was(ledger):
    plain = ledger.forget("south").to_dict()
    before = dict(plain)
    Certificate.read(plain)
    assert plain == before


@pytest.mark.parametrize(
    "change", [{"kind": "a drawing"}, {"kind": None}, {"colour": "red"}, {"client": ...}]
)
def test_what_is_not_a_certificate_is_not_read(ledger, change):
    plain = {**ledger.forget("south").to_dict(), **change}
    plain = {key: value for key, value in plain.items() if value is not ...}
    with pytest.raises(DataError, match="not a certificate of deletion"):
        Certificate.read(plain)


@pytest.mark.parametrize("plain", [None, [], "text", 3, {}])
def test_other_json_is_not_a_certificate(plain):
    with pytest.raises(DataError, match="not a certificate of deletion"):
        Certificate.read(plain)


# History


def test_the_history_tells_what_happened_and_no_more_of_those_forgotten(ledger):
    ledger.stream("north", of("dog", number=30))
    ledger.stream("north", -of("ant", number=10))
    published(ledger, "a")
    ledger.leave("south")
    ledger.forget("south")
    told = [(event.what, event.client, event.samples) for event in ledger.history()]
    assert told == [
        ("init", None, None),
        ("join", "north", None),
        ("join", "south", None),
        ("stream", "north", None),
        ("remove", "north", None),
        ("publish", None, None),
        ("leave", "south", None),
        ("forget", "south", None),
    ]
    assert ledger.history()[-1].total_digest == ledger.total.digest()


def test_every_event_has_the_digest_of_the_total_it_led_to(path):
    with Ledger.create(path) as ledger:
        digests = [ledger.total.digest()]
        for operation in (
            lambda: ledger.join("north", NORTH),
            lambda: ledger.join("south", SOUTH),
            lambda: ledger.stream("south", -of("cat", number=20)),
            lambda: ledger.leave("north"),
        ):
            operation()
            digests.append(ledger.total.digest())
        erased = [*digests[:2], "", *digests[3:]]  # a removal erases what it is removed from
        assert [event.total_digest for event in ledger.history()] == erased
        ledger.forget("south")
        left = [*erased[:3], "", "", ledger.total.digest()]
        assert [event.total_digest for event in ledger.history()] == left


def test_a_journal_that_a_kill_left_is_gone_once_the_client_is_forgotten(path, tmp_path):
    """The journal of a deletion holds the pages that it erases."""
    sent, killed = Sent(((1, "ant"), (2, "bee")), ("ant", "bee")), tmp_path / "killed"
    with Ledger.create(path) as ledger:
        ledger.join("north", sent.statistics(WIDTH))
        ledger.join("south", of("cat", number=20))
        with ledger._file.transaction():  # what is on the disk before the commit
            ledger._file._run("PRAGMA cache_spill = 1")
            ledger._file._run("PRAGMA cache_size = 1")
            ledger._file.erase("north", seen=True)
            ledger._file.total = of("cat", number=20)
            shutil.copytree(tmp_path, killed, ignore=lambda *_: ["killed"])
    journal = killed / f"{path.name}-journal"
    assert found(sent, WIDTH, journal.read_bytes())
    with Ledger.open(killed / path.name) as ledger:
        assert ledger.members == ["north", "south"]  # nothing was committed
        ledger.forget("north")
        ledger.verify()
    left = b"".join(file.read_bytes() for file in killed.iterdir())
    assert not found(sent, WIDTH, left)
