"""Residual sums of a softmax regression: the same bytes however the samples are spread."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from fedgram import Features, Grid, Labels, Lift, PartitionPlan, Samples, Space, federate
from fedgram.checks.federations import digits, partitioned, trainable
from fedgram.core import codec
from fedgram.core.exact import block_matmul
from fedgram.core.samples import concatenate
from fedgram.errors import DataError, ExactnessError, MismatchError
from fedgram.federation.sites import Union
from fedgram.selection.holdout import folds
from fedgram.softmax import sums
from fedgram.softmax.arithmetic import SoftmaxGrid, exact_logits, softmax_residuals
from fedgram.softmax.sums import IntegerHead, ResidualSums, SoftmaxQuery

PARTITIONS = [(p, k) for p in ("iid", "dirichlet", "shards") for k in (1, 7, 100)]
WIDE = 512  # below about this width many wrong programs pass


def asked(samples, *, number=0, base=True, grid=None, seed=0, reach=2.0, lift=None):
    """A query at random integer weights, whose logits are a few units large."""
    grid, rng = grid or SoftmaxGrid(), np.random.default_rng(seed)
    space = (lift or Lift())(samples.features.take([])).space
    shape = (max(1, number), space.width, len(samples.labels.classes))
    values, other = (
        np.rint(rng.normal(size=shape) * (reach / grid.step(space) / np.sqrt(space.width)))
        .astype(np.int64)
        for _ in range(2)
    )  # fmt: skip
    return SoftmaxQuery(
        values=values,
        grid=grid,
        space=space,
        classes=samples.labels.classes,
        base=other if base else np.zeros((0, 0, 0), np.int64),
        folds=number,
        lift=lift or Lift(),
    )


def honest(query, samples, client):
    return query.sums(samples)


def totals(implementation, query, parts):
    """Digest of what is summed over parts, each a client's samples."""
    answers = [implementation(query, part, client) for client, part in enumerate(parts)]
    total = answers[0]
    for answer in answers[1:]:
        total = total + answer
    return codec.digest([total.totals(), total.base_loss])


def splits(samples):
    """The same samples in one piece, in many, in another order, by class and one by one."""
    order = np.random.default_rng(5).permutation(len(samples))
    by_class = np.argsort(samples.labels.codes, kind="stable")
    yield [samples]
    yield [samples.take(part) for part in np.array_split(order, 7)]
    yield [samples.take(part) for part in np.array_split(order[::-1], 100)]
    yield [samples.take(part) for part in np.array_split(by_class, 13)][::-1]
    yield [samples.take([i]) for i in order[:50]] + [samples.take(order[50:])]


def any_split_gives_the_same_totals(implementation, query, samples):
    found = {totals(implementation, query, parts) for parts in splits(samples)}
    assert len(found) == 1, f"{len(found)} different totals"


@pytest.fixture(scope="module")
def wide(clusters):
    return clusters(700, WIDE, 100)


@pytest.fixture(scope="module")
def wide_samples(wide):
    return Samples(Grid()(wide.x), Labels(wide.y, wide.classes))


# However samples are spread


@pytest.mark.parametrize("number", [0, 1, 5])
def test_any_partition_of_the_digits_gives_the_same_totals(number):
    query, found = asked(digits(), number=number), set()
    for partition, clients in PARTITIONS:
        members = partitioned(partition=partition, clients=clients).members
        found.add(totals(honest, query, [site.train for site in members]))
    assert len(found) == 1


@pytest.mark.parametrize("number", [0, 1])
def test_any_partition_of_wide_features_gives_the_same_totals(wide, wide_samples, number):
    query, found = asked(wide_samples, number=number), set()
    assert query.values.shape[1] > WIDE
    for partition, clients in PARTITIONS:
        members = federate(wide, PartitionPlan(partition=partition, clients=clients)).members
        found.add(totals(honest, query, [site.train for site in members]))
    assert len(found) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"number": 5},
        {"grid": SoftmaxGrid(weights=30, table=14, residuals=24)},
        {"grid": SoftmaxGrid(weights=8, table=4, residuals=4)},
        {"reach": 1000.0},
        {"lift": Lift(width=40)},
    ],
    ids=str,
)
def test_any_split_and_order_gives_the_same_totals(settings):
    any_split_gives_the_same_totals(honest, asked(trainable(), **settings), trainable())


