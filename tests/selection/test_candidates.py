"""Every squared model that is tried: its left-out scores are those of a fit without the sample."""

import json

import numpy as np
import pytest

from fedgram import Lift, Statistics
from fedgram.checks.federations import trainable
from fedgram.models.linear import Linear
from fedgram.selection.candidates import (
    LIFTED_FAMILIES,
    NAMES,
    Candidates,
    described,
    personal,
    scales,
    settings_for,
)
from fedgram.selection.gaussian import Discriminant
from fedgram.selection.normal_equations import NormalEquations

RIDGE = 20.0
LIFTS = {"plain": Lift(), "lifted": Lift(width=20, seed=3)}
OWN = {"few": slice(0, 7), "one": slice(0, 1), "copies": [5, 5, 5, 8], "many": slice(0, 80)}


def whole_of(lift, *parts):
    total = sum(Statistics.of(lift(part.features), part.labels) for part in parts)
    return NormalEquations(total=total, ridge=RIDGE)


def candidates(whole, lift, beside):
    return Candidates.of(whole, lift, beside=beside)


def gaussian_without(whole, shrinkage, count, lift):
    """Return LDA of a total whose shrinkage weighs as much as it does for `count` samples."""
    known = Discriminant(total=whole.total, shrinkage=shrinkage * count / whole.total.count)
    return Linear(
        weights=known.weights, space=whole.total.space, classes=whole.total.classes, lift=lift
    )


def close(ours, theirs):
    return np.abs(ours - theirs).max() <= 1e-8 * max(1.0, np.abs(theirs).max())


def without(samples, i):
    return samples.take(np.flatnonzero(np.arange(len(samples)) != i))


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside"])
@pytest.mark.parametrize("in_total", [True, False], ids=["in_total", "not counted"])
@pytest.mark.parametrize("lift", LIFTS.values(), ids=LIFTS)
@pytest.mark.parametrize("own", OWN.values(), ids=OWN)
def test_left_out_scores_are_those_of_a_fit_without_the_sample(own, lift, in_total, beside):
    mine, others = trainable().take(own), trainable().take(slice(100, 160))
    tried = candidates(whole_of(lift, *([mine] if in_total else []), others), lift, beside)
    found = list(tried.left_out(mine, in_total=in_total))
    assert len(found) == len(tried.settings)
    assert {each.shape for each in found} == {(len(mine), 10)}
    for i in range(0, len(mine), 1 + len(mine) // 6):
        rest, row = without(mine, i), mine.take([i]).features
        again = candidates(whole_of(lift, *([rest] if in_total else []), others), lift, beside)
        for setting, scores in zip(again.settings, found, strict=True):
            shared = again.shared(setting)
            if setting["family"] == "lda":
                count = tried.equations.total.count
                shared = gaussian_without(again.equations, setting["shrinkage"], count, lift)
            model = personal(setting, rest, shared, lift)
            assert close(scores[i], model(row)[0]), setting


def test_a_client_without_samples_has_no_scores():
    nothing, others = trainable().take([]), trainable().take(slice(100, 160))
    tried = candidates(whole_of(Lift(), others), Lift(), False)
    for scores in tried.left_out(nothing, in_total=True):
        assert scores.shape == (0, 10)


def test_the_only_sample_of_a_class_says_nothing_of_it():
    """Left out, its class has no column: all finite, and no chance for it."""
    codes = trainable().labels.codes
    others = trainable().take(np.flatnonzero(codes != 4)[:90])
    mine = trainable().take(np.flatnonzero(codes == 4)[:1])
    tried = candidates(whole_of(Lift(), mine, others), Lift(), False)
    for setting, scores in zip(tried.settings, tried.left_out(mine, in_total=True), strict=True):
        assert np.isfinite(scores).all(), setting
        assert scores[0].argmax() != 4, setting


def test_lda_is_tried_as_the_method_solves_it():
    everything = trainable().take(slice(0, 200))
    tried = candidates(whole_of(Lift(), everything), Lift(), False)
    setting = next(each for each in tried.settings if each["family"] == "lda")
    head = tried.shared(setting)
    expected = Discriminant(total=tried.equations.total, shrinkage=setting["shrinkage"]).weights
    assert np.array_equal(head.weights, expected)
    assert head.origin


# What is tried


@pytest.mark.parametrize("width", [2, 64, 256, 1280])
def test_every_model_is_tried_once_and_the_simplest_first(width):
    settings = settings_for(width)
    assert len({json.dumps(setting) for setting in settings}) == len(settings)
    assert settings[0] == {"family": "ridge"}
    assert {setting["family"] for setting in settings} == set(NAMES)
    words = [described(setting) for setting in settings]
    assert len(set(words)) == len(words)


def test_own_ridges_suit_the_number_of_features():
    def largest(width):
        return max(each.get("refinement_ridge", 0.0) for each in settings_for(width))

    assert largest(1280) == largest(256) == 4 * largest(64)


def test_beside_plain_features_few_families_are_tried_on_lifted_ones():
    lift = LIFTS["lifted"]
    tried = candidates(whole_of(lift, trainable().take(slice(0, 50))), lift, True)
    assert {setting["family"] for setting in tried.settings} == set(LIFTED_FAMILIES)
    assert {setting["width"] for setting in tried.settings} == {20.0}
    assert all("lift 20" in described(setting) for setting in tried.settings)


def test_scores_of_squared_heads_and_of_gaussians_have_other_scales():
    assert max(scales({"family": "lda"})) <= 1.0
    assert min(scales({"family": "apfl"})) > 1.0
