"""Many clients in one pass: the same sums, bytes, scores and records as client by client."""

import dataclasses
import functools
import operator
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram.checks.laws import personalizing_changes_nothing
from fedgram.core import codec, statistics_sizes
from fedgram.core.samples import Features, Labels, Samples, Space
from fedgram.core.statistics import Statistics
from fedgram.core.tally import Tally
from fedgram.data.dataset import Dataset
from fedgram.data.plan import PartitionPlan
from fedgram.engines import in_process
from fedgram.engines.in_process import InProcess
from fedgram.errors import DataError, LawError, MismatchError
from fedgram.experiments import record as records
from fedgram.experiments import runner
from fedgram.experiments.record import NOTES, PARTITION, SCORES, Record
from fedgram.experiments.runner import run
from fedgram.features.grid import Grid
from fedgram.features.lift import Lift
from fedgram.federation import scoring, union_scoring
from fedgram.federation.client import Site
from fedgram.federation.federated_dataset import federate
from fedgram.federation.method import (
    create_method,
    find_method,
    for_all_clients,
    names,
    same_model,
)
from fedgram.federation.scoring import Metrics, ScoreSums, SiteScore
from fedgram.federation.sites import Sites, union
from fedgram.federation.union_step import statistics_step
from fedgram.methods._closed_form import ClosedForm
from fedgram.methods.afl import AFL
from fedgram.methods.auto import Auto
from fedgram.methods.local import Local
from fedgram.models.linear import lifted
from fedgram.models.mlp import TrainedModel
from fedgram.training.loop import GradientMethod

CLOSED_FORM = [name for name in names() if issubclass(find_method(name), ClosedForm)]
SAME_MODEL = [name for name in names() if same_model(create_method(name))]


@functools.cache
def data(samples=160):
    rng = np.random.default_rng(7)
    codes = rng.integers(0, 3, samples)
    x = rng.normal(size=(samples, 6)) + 2 * np.eye(3, 6)[codes]
    return Dataset(x=x, y=codes, classes=("a", "b", "c"))


def dealt(**plan):
    plan = {"clients": 9, "dirichlet": 0.3, "valid_fraction": 0.2, **plan}
    return federate(data(), PartitionPlan(**plan))


def listed(everybody):
    """Return the same federation with sites that have samples of their own."""
    return dataclasses.replace(
        everybody, members=list(everybody.members), holdout=list(everybody.holdout)
    )


class OneByOne(InProcess):
    """The engine without unions and stacks."""

    def _sum_of_union(self, step, broadcast, names):
        return None

    def _stacked(self, step, broadcast, names, client_at):
        alone = functools.partial(step)
        alone.__name__ = step.__name__
        return self._ask(alone, broadcast, names, client_at)

    def _evaluate_together(self, task, shared):
        return None


@pytest.fixture
def no_time(monkeypatch):
    """Personalization takes no time: the digits of microseconds would be sent too."""
    clock = SimpleNamespace(perf_counter=lambda: 0.0)
    monkeypatch.setattr(scoring, "time", clock)
    monkeypatch.setattr(union_scoring, "time", clock)


def found(engine, method, everybody, monkeypatch, **options):
    """Return all of a run's results and costs that do not depend on the clock."""
    with monkeypatch.context() as patch:
        patch.setattr(runner, "InProcess", engine)
        result = run(method, everybody, **options)
    # What is cached by samples is not made again in the second run, and so FLOPs differ.
    uncounted = {"seconds": 0.0, "flops": 0} if caches(method) else {"seconds": 0.0}
    exchanges = [dataclasses.replace(one, **uncounted) for one in result.record.exchanges]
    rounds = [*result.record.rounds, *([result.record.holdout] if result.record.holdout else [])]
    return {
        "exchanges": exchanges,
        "shared": result.shared_digest,
        "models": {name: codec.digest(model) for name, model in result.predictors.items()},
        "rows": [list(one.clients) for one in rounds],
        "summaries": [dataclasses.replace(one.summary, **uncounted) for one in rounds],
        "partition": list(result.record.partition.clients) if result.record.partition else None,
    }


def caches(method):
    """Return whether a method caches lifted features or products of samples."""
    widths = (value.width for value in vars(method).values() if isinstance(value, Lift))
    return isinstance(method, Auto | GradientMethod) or any(widths)


def differences(method, everybody, monkeypatch, **options):
    """Return what differs between the union and the clients one by one."""
    both = [
        found(kind, method, everybody, monkeypatch, **options) for kind in (InProcess, OneByOne)
    ]
    return [key for key in both[0] if both[0][key] != both[1][key]]