@pytest.mark.parametrize("bits", [2, 4, 12, 16])
def test_any_grid_of_features_gives_the_same_totals(gridded, bits):
    samples = gridded(200, 12, 4, grid=Grid(bits=bits))
    any_split_gives_the_same_totals(honest, asked(samples, number=1), samples)


@pytest.mark.parametrize("entries", [1, 2**13, 2**30])
def test_batches_change_nothing(monkeypatch, wide_samples, entries):
    for samples in (digits(), wide_samples):
        query = asked(samples, number=1)
        before = totals(honest, query, [samples])
        monkeypatch.setattr(sums, "_ENTRIES_AT_A_TIME", entries)
        assert totals(honest, query, [samples]) == before
        monkeypatch.undo()


def test_threads_change_nothing(wide_samples):
    for samples in (digits(), wide_samples):
        query, found = asked(samples, number=1), set()
        for threads in (1, 2):
            with threadpool_limits(limits=threads, user_api="blas"):
                found.add(totals(honest, query, [samples]))
        assert len(found) == 1


def test_the_totals_are_sums_of_python_integers(gridded):
    samples = gridded(90, 5, 3)
    query = asked(samples)
    sums, rows = query.sums(samples), samples.features.values.tolist()
    weights = query.values[0].tolist()
    logits = [
        [sum(a * line[c] for a, line in zip(row, weights, strict=True)) for c in range(3)]
        for row in rows
    ]
    residuals, losses = softmax_residuals(
        np.array(logits, np.float64), samples.labels.codes, query.grid
    )
    products = [
        [sum(row[f] * int(r[c]) for row, r in zip(rows, residuals, strict=True)) for c in range(3)]
        for f in range(6)
    ]
    assert sums.products.tolist() == [products]
    assert sums.loss.tolist() == [sum(losses.tolist())]
    assert sums.products.dtype == np.int64


def test_copies_of_a_sample_count_as_often_as_there_are():
    query, some = asked(digits()), digits().take([3, 5])
    once, thrice = query.sums(some), query.sums(concatenate([some, some, some]))
    assert once + once + once == thrice


def test_a_client_without_samples_adds_nothing():
    query = asked(digits(), number=5)
    whole, nothing = query.sums(digits()), query.sums(digits().take([]))
    assert whole + nothing == whole


def test_order_of_features_changes_nothing(gridded):
    order_of_features_does_not_matter(exact_logits, gridded)


def order_of_features_does_not_matter(logits_of, gridded, divisor=1):
    """Logits on the very edge of two steps of the table: where a last bit would be seen."""
    samples = gridded(400, 40, 3)
    space, rng = samples.features.space, np.random.default_rng(0)
    rows = samples.features.values.astype(np.float64)
    values = rng.integers(-180, 180, (41, 3))
    found = set()
    for order in (np.arange(41), np.arange(41)[::-1], rng.permutation(41)):
        parts = logits_of(
            np.ascontiguousarray(rows[:, order]),
            values[order] if divisor == 1 else values[order] / divisor,
            space,
        )
        # One step of these logits is half a step of the table.
        grid = SoftmaxGrid(weights=13, table=12, residuals=24)
        found.add(codec.digest(softmax_residuals(parts * divisor, samples.labels.codes, grid)[0]))
    assert len(found) == 1


# Folds, and what is asked for


def test_folds_are_fits_without_the_samples_they_leave_out():
    samples = digits()
    for number in (1, 5):
        query, place = asked(samples, number=number), folds(samples, number)
        sums = query.sums(samples)
        for k in range(number):
            alone = replace(query, values=query.values[[k]], base=query.base[[k]], folds=0)
            used = alone.sums(samples.take(np.flatnonzero(place != k)))
            out = alone.sums(samples.take(np.flatnonzero(place == k)))
            one = sums.fold(k)
            assert np.array_equal(one.products, used.products)
            assert (one.loss, one.base_loss) == (used.loss, used.base_loss)
            assert (one.count, one.out_count) == (used.count, out.count)
            assert one.out_loss == out.loss
        assert (sums.count + sums.out_count == len(samples)).all()


