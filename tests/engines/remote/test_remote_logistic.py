"""Softmax regression and the default between sites: the same, whoever fails, stops or goes."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from remote_support import (
    MOST,
    REST,
    StandIn,
    changed,
    done,
    federation,
    in_process,
    kind,
    members,
    notes,
    offices,
    require_same,
    served,
)

from fedgram.checks.federations import partitioned
from fedgram.cli import main
from fedgram.core import codec
from fedgram.core.samples import Labels, Samples
from fedgram.core.statistics import Statistics
from fedgram.deploy.membership import Membership
from fedgram.deploy.server import run_federation
from fedgram.engines.remote import server
from fedgram.engines.remote.validation import example
from fedgram.experiments.record import read_lines
from fedgram.experiments.runner import run
from fedgram.features.grid import Grid
from fedgram.federation.client import Client
from fedgram.federation.method import create_method
from fedgram.methods._pooling import Question
from fedgram.methods.auto import FEWEST_JUDGES
from fedgram.selection.class_prior import class_counts
from fedgram.selection.normal_equations import NormalEquations
from fedgram.softmax.arithmetic import SoftmaxGrid
from fedgram.softmax.sums import SoftmaxQuery

LITTLE = {"clients": 4, "dirichlet": 1.0, "valid_fraction": 0.1, "test_fraction": 0.7}
CASES = {
    "logistic": ("logistic", {}),
    "logistic, a fixed ridge": ("logistic", {"ridge": 2.0, "exchanges": 3}),
    "logistic, lifted": ("logistic", {"exchanges": 2, "lift": {"width": 40}}),
    "logistic, class prior": ("logistic", {"exchanges": 3, "prior": True}),
    "auto of one round": ("auto", {"exchanges": 0, "effort": "low"}),
    "auto": ("auto", {"exchanges": 1}),
}
USUAL = ("logistic", "auto of one round")  # the others are marked wide
SOME_CASES = [
    case if case in USUAL else pytest.param(case, marks=pytest.mark.wide) for case in CASES
]


def asked(request):
    """Return the name of the step that a request asks for, nothing where it is another kind."""
    decoded = codec.decode(request)
    return decoded.step if decoded.kind == "step" else ""


def steps(carrier, node=None):
    """Return which steps were asked for, and how often."""
    return Counter(
        asked(request)
        for to, request in carrier.sent
        if kind(request) == "step" and node in (None, to)
    )


def told(out, name):
    return done(out, name)["tuned"]["notes"]


# The same, whatever carries it


@pytest.mark.parametrize("case", SOME_CASES)
def test_between_sites_it_is_the_same_to_the_bit(tmp_path, case):
    name, settings = CASES[case]
    out, config, carrier, _ = served(tmp_path, name, data=LITTLE, method={name: settings})
    require_same(out, config, name)
    assert steps(carrier)["statistics"] == 4


@pytest.mark.parametrize("case", SOME_CASES)
def test_under_masks_it_is_the_same_to_the_bit(tmp_path, case):
    name, settings = CASES[case]
    engine = {"secure": True}
    out, config, _, _ = served(tmp_path, name, engine=engine, data=LITTLE, method={name: settings})
    require_same(out, config, name, personal=False)
    assert done(out, name)["model_digest"] is None


@pytest.mark.parametrize("case", SOME_CASES)
def test_secure_sums_in_process_change_nothing(case):
    name, settings = CASES[case]
    openly, securely = (
        run(
            create_method(name, settings), partitioned(clients=5), private=True, threshold=threshold
        )
        for threshold in (None, 0.5)
    )
    assert securely.shared_digest == openly.shared_digest
    assert securely.model_digest == openly.model_digest


@pytest.mark.parametrize("threshold", [None, 2 / 3])
def test_few_clients_judge_where_only_sums_are_seen_but_never_one(threshold):
    """A sum over one client is that client's own."""
    settings = {"exchanges": 0, "judges": 100, "effort": "low"}
    found = run(
        create_method("auto", settings), partitioned(clients=7), private=True, threshold=threshold
    )
    assert len(found.to_dict()["tuned"]["notes"]["judges"]) == FEWEST_JUDGES


