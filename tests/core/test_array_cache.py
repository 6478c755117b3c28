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