def test_losses_alone_are_those_asked_for_with_residuals():
    for number in (0, 5):
        query = asked(digits(), number=number)
        whole, alone = query.sums(digits()), replace(query, residuals=False).sums(digits())
        assert alone.products.size == 0
        for name in ("count", "loss", "base_loss", "out_loss", "out_correct", "fingerprint"):
            assert np.array_equal(getattr(whole, name), getattr(alone, name))
        alone.validate()


def test_the_base_loss_is_the_loss_at_the_base():
    query = asked(digits())
    there = replace(query, values=query.base, base=query.values).sums(digits())
    here = query.sums(digits())
    assert (here.loss, here.base_loss) == (there.base_loss, there.loss)


def test_the_fingerprint_tells_who_answered():
    query = asked(digits())
    first, second = digits().take(slice(0, 900)), digits().take(slice(900, None))
    whole = query.sums(digits()).fingerprint
    assert np.array_equal((query.sums(first) + query.sums(second)).fingerprint, whole)
    assert not np.array_equal(query.sums(first).fingerprint, whole)
    elsewhere = asked(digits(), seed=9, number=5).sums(digits())
    assert np.array_equal(elsewhere.fingerprint, whole)  # whatever the weights and folds


def test_correct_counts_are_those_of_the_head():
    samples = digits()
    query = asked(samples, number=1)
    head = IntegerHead(
        values=query.values[0], grid=query.grid, space=query.space, classes=query.classes
    )
    out = samples.take(np.flatnonzero(folds(samples, 1) == 0))
    right = (head.linear()(out.features).argmax(axis=1) == out.labels.codes).sum()
    assert query.sums(samples).out_correct.tolist() == [right]


def test_a_head_is_rounded_to_half_a_step():
    space, grid = Grid().space(5), SoftmaxGrid(weights=12)
    weights = np.random.default_rng(0).normal(size=(6, 3))
    back = IntegerHead.of(weights, grid, space, ("a", "b", "c")).linear().weights
    assert 0 < np.abs(back - weights).max() <= grid.step(space) / 2


# What is refused


def test_sums_at_other_weights_do_not_add():
    one, other = asked(digits()), asked(digits(), seed=1)
    with pytest.raises(MismatchError, match="ResidualSums: at differs"):
        one.sums(digits()) + other.sums(digits())
    with pytest.raises(MismatchError, match="at differs"):
        one.sums(digits()) + replace(one, base=other.base).sums(digits())


def test_sums_in_other_spaces_or_on_other_grids_do_not_add(gridded):
    query = asked(gridded(20, 4, 3))
    sums = query.sums(gridded(20, 4, 3))
    for change, words in (
        ({"space": replace(sums.space, unit=2.0)}, "space differs"),
        ({"classes": ("a", "b", "c")}, "classes differs"),
        ({"grid": SoftmaxGrid(residuals=15)}, "grid differs"),
    ):
        with pytest.raises(MismatchError, match=words):
            sums + replace(sums, **change)


def test_sums_with_and_without_residuals_do_not_add():
    query = asked(digits())
    with pytest.raises(MismatchError, match="products differs in shape"):
        query.sums(digits()) + replace(query, residuals=False).sums(digits())


def test_features_and_classes_that_the_weights_are_not_for_are_refused(gridded):
    query = asked(gridded(20, 4, 3))
    with pytest.raises(MismatchError, match=r"weights are for other features.*grid"):
        query.sums(gridded(20, 4, 3, grid=Grid(bits=4)))
    with pytest.raises(MismatchError, match="another class list"):
        query.sums(gridded(20, 4, 4))


def test_weights_of_another_shape_are_refused():
    query = asked(digits())
    for change in ({"folds": 5}, {"values": query.values[:, :-1]}, {"base": query.base[:, :, :-1]}):
        with pytest.raises(DataError, match="softmax weights: expected the shape"):
            replace(query, **change)