# What a site may not say


def value(**fields):
    """Return a fault: an honest answer whose value has some fields changed."""

    def made(honest):
        return replace(honest.value, **{key: new(honest.value) for key, new in fields.items()})

    return changed(value=made)


def residuals(change):
    """Return a fault: other residual sums; silence where the loss alone is asked for."""

    def say(request, answer):
        if not codec.decode(request).broadcast.residuals:
            return None
        return value(products=change)(request, answer)

    return say


def more(*added):
    """Return residual sums in which the first classes of the first feature have more."""

    def change(sums):
        products = sums.products.copy()
        products[0, 0, : len(added)] += np.array(added)
        return products

    return change


ANSWERS = {
    "residuals that do not cancel": (residuals(more(1)), "sum to zero over classes"),
    "residuals of more samples": (residuals(more(2**40, -(2**40))), "too large for"),
    "residuals that wrap": (
        residuals(lambda sums: np.full_like(sums.products, -(2**63))),
        "may overflow",
    ),
    "a loss below zero": (value(loss=lambda sums: -sums.loss), ">= 0, and correct"),
    "another loss below zero": (
        value(base_loss=lambda sums: sums.base_loss - 1),
        ">= 0, and correct",
    ),
    "a count below zero": (value(count=lambda sums: -sums.count), ">= 0, and correct"),
    "more right than there": (
        value(out_correct=lambda sums: sums.out_count + 1),
        "correct <= count",
    ),
    "room for nobody": (value(count=lambda sums: sums.count + 2**50), "may overflow"),
    "a loss without room": (value(loss=lambda sums: sums.loss + 2**61), "may overflow"),
    "other weights": (value(at=lambda sums: "0" * 64), "at differs"),
    "no weights": (value(at=lambda sums: ""), "at differs"),
    "another grid": (value(grid=lambda sums: SoftmaxGrid(residuals=10)), "grid differs"),
    "two fingerprints": (value(fingerprint=lambda sums: np.zeros(2, np.int64)), r"shape \(2,\)"),
    "a fingerprint of floats": (
        value(fingerprint=lambda sums: sums.fingerprint.astype(np.float64)),
        "fingerprint holds float64, not int64",
    ),
    "a short fingerprint": (
        value(fingerprint=lambda sums: sums.fingerprint.astype(np.int32)),
        "fingerprint holds int32, not int64",
    ),
    "products of floats": (
        value(products=lambda sums: sums.products.astype(np.float64)),
        "products holds float64",
    ),
    "another kind": (changed(value=7), "expected ResidualSums, got int"),
}


def in_step(node, name, say):
    """Return a fault of one node in one step."""

    def fault(to, request, answer):
        return say(request, answer) if to == node and asked(request) == name else answer(request)

    return fault


SHORT = {"logistic": {"exchanges": 1}}


@pytest.fixture(scope="module")
def rest(tmp_path_factory):
    """What three of four sites give where the fourth only sends its statistics."""
    fault = in_step(101, "residuals", lambda request, answer: "away")
    options = {"rules": MOST, "data": LITTLE, "method": SHORT, "fault": fault}
    out, _, _, _ = served(tmp_path_factory.mktemp("rest"), "logistic", **options)
    return done(out, "logistic")["shared_digest"]


@pytest.mark.parametrize("case", ANSWERS)
def test_residuals_that_cannot_be_are_left_out_by_name_and_the_others_finish(tmp_path, case, rest):
    say, reason = ANSWERS[case]
    fault = in_step(101, "residuals", say)
    options = {"rules": MOST, "data": LITTLE, "method": SHORT}
    out, config, _, _ = served(tmp_path, "logistic", fault=fault, **options)
    left_out = [each for each in notes(out, "logistic") if each[1].startswith("left out")]
    assert {client for client, _ in left_out} == {"c1"}
    assert any(re.search(reason, text) for _, text in left_out)
    assert done(out, "logistic")["shared_digest"] == rest
    assert told(out, "logistic")["samples"] == samples_of(config, REST)


