"""The screen of contributions: it finds poisoned sites, and accuses no honest one."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedgram import Grid, load_dataset
from fedgram.core.samples import Features, Labels, Space
from fedgram.core.statistics import Statistics
from fedgram.federation.federated_dataset import gridded
from fedgram.selection import site_screen
from fedgram.selection.site_screen import screen

PACS = "pacs_efficientnet_lite0.npz"


@pytest.fixture(scope="module")
def digits():
    return gridded(load_dataset("digits"), Grid())


def alike(samples, sites, rng):
    return [samples.take(part) for part in np.array_split(rng.permutation(len(samples)), sites)]


def by_class(samples):
    codes = samples.labels.codes
    return [samples.take(np.flatnonzero(codes == code)) for code in np.unique(codes)]


def skewed(samples, sites, rng, concentration=0.1):
    places = [[] for _ in range(sites)]
    for code in np.unique(samples.labels.codes):
        own = rng.permutation(np.flatnonzero(samples.labels.codes == code))
        shares = np.cumsum(rng.dirichlet(np.full(sites, concentration)))[:-1]
        for place, part in zip(places, np.split(own, (shares * len(own)).astype(int)), strict=True):
            place.extend(part)
    return [samples.take(place) for place in places if place]


def flipped(samples, rng):
    labels = samples.labels
    codes = (labels.codes + 1) % len(labels.classes)
    return replace(samples, labels=Labels(codes, labels.classes))


def shuffled(samples, rng):
    labels = samples.labels
    return replace(samples, labels=Labels(rng.permutation(labels.codes), labels.classes))


def scaled(by):
    def scale(samples, rng):
        values, space = samples.features.values.astype(np.float64), samples.features.space
        rest = space.without_constant
        values[:, rest] = np.clip(np.rint(values[:, rest] * by), -space.bound, space.bound)
        return replace(samples, features=Features(values.astype(np.int8), space))

    return scale


def sums(samples, times=1):
    whole = Statistics.of(samples.features, samples.labels)
    return replace(whole, **{name: getattr(whole, name) * times for name in whole.summed_fields()})


def accused(parts):
    sites = {f"site {k:02}": part for k, part in enumerate(parts)}
    return [report.name for report in screen(sites.items) if report.warnings]


ATTACKS = {
    "flipped labels": (flipped, 1),
    "flipped labels times 10^6": (flipped, 10**6),
    "shuffled labels": (shuffled, 1),
    "shuffled labels times 10^6": (shuffled, 10**6),
    "features times 3": (scaled(3), 1),
    "features times -1": (scaled(-1), 1),
    "features times 0.3": (scaled(0.3), 1),
    "honest samples times 10^6": (lambda samples, rng: samples, 10**6),
}


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("sites", [5, 10, 20])
def test_a_poisoned_site_is_accused_and_no_other(digits, name, sites):
    rng = np.random.default_rng(sites)
    attack, times = ATTACKS[name]
    parts = alike(digits, sites, rng)
    found = [sums(part) for part in parts]
    assert not accused(found)
    found[3] = sums(attack(parts[3], rng), times)
    found[3].validate()  # nothing in it is impossible: only the others show that it is wrong
    assert accused(found) == ["site 03"]


def test_repeated_samples_do_harm_and_contradict_no_more(digits):
    """Samples that are repeated contradict the others no more than before, but do harm."""
    rng = np.random.default_rng(0)
    parts = alike(digits, 10, rng)

    def found(times):
        sites = {str(k): sums(part) for k, part in enumerate(parts)}
        sites["3"] = sums(flipped(parts[3], rng), times)
        return screen(sites.items)[3]

    once, often = found(1), found(10**6)
    assert once.harm < 0.1 < 0.5 < often.harm
    assert not any("the others' error" in text for text in once.warnings)
    assert any("the others' error" in text for text in often.warnings)
    assert once.misfit == pytest.approx(often.misfit)
    assert once.error_without == often.error_without


def test_sites_of_one_class_each_are_not_accused(digits):
    assert not accused(map(sums, by_class(digits)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sites", [10, 20])
def test_skewed_sites_are_not_accused_beside_the_poisoned_one(digits, seed, sites):
    rng = np.random.default_rng(seed)
    parts = skewed(digits, sites, rng)
    assert not accused(map(sums, parts))
    place = int(np.argsort([len(part) for part in parts])[len(parts) // 2])
    found = [sums(part) for part in parts]
    found[place] = sums(shuffled(parts[place], rng), 10**6)
    assert accused(found) == [f"site {place:02}"]


def accused_of_few():
    """Return who is accused among honest sites of which some have one or two samples."""
    rng = np.random.default_rng(0)

    def of(count):
        codes = rng.integers(2, size=count)
        rows = Grid()(rng.normal(size=(count, 4)) + 1.5 * codes[:, None])
        wrong = rng.random(count) < 0.1  # labels are never all right
        return Statistics.of(rows, Labels(np.where(wrong, 1 - codes, codes), ("no", "yes")))

    return accused(map(of, [1, 2] * 20 + [50] * 50))


def test_sites_with_very_few_samples_are_not_accused_by_chance(monkeypatch):
    assert not accused_of_few()
    monkeypatch.setattr(site_screen, "_DEVIATIONS", 0.0)
    assert accused_of_few()


def test_rare_classes_are_not_accused():
    """Most samples are of one class; some sites have no other, one has only the rare one."""
    rng = np.random.default_rng(0)
    codes = (
        [np.zeros(200, int)] * 3 + [(rng.random(200) < 0.1).astype(int)] * 3 + [np.ones(40, int)]
    )

    def of(codes):
        rows = Grid()(rng.normal(size=(len(codes), 6)) + codes[:, None])
        return Statistics.of(rows, Labels(codes, ("common", "rare")))

    assert not accused(map(of, codes))


def test_the_errors_are_those_of_the_samples(digits):
    """The report's errors follow from sums; here they are computed from the samples."""
    rng = np.random.default_rng(0)
    parts = alike(digits, 5, rng)
    parts[0] = flipped(parts[0], rng)
    report = screen({str(k): sums(part) for k, part in enumerate(parts)}.items)[0]
    rest = digits.take([]) + parts[1] + parts[2] + parts[3] + parts[4]
    for found, others in ((report.error_without, rest), (report.error_with, rest + parts[0])):
        rows, targets = others.features.values.astype(float), others.labels.onehot()
        gram = rows.T @ rows
        gram += 0.01 * np.trace(gram) / len(gram) * np.eye(len(gram))
        weights = np.linalg.solve(gram, rows.T @ targets)
        residual = rest.labels.onehot() - rest.features.values.astype(float) @ weights
        assert found == pytest.approx(np.mean(np.sum(residual**2, axis=1)), rel=1e-6)