def test_weights_too_large_for_exact_logits_are_refused():
    query = asked(digits())
    with pytest.raises(ExactnessError):
        replace(query, values=query.values * 2**36).sums(digits())


def test_honest_sums_are_valid_for_any_number_of_sites():
    for number in (0, 1, 5):
        sums = asked(digits(), number=number).sums(digits())
        for sites_ in (1, 1000, 10**6):
            sums.validate(sites_)
    ResidualSums.zero().validate()


@pytest.mark.parametrize("classes", [2, 185, 300, 1000, 10450])
def test_honest_sums_of_one_extreme_sample_are_valid_for_any_number_of_classes(classes):
    space, names = Space(width=2, bound=127), tuple(map(str, range(classes)))
    rows = Features(np.full((1, 2), 127, np.int8), space)
    for code in (0, classes - 1):
        samples = Samples(rows, Labels(np.array([code]), names))
        query = SoftmaxQuery(
            values=np.zeros((1, 2, classes), np.int64),
            grid=SoftmaxGrid(),
            space=space,
            classes=names,
        )
        query.sums(samples).validate()


def changed(field, place, by):
    def change(sums):
        array = getattr(sums, field).copy()
        array[place] += by
        return replace(sums, **{field: array})

    return change


def larger(sums):
    """Residuals that still add up to zero, but that so few samples cannot have."""
    products = sums.products.copy()
    most = int(sums.count[0]) * sums.space.bound << sums.grid.residuals
    products[0, 0, :2] = [2 * most, -2 * most - products[0, 0, 2:].sum()]
    return replace(sums, products=products)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed("products", (0, 3, 4), 1), "sum to zero over classes"),
        (changed("products", (0, 0, 0), -(2**62)), "sum to zero over classes"),
        (larger, "too large for the number of samples"),
        (changed("loss", 0, -(2**60)), ">= 0, and correct"),
        (changed("base_loss", 0, -(2**60)), ">= 0, and correct"),
        (changed("out_loss", 0, -(2**60)), ">= 0, and correct"),
        (changed("count", 0, -(10**6)), ">= 0, and correct"),
        (changed("out_count", 0, -(10**6)), ">= 0, and correct"),
        (changed("out_correct", 0, 10**6), "correct <= count"),
        (changed("count", 0, 2**55), "may overflow"),
        (changed("loss", 0, 2**62), "may overflow"),
    ],
)
def test_sums_that_no_client_could_send_are_refused(change, words):
    sums = asked(digits(), number=1).sums(digits())
    with pytest.raises(DataError, match=words):
        change(sums).validate()


def test_room_is_shared_among_sites():
    sums = changed("loss", 0, 2**58)(asked(digits()).sums(digits()))
    sums.validate(2)
    with pytest.raises(DataError, match="may overflow"):
        sums.validate(100)


# Wrong programs, which the laws must catch


class Loose:
    """Sums of whatever type, for wrong programs that do not add integers."""

    def __init__(self, products, more):
        self.products, self.more = products, more
        self.base_loss = 0

    def __add__(self, other):
        return Loose(self.products + other.products, self.more + other.more)

    def totals(self):
        return {"products": self.products, "more": self.more}


def parts_of(query, samples):
    rows = samples.features.values.astype(np.float64)
    return rows, exact_logits(rows, query.values[0], query.space), samples.labels.codes


def library_exponentials(query, samples, client):
    rows, logits, codes = parts_of(query, samples)
    powers = np.exp((logits - logits.max(axis=1, keepdims=True)) * np.log(2) / 2**16)
    shares = powers / powers.sum(axis=1, keepdims=True)
    return Loose(rows.T @ (np.eye(shares.shape[1])[codes] - shares), 0)


def single_precision(query, samples, client):
    rows, logits, codes = parts_of(query, samples)
    residuals, losses = softmax_residuals(logits, codes, query.grid)
    narrow = rows.astype(np.float32).T @ residuals.astype(np.float32)
    return Loose(narrow, int(losses.sum()))


