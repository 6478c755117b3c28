"""The classifier with the interface of scikit-learn."""

import pickle

import numpy as np
import pytest

import fedgram as fg

sklearn = pytest.importorskip("sklearn")
from sklearn.base import clone  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 5)) * [1, 10, 100, 1000, 1]
WARDS = RNG.choice(["north", "south", "west"], size=240)
# Each ward has a threshold of its own.
Y = np.where(X[:, 0] + X[:, 1] / 10 + 0.8 * (WARDS == "north") > 0, "well", "ill")
LINEAR = "apfl-linear"


def test_groups_are_the_clients():
    model = fg.FederatedClassifier(LINEAR).fit(X, Y, groups=WARDS)
    assert model.clients_.tolist() == ["north", "south", "west"]
    own = model.score(X, Y, groups=WARDS)
    assert own > model.score(X, Y)  # without groups: the shared model
    assert own > 0.85
    assert model.predict_proba(X, groups=WARDS).sum(axis=1) == pytest.approx(1)
    direct = fg.run(
        LINEAR,
        fg.federate(
            fg.Dataset(X, Y, WARDS, split=np.zeros(240, int)),
            partition="given",
            split="global",
            standardize=True,
        ),
    )
    for name in model.clients_:
        mine = np.flatnonzero(name == WARDS)
        expected = direct.models[name].predict(X[mine])
        assert model.predict(X[mine], groups=WARDS[mine]).tolist() == expected.tolist()


def test_unknown_clients_get_the_shared_model():
    model = fg.FederatedClassifier(LINEAR).fit(X, Y, groups=WARDS)
    mixed = np.array(["north", "a new ward"] * 120)
    np.testing.assert_array_equal(
        model.decision_function(X, groups=mixed)[1::2], model.decision_function(X)[1::2]
    )
    assert (model.decision_function(X, groups=mixed) != model.decision_function(X)).any()
    with pytest.raises(ValueError, match="local has no shared model for unknown clients"):
        fg.FederatedClassifier("local").fit(X, Y, groups=WARDS).predict(X)


@pytest.mark.parametrize("given", [None, "pipeline", "search"])
def test_without_groups_there_is_an_error_and_no_fit_with_one_client(given):
    model = fg.FederatedClassifier("afl")
    calls = {
        None: lambda: model.fit(X, Y),
        "pipeline": lambda: make_pipeline(StandardScaler(), model).fit(X, Y),
        "search": lambda: GridSearchCV(
            model, {"method__ridge": [1.0]}, cv=2, error_score="raise"
        ).fit(X, Y),
    }
    with pytest.raises(ValueError, match="groups: expected the client of each sample, got none"):
        calls[given]()


def test_clients_are_drawn_only_where_that_is_asked_for():
    model = fg.FederatedClassifier("afl", clients=4).fit(X, Y)
    assert len(model.models_) == 4
    with pytest.raises(ValueError, match="clients: expected 'groups' or a number of clients, got"):
        fg.FederatedClassifier("afl", clients="four").fit(X, Y)


def test_a_search_over_a_setting_of_the_method_gets_the_groups():
    with sklearn.config_context(enable_metadata_routing=True):
        model = fg.FederatedClassifier(LINEAR, calibrate=False)
        model.set_fit_request(groups=True).set_score_request(groups=True)
        search = GridSearchCV(model, {"method__balance": [0.0, 1.0]}, cv=3)
        search.fit(X, Y, groups=WARDS)
        shared, own = search.cv_results_["mean_test_score"]
        assert own > shared
        assert search.best_params_ == {"method__balance": 1.0}
        assert search.best_estimator_.settings == {"balance": 1.0}
        pipeline = make_pipeline(StandardScaler(), model).fit(X, Y, groups=WARDS)
        assert pipeline.score(X, Y, groups=WARDS) > 0.85


def test_settings_are_parameters():
    model = fg.FederatedClassifier(LINEAR, settings={"balance": 0.2})
    assert model.get_params()["method__balance"] == 0.2
    other = clone(model).set_params(method__balance=0.7, random_state=3)
    assert (other.settings, model.settings) == ({"balance": 0.7}, {"balance": 0.2})
    assert clone(other).get_params() == other.get_params()
    for key in ("method__balanse", "ridge"):
        with pytest.raises(ValueError, match=f"{key}: expected"):
            model.set_params(**{key: 1.0})


def test_raw_columns_are_standardized_by_default():
    model = fg.FederatedClassifier("afl").fit(X, Y, groups=WARDS)
    assert model.score(X, Y, groups=WARDS) > 0.85
    raw = fg.FederatedClassifier("afl", standardize=False).fit(X, Y, groups=WARDS)
    assert raw.score(X, Y, groups=WARDS) < 0.8  # the column of thousands decides alone


def test_a_fitted_model_keeps_no_samples_and_can_be_pickled():
    model = fg.FederatedClassifier("afl").fit(X, Y, groups=WARDS)
    written = pickle.dumps(model)
    assert len(written) < X.nbytes / 2
    again = pickle.loads(written)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_wrong_input_is_a_value_error_that_names_the_argument():
    model = fg.FederatedClassifier("afl")
    with pytest.raises(ValueError, match="groups: expected 240 values, one for each row of X"):
        model.fit(X, Y, groups=WARDS[:10])
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        model.fit(X, X[:, 0], groups=WARDS)
    with pytest.raises(ValueError, match="expected at least 2 classes"):
        model.fit(X, ["one"] * 240, groups=WARDS)
    with pytest.raises(ValueError, match="method 'aplf' is not known; did you mean 'apfl'"):
        fg.FederatedClassifier("aplf").fit(X, Y, groups=WARDS)
    with pytest.raises(NotFittedError):
        fg.FederatedClassifier().predict(X)
