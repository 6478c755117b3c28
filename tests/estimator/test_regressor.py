"""The regressor with the interface of scikit-learn."""

import numpy as np
import pytest

import fedgram as fg

sklearn = pytest.importorskip("sklearn")
from sklearn.base import clone  # noqa: E402
from sklearn.linear_model import LinearRegression  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 4)) * [1, 10, 100, 1000]
WARDS = RNG.choice(["north", "south", "west"], size=240)
Y = X @ [3.0, 0.2, 0.01, 0.001] + 4.0 * (WARDS == "north") + 0.1 * RNG.normal(size=240)


def test_groups_are_the_clients_and_have_models_of_their_own():
    model = fg.FederatedRegressor().fit(X, Y, groups=WARDS)
    own, pooled = model.score(X, Y, groups=WARDS), LinearRegression().fit(X, Y).score(X, Y)
    assert own > 0.97
    assert own > pooled + 0.05  # north is higher by a constant
    assert model.predict(X[:3], groups=["north", "new", "west"]).shape == (3,)
    with pytest.raises(ValueError, match="groups: expected the client of each sample, got none"):
        fg.FederatedRegressor().fit(X, Y)


def test_several_outputs_are_predicted_together():
    both = np.stack([Y, -10 * Y + X[:, 0]], axis=1)
    model = fg.FederatedRegressor("fedhip", output_range=[(-50, 50), (-500, 500)])
    model.fit(X, both, groups=WARDS)
    assert model.predict(X, groups=WARDS).shape == (240, 2)
    assert model.score(X, both, groups=WARDS) > 0.97
    alone = fg.FederatedRegressor("afl", output_range=(-50, 50)).fit(X, Y, groups=WARDS)
    together = fg.FederatedRegressor("afl", output_range=(-50, 50))
    together.fit(X, np.stack([Y, Y], axis=1), groups=WARDS)
    np.testing.assert_allclose(together.predict(X)[:, 1], alone.predict(X), rtol=0, atol=1e-9)


def test_values_out_of_the_declared_range_are_refused_by_name():
    with pytest.raises(ValueError, match=r"y: expected values in \[0, 1\], got .* in row .*wider"):
        fg.FederatedRegressor(output_range=(0, 1)).fit(X, Y, groups=WARDS)
    with pytest.raises(ValueError, match=r"output_range: expected a pair \(low, high\)"):
        fg.FederatedRegressor(output_range=(0, 1, 2)).fit(X, Y, groups=WARDS)
    with pytest.raises(ValueError, match="method logistic: expected classes, got numbers"):
        fg.FederatedRegressor("logistic").fit(X, Y, groups=WARDS)


def test_settings_can_be_searched():
    with sklearn.config_context(enable_metadata_routing=True):
        model = fg.FederatedRegressor("fedhip", settings={"ridge": 1.0})
        model.set_fit_request(groups=True).set_score_request(groups=True)
        search = GridSearchCV(model, {"method__alpha": [0.0, 100.0]}, cv=3)
        search.fit(X, Y, groups=WARDS)
    assert search.best_params_ == {"method__alpha": 100.0}
    assert clone(search.best_estimator_).settings == {"ridge": 1.0, "alpha": 100.0}


def test_without_a_range_that_of_the_training_data_is_taken():
    """It has other steps only: choices and predictions stay."""
    left = np.quantile(Y, 0.7) > Y
    taken = fg.FederatedRegressor("apfl-linear").fit(X[left], Y[left], groups=WARDS[left])
    wide = fg.FederatedRegressor("apfl-linear", output_range=(-200, 100))
    wide.fit(X[left], Y[left], groups=WARDS[left])
    found = taken.predict(X, groups=WARDS)
    np.testing.assert_allclose(found, wide.predict(X, groups=WARDS), rtol=0, atol=0.02)


def test_texts_are_refused_by_name():
    with pytest.raises(ValueError, match="y: expected numbers for a regression, got texts"):
        fg.FederatedRegressor(clients=2).fit(np.eye(6), ["a", "b"] * 3)