def means_of_clients(query, samples, client):
    sums = query.sums(samples)
    return replace(sums, products=sums.products // max(1, len(samples)))


def tenth_by_client(query, samples, client):
    """Each client draws its own tenth, instead of leaving it to the content of the samples."""
    place = np.where(np.random.default_rng(client).random(len(samples)) < 0.1, 0, -1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "folds", lambda *_: place)
        return query.sums(samples)


def tenth_by_place(query, samples, client):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "folds", lambda *_: np.where(np.arange(len(samples)) % 10, -1, 0))
        return query.sums(samples)


@pytest.mark.parametrize(
    "broken",
    [library_exponentials, single_precision, means_of_clients, tenth_by_client, tenth_by_place],
)
def test_the_split_law_fails_on_a_wrong_program(broken):
    query = asked(trainable(), number=1)
    with pytest.raises(AssertionError, match="different totals"):
        any_split_gives_the_same_totals(broken, query, trainable())


def test_the_law_of_features_fails_on_weights_that_are_not_rounded(gridded):
    def unrounded(rows, values, space):
        return block_matmul(rows, values)

    with pytest.raises(AssertionError):
        order_of_features_does_not_matter(unrounded, gridded, divisor=10)


def test_wrong_programs_are_wrong_for_one_reason():
    """What they do rightly passes the same law, so that the law catches the fault alone."""

    def exact(query, samples, client):
        rows, logits, codes = parts_of(query, samples)
        residuals, losses = softmax_residuals(logits, codes, query.grid)
        return Loose((rows.T @ residuals).astype(np.int64), int(losses.sum()))

    any_split_gives_the_same_totals(exact, asked(trainable(), number=1), trainable())


# Unions of clients


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    number=st.sampled_from([0, 1, 5]),
    base=st.booleans(),
    residuals=st.booleans(),
    reach=st.sampled_from([0.0, 0.02, 2.0, 1000.0]),
    mixed=st.booleans(),
    small=st.sampled_from([-1, 0, 4, 256]),
)
def test_a_union_gives_the_sum_and_the_bytes_of_its_clients(
    sizes, number, base, residuals, reach, mixed, small
):
    with mock.patch.object(sums, "_SMALL", small):  # larger clients are computed one by one
        check_union(sizes, number, base, residuals, reach, mixed)


def check_union(sizes, number, base, residuals, reach, mixed):
    samples = trainable().take(slice(0, sum(sizes)))
    query = asked(trainable(), number=number, base=base, reach=reach)
    query = replace(query, residuals=residuals)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    if mixed:  # as with validation samples, which come behind
        owners = np.random.default_rng(1).permutation(owners)
    alone = [query.sums(samples.take(np.flatnonzero(owners == k))) for k in range(len(sizes))]
    union = Union(samples=samples, owners=owners, clients=len(sizes))
    total, size = query.total(union)
    assert total == ResidualSums.sum_of(alone)
    assert size == sum(codec.counted(one) for one in alone)


def test_types_of_small_residual_sums_are_made_where_bounds_differ(monkeypatch):
    """Sums of the last feature are zero here, while those of others need more bytes."""
    space = Space(width=2, unit=1.0, bound=127)
    rows = Features(np.array([[90, 1], [-90, 1], [1, 1]] * 2, np.int8), space)
    samples = Samples(rows, Labels(np.array([0, 1, 0] * 2), ("a", "b")))
    query = SoftmaxQuery(
        values=np.zeros((1, 2, 2), np.int64), grid=SoftmaxGrid(), space=space, classes=("a", "b")
    )
    owners = np.array([0, 0, 1, 2, 2, 3])
    alone = [query.sums(samples.take(np.flatnonzero(owners == k))) for k in range(4)]
    assert not alone[0].products[0, -1].any()
    total, size = query.total(Union(samples=samples, owners=owners, clients=4))
    assert size == sum(codec.counted(one) for one in alone)
    assert total == ResidualSums.sum_of(alone)


def test_features_without_a_grid_have_no_total_of_a_union(gridded):
    samples = gridded(20, 4, 3, grid=Grid(bits="off"))
    query = asked(samples)
    with pytest.raises(ExactnessError, match="without a grid"):
        query.total(Union(samples=samples, owners=np.zeros(20, np.int64), clients=1))
