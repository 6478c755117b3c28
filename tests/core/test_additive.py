"""Values that add and subtract, field by field."""

from dataclasses import FrozenInstanceError, dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram import Additive
from fedgram.core.additive import schema_field
from fedgram.errors import MismatchError


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
