"""Regression: exact sums of outputs, against independent programs."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core import codec
from fedgram.core.error_tally import ErrorTally
from fedgram.core.statistics import Statistics
from fedgram.core.targets import LEVELS, Output, Targets
from fedgram.errors import ConfigError, DataError, MismatchError
from fedgram.experiments.run_record import ClientScore
from fedgram.federation.method import find_method, names
from fedgram.selection.squared_errors import SquaredErrors

ABLE = [name for name in names() if find_method(name).predicts_numbers]


def table(samples=240, outputs=1, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, 9))
    ids = rng.choice(["north", "south", "west"], size=samples)
    y = x @ rng.normal(size=(9, outputs)) + 2.0 * (ids == "north")[:, None]
    return x, (y + 0.3 * rng.normal(size=y.shape)).squeeze(), ids


def data(outputs=1, **more):
    x, y, ids = table(outputs=outputs)
    options = {"standardize": True, "output_range": (-20, 20), **more}
    return fg.Dataset(x, y, clients=ids, task="regression", **options)


def design(federated):
    """Return the rows that methods see, and the fixed-point outputs as real values."""
    rows = np.concatenate([site.train.features.real() for site in federated.members])
    return rows, np.concatenate([site.train.labels.real() for site in federated.members])


@given(seed=st.integers(0, 2**32 - 1), parts=st.integers(1, 6), bits=st.sampled_from([8, 16]))
def test_sums_of_outputs_are_exact_for_any_partition(seed, parts, bits):
    rng = np.random.default_rng(seed)
    rows = fg.Grid(bits=bits)(rng.normal(size=(40, 3)))
    outputs = [Output(name="a", low=-1.0, high=1.0), Output(name="b", low=0.0, high=1e6)]
    values = np.stack([rng.uniform(-1, 1, 40), rng.uniform(0, 1e6, 40)], axis=1)
    truth = Targets.of(values, outputs)
    owner = rng.integers(parts, size=40)
    pieces = [
        Statistics.of(rows.take(chosen), truth.take(chosen))
        for chosen in (np.flatnonzero(owner == k) for k in range(parts))
        if len(chosen)
    ]
    total, whole = sum(pieces[1:], start=pieces[0]), Statistics.of(rows, truth)
    assert total == whole
    assert total.digest() == whole.digest()
    assert (total - pieces[0]) + pieces[0] == whole
    whole.validate()
    # Independent: Python integers.
    x, y = rows.values.astype(object), truth.values.astype(object)
    assert whole.moment.tolist() == (x.T @ y).tolist()
    assert whole.energy == int((y * y).sum())


def test_outputs_keep_their_values_up_to_half_a_step():
    output = Output(name="y", low=-3.0, high=11.0)
    values = np.random.default_rng(0).uniform(-3, 11, size=(100, 1))
    truth = Targets.of(values, [output])
    assert np.abs(truth.real() - values).max() <= output.step / 2 * (1 + 1e-9)
    assert truth.values.min() >= -LEVELS
    again = codec.decode(codec.encode(truth))
    np.testing.assert_array_equal(again.values, truth.values)
    assert again.outputs == truth.outputs


def test_other_ranges_do_not_add():
    rows = fg.Grid()(np.ones((2, 3)))
    one, other = (
        Statistics.of(rows, Targets.of(np.ones((2, 1)), [Output(name="y", low=0.0, high=high)]))
        for high in (1.0, 2.0)
    )
    with pytest.raises(MismatchError, match="classes differs"):
        one + other


@pytest.mark.parametrize("outputs", [1, 3])
def test_afl_is_the_ridge_regression_of_scikit_learn(outputs):
    linear = pytest.importorskip("sklearn.linear_model")
    federated = fg.federate(data(outputs))
    result = fg.run("afl", federated, ridge=2.5)
    rows, truth = design(federated)
    expected = linear.Ridge(alpha=2.5).fit(rows, truth)  # the constant has no ridge
    test = federated.test
    ours = result.models["north"].predict(test).reshape(len(test), -1)
    theirs = expected.predict(test.features.real()).reshape(len(test), -1)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        *((method, {}) for method in ABLE),
        ("apfl-linear", {"balance": "auto", "refinement_ridge": "auto"}),
    ],
)
def test_predictions_do_not_depend_on_the_declared_range(method, settings):
    """Also where settings are selected, and however far the outputs are from its middle."""
    x, y, ids = table()
    y = np.rint(y * 2**9) / 2**9  # steps of the widest range
    found = []
    for output_range in ((-16, 16), (-16, 112)):
        given = fg.Dataset(
            x, y, ids, task="regression", output_range=output_range, standardize=True
        )
        federated = fg.federate(given)
        result = fg.run(fg.create_method(method, settings).shortened(), federated)
        assert result.accuracy["sample_mean"] > 0.6
        found.append(result.models["north"].predict(x))
    np.testing.assert_allclose(*found, rtol=0, atol=1e-4)  # auto rounds its heads to integers


def test_the_selected_ridge_has_the_smallest_error_of_a_fit_with_a_constant():
    from fedgram.core import gcv
    from fedgram.core.gcv import generalized_error
    from fedgram.core.solve import random_signs

    federated = fg.federate(data())
    total = sum(
        (Statistics.of(site.train.features, site.train.labels) for site in federated.members[1:]),
        start=Statistics.of(federated.members[0].train.features, federated.members[0].train.labels),
    )
    rows, truth = design(federated)
    place, ridge = total.space.constant, 7.0
    penalty = ridge * np.eye(rows.shape[1])
    penalty[place, place] = 0.0
    hat = rows @ np.linalg.solve(rows.T @ rows + penalty, rows.T)
    left = truth[:, 0] - hat @ truth[:, 0]
    expected = len(rows) * float(left @ left) / (len(rows) - np.trace(hat)) ** 2
    step = federated.test.labels.outputs[0].step * LEVELS
    assert generalized_error(total, ridge) * step**2 == pytest.approx(expected, rel=1e-9)
    signs = np.linalg.inv(rows.T @ rows + penalty) * total.space.unit**2  # of stored features
    nearby = gcv._NearbyErrors(total, ridge)
    vectors = random_signs(len(signs) - 1)
    others = np.arange(len(signs)) != place
    trace = np.mean(np.sum(vectors * (signs[np.ix_(others, others)] @ vectors), axis=0))
    exact = np.trace(signs[np.ix_(others, others)])
    stored = ridge / total.space.unit**2
    freedom = len(rows) - np.trace(hat)
    estimated = expected * (freedom / (freedom + stored * (trace - exact))) ** 2
    assert nearby(ridge) * step**2 == pytest.approx(estimated, rel=1e-4)


def test_fedhip_is_the_ridge_regression_with_weights_of_scikit_learn():
    linear = pytest.importorskip("sklearn.linear_model")
    federated = fg.federate(data())
    result = fg.run("fedhip", federated, ridge=2.5, alpha=7.0)
    rows, truth = design(federated)
    owner = np.repeat(np.arange(3), [len(site.train) for site in federated.members])
    for k, site in enumerate(federated.members):
        weight = np.where(owner == k, 8.0, 1.0)
        expected = linear.Ridge(alpha=2.5).fit(rows, truth / 20, weight)
        ours = result.models[site.id].predict(site.test)
        theirs = expected.predict(site.test.features.real()).ravel() * 20
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-8)


@pytest.mark.wide  # statsmodels takes long to import
def test_own_intercepts_are_the_mixed_model_of_statsmodels():
    mixed = pytest.importorskip("statsmodels.regression.mixed_linear_model")
    federated = fg.federate(data())
    rows, truth = design(federated)
    groups = np.repeat(
        [site.id for site in federated.members], [len(s.train) for s in federated.members]
    )
    fitted = mixed.MixedLM(truth[:, 0], rows, groups=groups).fit(reml=True)
    ratio = float(fitted.scale / fitted.cov_re[0, 0])  # of the variances: the strength
    result = fg.run("intercept", federated, strength=ratio, ridge=0.0)
    for site in federated.members:
        features = site.test.features.real()
        expected = features @ fitted.fe_params + float(fitted.random_effects[site.id].iloc[0])
        np.testing.assert_allclose(
            result.models[site.id].predict(site.test), expected, rtol=0, atol=1e-6
        )


@pytest.mark.parametrize("method", ABLE)
def test_every_method_of_numbers_learns_one_and_several_outputs(method):
    for outputs in (1, 2):
        federated = fg.federate(data(outputs))
        result = fg.run(fg.create_method(method).shortened(), federated)
        assert result.accuracy["sample_mean"] > 0.6, (method, outputs)
        shape = (len(federated.test), 2)[:outputs]
        assert result.models["north"].predict(federated.test).shape == shape
        model = codec.decode(codec.encode(result.models["north"]))
        np.testing.assert_array_equal(
            model.predict(federated.test), result.models["north"].predict(federated.test)
        )


@pytest.mark.parametrize("method", ["afl", "fedhip", "auto", "apfl-linear"])
def test_the_scale_of_the_outputs_changes_no_choice(method):
    x, y, ids = table()
    results = [
        fg.run(
            method,
            fg.federate(
                fg.Dataset(
                    x,
                    scale * y + shift,
                    ids,
                    task="regression",
                    output_range=(-20 * scale + shift, 20 * scale + shift),
                    standardize=True,
                )
            ),
        )
        for scale, shift in ((1.0, 0.0), (1024.0, 4096.0))
    ]
    one, other = (result.accuracy for result in results)
    assert one["client_mean"] == pytest.approx(other["client_mean"], abs=1e-4)


def test_leave_one_out_errors_are_those_of_refits():
    """What `auto` selects by is what left-out samples cost, found by refitting without each."""
    federated = fg.federate(data())
    method = fg.create_method("auto", effort="low")
    seen = []

    class Watched(fg.InProcess):
        def sum(self, step, broadcast=None, *, clients=None):
            total = super().sum(step, broadcast, clients=clients)
            seen.append((step.__name__, total))
            return total

    shared = next(iter(method.fit(Watched(federated.members))))
    (judged,) = [total for name, total in seen if name == "left_out_errors"]
    ridge = seen[0][1]
    rows, truth = design(federated)
    # The first candidate is the shared ridge head.
    from fedgram.core.gcv import resolved

    alpha = resolved("auto", ridge)
    no_constant = np.diag(np.arange(rows.shape[1]) != ridge.space.constant)
    errors = 0.0
    for k in range(len(rows)):
        rest = np.arange(len(rows)) != k
        gram = rows[rest].T @ rows[rest] + alpha * no_constant
        head = np.linalg.solve(gram, rows[rest].T @ truth[rest, 0])
        errors += (rows[k] @ head - truth[k, 0]) ** 2
    step = federated.test.labels.outputs[0].step
    assert judged.errors[0, 0] * step**2 == pytest.approx(errors, rel=1e-6)
    assert shared.description.startswith(
        max(shared.left_out_accuracy, key=shared.left_out_accuracy.get)
    )


def test_scores_are_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    federated = fg.federate(data(2))
    result = fg.run("fedhip", federated)
    found = {score.client: score for score in result.record.chosen.clients}
    truths, guesses = [], []
    for site in federated.members:
        truth, guess = site.test.labels.real(), result.models[site.id].predict(site.test)
        truths.append(truth)
        guesses.append(guess)
        own = found[site.id]
        assert own.r2 == pytest.approx(metrics.r2_score(truth, guess), abs=1e-6)
        rmse = np.mean(np.sqrt(np.mean((truth - guess) ** 2, axis=0)))
        assert own.rmse == pytest.approx(rmse, abs=1e-5)
        assert own.mae == pytest.approx(metrics.mean_absolute_error(truth, guess), abs=1e-4)
        assert own.accuracy == own.r2
        assert ClientScore.from_dict(own.to_dict()) == own
    everything = metrics.r2_score(np.concatenate(truths), np.concatenate(guesses))
    assert result.accuracy["sample_mean"] == pytest.approx(everything, abs=1e-6)
    assert result.accuracy["client_mean"] == pytest.approx(
        np.mean([own.r2 for own in found.values()]), abs=1e-6
    )


def test_a_client_without_a_defined_r2_is_left_out_of_the_mean():
    output = Output(name="y", low=0.0, high=1.0)
    one = ErrorTally.of(np.array([[0.5]]), Targets.of(np.array([[0.4]]), [output]))
    same = ErrorTally.of(np.zeros((3, 1)), Targets.of(np.full((3, 1), 0.5), [output]))
    some = ErrorTally.of(np.zeros((2, 1)), Targets.of(np.array([[0.4], [0.6]]), [output]))
    total = one + same + some
    assert (total.samples, total.r2_clients) == (6, 1)
    assert total.client_mean == pytest.approx(some.r2)
    for tally in (one, same, some):
        tally.validate()
    for wrong in (
        {"r2_clients": 2},
        {"r2_clients": 0, "r2s": 1},
        {"r2s": -(10**13)},
        {"squares": some.squares + 10**14},
        {"absolutes": some.absolutes + 10**8},
        {"energies": some.energies + 2 * LEVELS**2},
        {"totals": some.totals + 2 * LEVELS},
    ):
        with pytest.raises(DataError):
            dataclasses.replace(some, **wrong).validate()


def test_what_is_selected_by_is_validated():
    truth = Targets.of(np.array([[0.4], [0.6]]), [Output(name="y", low=0.0, high=1.0)])
    found = SquaredErrors.of([truth.onehot(), np.full((2, 1), np.nan)], truth)
    found.validate()
    assert found.winner == 0
    for wrong in (
        {"errors": -found.errors - 1},
        {"errors": found.errors + 10**12},
        {"energies": found.energies + 2 * LEVELS**2},
        {"totals": found.totals + 2 * LEVELS},
    ):
        with pytest.raises(DataError):
            dataclasses.replace(found, **wrong).validate()


def test_outputs_beyond_their_range_are_refused_in_sums():
    site = fg.federate(data()).members[0]
    honest = Statistics.of(site.train.features, site.train.labels)
    honest.validate()
    with pytest.raises(DataError, match="outputs larger than their range allows"):
        dataclasses.replace(
            honest, moment=honest.moment * 100, energy=honest.energy * 100**2
        ).validate()


def test_a_range_whose_steps_are_wider_than_the_values_differ_is_refused():
    with pytest.raises(DataError, match=r"y: the range -1e\+07 to 1e\+07 has steps of 305, but"):
        data(output_range=(-1e7, 1e7))
    x, y, _ = table()
    y[0] = 1e8
    with (
        pytest.warns(UserWarning, match="taken from the data"),
        pytest.raises(DataError, match="declare a narrower output_range"),
    ):
        fg.Dataset(x, y, task="regression")
    few = fg.Dataset(x[1:4], y[1:4], task="regression", output_range=(-1e7, 1e7))
    assert len(few) == 3


def test_equal_outputs_are_no_error():
    x, _, ids = table()
    equal = fg.Dataset(
        x, np.full(240, 5.0), ids, task="regression", output_range=(0, 10), standardize=True
    )
    model = fg.run("afl", fg.federate(equal)).models["north"]
    assert model.predict(x) == pytest.approx(np.full(240, 5.0), abs=1e-3)


WRONG = {
    "out of range": (
        {"output_range": (0, 1)},
        r"y: expected values in \[0, 1\], got .* in row \d+; declare a wider output_range",
    ),
    "a range of one number": (
        {"output_range": 3},
        r"output_range: expected a pair \(low, high\), or 1 pairs, got 3",
    ),
    "an empty range": ({"output_range": (3, 3)}, "expected finite numbers with low < high"),
    "a task": ({"task": "regresion"}, "task: expected one of classification, regression, got"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_ranges_are_refused_by_name(case):
    settings, words = WRONG[case]
    x, y, _ = table()
    with pytest.raises(DataError, match=words):
        fg.Dataset(x, y, **{"task": "regression", **settings})


def test_classes_are_no_numbers():
    x, _, _ = table()
    with pytest.raises(DataError, match=r"y: expected numbers for a regression, got texts; "):
        fg.Dataset(x, ["a", "b"] * 120, task="regression")
    with pytest.raises(DataError, match="y: expected finite numbers, got NaN in rows 0, 1"):
        fg.Dataset(x, np.full(240, np.nan), task="regression")


def test_a_range_from_the_data_is_a_warning():
    x, y, _ = table()
    with pytest.warns(
        UserWarning, match=r"taken from the data, test samples too: \(.*\); declare output_range="
    ):
        found = fg.Dataset(x, y, task="regression")
    (output,) = found.targets.outputs
    assert output.low <= y.min() < y.max() <= output.high


def test_methods_of_classes_refuse_numbers():
    federated = fg.federate(data())
    for method in sorted(set(names()) - set(ABLE)):
        with pytest.raises(ConfigError, match=rf"method {method}: expected classes, got numbers"):
            fg.run(method, federated)


def test_frames_figures_and_texts_of_a_regression():
    pytest.importorskip("pandas")
    result = fg.run("fedhip", fg.federate(data()))
    frame = result.to_frame()
    assert frame.columns[:6].tolist() == ["client", "method", "r2", "rmse", "mae", "samples"]
    assert not {"accuracy", "correct", "valid_correct", "train_classes"} & set(frame.columns)
    assert {"rmse", "mae"} <= set(result.summary_frame().columns)
    assert "R2 client mean" in repr(result)
    assert result.plot().svg.startswith("<svg")
    with pytest.raises(DataError, match="expected a model of classes, got one of numbers"):
        result.models["north"].predict_proba(np.zeros((1, 9)))


@pytest.mark.parametrize("method", ABLE)
def test_one_sample_alone_is_predicted_by_itself(method):
    x, y, _ = table()
    alone = fg.Dataset(
        x[:1], y[:1], ["north"], split=[0], task="regression", output_range=(-20, 20)
    )
    model = fg.run(fg.create_method(method).shortened(), fg.federate(alone)).models["north"]
    assert model.predict(x[:1]) == pytest.approx(y[:1], abs=1e-3)