JUDGED = {
    "pool": (value(curvature=lambda sums: sums.curvature[:1]), "curvature has the shape"),
    "left_out": (
        changed(value=lambda honest: replace(honest.value, soft=honest.value.squared)),
        "loss has the shape",
    ),
    "pseudo_counts": (value(likelihood=lambda sums: sums.likelihood[1:]), "has the shape"),
}


@pytest.mark.parametrize("step", JUDGED)
def test_judgements_that_cannot_be_are_left_out_by_name_and_the_others_finish(tmp_path, step):
    say, reason = JUDGED[step]
    options = {"rules": MOST, "data": LITTLE, "method": {"auto": {"exchanges": 1, "effort": "low"}}}
    out, _, _, _ = served(tmp_path, "auto", fault=in_step(101, step, say), **options)
    left_out = [each for each in notes(out, "auto") if each[1].startswith("left out")]
    assert {client for client, _ in left_out} == {"c1"}
    assert any(reason in text for _, text in left_out)
    assert done(out, "auto")["accuracy"]["client_mean"] > 0.9


# A server that is stopped goes on


STOPS = {
    "logistic": {"exchanges": 3},
    "auto": {"exchanges": 2, "effort": "low"},
}


def result(folder, name):
    """Return all that must not depend on stops."""
    (out,) = (folder / "server" / "runs").glob("*")
    models = sorted((folder / "sites").glob("*/models/*.safetensors"))
    return {
        "shared": (out / name / "shared.safetensors").read_bytes(),
        "digests": [done(out, name)[key] for key in ("shared_digest", "model_digest", "tuned")],
        "asks": [
            (ask["step"], ask["phase"], ask["clients"])
            for ask in read_lines(out / name / "exchanges.jsonl")
        ],
        "models": [path.read_bytes() for path in models],
    }


@pytest.fixture(
    scope="module",
    params=[
        ("logistic", True),
        ("auto", False),
        pytest.param(("logistic", False), marks=pytest.mark.wide),
        pytest.param(("auto", True), marks=pytest.mark.wide),
    ],
    ids=str,
)
def whole(request, tmp_path_factory):
    """A run without a stop: its method, its settings, its exchanges and its result."""
    name, secure = request.param
    folder = tmp_path_factory.mktemp("whole")
    options = {"data": LITTLE, "method": STOPS, "engine": {"secure": secure}}
    _, _, carrier, _ = served(folder, name, **options)
    exchanges = {}
    for _, sent in carrier.sent:
        decoded = codec.decode(sent)
        exchanges[decoded.serial] = decoded.step or decoded.kind
    return name, options, exchanges, result(folder, name)


def goes_on(folder, whole, stop):
    """Stop a server where two of four sites have been asked for an exchange, and start another."""
    name, options, exchanges, expected = whole
    folder.mkdir()
    server_folder, config = federation(folder, name, **options)
    everybody = offices(config, folder / "sites")

    def stopped(node, request, answer):
        if node == 102 and codec.decode(request).serial == stop:
            raise KeyboardInterrupt
        return answer(request)

    with pytest.raises(KeyboardInterrupt):
        run_federation(StandIn(everybody, stopped), server_folder, print)
    carrier = StandIn(everybody)
    run_federation(carrier, server_folder, print)
    assert result(folder, name) == expected, exchanges[stop]
    again = {codec.decode(sent).serial for _, sent in carrier.sent} - {0}
    assert again == set(range(stop, max(exchanges) + 1))  # nobody is asked for what was finished


def test_a_server_stopped_between_exchanges_goes_on_to_the_same_bytes(tmp_path, whole):
    """Between the path and the refit, in the pool, and before models are handed out."""
    _, options, exchanges, _ = whole
    sums = [serial for serial, step in exchanges.items() if step == "residuals"]
    pools = [serial for serial, step in exchanges.items() if step == "pool"]
    stops = {sums[-2], *pools[2:3], max(exchanges)}
    for stop in {sums[-2]} if options["engine"]["secure"] else stops:
        goes_on(tmp_path / str(stop), whole, stop)


@pytest.mark.faults
def test_a_server_stopped_at_any_exchange_goes_on_to_the_same_bytes(tmp_path, whole):
    for stop in set(whole[2]) - {0}:
        goes_on(tmp_path / str(stop), whole, stop)


