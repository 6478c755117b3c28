"""Values that add and subtract, field by field."""

from dataclasses import FrozenInstanceError, dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram import Additive
from fedgram.core.additive import schema_field
from fedgram.core.quadratic import Quadratic
from fedgram.core.samples import Labels, Space
from fedgram.core.statistics import Statistics
from fedgram.core.tally import Tally
from fedgram.core.weighted import Weighted
from fedgram.data.tabular.moments import Moments
from fedgram.errors import DataError, MismatchError
from fedgram.features.grid import Grid
from fedgram.federation.scoring import ScoreSums
from fedgram.training.pilots import Loss


@dataclass(frozen=True, eq=False, kw_only=True)
class Purse(Additive):
    coins: int = 0
    notes: np.ndarray = field(default_factory=lambda: np.zeros(2, np.int64))
    currency: str = schema_field(default="")

    def lacks_schema(self):
        return not self.currency


@dataclass(frozen=True, eq=False, kw_only=True)
class Account(Purse):
    pass


def purse(coins, *notes, currency="EUR"):
    return Purse(coins=coins, notes=np.array(notes or (0, 0)), currency=currency)


WHOLE = st.integers(-(2**63), 2**63 - 1)
PURSES = st.builds(purse, st.integers(), WHOLE, WHOLE)


@given(PURSES, PURSES, PURSES)
def test_any_subclass_is_a_commutative_group(a, b, c):
    zero = Purse.zero()
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + zero == zero + a == a
    assert a - a + b == b
    assert a + b - b == a
    assert sum([a, b, c]) == a + b + c


def test_fields_add_and_subtract_one_by_one():
    total = purse(2, 10, 20) + purse(3, 1, 2)
    assert (total.coins, total.notes.tolist(), total.currency) == (5, [11, 22], "EUR")
    rest = purse(2, 10, 20) - purse(3, 1, 2)
    assert (rest.coins, rest.notes.tolist(), rest.currency) == (-1, [9, 18], "EUR")
    less = -purse(2, 10, -20)
    assert (less.coins, less.notes.tolist(), less.currency) == (-2, [-10, 20], "EUR")


def test_integers_wrap_at_64_bits_and_come_back():
    most = purse(0, 2**63 - 1, 0)
    assert (most + most - most) == most


def test_zero_takes_over_what_the_other_has_agreed_on():
    assert (Purse.zero() + purse(3)).currency == "EUR"
    assert (Purse.zero() - purse(3)) == purse(-3)
    assert Purse.zero() + Purse.zero() == Purse.zero()


def test_what_is_empty_but_has_agreed_on_something_does_not_adopt():
    empty = purse(3) - purse(3)
    with pytest.raises(MismatchError, match="currency differs: 'EUR' and 'SEK'"):
        _ = empty + purse(1, currency="SEK")


def test_disagreement_is_refused_in_both_directions():
    for a, b in ((purse(1), purse(1, currency="SEK")), (purse(1, currency="SEK"), purse(1))):
        with pytest.raises(MismatchError, match="Purse: currency differs"):
            _ = a + b
        with pytest.raises(MismatchError, match="Purse: currency differs"):
            _ = a - b


@pytest.mark.parametrize("other", [Account(coins=1, currency="EUR"), 3, None, "EUR"])
def test_other_kinds_are_refused_by_name(other):
    with pytest.raises(
        MismatchError, match=f"expected another Purse to add, got {type(other).__name__}"
    ):
        _ = purse(1) + other


def test_the_built_in_sum_starts_at_nought_only():
    assert sum([purse(1), purse(2)]) == purse(3)
    assert sum([purse(1)], Purse.zero()) == purse(1)
    assert sum([], Purse.zero()) == Purse.zero()
    with pytest.raises(TypeError):
        _ = 1 + purse(1)


def test_equality_looks_at_type_shape_and_every_entry():
    assert purse(1, 2, 3) == purse(1, 2, 3)
    others = [
        purse(2, 2, 3),
        purse(1, 2, 4),
        purse(1, 2, 3, currency="SEK"),
        purse(1, 2, 3, 4),
        Purse(coins=1, notes=np.array([2.0, 3.0]), currency="EUR"),
        Purse(coins=1, notes=np.array([2, 3], np.int32), currency="EUR"),
        Account(coins=1, notes=np.array([2, 3]), currency="EUR"),
        1,
    ]
    assert all(purse(1, 2, 3) != other for other in others)


def test_values_are_frozen_keyword_only_and_not_hashable():
    with pytest.raises(FrozenInstanceError):
        purse(1).coins = 2
    with pytest.raises(TypeError):
        Purse(1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(purse(1))


def test_arrays_of_another_shape_are_refused_and_never_stretched():
    with pytest.raises(MismatchError, match="notes"):
        _ = purse(1, 2, 3) + Purse(coins=1, notes=np.array([5]), currency="EUR")
    with pytest.raises(MismatchError, match="notes"):
        _ = purse(1, 2, 3) - purse(1, 2, 3, 4)


# Fields and validation


def test_fields_are_summed_or_of_the_schema():
    assert Purse.summed_fields() == ("coins", "notes")
    assert Purse.schema_fields() == ("currency",)
    with pytest.raises(MismatchError, match="currency differs"):
        purse(1).require_same_schema(purse(1, currency="SEK"))


@dataclass(frozen=True, eq=False, kw_only=True)
class Limited(Additive):
    coins: int = 0

    def validate(self, sites=1):
        if not 0 <= self.coins <= 100 // sites:
            raise DataError("coins: expected 0 to 100 in the total")


@dataclass(frozen=True, eq=False, kw_only=True)
class Pair(Additive):
    left: Limited = field(default_factory=Limited)
    right: Limited = field(default_factory=Limited)
    name: str = schema_field(default="")


def test_a_value_validates_the_values_in_its_fields():
    Pair(left=Limited(coins=50)).validate(sites=2)
    for bad in (Pair(left=Limited(coins=51)), Pair(right=Limited(coins=-1))):
        with pytest.raises(DataError, match="coins"):
            bad.validate(sites=2)


IMPOSSIBLE = {
    "Statistics": Statistics(
        count=1,
        gram=np.array([-1]),
        moment=np.zeros((1, 1), np.int64),
        space=Space(width=1, bound=9),
        classes=("a",),
    ),
    "Weighted": Weighted(weight=np.array([-1]), places=24),
    "Tally": Tally(clients=2),
    "Loss": Loss(samples=1, total=-1),
    "ScoreSums": ScoreSums(tally=Tally(clients=2)),
    "Quadratic": Quadratic(terms=Weighted(weight=np.array([-1]), places=54)),
    "Moments": Moments(
        count=np.array([1]),
        total=np.array([3]),
        squares=np.array([9]),
        columns=("age",),
        levels=(2,),
        schema="of this test",
    ),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_value_is_refused_by_its_own_validate(name):
    with pytest.raises(DataError):
        IMPOSSIBLE[name].validate()


def test_class_sums_are_validated_only_where_targets_are_the_classes():
    rng = np.random.default_rng(0)
    rows = Grid()(rng.normal(size=(20, 3)))
    honest = Statistics.of(rows, Labels(rng.integers(2, size=20), ("a", "b")))
    honest.validate()
    moment = honest.moment.copy()
    moment[0, 0] += 1
    bad = replace(honest, moment=moment)
    with pytest.raises(DataError, match="differs from the class sums"):
        bad.validate()
    steps = (*honest.space.steps, "patches(conv 3x3)")
    replace(bad, space=replace(honest.space, steps=steps)).validate()
