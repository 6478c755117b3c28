"""What a server checks before it adds: each check alone, and that honest sums always pass."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from remote_support import served

from fedgram.core import codec
from fedgram.core.samples import Labels, Samples
from fedgram.core.statistics import Statistics
from fedgram.core.tally import Tally
from fedgram.core.weighted import DOUBLE, Weighted
from fedgram.engines.remote.contributions import Contributions
from fedgram.engines.remote.messages import Refusal
from fedgram.engines.remote.validation import example, require_possible, require_same_schema
from fedgram.errors import DataError, FedgramError, MismatchError
from fedgram.features.grid import Grid
from fedgram.federation.client import Client, Randomness
from fedgram.federation.method import create_method, names
from fedgram.federation.scoring import ScoreSums
from fedgram.ledger.ledger import Ledger
from fedgram.training.pilots import Loss

CLASSES = ("ant", "bee", "cat")


def samples_of(rows, codes, grid=None):
    x = np.asarray(rows, np.float64).reshape(len(codes), -1)
    return Samples((grid or Grid())(x), Labels(np.asarray(codes, np.int64), CLASSES))


def drawn(seed=0, count=20, width=4):
    rng = np.random.default_rng(seed)
    return samples_of(rng.normal(size=(count, width)), rng.integers(3, size=count))


def client(samples):
    rng = np.random.default_rng(0)
    return Client(
        id="c", train=samples, valid=samples.take([]), state={}, randomness=Randomness(rng)
    )


def check(value, like=None, among=1):
    like = value if like is None else like
    require_same_schema(value, like)
    require_possible(value, among=among)


CLOSED = [name for name in names() if hasattr(create_method(name), "statistics")]


@given(data=st.data())
def test_every_honest_contribution_passes(data):
    name = data.draw(st.sampled_from(CLOSED))
    grid = Grid(bits=data.draw(st.sampled_from([2, 4, 8, 16])))
    lift = {"width": data.draw(st.sampled_from([0, 7]))}
    width, count = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6))
    numbers = st.sampled_from([0.0, 1.0, -1.0, 1e6, -1e-6]) | st.floats(-1e3, 1e3)
    rows = data.draw(st.lists(numbers, min_size=width * count, max_size=width * count))
    codes = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    samples = samples_of(rows, codes, grid)
    has = {field.name for field in fields(create_method(name))}
    lifted = {"lift", "primary"} & has if name != "apfl-linear" else set()
    step = create_method(name, dict.fromkeys(lifted, lift)).statistics
    like = example(step, None, samples.features.space, CLASSES)
    check(step(client(samples), None), like, among=1000)


@given(
    predicted=st.lists(st.integers(0, 2), max_size=6),
    seed=st.integers(0, 9),
    auroc=st.none() | st.floats(0, 1),
)
def test_every_honest_score_passes(predicted, seed, auroc):
    codes = np.random.default_rng(seed).integers(3, size=len(predicted))
    tally = Tally.of(np.array(predicted, np.int64), Labels(codes, CLASSES), auroc=auroc)
    nobody = Tally.of(np.zeros(0), Labels(np.zeros(0, np.int64), CLASSES))
    check(ScoreSums(tally=tally, valid=tally), ScoreSums(tally=nobody, valid=nobody))


@given(
    values=st.lists(st.floats(-1024, 1024, width=32), min_size=1, max_size=5),
    weight=st.integers(0, 10**5),
    places=st.sampled_from([24, DOUBLE]),
)
def test_every_honest_weighted_sum_passes(values, weight, places):
    value = Weighted.of(np.array(values), weight, places=places)
    check(value, Weighted.of(np.zeros(len(values)), 1, places=places), among=100)


STATISTICS = Statistics.of(*(getattr(drawn(), part) for part in ("features", "labels")))
WIDTH = STATISTICS.space.width
STARTS = [i * WIDTH - i * (i - 1) // 2 for i in range(WIDTH)]


def entry(where, new):
    gram = STATISTICS.gram.copy()
    gram[where] = new(gram[where]) if callable(new) else new
    return replace(STATISTICS, gram=gram)


def moment(where, new):
    changed = STATISTICS.moment.copy()
    changed[where] = new(changed[where]) if callable(new) else new
    return replace(STATISTICS, moment=changed)


def shifted():
    """Return sums whose class counts no samples have, with all row sums as they were."""
    changed = STATISTICS.moment.copy()
    changed[-1, 0] += 1
    changed[-1, 1] -= 1
    return replace(STATISTICS, moment=changed)


def lent():
    """Return class sums moved from one class to another, larger than its samples allow."""
    changed = STATISTICS.moment.copy()
    counts = changed[-1] // 21
    room = STATISTICS.space.bound * counts[0] + 1 - changed[0, 0]
    changed[0, 0] += room
    changed[0, 1] -= room
    return replace(STATISTICS, moment=changed)


IMPOSSIBLE = {
    "a negative count": (replace(STATISTICS, count=-3, energy=-3), "negative count"),
    "a negative energy": (replace(STATISTICS, energy=-1), "negative count"),
    "a negative diagonal": (entry(STARTS[1], -1), "negative count or sum of squares"),
    "a diagonal too large": (entry(STARTS[1], 21 * 127**2), "larger than its samples"),
    "an entry too large": (entry(1, lambda g: 127**2 * 20), "larger than its diagonal"),
    "an entry too small": (entry(1, lambda g: -(127**2) * 20), "larger than its diagonal"),
    "an entry without magnitude": (entry(1, -(2**63)), "may overflow"),
    "an energy that is none": (replace(STATISTICS, energy=19), "count every sample once"),
    "a constant that varies": (entry(STARTS[-1], lambda g: g - 1), "not constant"),
    "another constant": (entry(STARTS[-1], 20 * 20**2), "row of sums|larger than its diagonal"),
    "another row of sums": (entry(STARTS[1] - 1, lambda g: g + 1), "differs from the class sums"),
    "other class sums": (moment((0, 0), lambda m: m + 1), "differs from the class sums"),
    "odd class counts": (shifted(), "class counts that no samples can have"),
    "class sums of more": (moment((0, 0), 2**40), "class sums larger than the Gram matrix allows"),
    "class sums of others": (lent(), "class sums larger than"),
    "sums of nobody": (replace(STATISTICS, count=0, energy=0), "larger than its samples"),
    "room for nobody": (replace(STATISTICS, count=2**48, energy=2**48), "room for those"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_each_check_of_a_gram_matrix_alone(name):
    check(STATISTICS, among=100)
    value, reason = IMPOSSIBLE[name]
    with pytest.raises(DataError, match=reason):
        check(value, STATISTICS, among=100)


def test_sums_of_no_samples_are_zero():
    nothing = drawn().take([])
    empty = Statistics.of(nothing.features, nothing.labels)
    check(empty, STATISTICS)
    one = np.zeros_like(empty.moment)
    one[0, 0] = 1
    with pytest.raises(DataError, match="class sums larger"):
        check(replace(empty, moment=one), STATISTICS)


TALLY = Tally.of(np.array([0, 1, 1]), Labels(np.array([0, 1, 2]), CLASSES))


@pytest.mark.parametrize(
    "fields",
    [
        {"clients": 2},
        {"clients": 0},
        {"clients_without_test": 1},
        {"samples": -3},
        {"correct": 4},
        {"accuracies": 10**13},
        {"accuracies": -1},
        {"global_accuracy_sum": -1},
        {"aurocs": 1},
        {"auroc_clients": 2},
        {"histogram": -TALLY.histogram},
        {"histogram": 2 * TALLY.histogram},
        {"class_samples": TALLY.class_samples + 1},
        {"class_correct": np.array([2, 0, 0])},
    ],
)
def test_each_check_of_a_score_alone(fields):
    check(TALLY)
    with pytest.raises(DataError, match="no single client"):
        check(replace(TALLY, **fields), TALLY)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"weight": np.array([-1])}, "weights below zero"),
        ({"weight": np.array([2**29])}, "leave no room"),
        ({"diverged": 2}, "diverged more than once"),
        ({"total": np.array([2**40, 0])}, "beyond the reach"),
        ({"total": np.array([-(2**63), 0])}, "may overflow"),
        ({"fine": np.array([2**31, 0])}, "half a step"),
    ],
)
def test_each_check_of_a_weighted_sum_alone(fields, reason):
    honest = Weighted.of(np.array([0.5, -0.25]), 3, places=DOUBLE)
    check(honest)
    with pytest.raises(DataError, match=reason):
        check(replace(honest, **fields), honest)


@pytest.mark.parametrize(
    "fields",
    [{"samples": -1}, {"samples": 0}, {"total": -1}, {"total": 2**40}, {"squares": 2**50}],
)
def test_each_check_of_a_loss_alone(fields):
    honest = Loss.of(np.array([[9.0, 0.0, 1.0]] * 3), Labels(np.array([0, 1, 2]), CLASSES))
    check(honest)
    check(Loss.zero(), honest)
    with pytest.raises(DataError, match="its samples cannot have"):
        check(replace(honest, **fields), honest)


def test_work_is_never_negative():
    scored = ScoreSums(tally=TALLY, valid=TALLY)
    with pytest.raises(DataError, match="less than no time"):
        check(replace(scored, flops=-1), scored)


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        ({"gram": np.full(STATISTICS.gram.shape, np.nan)}, MismatchError, "float64, not int64"),
        ({"count": np.ones(2, np.int64)}, FedgramError, "count"),
        ({"energy": 1.5}, MismatchError, "energy holds float64"),
        ({"classes": ("x", "y", "z")}, MismatchError, "classes differs"),
    ],
)
def test_each_check_of_the_form_alone(change, kind, reason):
    bad = object.__new__(Statistics)
    for name in ("count", "energy", "space", "classes", "gram", "moment"):
        object.__setattr__(bad, name, change.get(name, getattr(STATISTICS, name)))
    with pytest.raises(kind, match=reason):
        require_same_schema(bad, STATISTICS)


def test_a_site_refuses_a_shared_result_that_is_no_model(tmp_path):
    """A server that sends weights of NaN gets a refusal, and the site keeps no such model."""
    sent = []

    def altered(node, request, answer):
        asked = codec.decode(request)
        if asked.kind not in ("score", "deliver"):
            return answer(request)
        head = asked.broadcast.part
        bad = replace(head, weights=np.full_like(head.weights, np.nan))
        part = replace(asked.broadcast, part=bad)
        sent.append(codec.decode(answer(codec.encode(replace(asked, broadcast=part)))))
        return answer(request)

    served(tmp_path, "afl", fault=altered)
    assert len(sent) == 8
    assert all(isinstance(each, Refusal) and "finite numbers" in each.text for each in sent)


def test_the_total_of_a_secure_sum_is_checked_although_its_parts_are_not_seen(tmp_path):
    """Of five sites one sends sums of no samples: the masks hide which, the total shows that."""
    bad = replace(STATISTICS, gram=STATISTICS.gram - 3 * (STATISTICS + STATISTICS).gram)
    names = [f"c{k}" for k in range(5)]
    with Ledger.create(tmp_path / "ledger") as ledger:
        kept = Contributions(ledger, {})
        with pytest.raises(DataError, match="c0, c1, c2, c3, c4: at least one site"):
            kept.join_cohort(names, sum([STATISTICS] * 4) + bad, run="1")
        assert not ledger.members
        kept.join_cohort(names, sum([STATISTICS] * 5), run="1")
        assert kept.names == names


def test_numbers_that_are_none_are_refused_where_there_is_no_grid():
    samples = samples_of(np.ones((3, 2)), [0, 1, 2], Grid(bits="off"))
    honest = Statistics.of(samples.features, samples.labels)
    check(honest)
    for bad in (np.nan, np.inf):
        with pytest.raises(DataError, match="not finite"):
            check(replace(honest, gram=np.full(honest.gram.shape, bad)), honest)