# Sites that come and go


def silent(node, first, last=10**9):
    """Return a fault: a node that does not answer the steps from one number to another."""
    count = Counter()

    def fault(to, request, answer):
        if to == node and kind(request) == "step":
            count[to] += 1
            if first <= count[to] <= last:
                return None
        return answer(request)

    return fault


def samples_of(config, names):
    return sum(len(site.train) + len(site.valid) for site in members(config) if site.id in names)


def has_model(folder, site, name):
    return (folder / "sites" / site / "models" / f"{name}.safetensors").is_file()


# Steps of logistic with three exchanges: statistics, zero weights, the path, the refit, its loss.
AWAY = {
    "once on the path": (4, 4, 4),
    "for most of the path": (3, 5, 4),
    "from the path on": (4, 99, 3),
    "from the refit on": (6, 99, 3),
    "for the last loss": (7, 99, 3),
}


@pytest.mark.parametrize("when", AWAY)
def test_a_site_that_is_away_for_a_while_stops_nobody_and_gets_a_model(tmp_path, when):
    first, last, there = AWAY[when]
    options = {"rules": MOST, "data": LITTLE, "method": {"logistic": {"exchanges": 3}}}
    out, config, _, _ = served(tmp_path, "logistic", fault=silent(101, first, last), **options)
    said = told(out, "logistic")
    assert said["restarts"] > 0
    everybody = [site.id for site in members(config)]
    assert said["clients"] == everybody
    assert said["samples"] == samples_of(config, everybody if there == 4 else REST)
    assert ("c1", "left out: no answer in time") in notes(out, "logistic")
    assert has_model(tmp_path, "c1", "logistic")
    undisturbed = in_process(config, "logistic").accuracy["client_mean"]
    assert done(out, "logistic")["accuracy"]["client_mean"] > undisturbed - 0.03


def test_nothing_restarts_where_the_same_sites_answer(tmp_path):
    out, _, _, _ = served(tmp_path, "logistic", data=LITTLE, method=SHORT)
    assert told(out, "logistic")["restarts"] == 0


@pytest.mark.parametrize(
    ("first", "last"),
    [(4, 5), *(pytest.param(*away, marks=pytest.mark.wide) for away in ((6, 7), (2, 99)))],
)
def test_auto_goes_on_while_a_site_is_away(tmp_path, first, last):
    options = {"rules": MOST, "data": LITTLE, "method": {"auto": {"exchanges": 2, "effort": "low"}}}
    out, config, _, _ = served(tmp_path, "auto", fault=silent(101, first, last), **options)
    assert has_model(tmp_path, "c1", "auto")
    undisturbed = in_process(config, "auto").accuracy["client_mean"]
    assert done(out, "auto")["accuracy"]["client_mean"] > undisturbed - 0.03


def test_most_sites_may_be_gone_when_the_head_is_fitted_to_all_samples(tmp_path):
    """What absent sites said on the path is not missed as if it had been taken back."""
    data = {"clients": 8, "dirichlet": 100.0, "valid_fraction": 0.1, "test_fraction": 0.5}
    rules = {"quorum": 0.3, "timeout": 30, "grace": 5}
    faults = [silent(101 + k, 5) for k in range(5)]

    def fault(to, request, answer):
        return faults[to - 101](to, request, answer) if 101 <= to <= 105 else answer(request)

    options = {"clients": 8, "data": data, "method": {"logistic": {"exchanges": 2}}}
    losses = []
    for number, absent in enumerate((None, fault)):
        folder = tmp_path / str(number)
        folder.mkdir()
        out, config, _, _ = served(folder, "logistic", fault=absent, rules=rules, **options)
        shared = codec.load(out / "logistic" / "shared.safetensors").shared
        losses.append(log_loss(shared.shared.head.linear(), members(config)))
    assert losses[1] < losses[0] + 0.01


def log_loss(head, sites):
    found = []
    for site in sites:
        scores = head(site.test.features)
        scores = scores - scores.max(axis=1, keepdims=True)
        shares = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        found.append(-shares[np.arange(len(shares)), site.test.labels.codes])
    return np.concatenate(found).mean()