def test_two_sites_cannot_be_judged_and_sites_without_samples_do_not_count(digits):
    parts = alike(digits, 2, np.random.default_rng(0))
    found = [sums(parts[0]), sums(flipped(parts[1], None)), sums(digits.take([]))]
    assert screen(dict(zip("abc", found, strict=True)).items) == []


def test_a_space_without_a_constant_is_screened_too(digits):
    rng = np.random.default_rng(0)
    space = Space(width=64, bound=127, inputs=64)
    parts = [
        replace(part, features=Features(part.features.values[:, :64], space))
        for part in alike(digits, 6, rng)
    ]
    assert sums(parts[0]).class_counts() is None
    assert not accused(map(sums, parts))
    parts[3] = flipped(parts[3], rng)
    assert accused(map(sums, parts)) == ["site 03"]


@pytest.mark.data
def test_no_domain_of_pacs_is_accused():
    path = Path(os.environ.get("FEDGRAM_DATA", "")) / PACS
    if not path.is_file():
        pytest.skip("FEDGRAM_DATA does not hold the features of PACS")
    samples, domain = gridded(load_dataset(str(path)), Grid()), np.load(path)["domain"]
    parts = [samples.take(np.flatnonzero(domain == name)) for name in np.unique(domain)]
    assert len(parts) == 4
    assert not accused(map(sums, parts))
    rng = np.random.default_rng(0)
    assert not accused(sums(half) for part in parts for half in alike(part, 2, rng))
    eight = alike(samples, 8, rng)
    assert not accused(map(sums, eight))
    eight[0] = flipped(eight[0], rng)
    assert accused(map(sums, eight)) == ["site 00"]
