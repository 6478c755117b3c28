"""The lift: a public random projection and an activation, in exact integers."""

import hashlib
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from fedgram import Features, Grid, Lift, Space
from fedgram.core import codec
from fedgram.errors import ConfigError
from fedgram.features import lift as module

SLOW = {
    "identity": lambda t: t,
    "relu": lambda t: t if t > 0 else 0.0,
    "leaky-relu": lambda t: t if t > 0 else t / 100,
    "gelu": lambda t: t * math.erfc(-t / math.sqrt(2)) / 2,
    "tanh": lambda t: 1 - 2 / (math.exp(2 * t) + 1),
    "sigmoid": lambda t: 0.5 + math.tanh(t / 2) / 2,
    "hardswish": lambda t: t * min(1.0, max(0.0, t / 6 + 0.5)),
    "softshrink": lambda t: math.copysign(max(0.0, abs(t) - 0.5), t),
}


PLACES = 2**200  # of the slow cosine, in integers


def slow_cosine(numerator, denominator):
    """Return cos(numerator / denominator) as a Fraction, by its series in fixed-point integers."""
    x = numerator * PLACES // denominator
    term, total, power = PLACES, 0, 0
    while term:
        total += term
        power += 2
        term = -(term * x // PLACES) * x // PLACES // (power * (power - 1))
        if abs(term) <= 2:
            break
    return Fraction(total, PLACES)


def rows(samples=20, features=10, bits=8, seed=0):
    x = np.random.default_rng(seed).normal(size=(samples, features))
    return Grid(bits=bits)(x)


def slow_signs(inputs, width, seed):
    """Read the public sign matrix bit by bit: most significant first in each byte of the stream."""
    words = [int(w) for w in np.random.Philox(key=seed).random_raw(inputs * width // 64 + 1)]

    def sign(k):
        byte = words[k // 64] >> 8 * (k % 64 // 8) & 255
        return 1 if byte >> 7 - k % 8 & 1 else -1

    return [[sign(i * width + j) for j in range(width)] for i in range(inputs)]


def slow_projection(features, lift):
    signs = slow_signs(features.space.width, lift.width, lift.seed)
    return [
        [sum(v * s[j] for v, s in zip(row, signs, strict=True)) for j in range(lift.width)]
        for row in features.values.tolist()
    ]


def nearest(projected, width):
    """Round projected / sqrt(width) with integers alone; width is no square, so nothing ties."""
    twice = math.isqrt(4 * projected**2 // width)  # floor of twice the quotient
    return (twice + 1) // 2 * (1 if projected > 0 else -1)


def test_the_eight_activations_are_there():
    assert set(module.ACTIVATIONS) == set(SLOW)


@pytest.mark.parametrize("bits", [2, 4, 8, 12, 16])
@pytest.mark.parametrize("activation", SLOW)
def test_activations_are_those_of_a_slow_reference_within_a_step(activation, bits):
    features = rows(bits=bits)
    lift = Lift(width=7, activation=activation, seed=11)
    space = features.space
    factor, reach = space.unit / math.sqrt(space.width), space.bound * space.unit
    for fast, projected in zip(
        lift(features).values.tolist(), slow_projection(features, lift), strict=True
    ):
        for value, whole in zip(fast, projected, strict=False):
            real = SLOW[activation](max(-reach, min(reach, whole * factor)))
            exact = max(-space.bound, min(space.bound, real / space.unit))
            assert abs(value - exact) <= 0.5 + 1e-6 * space.bound + 1e-9


@pytest.mark.parametrize("bits", [2, 8, 16])
@pytest.mark.parametrize("activation", ["identity", "relu"])
def test_identity_and_relu_are_exact_integers(activation, bits):
    features = rows(60, 10, bits)
    lift = Lift(width=9, activation=activation, seed=2)
    bound = features.space.bound
    expected = [
        [min(bound, max(-bound, nearest(p, 11))) for p in row]
        for row in slow_projection(features, lift)
    ]
    if activation == "relu":
        expected = [[max(0, value) for value in row] for row in expected]
    assert lift(features).values[:, :-1].tolist() == expected


def test_every_entry_of_the_identity_table_is_the_nearest_integer():
    space = Grid(bits=8).space(64)
    (table,) = (t.tolist() for t in Lift(width=1, activation="identity").tables(space))
    middle = len(table) // 2
    assert table == [nearest(p, 65) for p in range(-middle, middle + 1)]
    assert table[0] == -127
    assert (middle / math.sqrt(65)) <= 127 < (middle + 1) / math.sqrt(65)


def test_what_leaves_the_grid_is_clipped():
    space = Space(width=9, bound=127, unit=6 / 127)
    largest = Features(np.full((1, 9), 127, np.int8), space)
    smallest = Features(np.full((1, 9), -127, np.int8), space)
    lift = Lift(width=40, activation="identity", seed=1)
    assert lift(largest).values.max() == 127
    assert np.array_equal(lift(smallest).values[:, :-1], -lift(largest).values[:, :-1])


@pytest.mark.parametrize("bits", [8, 16, "off"])
def test_the_constant_feature_is_appended(bits):
    features = rows(bits=bits)
    lifted = Lift(width=5)(features)
    assert lifted.values.shape == (20, 6)
    assert np.array_equal(lifted.values[:, -1], features.values[:, -1])


def test_the_float_lift_is_the_integer_lift_up_to_the_grid():
    x = np.random.default_rng(1).normal(size=(50, 60))
    for activation in SLOW:
        lift = Lift(width=30, activation=activation)
        exact, plain = (lift(Grid(bits=bits)(x)).real() for bits in (16, "off"))
        assert np.abs(exact - plain).max() < 2e-3


def test_rows_are_independent_of_each_other():
    features, lift = rows(), Lift(width=6)
    order = np.random.default_rng(0).permutation(20)
    lifted = lift(features).values
    assert np.array_equal(lift(features.take(order)).values, lifted[order])
    for i in (0, 7, 19):
        assert np.array_equal(lift(features.take(slice(i, i + 1))).values, lifted[i : i + 1])


@pytest.mark.parametrize("entries", [1, 6, 13, 120])
def test_rows_do_not_depend_on_how_many_are_done_at_a_time(monkeypatch, entries):
    whole = Lift(width=6)(rows()).values
    monkeypatch.setattr(module, "_ENTRIES_AT_A_TIME", entries)
    assert np.array_equal(Lift(width=6)(rows()).values, whole)


def test_the_same_seed_gives_the_same_bytes_everywhere():
    signs = module.signs_of(33, 21, 2**63 + 5)
    assert np.array_equal(signs, slow_signs(33, 21, 2**63 + 5))
    assert hashlib.sha256(module.signs_of(64, 64, 0).astype(np.int8).tobytes()).hexdigest() == (
        "0597314fd18d8d2cf3a5d1221b9bf5e970b5b51c8dac3d9f768654149afbbc8d"
    )
    lifted = Lift(width=16, activation="relu", seed=1)(Grid()(np.eye(8) + 0.25))
    assert hashlib.sha256(lifted.values.tobytes()).hexdigest() == (
        "288ed62c7ae2f6965628b6c7356134a46fe7add8f6288d4815a2dc7f8c5c7050"
    )


def test_another_seed_gives_another_projection():
    seeds = [0, 1, 2, 2**32, 2**64 - 1]
    assert len({module.signs_of(20, 20, seed).tobytes() for seed in seeds}) == len(seeds)
    spaces = {Lift(width=4, seed=seed).space(rows().space) for seed in seeds}
    assert len(spaces) == len(seeds)


def test_signs_are_balanced_and_cannot_be_changed():
    signs = module.signs_of(300, 300, 4)
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert abs(signs.mean()) < 0.02
    assert abs((signs.T @ signs / 300)[np.triu_indices(300, 1)]).max() < 0.4
    with pytest.raises(ValueError, match="read-only"):
        signs[0, 0] = 0


def test_the_space_carries_the_hash_of_the_table():
    inputs = rows().space
    lift = Lift(width=4, activation="gelu", seed=3)
    hashed = hashlib.sha256(lift.tables(inputs)[0].tobytes()).hexdigest()[:16]
    assert lift.space(inputs).steps == (
        *inputs.steps,
        f"lift(width 4, gelu, seed 3, table {hashed})",
    )
    assert lift.space(inputs) == lift(rows()).space
    assert (lift.space(inputs).unit, lift.space(inputs).bound) == (inputs.unit, inputs.bound)


def test_another_table_is_another_space(monkeypatch):
    """A machine whose mathematics rounds otherwise is told apart."""
    inputs, lift = rows().space, Lift(width=4, activation="tanh")
    before = lift.space(inputs)
    monkeypatch.setitem(module.ACTIVATIONS, "tanh", lambda t: np.tanh(t) * 1.01)
    assert lift.space(inputs) != before
    assert "table" in before.difference(lift.space(inputs))


def test_the_float_space_has_no_table():
    space = Lift(width=4).space(rows(bits="off").space)
    assert space.steps[-1] == "lift(width 4, relu, seed 0)"
    assert not space.exact


def test_lifts_are_remembered_where_there_is_room():
    features = replace(rows(), cache={})
    lift, other = Lift(width=4), Lift(width=4, seed=1)
    first = lift(features)
    assert lift(features) is first
    assert Lift(width=4)(features) is first
    assert other(features) is not first
    assert set(features.cache) == {each.space(features.space) for each in (lift, other)}
    assert np.array_equal(first.values, lift(rows()).values)


def test_lifts_are_not_remembered_where_there_is_no_room():
    features = rows()
    assert Lift(width=4)(features) is not Lift(width=4)(features)
    assert features.cache is None
    assert replace(features, cache={}).take(slice(0, 3)).cache is None


def test_width_zero_changes_nothing():
    features = replace(rows(), cache={})
    assert Lift()(features) is features
    assert Lift(activation="tanh", seed=4).space(features.space) is features.space
    assert not features.cache


def test_lifts_can_be_stacked():
    twice = Lift(width=6, seed=1)(Lift(width=8)(rows()))
    assert twice.space.width == 7
    assert len(twice.space.steps) == 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"width": -1}, "width -1"),
        ({"activation": "rely"}, "'rely' is unknown; use one of identity, relu"),
        ({"seed": -1}, "seed -1"),
        ({"seed": 2**64}, r"0 to 2\^64"),
        ({"scale": 0.0}, "scale 0.0: use a finite number > 0"),
        ({"scale": math.inf}, "scale inf"),
        ({"copies": 0}, "copies 0: use a number from 1 to 127"),
        ({"copies": 128}, "copies 128"),
    ],
)
def test_wrong_settings_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        Lift(**{"width": 4, **settings})


# Several signs for a weight


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize(("inputs", "copies"), [(1, 127), (2, 7), (4, 3)])
def test_copies_are_signs_that_are_added(bits, inputs, copies):
    """As if every feature, and the constant, were there several times."""
    features = rows(40, inputs, bits)
    lift = Lift(width=9, activation="identity", seed=5, copies=copies)
    signs = np.reshape(slow_signs((inputs + 1) * copies, 9, 5), (copies, inputs + 1, 9))
    projected = features.values.astype(int) @ signs.sum(axis=0)
    bound, space = features.space.bound, lift.space(features.space)
    expected = np.clip(np.rint(projected / math.sqrt((inputs + 1) * copies)), -bound, bound)
    assert np.abs(lift(features).values[:, :-1] - expected).max() <= (bits == 16)
    assert space.steps[-1].count(f", copies {copies}") == 1
    assert codec.decode(codec.encode(lift)) == lift
    assert b"copies" not in codec.encode(replace(lift, copies=1))


def test_signs_of_full_scale_add_up_exactly():
    """The largest product of 8-bit integers: 127 features of 127, weights of 127."""
    space = Space(width=127, bound=127, unit=6 / 127)
    full = Features(np.full((1, 127), 127, np.int8), space)
    lift = Lift(width=300, activation="identity", copies=127)
    signs = module.signs_of(127 * 127, 300, 0).sum(axis=0, dtype=int)
    expected = np.clip(np.rint(127 * signs / 127), -127, 127)
    assert np.array_equal(lift(full).values[0, : len(expected)], expected)


def test_raw_features_are_projected_by_the_same_weights():
    x = np.random.default_rng(0).normal(size=(5, 2))
    raw = Features(x, Space(width=2))
    lift = Lift(width=8, activation="identity", copies=4)
    expected = x @ module.signs_of(8, 8, 0).reshape(4, 2, 8).sum(axis=0) / math.sqrt(8)
    np.testing.assert_allclose(lift(raw).values[:, :8], expected, atol=1e-12)


@pytest.mark.parametrize("copies", [1, 8])
def test_two_columns_have_as_many_different_projections_as_signs_allow(copies):
    features = rows(300, 2)
    lifted = Lift(width=200, activation="identity", copies=copies)(features).values
    different = len(np.unique(lifted[:, :200], axis=1).T)
    assert different == 8 if copies == 1 else different > 100


# Random Fourier features


@pytest.mark.parametrize("bits", [2, 4, 8, 12, 16])
@pytest.mark.parametrize(("width", "scale"), [(6, 1.0), (7, 0.3), (2, 2.5), (1, 1.0)])
def test_fourier_features_are_pairs_of_a_slow_reference_within_a_step(bits, width, scale):
    features = rows(bits=bits)
    space, cosines = features.space, -(-width // 2)
    lift = Lift(width=width, activation="fourier", seed=11, scale=scale)
    factor, reach = space.unit / math.sqrt(space.width), space.bound * space.unit
    halves = slow_projection(features, replace(lift, width=cosines))
    for fast, projected in zip(lift(features).values.tolist(), halves, strict=True):
        angles = [scale * max(-reach, min(reach, whole * factor)) for whole in projected]
        pairs = [*map(math.cos, angles), *map(math.sin, angles[: width - cosines])]
        assert len(fast) == width + 1
        for value, real in zip(fast, pairs, strict=False):
            exact = max(-space.bound, min(space.bound, math.sqrt(2) * real / space.unit))
            assert abs(value - exact) <= 0.5 + 1e-6 * space.bound + 1e-9


@pytest.mark.parametrize("scale", [0.37, 1.0, 1.9])
def test_every_entry_of_the_cosine_table_is_the_nearest_integer(scale):
    """Against a cosine in integers of 200 places: so no machine's mathematics library matters."""
    space = Grid(bits=8).space(15)  # of 16 features with the constant, whose root is 4
    table = Lift(width=1, activation="fourier", scale=scale).tables(space)[0].tolist()
    middle = len(table) // 2
    unit, root = Fraction(space.unit), Fraction(math.sqrt(2))
    for k in range(0, middle + 1, 3):
        angle = Fraction(scale) * k * unit / 4
        steps = root * slow_cosine(angle.numerator, angle.denominator) / unit
        assert abs(steps - round(steps)) != Fraction(1, 2)
        assert table[middle + k] == table[middle - k] == round(steps)


def test_fourier_features_are_the_same_everywhere():
    lifted = Lift(width=16, activation="fourier", seed=1, scale=0.7)(Grid()(np.eye(8) + 0.25))
    assert hashlib.sha256(lifted.values.tobytes()).hexdigest() == (
        "75273749a38b147e9212f5129da58df1b1b335431e2cdc7a89708098513e373d"
    )


@pytest.mark.parametrize("bits", [8, "off"])
def test_products_of_fourier_features_are_the_gaussian_kernel(bits):
    features = rows(samples=12, features=400, bits=bits)
    lifted = Lift(width=6000, activation="fourier", seed=3, scale=0.8)(features)
    pairs = lifted.real()[:, :-1]
    x = features.real()
    squares = ((x[:, None] - x) ** 2).sum(axis=2)
    kernel = np.exp(-(0.8**2) * squares / (2 * x.shape[1]))
    products = pairs @ pairs.T / 6000
    assert np.abs(products - kernel).max() < 0.05
    wrong = np.exp(-(0.7**2) * squares / (2 * x.shape[1]))  # another bandwidth is told apart
    assert np.abs(products - wrong).max() > 0.05


def test_a_pair_has_a_constant_length():
    pairs = Lift(width=50, activation="fourier")(rows(bits=16)).real()[:, :-1]
    assert np.allclose(pairs[:, :25] ** 2 + pairs[:, 25:] ** 2, 2, atol=2e-3)


def test_the_scale_multiplies_the_projection():
    features = rows(bits="off")
    once = Lift(width=5, activation="identity", scale=1.0)(features).real()[:, :-1]
    assert np.allclose(
        Lift(width=5, activation="tanh", scale=2.5)(features).real()[:, :-1], np.tanh(2.5 * once)
    )


def test_another_scale_is_another_space():
    for bits in (8, "off"):
        inputs = rows(bits=bits).space
        spaces = {
            Lift(width=4, activation="fourier", scale=scale).space(inputs) for scale in (0.5, 1.0)
        }
        assert len(spaces) == 2


def test_a_lift_without_a_scale_is_written_as_before_there_were_scales():
    assert codec.encode(Lift(width=4)).count(b"scale") == 0
    scaled = Lift(width=4, activation="fourier", scale=0.5)
    assert codec.decode(codec.encode(scaled)) == scaled
    assert codec.decode(codec.encode(Lift(width=4))) == Lift(width=4)