def test_a_site_that_comes_late_gets_a_model_and_is_in_the_next_run(tmp_path):
    folder, config = federation(
        tmp_path, "logistic", rules={"minimum": 3}, data=LITTLE, method=SHORT
    )
    everybody = offices(config, tmp_path / "sites")
    late = everybody.pop(103)
    first = run_federation(StandIn(everybody), folder, print)
    some = in_process(config, "logistic", ["c0", "c1", "c2"])
    assert done(first, "logistic")["shared_digest"] == some.shared_digest
    assert not has_model(tmp_path, "c3", "logistic")
    carrier = StandIn({**everybody, 103: late})
    second = run_federation(carrier, folder, print)
    require_same(second, config, "logistic")
    assert has_model(tmp_path, "c3", "logistic")
    assert steps(carrier)["statistics"] == 1  # of the new one; those of the others are kept


# Contributions that are kept


@pytest.mark.parametrize("name", ["logistic", pytest.param("auto", marks=pytest.mark.wide)])
def test_a_total_may_be_of_more_sites_than_are_there(tmp_path, name):
    method = {"logistic": {"exchanges": 3}, "auto": {"exchanges": 2}}
    folder, config = federation(tmp_path, name, rules={"minimum": 3}, data=LITTLE, method=method)
    everybody = offices(config, tmp_path / "sites")
    run_federation(StandIn(everybody), folder, print)
    status = Membership(folder=folder).status()
    assert [ledger["members"] for ledger in status["ledgers"]] == [["c0", "c1", "c2", "c3"]]

    carrier = StandIn({node: office for node, office in everybody.items() if node != 101})
    out = run_federation(carrier, folder, print)
    assert "statistics" not in steps(carrier)
    assert steps(carrier)["lifted_statistics"] == (3 if name == "auto" else 0)  # not kept
    said = told(out, name)
    assert (said["clients"], said["samples"]) == (REST, samples_of(config, REST))
    assert said["restarts"] == 0
    rest = in_process(config, name, REST).accuracy["client_mean"]
    assert done(out, name)["accuracy"]["client_mean"] > rest - 0.03

    Membership(folder=folder).forget("c1")
    carrier = StandIn({node: office for node, office in everybody.items() if node != 101})
    third = run_federation(carrier, folder, print)
    never = in_process(config, name, REST)
    assert done(third, name)["shared_digest"] == never.shared_digest
    assert done(third, name)["model_digest"] == never.model_digest


# A ledger by files

SITES = ("north", "south", "west")


def cli(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)), env={"COLUMNS": "120"})


