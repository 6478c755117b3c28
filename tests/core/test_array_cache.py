"""What is kept with features, and for how long."""

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fedgram.core.array_cache import ArrayCache


def made_of(samples, log):
    def make():
        log.append(samples)
        return samples.features.real()

    return make


def test_no_more_is_kept_than_there_is_room_for(gridded):
    first, second, third = (gridded(9, 3, 2, seed=seed) for seed in range(3))
    kept, made = ArrayCache(most=2 * 9 * 4 * 8), []
    for _ in range(3):
        for part in (first, second, third):
            found = kept(part.features, "real", made_of(part, made))
            np.testing.assert_array_equal(found, part.features.real())
    assert [sum(one is part for one in made) for part in (first, second, third)] == [1, 1, 3]


def test_there_is_room_again_when_samples_are_gone(gridded):
    kept, made = ArrayCache(most=9 * 4 * 8), []
    for seed in range(3):
        part = gridded(9, 3, 2, seed=seed)
        for _ in range(2):
            kept(part.features, "real", made_of(part, made))
        del part
        made.clear()
        gc.collect()
    last = gridded(9, 3, 2, seed=3)
    for _ in range(2):
        kept(last.features, "real", made_of(last, made))
    assert len(made) == 1


def test_each_name_has_its_own_and_nobody_can_change_it(gridded):
    rows, kept = gridded(4, 3, 2).features, ArrayCache(most=2**20)
    once, twice = (kept(rows, k, lambda k=k: k * rows.real()) for k in (1, 2))
    np.testing.assert_array_equal(2 * once, twice)
    with pytest.raises(ValueError, match="read-only"):
        once[0, 0] = 7


def test_many_threads_get_the_same_values(gridded):
    rows, kept = gridded(50, 3, 2).features, ArrayCache(most=2**20)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: kept(rows, "real", rows.real), range(64)))
    for each in found:
        np.testing.assert_array_equal(each, rows.real())


def test_what_is_counted_is_what_is_held(gridded):
    kept, parts = ArrayCache(most=2**20), [gridded(9, 3, 2, seed=seed) for seed in range(4)]
    with ThreadPoolExecutor(8) as pool:
        everything = [(part, key) for part in parts for key in range(3)] * 4
        list(pool.map(lambda p: kept(p[0].features, p[1], p[0].features.real), everything))
    assert kept._held == 4 * 3 * 9 * 4 * 8
    del parts[1:], everything
    gc.collect()
    assert kept._held == 3 * 9 * 4 * 8


def test_rows_of_a_block_serve_all_of_its_parts(gridded):
    block = gridded(9, 3, 2).features
    kept, made = ArrayCache(most=2**20), []

    def doubled(part):
        made.append(len(part))
        return 2.0 * part.values

    def found(part):
        rows = kept.rows(part, "twice", lambda: doubled(part))
        np.testing.assert_array_equal(rows, 2.0 * part.values)

    middle = block.take(slice(2, 7))
    for part in (middle, middle.take(slice(1, 3)), block.take(slice(3, 4)), middle.take(slice(0))):
        found(part)
    assert made == [5]  # once, for all parts of it
    found(block.take(slice(1, 7)))  # begins before it
    found(block.take(slice(5, 9)))  # ends after it
    found(block.take(slice(0, 9, 2)))  # every other row is no part of a block
    found(block.take(np.arange(2, 7)))  # nor are chosen rows
    assert made == [5, 6, 4, 5, 5]


def test_rows_of_a_block_are_kept_within_bounds_and_dropped_with_it(gridded):
    block = gridded(9, 3, 2).features
    kept, size = ArrayCache(most=5 * 4 * 8), block.space.width * 8
    for part in (block.take(slice(0, 4)), block.take(slice(4, 9)), block.take(slice(8, 9))):
        kept.rows(part, "real", part.real)
    assert kept._held == 5 * size  # the second had no room
    del block, part
    gc.collect()
    assert kept._held == 0