OPTIONS = [
    {},
    {"dropout": 0.4, "seed": 3},
    {"workers": 3},
    {"private": True},
    {"metrics": Metrics(auroc=True, classes=True)},
]
PLANS = [{}, {"holdout_clients": 2}, {"reserve_valid": True}, {"split": "within-client"}]


@pytest.mark.parametrize("name", sorted({*CLOSED_FORM, *SAME_MODEL} - {"fedacnnl"}))
def test_a_union_gives_what_its_clients_give_one_by_one(name, monkeypatch, no_time):
    method = create_method(name).shortened()
    assert differences(method, dealt(holdout_clients=2), monkeypatch) == []


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_so_it_does_with_every_option(options, plan, monkeypatch, no_time):
    for method in (AFL(), create_method("afl", {"lift": {"width": 12}})):
        assert differences(method, dealt(**plan), monkeypatch, **options) == []
        assert differences(method, listed(dealt(**plan)), monkeypatch, **options) == []


def test_a_trained_model_is_scored_with_a_product_of_each_site(monkeypatch, no_time):
    """The last bits of a product of floats depend on its number of rows."""
    rows = []
    score = TrainedModel._score

    def noted(model, lifted, scores):
        rows.append(len(lifted))
        score(model, lifted, scores)

    monkeypatch.setattr(TrainedModel, "_score", noted)
    everybody = dealt()
    method = create_method("fedavg", rounds=1, rate=0.1)
    (shared,) = method.fit(InProcess(everybody.members))
    task = scoring.ScoreTask(method=method, kept_valid=True)
    InProcess(everybody.members).evaluate(task, shared)
    parts = [(site.test, site.valid) for site in everybody.members]
    assert sorted(rows) == sorted(len(samples) for both in parts for samples in both)


def test_so_it_does_in_many_batches(monkeypatch, no_time):
    monkeypatch.setattr("fedgram.federation.sites._ROWS", 10)
    for workers in (1, 2):
        assert differences(AFL(), dealt(clients=20), monkeypatch, workers=workers) == []
    monkeypatch.setattr("fedgram.federation.sites._CLIENTS", 3)
    assert differences(AFL(), dealt(clients=20), monkeypatch) == []


def test_some_clients_are_summed_and_no_others():
    one_by_one, together = (kind(dealt().members) for kind in (OneByOne, InProcess))
    for some in (["c1", "c7", "c8"], ["c3"], ["c8", "c0"]):
        total = together.sum(AFL().statistics, clients=some)
        assert total == one_by_one.sum(AFL().statistics, clients=some)
        assert together.contributors == one_by_one.contributors == sorted(some)
        assert together.asks[-1].bytes_up == one_by_one.asks[-1].bytes_up
    assert together._totals.of("c8") == {"statistics"}
    assert together._totals.of("c3") == frozenset()


def test_without_a_grid_the_order_of_additions_is_kept(monkeypatch, no_time):
    everybody = federate(data(), PartitionPlan(clients=5), Grid(bits="off"))
    assert differences(AFL(), everybody, monkeypatch) == []


# Mistakes that the comparison finds


def wrong_limit(monkeypatch):
    limits = statistics_sizes._LIMITS + np.array([1, 0, 0]) * 10**5
    monkeypatch.setattr(statistics_sizes, "_LIMITS", limits)


def counted_twice(monkeypatch):
    closed_form = Sites.closed_form
    monkeypatch.setattr(
        Sites, "closed_form", lambda self, places: closed_form(self, np.append(places, places[:1]))
    )


def left_out(monkeypatch):
    closed_form = Sites.closed_form
    monkeypatch.setattr(Sites, "closed_form", lambda self, places: closed_form(self, places[1:]))


def no_valid_samples(monkeypatch):
    monkeypatch.setattr(Sites, "closed_form", lambda self, places: union(self.train, places))


def shifted_owners(monkeypatch):
    count = union_scoring.OwnedLabels.count
    monkeypatch.setattr(
        union_scoring.OwnedLabels,
        "count",
        lambda self, chosen=None: np.roll(count(self, chosen), 1),
    )


def digits_forgotten(monkeypatch):
    monkeypatch.setattr(union_scoring, "_DIGITS", np.array([2**62]))


@pytest.mark.parametrize(
    ("mistake", "seen"),
    [
        (wrong_limit, "exchanges"),
        (counted_twice, "shared"),
        (left_out, "shared"),
        (no_valid_samples, "shared"),
        (shifted_owners, "rows"),
        (digits_forgotten, "exchanges"),
    ],
)
def test_a_mistake_is_seen(mistake, seen, monkeypatch, no_time):
    everybody = dealt(clients=40)
    assert differences(AFL(), everybody, monkeypatch) == []
    mistake(monkeypatch)
    assert seen in differences(AFL(), everybody, monkeypatch)


