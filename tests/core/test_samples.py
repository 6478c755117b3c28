"""What a feature space states about its features, and the cache of derived features."""

from dataclasses import fields, replace

import numpy as np
import pytest

from fedgram.core import codec
from fedgram.core.samples import NO_SPACE, Features, Labels, Space
from fedgram.core.statistics import Statistics
from fedgram.errors import MismatchError
from fedgram.features.grid import Grid
from fedgram.features.lift import Lift
from fedgram.features.residual import Block, Residual, concat
from fedgram.models.architecture import maps_of
from fedgram.models.linear import Linear
from fedgram.selection.class_prior import class_counts

BARE = Space(width=3, inputs=3, bound=127)  # no step has appended a constant


def gridded(count=4, width=3, seed=0, bits=8):
    return Grid(bits=bits)(np.random.default_rng(seed).normal(size=(count, width)))


# The constant


@pytest.mark.parametrize("bits", [8, 16, "off"])
def test_every_step_keeps_a_constant_as_last_feature(bits):
    rows = gridded(bits=bits)
    lift = Lift(width=2)  # as wide with its constant as the inputs without one
    block = Block.of(lift, np.ones((3, 1)), np.ones((1, 3)))
    deep = Residual(inputs=rows.space, blocks=(block,))
    for made in (rows, lift(rows), concat(rows, lift), deep(rows)):
        space = made.space
        assert space.has_constant
        assert space.constant == space.width - 1
        assert len(set(made.values[:, space.constant].tolist())) == 1
        assert made.values[:, space.without_constant].shape[1] == space.width - 1


def test_a_space_without_a_constant_has_none():
    assert not BARE.has_constant
    assert BARE.without_constant == slice(0, 3)
    with pytest.raises(MismatchError, match="expected a constant as last feature"):
        BARE.constant  # noqa: B018
    assert not NO_SPACE.has_constant
    assert NO_SPACE.without_constant == slice(0, 0)


def test_what_needs_a_constant_refuses_a_space_without_one():
    rows = Features(np.array([[3, 4, 1], [1, 2, 1]], np.int8), BARE)
    total = Statistics.of(rows, Labels(np.array([0, 1]), ("a", "b")))
    for needs in (lambda: class_counts(total), lambda: maps_of(BARE)):
        with pytest.raises(MismatchError, match="expected a constant as last feature"):
            needs()


def test_norms_exclude_the_constant_only_where_there_is_one():
    weights = np.array([[3.0], [4.0], [12.0]])
    bare = Linear(weights=weights, space=BARE, classes=("a",))
    assert np.allclose(bare.normalized().weights, weights / 13)
    usual = replace(bare, space=replace(BARE, inputs=2))
    assert np.allclose(usual.normalized().weights, weights / 5)


# What is derived is not on the wire


def test_derived_facts_are_not_fields():
    names = ("width", "unit", "bound", "inputs", "clip", "backbone", "steps")
    assert tuple(field.name for field in fields(Space)) == names


def test_the_digest_of_a_space_is_the_stored_one():
    space = Grid(bits=8).space(784, "image 28x28x1")
    assert codec.digest(space)[:16] == "98b103135625ec2a"


def test_deep_features_are_not_traceable_to_their_inputs():
    rows = gridded()
    assert rows.space.traceable
    assert not Residual(inputs=rows.space).space.traceable
    assert not NO_SPACE.traceable


# Derived features


def cached(rows):
    return replace(rows, cache={})


def test_features_of_different_steps_have_different_keys():
    rows = cached(gridded())
    lifts = [
        Lift(width=w, activation=a, seed=s)
        for w in (2, 3)
        for a in ("relu", "tanh")
        for s in (0, 1)
    ]
    residual = Residual(inputs=rows.space, lift=lifts[0])
    made = [each(rows) for each in (*lifts, residual)]
    assert len(rows.cache) == len(made)
    for each, before in zip((*lifts, residual), made, strict=True):
        assert each(rows) is before
        assert np.array_equal(before.values, each(replace(rows, cache=None)).values)
        assert rows.cache[before.space] is before


def test_features_cached_under_the_space_of_others_are_refused():
    rows = cached(gridded())
    with pytest.raises(MismatchError, match="derived features differ"):
        rows.derived(Lift(width=2).space(rows.space), lambda: Lift(width=2, seed=1)(rows))
    assert not any(space == Lift(width=2).space(rows.space) for space in rows.cache)


def test_the_cache_has_the_deepest_features_only():
    rows = cached(gridded())
    block = Block.of(Lift(width=2), np.ones((3, 1)), np.ones((1, 3)))
    shallow = Residual(inputs=rows.space)
    deep = shallow.deeper(block)
    shallow(rows)
    assert list(rows.cache) == [shallow.space]
    first = deep(rows)
    assert list(rows.cache) == [deep.space]
    assert deep(rows) is first
    assert np.array_equal(first.values, deep(replace(rows, cache=None)).values)


def test_features_without_a_cache_are_computed_each_time():
    rows = gridded()
    lift = Lift(width=2)
    assert lift(rows) is not lift(rows)
