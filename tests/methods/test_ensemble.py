"""Heads on parts of the features, from the blocks of one Gram matrix."""

import dataclasses

import numpy as np
import pytest

from fedgram import InProcess, Statistics
from fedgram.checks.federations import digits, federated, partitioned
from fedgram.core.samples import Features, Labels, Samples
from fedgram.errors import ConfigError
from fedgram.experiments.runner import run
from fedgram.features.grid import Grid
from fedgram.features.lift import Lift
from fedgram.methods.afl import AFL
from fedgram.methods.ensemble import Ensemble
from fedgram.selection.holdout import folds

LIFTED = Ensemble(lift=Lift(width=24), members=3)
TWO = Ensemble(parts=(24, 40))


def fitted(method, everybody):
    *_, shared = method.fit(InProcess(everybody.members))
    return shared


def total_of(samples, method):
    rows = samples.features if method.parts else method.lift(samples.features)
    return Statistics.of(rows, samples.labels)


def only(samples, columns):
    """The samples with some of their features alone, as if there were no others."""
    space = dataclasses.replace(samples.features.space, width=len(columns), inputs=0)
    rows = Features(np.ascontiguousarray(samples.features.values[:, columns]), space)
    return Samples(rows, samples.labels)


@pytest.mark.parametrize("method", [LIFTED, TWO], ids=["members", "parts"])
def test_the_head_of_a_part_is_afl_on_this_part_alone(method):
    """A block of the Gram matrix of all features is the Gram matrix of a part, to the bit."""
    samples = digits()
    rows = samples.features if method.parts else method.lift(samples.features)
    lifted = Samples(rows, samples.labels)
    heads = dict(method._heads(Statistics.of(lifted.features, lifted.labels)))
    columns = method._columns(rows.space.constant)
    assert sorted(np.concatenate(columns).tolist()) == list(range(rows.space.constant))
    for k, part in enumerate(columns):
        some = np.append(part, rows.space.constant)
        alone = federated({"only": only(lifted, some)})
        (head,) = AFL(ridge="auto").fit(InProcess(alone.members))
        found = heads[f"part {k + 1}"]
        assert np.array_equal(found[some], head.weights)
        assert not np.delete(found, some, axis=0).any()


def _both(samples):
    return samples.features, samples.labels


@pytest.mark.parametrize("method", [LIFTED, TWO], ids=["members", "parts"])
def test_candidates_are_what_their_names_say(method):
    heads = dict(method._heads(total_of(digits(), method)))
    parts = [head for name, head in heads.items() if name.startswith("part ") and " x " not in name]
    assert len(parts) == (len(method.parts) or method.members)
    mean, whole = sum(parts) / len(parts), heads["whole"]
    assert np.allclose(heads["mean of the parts"], mean)
    assert np.allclose(heads["whole x 0.25 + mean x 0.75"], 0.25 * whole + 0.75 * mean)
    blends = [name for name in heads if " x " in name and name.startswith("part")]
    assert len(blends) == (2 if method.parts else 0)
    for name in blends:
        assert np.allclose(heads[name], float(name[9:13]) * parts[0] + float(name[-4:]) * parts[1])


def test_the_whole_head_is_afl():
    total = total_of(digits(), LIFTED)
    (head,) = AFL(ridge="auto", lift=LIFTED.lift).fit(
        InProcess(federated({"only": digits()}).members)
    )
    assert np.array_equal(dict(LIFTED._heads(total))["whole"], head.weights)


def planted(seed, noise):
    """Two backbones: the second one is noise on all but few samples."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 3, 900)
    good = np.eye(3)[codes][:, [0, 1, 2, 0, 1]] * 2 + rng.normal(size=(900, 5))
    bad = rng.normal(size=(900, 4)) + noise * np.eye(3)[codes][:, [0, 1, 2, 0]]
    rows = Grid(bits=8)(np.hstack([good, bad]))
    return Samples(rows, Labels(codes, ("a", "b", "c")))


@pytest.mark.parametrize("noise", [0.0, 1.5])
def test_the_likeliest_combination_of_a_plain_implementation_is_chosen(noise):
    method, samples = Ensemble(parts=(5, 4)), planted(1, noise)
    out = folds(samples, 1) == 0
    rest, left = samples.take(np.flatnonzero(~out)), samples.take(np.flatnonzero(out))
    scales, losses = (2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0), {}
    for name, head in method._heads(Statistics.of(*_both(rest))):
        scores = left.features.real() @ head
        own = []
        for scale in scales:
            odds = np.exp(scale * scores)
            shares = odds[np.arange(len(left)), left.labels.codes] / odds.sum(axis=1)
            own.append(-np.log(shares).mean())
        losses[name] = min(own)
    everybody = federated({str(k): samples.take(slice(k, None, 3)) for k in range(3)})
    tuned = fitted(method, everybody)
    assert tuned.setting["heads"] == min(losses, key=losses.get)
    assert np.allclose(
        list(tuned.notes["held_out_loss"].values()), list(losses.values()), atol=1e-5
    )
    assert losses["part 1"] < losses["part 2"]
    final = dict(method._heads(Statistics.of(*_both(samples))))[tuned.setting["heads"]]
    assert np.array_equal(tuned.shared.model.weights, final)


def test_one_exchange_has_all_heads():
    result = run(LIFTED, partitioned(clients=3))
    steps = [ask.step for ask in result.record.exchanges if ask.phase == "train"]
    assert steps == ["opening", "kept_statistics", "all_statistics", "held_out"]


@pytest.mark.parametrize("method", [LIFTED, TWO], ids=["members", "parts"])
def test_secure_sums_and_other_partitions_give_the_same_bytes(method):
    pytest.importorskip("cryptography")
    runs = [
        run(method, partitioned(clients=4), threshold=0.6),
        run(method, partitioned(clients=4), private=True),
        run(method, partitioned(partition="dirichlet", clients=9)),
    ]
    assert len({(each.shared_digest, each.model_digest) for each in runs}) == 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"parts": (64,)}, "two or more parts"),
        ({"parts": (0, 64)}, "two or more parts"),
        ({"members": 1}, "members = 1"),
        ({"lift": Lift()}, "expected a feature for each of 4"),
    ],
)
def test_wrong_settings_are_refused(wrong, words):
    with pytest.raises(ConfigError, match=words):
        Ensemble(**wrong)


def test_parts_of_other_features_are_refused():
    with pytest.raises(ConfigError, match="add up to the 64 features"):
        fitted(Ensemble(parts=(30, 30)), partitioned(clients=2))
