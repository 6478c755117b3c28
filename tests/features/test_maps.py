"""Projections, landmarks and chains of maps: exact integers, against slow references."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from fedgram import Features, Grid, Lift, Space
from fedgram.core import codec
from fedgram.core.kernels.choice import VARIABLE, tried
from fedgram.errors import DataError, MismatchError
from fedgram.features.chain import Chain
from fedgram.features.landmarks import Landmarks
from fedgram.features.projection import Projection


def rows(samples=8, features=6, bits=8, seed=0):
    x = np.random.default_rng(seed).normal(size=(samples, features))
    return Grid(bits=bits)(x)


@given(st.integers(0, 2**32), st.sampled_from([8, 12, 16]), st.sampled_from([0.1, 1.0, 30.0]))
def test_a_projection_is_exact(seed, bits, size):
    """Against Python's integers: nothing can be lost in them."""
    features = rows(bits=bits, seed=seed % 99)
    matrix = np.random.default_rng(seed).normal(size=(7, 3)) * size
    projection = Projection.of(matrix)
    bound, found = features.space.bound, projection(features)
    for row, projected in zip(features.values.tolist(), found.values.tolist(), strict=True):
        for column, value in zip(projection.matrix.T.tolist(), projected, strict=False):
            total = sum(v * m for v, m in zip(row, column, strict=True))
            nearest = round(Fraction(total) / Fraction(2) ** projection.places)
            assert value == max(-bound, min(bound, nearest))
        assert projected[-1] == row[-1]
    assert found.values.dtype == features.values.dtype


def test_a_projection_of_floats_is_the_matrix_product():
    features = rows(bits="off")
    matrix = np.random.default_rng(1).normal(size=(7, 3))
    found = Projection.of(matrix)(features).real()[:, :-1]
    assert np.abs(found - features.real() @ matrix).max() < 0.01


def test_another_matrix_is_another_space():
    space = rows().space
    spaces = {Projection.of(np.full((7, 2), size)).space(space) for size in (1.0, 1.1)}
    assert len(spaces) == 2


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_landmarks_are_kernel_values_of_a_slow_reference(bits, scale):
    features = rows(bits=bits)
    space, points = features.space, rows(3, bits=bits, seed=5).values[:, :-1]
    found = Landmarks(points=points, scale=scale)(features)
    assert found.space.bound == 2047
    for row, kernel in zip(features.values.tolist(), found.values.tolist(), strict=True):
        for point, value in zip(points.tolist(), kernel, strict=False):
            product = sum(v * p for v, p in zip(row, point, strict=False))
            alike = min(1.0, product * space.unit**2 / 6)
            real = math.exp(scale**2 * (alike - 1)) - math.exp(-(scale**2))
            assert abs(value - real * 2047) <= 0.5 + 1e-6


def test_landmarks_are_the_gaussian_kernel_of_samples_of_unit_size():
    features = rows(features=300)
    points = rows(4, features=300, seed=5)
    x, z = features.real()[:, :-1], points.real()[:, :-1]
    squares = ((x[:, None] - z) ** 2).sum(axis=2)
    kernel = np.exp(-(0.9**2) * squares / 600) - np.exp(-(0.9**2))
    found = Landmarks(points=points.values[:, :-1], scale=0.9)(features).real()[:, :-1]
    assert np.abs(found - 6 * kernel).max() < 0.02


def test_landmarks_need_the_grid_and_samples_of_their_size():
    points = Landmarks(points=np.ones((2, 6), np.int8), scale=1.0)
    with pytest.raises(MismatchError, match=r"use grid\.bits"):
        points(rows(bits="off"))
    with pytest.raises(MismatchError, match="landmarks of 6 features for samples of 5"):
        points(rows(features=5))
    with pytest.raises(DataError, match="scale"):
        Landmarks(points=np.ones((2, 6), np.int8), scale=0.0)


def chain(features):
    projection = Projection.of(np.random.default_rng(0).normal(size=(7, 4)))
    points = Landmarks(points=np.full((5, 4), 7, np.int8), scale=0.5)
    lift = Lift(width=9, activation="fourier")
    return Chain(inputs=features.space, maps=(projection, points, lift))


def test_a_chain_applies_its_maps_in_order_to_any_rows():
    features = rows()
    whole = chain(features)
    one, two, three = whole.maps
    expected = three(two(one(features)))
    assert np.array_equal(whole(features).values, expected.values)
    assert whole(features).space == dataclasses.replace(expected.space, inputs=0) == whole.space
    order = np.random.default_rng(0).permutation(8)
    assert np.array_equal(whole(features.take(order)).values, expected.values[order])
    backwards = dataclasses.replace(whole, maps=(two,))
    with pytest.raises(MismatchError):
        backwards(features)


def test_a_chain_is_kept_where_there_is_a_cache():
    features = dataclasses.replace(rows(), cache={})
    whole = chain(features)
    assert whole(features) is whole(features)
    assert np.array_equal(whole(features).values, whole(rows()).values)


def test_a_chain_survives_its_bytes_and_has_known_maps_only():
    whole = chain(rows())
    again = codec.decode(codec.encode(whole))
    assert np.array_equal(again(rows()).values, whole(rows()).values)
    assert again.space == whole.space
    with pytest.raises(DataError, match="expected lifts, landmarks and projections"):
        Chain(inputs=Space(width=3), maps=(Features,))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("way", ["blas", "vnni"])
def test_every_way_of_products_gives_the_same_features(monkeypatch, way, threads):
    """Also in a wide space: below about 512 features many wrong programs pass."""
    if tried(way).way is None:
        pytest.skip(f"{way} is not usable here: {tried(way).reason}")
    features = rows(samples=40, features=600)
    matrix = np.random.default_rng(0).normal(size=(601, 520))
    points = rows(530, features=520, seed=5).values[:, :-1]
    projection, landmarks = Projection.of(matrix), Landmarks(points=points, scale=0.7)
    lift = Lift(width=515, activation="fourier", scale=0.7)
    monkeypatch.setenv(VARIABLE, way)
    with threadpool_limits(threads, user_api="blas"):
        projected = projection(features)
        found = [projected, landmarks(projected), lift(features)]
    product = features.values.astype(np.int64) @ projection.matrix.astype(np.int64)
    assert np.array_equal(
        projected.values[:, :-1],
        np.clip(np.rint(product / 2.0**projection.places), -127, 127).astype(np.int64),
    )
    digest = codec.digest([each.values for each in found])
    monkeypatch.setenv(VARIABLE, "blas")
    again = [projection(features), landmarks(projected), lift(features.take(slice(None)))]
    assert digest == codec.digest([each.values for each in again])