def ok(*arguments):
    found = cli(*arguments)
    assert found.exit_code == 0, (arguments, found.output)
    return found.stdout


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    """A ledger of three sites; return what makes another of some of them."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    centres = 2 * rng.normal(size=(3, 5))
    for site in SITES:
        y = rng.integers(3, size=40)
        x = centres[y] + rng.normal(size=(40, 5))
        np.savez(tmp_path / f"{site}.npz", x=x, y=y, classes=np.array(["ant", "bee", "cat"]))
        ok("contribute", f"{site}.npz", "--client", site, "-o", site, "-m", "logistic")

    def make_ledger(name, *sites):
        ok("ledger", "init", name)
        ok("ledger", "join", name, *sites)

    make_ledger("all", *SITES)
    return make_ledger


def solved(ledger):
    settings = ("-m", "logistic", "-s", "method.logistic.exchanges=0")
    return json.loads(ok("ledger", "solve", ledger, *settings, "-o", f"{ledger}.head", "--json"))


def test_a_ledger_gives_the_ridge_head_of_logistic_at_once(ledger, tmp_path):
    ledger("never", "north", "south")
    assert solved("all")["shared_digest"] != solved("never")["shared_digest"]
    for what in ("leave", "forget"):
        ok("ledger", what, "all", "west")
        assert solved("all")["shared_digest"] == solved("never")["shared_digest"]
        published = [codec.load(tmp_path / f"{name}.head").shared for name in ("all", "never")]
        heads = [each.shared.head for each in published]
        np.testing.assert_array_equal(heads[0].values, heads[1].values)
        ok("ledger", "join", "all", "west")
    assert solved("all")["samples"] == 120
    ok("personalize", "never.head", "north.npz", "-o", "model")
    lines = csv.DictReader(ok("predict", "model", "north.npz").splitlines())
    names = [line["name"] for line in lines]
    with np.load("north.npz") as truth:
        assert np.mean(np.array(names) == truth["classes"][truth["y"]]) > 0.8


def test_the_ridge_head_of_a_ledger_is_that_of_a_run(ledger, tmp_path):
    parts = []
    for site in SITES:
        with np.load(f"{site}.npz") as part:
            parts.append(dict(part))
    whole = {key: np.concatenate([part[key] for part in parts]) for key in ("x", "y")}
    client = np.repeat(SITES, 40)
    split = np.zeros(len(client), np.int64)
    np.savez("all.npz", **whole, classes=parts[0]["classes"], client=client, split=split)
    given = ("-s", "data.source=all.npz", "-s", "data.partition=given")
    zero = ("-m", "logistic", "-s", "method.logistic.exchanges=0")
    (run_,) = json.loads(ok("run", *zero, *given, "--json"))["runs"]
    assert run_["shared_digest"] == solved("all")["shared_digest"]


@pytest.mark.parametrize("method", ["logistic", "auto"])
def test_a_ledger_says_what_it_cannot_solve_and_what_to_do(ledger, method):
    found = cli("ledger", "solve", "all", "-m", method, "-o", "out")
    assert found.exit_code == 2
    said = " ".join(found.stderr.split())
    for words in ("total answers one sum", "afl, or logistic with exchanges=0", "sites present"):
        assert words in said


# What the server does for each question


def spread(count, width, classes, folds):
    """Return samples, and the questions that their totals lead to."""
    rng = np.random.default_rng(0)
    names = tuple(map(str, range(classes)))
    labels = Labels(rng.integers(classes, size=count), names)
    samples = Samples(Grid()(3 * rng.normal(size=(count, width))), labels)
    space = samples.features.space
    total = Statistics.of(samples.features, samples.labels)
    weights = rng.integers(-(2**12), 2**12, size=(folds, space.width, classes))
    query = SoftmaxQuery(
        values=weights, grid=SoftmaxGrid(), space=space, classes=names, folds=folds
    )
    question = Question(
        equations=(NormalEquations(total=total, ridge=10.0),),
        soft=weights,
        folds=folds,
        counts=class_counts(total)[0],
        pseudo_count=7.0,
    )
    return samples, {"residuals": query, "left_out": question}


@pytest.mark.parametrize("folds", [1, 5])
def test_answers_of_many_samples_are_within_the_room_that_one_sample_gives(folds, monkeypatch):
    monkeypatch.setattr(server, "_LEAST_ROOM", 2**16)  # what is around the numbers
    samples, questions = spread(4000, 60, 30, folds)
    method = create_method("auto", {})
    space, classes = samples.features.space, samples.labels.classes
    client = Client(id="c", train=samples, valid=samples.take([]), state={})
    for step, question in questions.items():
        like = example(getattr(method, step), question, space, classes)
        honest = getattr(method, step)(client, question)
        limit = server._LEAST_ROOM + server._ROOM * codec.size(like)
        assert codec.size(honest) < limit, step


def test_the_form_of_an_answer_is_found_without_solving_twice(tmp_path, monkeypatch):
    """The server is a client of one sample for every sum: that must cost nothing to speak of."""
    from fedgram.core.solve import Factor

    largest = Counter()
    of = Factor.of.__func__

    def counted(cls, gram, *arguments, **options):
        largest[len(gram)] += 1
        return of(cls, gram, *arguments, **options)

    _, questions = spread(500, 60, 4, 1)
    question = questions["left_out"]
    monkeypatch.setattr(Factor, "of", classmethod(counted))
    space, classes = question.equations[0].total.space, question.equations[0].total.classes
    found = []
    for _ in range(3):
        example(create_method("auto", {}).left_out, question, space, classes)
        found.append(largest[space.width])
    assert found[0] > 0
    assert found == [found[0]] * 3  # sites in this process would find the factors there too