def test_a_model_of_one_client_is_not_taken_for_that_of_all(monkeypatch, no_time):
    everybody = dealt()
    monkeypatch.setattr(in_process, "can_score_together", lambda task, shared: True)
    assert "models" in differences(create_method("apfl-linear"), everybody, monkeypatch)


# Bytes


@st.composite
def unions(draw):
    bound = draw(st.sampled_from([1, 11, 12, 127, 181, 182, 2047]))
    width, classes, clients = draw(st.integers(1, 4)), draw(st.integers(1, 3)), 4
    rows = draw(st.integers(0, 24))
    entry = st.sampled_from([-bound, -1, 0, 1, bound // 2, bound])
    flat = draw(st.lists(entry, min_size=rows * width, max_size=rows * width))
    values = np.array(flat, np.int8 if bound < 128 else np.int16).reshape(rows, width)
    repeat = draw(st.sampled_from([1, 1, 1, 60]))  # more than the limit of 16 bits
    codes = draw(st.lists(st.integers(0, classes - 1), min_size=rows, max_size=rows))
    owners = draw(st.lists(st.integers(0, clients - 1), min_size=rows, max_size=rows))
    names = tuple("abc"[:classes])
    features = Features(values.repeat(repeat, axis=0), Space(width=width, bound=bound))
    labels = Labels(np.array(codes, np.int64).repeat(repeat), names)
    return features, labels, np.array(owners, np.int64).repeat(repeat), clients


@given(some=unions())
@settings(max_examples=60)
def test_bytes_are_those_of_each_encoded_contribution(some):
    features, labels, owners, clients = some
    sizes = statistics_sizes.statistics_sizes(features, labels, owners, clients)
    for client in range(clients):
        own = owners == client
        contribution = Statistics.of(features.take(own), labels.take(own))
        assert sizes[client] == codec.counted(contribution) == len(codec.encode(contribution))


@pytest.mark.parametrize("largest", [127, 128, 2**15 - 1, 2**15, 2**31 - 1, 2**31])
def test_bytes_change_where_the_integer_type_does(largest):
    """A column of ones and one client: the largest entry is the number of samples."""
    values = np.ones((min(largest, 2**15), 1), np.int8)
    groups = statistics_sizes._Groups(values, np.zeros(len(values), np.int64), values[:, 0] * 0)
    types = groups.types(1)
    if largest <= 2**15:
        wanted = statistics_sizes._TYPES.index(codec._least(np.array([largest])))
        assert types[0][0] == types[1][0] == wanted
    assert statistics_sizes._TYPES[int(statistics_sizes._type(np.array(largest)))] is codec._least(
        np.array([largest])
    )


# What is kept


def test_no_site_is_made_for_a_sum_and_one_for_a_score():
    everybody = dealt(clients=30)
    run(AFL(), everybody)
    assert list(everybody.members._made) == [0]


def test_a_site_is_made_once_and_keeps_its_state():
    sites = dealt().members
    assert sites[2] is sites[2]
    sites[2].state["kept"] = 1
    fresh = sites.fresh()
    assert not fresh[2].state
    assert fresh[2].train is sites[2].train  # what is computed from it is cached


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picky(AFL):
    """Refuses samples whose first feature is at the bound."""

    @statistics_step
    def statistics(self, samples):
        if (samples.features.values[:, 0] == samples.features.space.bound).any():
            raise DataError("there is a sample at the bound")
        return lifted(samples, self.lift)


def test_the_error_of_a_bad_client_names_it():
    everybody = dealt()
    bad = everybody.members[4]
    values = bad.train.features.values.copy()
    values[0, 0] = bad.train.features.space.bound
    features = dataclasses.replace(bad.train.features, values=values)
    sites = list(everybody.members)
    sites[4] = dataclasses.replace(bad, train=Samples(features, bad.train.labels))
    with pytest.raises(DataError, match="client c4: there is a sample at the bound"):
        InProcess(sites).sum(Picky().statistics)


def test_clients_of_other_spaces_do_not_add():
    everybody = dealt()
    other = federate(data(), PartitionPlan(clients=9), Grid(bits=6)).members
    sites = [*everybody.members[:4], *other[4:]]
    for kind in (InProcess, OneByOne):
        with pytest.raises(MismatchError, match="6 bits"):
            kind(sites).sum(AFL().statistics)


def test_progress_is_told_of_each_client_of_a_few_and_seldom_of_many():
    told = []
    engine = InProcess(dealt().members, on_reply=lambda *news: told.append(news))
    engine.sum(AFL().statistics)
    assert told == [("statistics", done, 9) for done in range(1, 10)]
    told.clear()
    few = data().x[:1]
    samples = Samples(Grid()(few), Labels(np.array([0]), ("a", "b")))
    none = samples.take([])
    sites = [Site(id=f"{k:04d}", train=samples, valid=none, test=none) for k in range(1000)]
    InProcess(sites, on_reply=lambda *news: told.append(news)).sum(AFL().statistics)
    assert told[0] == ("statistics", 1, 1000)
    assert told[-1] == ("statistics", 1000, 1000)
    assert 50 < len(told) < 200


def test_clients_beyond_a_number_are_not_listed_in_the_folder(tmp_path, monkeypatch):
    everybody = dealt()
    monkeypatch.setattr(records, "MOST_LISTED", 8)
    many = run(AFL(), everybody, record=Record(tmp_path / "many"))
    monkeypatch.setattr(records, "MOST_LISTED", 9)
    few = run(AFL(), everybody, record=Record(tmp_path / "few"))
    assert many.accuracy == few.accuracy
    assert len(many.record.chosen.clients) == 9  # in memory they are there
    lines = {name: (tmp_path / name / SCORES).read_text().splitlines() for name in ("many", "few")}
    assert (len(lines["many"]), len(lines["few"])) == (2, 11)
    assert not (tmp_path / "many" / PARTITION).exists()
    assert not (tmp_path / "many" / "models").exists()
    assert "9 clients are too many" in (tmp_path / "many" / NOTES).read_text()
    assert not (tmp_path / "few" / NOTES).exists()


@pytest.mark.parametrize("clients", [2000])
def test_thousands_of_clients_are_a_matter_of_moments(clients):
    """Client by client this takes minutes where tests are slow."""
    everybody = federate(
        data(4000), PartitionPlan(clients=clients, partition="iid", holdout_clients=5)
    )
    result = run(AFL(), everybody)
    assert result.record.summary.clients == clients - 5
    assert len(result.predictors) == clients
    central = run(create_method("central"), federate(data(4000), PartitionPlan(clients=5)))
    assert result.accuracy["sample_mean"] > 0.9 * central.accuracy["sample_mean"]


# Scores one by one


@given(
    samples=st.sampled_from([0, 1, 9, 10, 127, 128, 500, 40_000]),
    share=st.floats(0, 1),
    microseconds=st.integers(0, 10**7),
    digest=st.sampled_from([None, "0" * 64]),
)
@settings(max_examples=60)
def test_bytes_of_a_score_are_those_of_the_codec(samples, share, microseconds, digest):
    codes = np.arange(samples) % 2
    predicted = np.where(np.arange(samples) < share * samples, codes, 1 - codes)
    tally = Tally.of(predicted, Labels(codes, ("no", "yes")), auroc=share)
    sums = ScoreSums(tally=tally, valid=Tally.of(codes[:0], Labels(codes[:0], ("no", "yes"))))
    score = SiteScore(
        sums=dataclasses.replace(sums, microseconds=microseconds, flops=microseconds**2),
        model_digest=digest,
    )
    assert score.size() == codec.counted(score)


def test_many_values_are_added_as_one_after_the_other():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, (40, 6))
    parts = [Tally.of(rng.permutation(row), Labels(row, ("a", "b", "c"))) for row in codes]
    assert Tally.sum_of([Tally.zero(), *parts]) == functools.reduce(operator.add, parts)
    other = Tally.of(codes[0], Labels(codes[0], ("a", "b", "d")))
    with pytest.raises(MismatchError, match="classes differs"):
        Tally.sum_of([*parts, other])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lying(AFL):
    """Declares a personal model as that of all clients."""

    @for_all_clients
    def personalize(self, client, shared):
        return dataclasses.replace(shared, weights=shared.weights * len(client.samples))


def test_a_declaration_that_is_not_true_breaks_a_law():
    personalizing_changes_nothing(AFL())
    with pytest.raises(LawError, match="@for_all_clients"):
        personalizing_changes_nothing(Lying())


class Broken(Local):
    """A method whose personalization fails at one client."""

    def personalize(self, client, shared):
        if client.id == dealt().members[4].id:
            raise DataError("no model")
        return super().personalize(client, shared)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_failed_personalization_names_its_client(workers):
    name = dealt().members[4].id
    with pytest.raises(DataError, match=rf"client {name}: no model"):
        run(Broken(), dealt(), workers=workers)


def test_progress_of_own_models_is_told_of_every_client():
    told = []
    engine = InProcess(dealt(clients=40).members, on_reply=lambda *each: told.append(each))
    task = scoring.ScoreTask(method=Local())
    assert len(list(engine.evaluate(task, None))) == 40
    assert told == [("ScoreTask", k + 1, 40) for k in range(40)]
