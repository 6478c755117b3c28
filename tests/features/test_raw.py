"""The raw protocol: features as they are, without scaling, rounding and the constant."""

import numpy as np
import pytest

from fedgram import (
    Dataset,
    Grid,
    InProcess,
    Lift,
    PartitionPlan,
    Space,
    create_method,
    federate,
    load_dataset,
    run,
)
from fedgram.core import codec
from fedgram.core.samples import concatenate
from fedgram.errors import ExactnessError, FedgramError, MismatchError, RowError
from fedgram.experiments.config import read
from fedgram.features.lift import ACTIVATIONS, signs_of
from fedgram.federation.method import names

RAW = Grid(bits="raw")
NO_CONSTANT = "raw features have none"
REFUSES = {
    # These count classes or pixels by the constant.
    **dict.fromkeys(("auto", "fedcgs", "lda", "logistic", "prior"), NO_CONSTANT),
    **dict.fromkeys(("fedacnnl", "pfedacnnl"), NO_CONSTANT),
    "closed-maml": "diverged",  # values of this size are beyond its fixed-point sums
}


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).normal(size=(30, 4)) * [1e-3, 1.0, 50.0, 1e4]


def dealt(clients=5, **plan):
    return federate(load_dataset("digits"), PartitionPlan(clients=clients, **plan), RAW)


def test_raw_features_are_the_features(rows):
    features = RAW(rows)
    assert features.values.tobytes() == rows.tobytes()
    assert features.real().tobytes() == rows.tobytes()
    space = features.space
    assert (space.width, space.inputs, space.unit, space.exact) == (4, 4, 1.0, False)
    assert not space.has_constant
    assert space.without_constant == slice(0, 4)
    with pytest.raises(MismatchError, match=r"raw features have none.*'off'"):
        _ = space.constant


def test_scale_and_offset_of_a_file_are_applied():
    found = RAW(np.array([[1, 2]], np.uint8), scale=np.array([2.0, 3.0]), offset=0.5).values
    np.testing.assert_array_equal(found, [[2.5, 6.5]])


def test_a_row_that_is_not_finite_is_named():
    with pytest.raises(RowError, match="row 1"):
        RAW(np.array([[1.0], [np.nan]]))


def test_raw_and_scaled_features_do_not_mix(rows):
    spaces = [Grid(bits=bits)(rows).space for bits in (8, "off", "raw")]
    assert len(set(spaces)) == 3
    for space in spaces:
        assert Grid.of(space).space(4) == space
        assert codec.decode(codec.encode(space)) == space


def test_the_setting_in_all_its_forms():
    assert read({"grid": "raw"}).grid == read({"grid": {"bits": "raw"}}).grid == RAW


def test_images_stay_images():
    assert RAW.space(12, "image 2x2x3").image == (2, 2, 3)
    assert Space(width=13, inputs=12, backbone="image 2x2x3").image == (2, 2, 3)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_lift_of_raw_features_has_no_constant(rows, activation):
    lift = Lift(width=6, activation=activation, seed=3)
    lifted = lift(RAW(rows))
    expected = ACTIVATIONS[activation](rows @ signs_of(4, 6, 3).astype(float) / 2)
    np.testing.assert_allclose(lifted.values, expected, rtol=1e-12)
    assert not lifted.space.has_constant


@pytest.mark.parametrize("ridge", [1e-3, 1.0, 100.0])
def test_afl_is_the_ridge_regression_of_the_raw_matrix(ridge):
    members = dealt(clients=7).members
    everything = concatenate([site.train for site in members])
    x, y = everything.features.values, everything.labels.onehot()
    assert x.shape[1] == 64
    assert set(np.unique(x)) == set(range(17))
    expected = np.linalg.solve(x.T @ x + ridge * np.eye(64), x.T @ y)
    (head,) = create_method("afl", {"ridge": ridge}).fit(InProcess(members))
    assert np.linalg.norm(head.weights - expected) <= 1e-12 * np.linalg.norm(expected)


@pytest.mark.parametrize("name", ["afl", "fedncm", "apfl-linear"])
def test_laws_hold_up_to_rounding(name):
    """However the samples of the others are spread, a client's scores are the same to 1e-10."""
    everybody = dealt(clients=1).members[0]
    own, rest = everybody.train.take(slice(0, 60)), everybody.train.take(slice(60, None))
    found = []
    for clients in (1, 6):
        parts = [rest.take(slice(k, None, clients)) for k in range(clients)]
        sites = [
            type(everybody)(id=f"c{k}", train=part, valid=part.take([]), test=part.take([]))
            for k, part in enumerate([own, *parts])
        ]
        method = create_method(name)
        (shared,) = method.fit(InProcess(sites))
        model = method.personalize(sites[0].client(np.random.default_rng(0)), shared)
        found.append(model(everybody.test.features))
    assert np.abs(found[0] - found[1]).max() <= 1e-10 * np.abs(found[0]).max()


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in REFUSES or name in ("afl", "fedhip", "fedcof", "fedavg")
        else pytest.param(name, marks=pytest.mark.wide)
        for name in names()
    ],
)
def test_every_method_works_or_says_what_it_needs(name):
    settings = {"effort": "low", "exchanges": 1} if name == "auto" else {}
    method = create_method(name, settings).shortened(search=False)
    if name in REFUSES:
        with pytest.raises(FedgramError, match=REFUSES[name]):
            run(method, dealt())
        return
    for model in run(method, dealt()).models.values():
        assert np.isfinite(model(dealt().test.features)).all()


def test_layers_are_refused():
    pytest.importorskip("torch")
    with pytest.raises(MismatchError, match=NO_CONSTANT):
        run(create_method("fedavg", {"layers": "dense 4", "rounds": 1, "rate": 0.1}), dealt())


def test_secure_sums_of_raw_features_are_refused():
    pytest.importorskip("cryptography")
    with pytest.raises(ExactnessError, match="use a grid"):
        run(create_method("afl"), dealt(), threshold=2 / 3)


def test_a_file_of_features_on_another_grid_is_refused():
    data = Dataset(
        x=np.zeros((4, 2), np.int8), y=np.arange(4) % 2, classes=("a", "b"), grid=(8, 6.0)
    )
    with pytest.raises(FedgramError, match=r"set grid\.bits=8"):
        federate(data, PartitionPlan(clients=2), RAW)
