"""Everybody's mean and deviation from one sum: exact, whoever has which rows."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core import codec
from fedgram.data.tabular.columns import CategoryColumn, NumberColumn
from fedgram.data.tabular.moments import Measured, Moments, measured, sum_measured, with_moments
from fedgram.data.tabular.reader import Table
from fedgram.data.tabular.schema import Schema
from fedgram.errors import DataError, ExactnessError, MismatchError


def schema(**columns):
    return Schema(label="y", classes=("no", "yes"), columns=columns)


PLAIN = schema(
    age=NumberColumn(range=(0.0, 120.0), step=1.0, missing="indicate"),
    dose=NumberColumn(range=(-5.0, 5.0), outside="clip"),
    sex=CategoryColumn(values=("f", "m")),
    known=NumberColumn(mean=3.0, deviation=2.0),
)


def rows(count=60, seed=0):
    rng = np.random.default_rng(seed)
    age = [str(a) if a % 7 else "" for a in rng.integers(18, 100, count)]
    return {
        "age": age,
        "dose": list(map(repr, (rng.normal(size=count) * 3).tolist())),
        "sex": list(rng.choice(["f", "m"], count)),
        "known": rng.normal(size=count).tolist(),
        "y": list(rng.choice(["no", "yes"], count)),
    }


def table(cells, indices=None, name="t"):
    picked = range(len(cells["y"])) if indices is None else indices
    return Table(name=name, columns={k: [v[i] for i in picked] for k, v in cells.items()})


def of(cells, indices=None):
    return measured(PLAIN, [table(cells, indices)])


@given(st.lists(st.integers(0, 3), min_size=60, max_size=60), st.integers(0, 2**32), st.data())
def test_any_split_of_the_rows_gives_the_same_bytes(owner, seed, data):
    cells, owner = rows(), np.array(owner)
    sites = [np.flatnonzero(owner == site) for site in np.unique(owner)]
    sites = [np.random.default_rng(seed).permutation(site) for site in sites]
    parts = [Measured(client=f"s{k}", moments=of(cells, site)) for k, site in enumerate(sites)]
    parts = data.draw(st.permutations(parts))
    total = sum_measured(PLAIN, parts)
    assert codec.encode(total) == codec.encode(of(cells))
    assert with_moments(PLAIN, total).toml() == with_moments(PLAIN, of(cells)).toml()


def test_the_laws_of_a_group():
    cells = rows()
    a, b = of(cells, range(20)), of(cells, range(20, 60))
    assert a + b == b + a == of(cells)
    assert (a + b) - b == a
    assert a - a + b == b
    assert Moments.zero() + a == a == a + Moments.zero()


def test_rows_do_not_depend_on_how_a_file_is_read():
    cells = rows()
    parts = [table(cells, range(k, min(60, k + 7))) for k in range(0, 60, 7)]
    assert measured(PLAIN, parts) == of(cells)


def test_mean_and_deviation_are_those_of_numpy():
    cells = rows(500, seed=3)
    columns = with_moments(PLAIN, of(cells)).columns
    age = np.array([float(a) for a in cells["age"] if a])
    assert columns["age"].mean == pytest.approx(age.mean(), rel=1e-15)  # whole years: exactly
    assert columns["age"].deviation == pytest.approx(age.std(), rel=1e-13)
    dose = np.clip(np.array(cells["dose"], float), -5, 5)
    grain = 10 / 2**16
    assert abs(columns["dose"].mean - dose.mean()) <= grain / 2
    assert abs(columns["dose"].deviation - dose.std()) <= grain
    assert columns["known"] == PLAIN.columns["known"]
    assert columns["sex"] == PLAIN.columns["sex"]
    assert not with_moments(PLAIN, of(cells)).pending


@given(st.lists(st.integers(0, 50), min_size=2, max_size=30), st.integers(-1000, 1000))
def test_known_answers_by_construction(values, low):
    number = NumberColumn(range=(float(low), low + 50.0), step=1.0)
    one = schema(a=number)
    cells = {"a": [low + v for v in values], "y": ["no"] * len(values)}
    column = with_moments(one, measured(one, [table(cells)])).columns["a"]
    assert column.mean == float(low + Fraction(sum(values), len(values)))
    variance = sum((len(values) * v - sum(values)) ** 2 for v in values) / len(values) ** 3
    if variance:
        assert column.deviation == pytest.approx(math.sqrt(variance), rel=1e-15)
    else:
        assert column.deviation == number.scale[1]


def test_what_no_one_varies_in_keeps_the_scale_of_its_range():
    one = schema(
        same=NumberColumn(range=(0.0, 12.0)),
        gone=NumberColumn(range=(0.0, 6.0), missing="indicate"),
    )
    cells = {"same": ["3", "3"], "gone": ["", "NA"], "y": ["no", "yes"]}
    columns = with_moments(one, measured(one, [table(cells)])).columns
    assert (columns["same"].mean, columns["same"].deviation) == (3.0, 12 / math.sqrt(12))
    assert (columns["gone"].mean, columns["gone"].deviation) == (3.0, 6 / math.sqrt(12))


def test_test_rows_stay_out():
    cells = {**rows(), "split": ["train", "valid", "test"] * 20}
    kept = [k for k in range(60) if k % 3 != 2]
    assert of(cells) == of(rows(), kept)


def test_what_travels_is_small_and_holds_no_rows():
    message = Measured(client="north", moments=of(rows(5000)))
    sent = codec.encode(message)
    assert len(sent) < 1500
    again = codec.decode(sent)
    assert (again.client, again.moments) == ("north", message.moments)
    assert len(again.moments.count) == 2  # age and dose; what is known is not asked for


@pytest.mark.parametrize("y", ["maybe", ""])
def test_rows_that_do_not_fit_are_refused_before_anything_is_sent(y):
    cells = rows()
    cells["y"][13] = y
    with pytest.raises(DataError, match=r"t: row 14: y = "):
        of(cells)
    cells = rows()
    cells["sex"][13] = "x"
    with pytest.raises(DataError, match=r"t: row 14: sex = 'x'"):
        of(cells)


def test_a_site_of_another_schema_is_refused_by_name():
    wider = replace(PLAIN, columns={**PLAIN.columns, "dose": NumberColumn(range=(-9.0, 9.0))})
    other = Measured(client="west", moments=measured(wider, [table(rows())]))
    ours = Measured(client="north", moments=of(rows()))
    with pytest.raises(
        MismatchError, match="client west: the table was measured with another schema"
    ):
        sum_measured(PLAIN, [ours, other])
    with pytest.raises(MismatchError, match="Moments: schema differs"):
        ours.moments + other.moments


def test_a_site_is_not_counted_twice():
    part = Measured(client="north", moments=of(rows()))
    with pytest.raises(MismatchError, match="client north: sums in two files"):
        sum_measured(PLAIN, [part, part])


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("total", -(10**6), "do not fit its range"),
        ("total", 10**9, "do not fit its range"),
        ("squares", 10**12, "do not fit its range"),
        ("squares", -(10**9), "contradict each other"),
        ("count", -1000, "do not fit its range"),
    ],
)
def test_sums_that_no_rows_could_have_are_refused_by_client(field, change, message):
    moments = of(rows())
    array = getattr(moments, field).copy()
    array[0] += change
    part = Measured(client="west", moments=replace(moments, **{field: array}))
    with pytest.raises(DataError, match=rf"client west: the sums of 'age' {message}"):
        sum_measured(PLAIN, [part])


@pytest.mark.parametrize("change", [{"columns": ("age", "mass")}, {"levels": (120, 2**20)}])
def test_a_message_that_does_not_fit_the_schema_it_names_is_refused(change):
    part = Measured(client="west", moments=replace(of(rows()), **change))
    with pytest.raises(MismatchError, match=rf"client west: Moments: {next(iter(change))} differs"):
        sum_measured(PLAIN, [part])


def test_sums_that_might_overflow_are_refused():
    fine = schema(a=NumberColumn(range=(0.0, 1.0), step=2.0**-24))
    whole = measured(fine, [table({"a": ["1"], "y": ["no"]})])
    most = (2**63 - 1) // 2**48

    def times(n):
        return replace(
            whole, count=whole.count * n, total=whole.total * n, squares=whole.squares * n
        )

    assert int(times(most).squares[0]) == most * 2**48
    one, many = Measured(client="a", moments=whole), Measured(client="b", moments=times(most))
    with pytest.raises(ExactnessError, match=r"client b: .* values of 'a' .* a larger step"):
        sum_measured(fine, [one, many])


def test_moments_of_other_shapes_are_refused():
    moments = of(rows())
    with pytest.raises(DataError, match="one per column"):
        replace(moments, count=np.zeros(3, np.int64))
    with pytest.raises(DataError, match="one per column"):
        replace(moments, total=moments.total.astype(float))
