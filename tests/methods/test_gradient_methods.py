"""What each gradient method must come down to, by laws and known answers."""

import dataclasses
import functools

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fedgram import InProcess, Site
from fedgram.checks.federations import partitioned as digits
from fedgram.core import codec
from fedgram.core.weighted import Weighted
from fedgram.errors import ConfigError
from fedgram.experiments.runner import run
from fedgram.federation.method import create_method, find_method, names
from fedgram.methods.afl import AFL
from fedgram.methods.ditto import Ditto
from fedgram.methods.fed3r import Fed3R
from fedgram.methods.fedala import FedALA
from fedgram.methods.fedas import FedAS
from fedgram.methods.fedavg import FedAvg
from fedgram.methods.fedavg_ft import FedAvgFT
from fedgram.methods.fedcgs import FedCGS
from fedgram.methods.feddbe import FedDBE
from fedgram.methods.fedpcl import FedPCL
from fedgram.methods.fedprox import FedProx
from fedgram.methods.fedprox_ft import FedProxFT
from fedgram.methods.fedrep import FedRep
from fedgram.methods.fedselect import FedSelect
from fedgram.methods.perfedavg import PerFedAvg
from fedgram.methods.pfedme import PFedMe
from fedgram.methods.scaffold import Scaffold
from fedgram.models import mlp
from fedgram.models.adjusted import ClassMasked
from fedgram.models.linear import predict
from fedgram.models.mlp import TrainingRows
from fedgram.runtime import flops, threads
from fedgram.training.loop import GradientMethod

GRADIENT = [name for name in names() if issubclass(find_method(name), GradientMethod)]
SETTINGS = {"rate": 0.2, "rounds": 3, "epochs": 2, "batch": 5, "precision": "double"}
WHOLE = {**SETTINGS, "epochs": 1, "batch": 0}  # one step on all samples in each round
SIZES = (7, 12, 18, 23)
hidden = pytest.mark.parametrize("hidden", [0, 4], ids=["linear", "hidden"])


@pytest.fixture(scope="module")
def samples(gridded):
    return gridded(sum(SIZES), 5, 3)


@pytest.fixture(scope="module")
def sites(samples, dealt):
    return dealt(samples, np.repeat(np.arange(4), SIZES))


def fitted(method, sites, **engine):
    """The last shared model of a training from empty state, and the engine."""
    federation = InProcess([dataclasses.replace(site, state={}) for site in sites], **engine)
    *_, model = method.fit(federation)
    return model, federation


def personal(method, sites, **engine):
    """Everybody's own model after training."""
    shared, federation = fitted(method, sites, **engine)
    return dict(
        federation.evaluate(lambda _, client, part: method.personalize(client, part), shared)
    )


def states(federation):
    return dict(federation.evaluate(lambda site, client, shared: dict(client.state), None))


def same_shared(one, other, sites, **engine):
    """Whether two methods share the same parameters, to the bit."""
    first, second = (fitted(method, sites, **engine)[0].theta for method in (one, other))
    return first.tobytes() == second.tobytes() and bool(np.any(first))


def rows_of(site):
    return TrainingRows.of(site.train, FedAvg().lift, np.float64)


# Every method that trains in rounds


def test_the_methods_are_those_that_were_looked_for():
    assert len(GRADIENT) == 19


@functools.cache
def skewed():
    return digits(clients=6, dirichlet=0.5, valid_fraction=0.2)


@pytest.mark.parametrize("name", GRADIENT)
@pytest.mark.parametrize("hidden", [None, 6])
def test_every_method_works_with_few_clients_of_which_some_drop_out(name, hidden):
    settings = {"rounds": 4, "epochs": 1, "rate": 0.05, "participation": 0.6}
    if hidden or name == "fedpcl":
        settings["hidden"] = 6
    result = run(create_method(name, settings), skewed(), dropout=0.3, seed=4)
    train = [
        ask for ask in result.record.exchanges if ask.phase == "train" and ask.step != "opening"
    ]
    assert {ask.clients for ask in train if ask.step != "mean"} <= {1, 2, 3, 4}
    for model in result.predictors.values():
        assert np.isfinite(model(skewed().test.features)).all()
    assert result.last.scores.valid.samples > 0


@pytest.mark.parametrize("name", GRADIENT)
def test_every_product_is_computed_with_a_fixed_number_of_threads(name, monkeypatch):
    """Else the bytes of a model would depend on the machine's number of cores."""
    counted, real = [], flops.add

    def watched(flops):
        if flops > 0:  # what is taken off is only moved
            counted.append(threads._inside > 0)
        real(flops)

    monkeypatch.setattr(flops, "add", watched)
    run(create_method(name, {"rounds": 2, "epochs": 1, "rate": 0.05, "hidden": 4}), skewed())
    assert len(counted) > 20
    assert all(counted)


@pytest.mark.parametrize("name", GRADIENT)
def test_personal_models_learn_more_than_chance(name):
    rate = {"fedpcl": 0.02, "pfedzo": 0.03}.get(name, 0.1)
    result = run(create_method(name, {"rounds": 6, "rate": rate, "epochs": 2}), skewed())
    assert result.accuracy["client_mean"] > 0.6


# FedAvg


def central_descent(samples, steps, rate):
    """Plain gradient descent on all samples in one place."""
    x, y = samples.features.real(), samples.labels.onehot()
    weights = np.zeros((x.shape[1], y.shape[1]))
    for _ in range(steps):
        powers = np.exp(x @ weights)
        weights -= rate * x.T @ (powers / powers.sum(axis=1, keepdims=True) - y) / len(x)
    return weights.reshape(-1)


@pytest.mark.parametrize("clients", [1, 2, 7, 60])
def test_one_whole_step_a_round_is_central_descent_however_samples_are_dealt(
    samples, dealt, clients
):
    rng = np.random.default_rng(clients)
    owners = rng.permutation(np.arange(len(samples)) % clients)
    model, _ = fitted(FedAvg(**{**WHOLE, "rounds": 5}), dealt(samples, owners))
    expected = central_descent(samples, steps=5, rate=0.2)
    np.testing.assert_allclose(model.theta, expected, rtol=0, atol=1e-10)


def test_with_several_steps_it_does_matter_how_samples_are_dealt(samples, dealt):
    """Else the law above would say nothing."""
    by_class = dealt(samples, samples.labels.codes)
    model, _ = fitted(FedAvg(**{**WHOLE, "epochs": 5, "rounds": 1}), by_class)
    assert np.abs(model.theta - central_descent(samples, steps=5, rate=0.2)).max() > 1e-3


@hidden
def test_the_order_of_replies_changes_no_bit(sites, hidden):
    method = FedAvg(hidden=hidden, **SETTINGS)
    assert fitted(method, sites)[0].theta.tobytes() == (
        fitted(method, sites[::-1], workers=3)[0].theta.tobytes()
    )


# FedProx


@hidden
def test_fedprox_without_strength_is_fedavg_to_the_bit(sites, hidden):
    more = {**SETTINGS, "hidden": hidden}
    assert same_shared(FedProx(strength=0.0, **more), FedAvg(**more), sites)
    assert not same_shared(FedProx(strength=0.1, **more), FedAvg(**more), sites)


def test_a_strong_pull_keeps_fedprox_near_the_start(sites):
    weak, strong = (
        np.linalg.norm(fitted(FedProx(strength=s, **SETTINGS), sites)[0].theta) for s in (0.0, 4.0)
    )
    assert strong < weak / 2


# Tuning


@pytest.mark.parametrize(
    ("tuned", "plain"),
    [(FedAvgFT, FedAvg), (functools.partial(FedProxFT, strength=0.3), FedProx)],
    ids=["fedavg-ft", "fedprox-ft"],
)
def test_tuning_changes_personal_models_only(sites, tuned, plain):
    if plain is FedProx:
        plain = functools.partial(FedProx, strength=0.3)
    assert same_shared(tuned(**SETTINGS), plain(**SETTINGS), sites)
    shared, _ = fitted(plain(**SETTINGS), sites)
    untuned = personal(tuned(tuning_epochs=0, **SETTINGS), sites)
    own = personal(tuned(tuning_epochs=4, **SETTINGS), sites)
    for site in sites:
        assert untuned[site.id].theta.tobytes() == shared.theta.tobytes()
        before, after = (
            mlp.loss(shared.shape, theta, rows_of(site))
            for theta in (shared.theta, own[site.id].theta)
        )
        assert after < before


def test_tuning_is_plain_descent_from_the_shared_model(sites):
    method = FedAvgFT(tuning_epochs=2, **WHOLE)
    shared, _ = fitted(method, sites)
    for site in sites:
        theta, rows = shared.theta.copy(), rows_of(site)
        for _ in range(2):
            theta -= 0.2 * mlp.gradient(shared.shape, theta, rows)
        own = personal(method, sites)[site.id].theta
        np.testing.assert_allclose(own, theta, rtol=0, atol=1e-12)


# Ditto


@hidden
def test_dittos_shared_model_is_fedavgs_to_the_bit(sites, hidden):
    more = {**SETTINGS, "hidden": hidden}
    assert same_shared(Ditto(strength=1.0, **more), FedAvg(**more), sites)


def alone_in_any_company(method, sites):
    """Whether a client's model is the same, to the bit, whoever else is there."""
    found = {
        personal(method, company)[sites[1].id].theta.tobytes()
        for company in (sites[1:2], sites[:2], sites[1:], sites)
    }
    return len(found) == 1


@hidden
def test_ditto_without_strength_is_training_alone(sites, hidden):
    more = {**SETTINGS, "hidden": hidden}
    assert alone_in_any_company(Ditto(strength=0.0, **more), sites)
    assert not alone_in_any_company(Ditto(strength=0.1, **more), sites)


def test_ditto_alone_is_descent_on_ones_own_samples(sites):
    own = personal(Ditto(strength=0.0, personal_epochs=2, **WHOLE), sites)
    for site in sites:
        expected = central_descent(site.train, steps=6, rate=0.2)
        np.testing.assert_allclose(own[site.id].theta, expected, rtol=0, atol=1e-12)


def test_a_strong_pull_makes_dittos_models_alike(sites):
    def spread(strength):
        own = [
            model.theta for model in personal(Ditto(strength=strength, **SETTINGS), sites).values()
        ]
        return np.std(own, axis=0).mean()

    assert spread(4.0) < spread(0.0) / 2


# FedALA


@hidden
def test_fedala_with_weights_fixed_at_one_is_fedavg_to_the_bit(sites, hidden):
    more = {**SETTINGS, "hidden": hidden}
    fixed = FedALA(mixing_rate=0.0, **more)
    assert same_shared(fixed, FedAvg(**more), sites)
    shared, _ = fitted(fixed, sites)
    for model in personal(fixed, sites).values():
        assert model.theta.tobytes() == shared.theta.tobytes()
    assert not same_shared(FedALA(mixing_rate=1.0, **more), FedAvg(**more), sites)


@hidden
def test_fedala_mixes_between_ones_own_and_the_shared_model(sites, hidden):
    method = FedALA(mixing_rate=20.0, hidden=hidden, **SETTINGS)
    shared, federation = fitted(method, sites)
    base, kept = shared.shape.base, states(federation)
    for name, model in personal(method, sites).items():
        own = kept[name]["own"]
        low, high = np.minimum(own, shared.theta), np.maximum(own, shared.theta)
        between = (model.theta >= low - 1e-12) & (model.theta <= high + 1e-12)
        assert between[base:].all()
        np.testing.assert_array_equal(model.theta[:base], shared.theta[:base])
        assert np.abs(model.theta - shared.theta).max() > 1e-3
        weights = kept[name]["weights"]
        assert weights.min() >= 0
        assert weights.max() <= 1


def test_in_the_first_round_fedala_has_nothing_to_mix(sites):
    once = {**SETTINGS, "rounds": 1}
    assert same_shared(FedALA(**once), FedAvg(**once), sites)


# FedSelect


@hidden
def test_fedselect_without_personal_parameters_is_fedavg_to_the_bit(sites, hidden):
    more = {**SETTINGS, "hidden": hidden}
    assert same_shared(FedSelect(target=0.0, growing_rounds=1, **more), FedAvg(**more), sites)
    assert same_shared(FedSelect(growth=0.0, growing_rounds=1, **more), FedAvg(**more), sites)
    shared, _ = fitted(FedAvg(**more), sites)
    for model in personal(FedSelect(target=0.0, **more), sites).values():
        assert model.theta.tobytes() == shared.theta.tobytes()


@hidden
def test_fedselect_with_personal_parameters_only_is_training_alone(sites, hidden):
    more = {**SETTINGS, "hidden": hidden}
    assert alone_in_any_company(FedSelect(growth=1.0, target=1.0, growing_rounds=1, **more), sites)
    assert not alone_in_any_company(FedSelect(growth=0.5, growing_rounds=1, **more), sites)


def test_fedselects_masks_grow_up_to_the_target_by_what_has_changed_most(sites):
    method = FedSelect(
        growth=0.25, target=0.6, growing_rounds=2, hidden=4, **{**SETTINGS, "rounds": 9}
    )
    federation = InProcess([dataclasses.replace(site, state={}) for site in sites])
    before, shares = None, []
    for model in method.fit(federation):
        after = states(federation)
        for name, kept in after.items():
            layers = slice(0, model.shape.base), slice(model.shape.base, None)
            shares.append([kept["mask"][layer].mean() for layer in layers])
            if before is None:
                continue
            old = before[name]
            assert not np.any(old["mask"] & ~kept["mask"])  # nothing becomes shared again
            change = np.abs(old["own"] - old["since"])
            for layer in layers:
                new = kept["mask"][layer] & ~old["mask"][layer]
                left = ~kept["mask"][layer]
                if new.any():
                    assert model.round % 2 == 1  # two finished rounds, then it grows
                    assert change[layer][new].min() >= change[layer][left].max()
        before = after
    assert np.max(shares) == pytest.approx(0.6)
    assert shares[0] == [0.0, 0.0]


def test_a_parameter_that_is_personal_everywhere_stays_as_it_was(sites):
    method = FedSelect(growth=1.0, target=1.0, growing_rounds=1, **SETTINGS)
    first, *_, last = method.fit(InProcess([dataclasses.replace(s, state={}) for s in sites]))
    assert last.theta.tobytes() == first.theta.tobytes()


@pytest.mark.parametrize(
    "wrong", [{"growth": 1.1}, {"growth": -0.1}, {"target": 2.0}, {"growing_rounds": 0}]
)
def test_shares_that_are_none_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        FedSelect(**wrong)


# SCAFFOLD


@hidden
def test_scaffold_with_equal_clients_is_fedavg(sites, hidden):
    """Where all drift alike there is nothing to correct."""
    twins = [dataclasses.replace(sites[2], id=name) for name in "abc"]
    more = {**WHOLE, "epochs": 4, "hidden": hidden}
    one, other = (fitted(kind(**more), twins)[0].theta for kind in (Scaffold, FedAvg))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", [{}, {"dropout": 0.5}], ids=["all", "some drop out"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_scaffolds_shared_control_is_the_mean_of_the_clients_own(sites, engine, participation):
    method = Scaffold(participation=participation, **{**SETTINGS, "rounds": 5})
    model, federation = fitted(method, sites, **engine)
    own = [kept.get("control", np.zeros_like(model.theta)) for kept in states(federation).values()]
    np.testing.assert_allclose(model.more["control"], np.mean(own, axis=0), rtol=0, atol=1e-12)
    assert np.any(model.more["control"])


def test_scaffolds_controls_are_gradients(sites):
    """After one whole step from the start, a client's control is its gradient there."""
    model, federation = fitted(Scaffold(**{**WHOLE, "rounds": 1}), sites)
    start = np.zeros_like(model.theta)
    for site in sites:
        expected = mlp.gradient(model.shape, start, rows_of(site))
        control = states(federation)[site.id]["control"]
        np.testing.assert_allclose(control, expected, rtol=0, atol=1e-12)


def test_scaffold_takes_drift_out_of_local_descent(samples, dealt):
    """Clients of one class each, many local steps: the centre is where central descent ends."""
    by_class = dealt(samples, samples.labels.codes)
    far = central_descent(samples, steps=4000, rate=0.2)
    more = {**WHOLE, "epochs": 4, "rounds": 40, "rate": 0.05}

    def lost(kind):
        theta = fitted(kind(**more), by_class)[0].theta
        return central_loss(samples, theta) - central_loss(samples, far)

    assert lost(Scaffold) < lost(FedAvg)


def central_loss(samples, theta):
    scores = samples.features.real() @ theta.reshape(-1, len(samples.labels.classes))
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return -np.mean(scores[np.arange(len(samples)), samples.labels.codes])


# pFedMe


def test_pfedmes_personal_model_minimizes_the_envelope(sites):
    """With enough inner steps the gradient of loss + strength/2 |theta - w|^2 is zero there."""
    method = PFedMe(strength=2.0, inner_steps=150, inner_rate=0.2, **{**WHOLE, "rounds": 1})
    shared, _ = fitted(method, sites)
    moved, own = np.zeros_like(shared.theta), personal(method, sites)
    for site in sites:
        theta = own[site.id].theta
        slope = mlp.gradient(shared.shape, theta, rows_of(site)) + 2.0 * theta
        assert np.abs(slope).max() < 1e-9
        moved += len(site.train) / sum(SIZES) * 0.2 * 2.0 * theta  # w was at zero
    np.testing.assert_allclose(shared.theta, moved, rtol=0, atol=1e-12)


def test_pfedme_mixes_as_much_of_the_average_as_asked(sites):
    once = {**SETTINGS, "rounds": 1, "rate": 0.02}
    whole, part = (fitted(PFedMe(mixing=m, **once), sites)[0].theta for m in (1.0, 0.25))
    np.testing.assert_allclose(part, 0.25 * whole, rtol=0, atol=1e-12)
    assert np.any(whole)


def test_pfedme_starts_every_round_at_the_shared_model(sites):
    """What a client did before has no say but through the shared model."""
    method = PFedMe(**{**WHOLE, "rate": 0.02})
    first, second, *_ = method.fit(InProcess([dataclasses.replace(s, state={}) for s in sites]))
    fresh = InProcess([dataclasses.replace(site, state={}) for site in sites])
    again = method.round(fresh, first)
    np.testing.assert_allclose(again.theta, second.theta, rtol=0, atol=1e-12)


# Per-FedAvg


@hidden
def test_perfedavg_moves_against_the_gradient_one_step_ahead(sites, hidden):
    method = PerFedAvg(inner_rate=0.3, hidden=hidden, **{**WHOLE, "rounds": 2})
    first, second = method.fit(InProcess([dataclasses.replace(s, state={}) for s in sites]))
    shape, theta = first.shape, first.theta
    expected = np.zeros_like(theta)
    for site in sites:
        rows = rows_of(site)
        ahead = theta - 0.3 * mlp.gradient(shape, theta, rows)
        own = theta - 0.2 * mlp.gradient(shape, ahead, rows)
        expected += len(rows) / sum(SIZES) * own
    np.testing.assert_allclose(second.theta, expected, rtol=0, atol=1e-12)


def test_perfedavg_that_does_not_look_ahead_is_fedavg(sites):
    one, other = (
        fitted(method, sites)[0].theta
        for method in (PerFedAvg(inner_rate=1e-300, **WHOLE), FedAvg(**WHOLE))
    )
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def test_perfedavg_tunes_with_the_inner_rate(sites):
    method = PerFedAvg(inner_rate=0.7, tuning_epochs=1, **WHOLE)
    shared, _ = fitted(method, sites)
    for site in sites:
        slope = mlp.gradient(shared.shape, shared.theta, rows_of(site))
        own = personal(method, sites)[site.id].theta
        np.testing.assert_allclose(own, shared.theta - 0.7 * slope, rtol=0, atol=1e-12)


# FedRep and FedAS


@pytest.mark.parametrize("kind", [FedRep, FedAS])
def test_without_a_hidden_layer_personal_heads_are_trained_alone(sites, kind):
    method = kind(**SETTINGS)
    assert alone_in_any_company(method, sites)
    shared, federation = fitted(method, sites)
    assert shared.theta.size == 0  # nothing travels but what goes with it
    assert all(ask.bytes_up / ask.clients < 1000 for ask in federation.asks)


def test_without_a_hidden_layer_they_are_one_method(sites):
    more = {**SETTINGS, "epochs": 3}
    one, other = (personal(method, sites) for method in (FedRep(**more), FedAS(**more)))
    for name, model in one.items():
        assert model.theta.tobytes() == other[name].theta.tobytes()


@pytest.mark.parametrize("kind", [FedRep, FedAS])
def test_with_a_hidden_layer_it_is_shared_and_heads_are_not(sites, kind):
    method = kind(hidden=4, **SETTINGS)
    assert not alone_in_any_company(method, sites)
    shared, federation = fitted(method, sites)
    assert shared.theta.size == shared.shape.base
    replies = dict(federation.gather(method.update, shared))
    assert {reply.total.size for reply in replies.values()} == {shared.shape.base}


def test_fedrep_trains_the_head_and_then_the_layer_below_it(sites):
    method = FedRep(hidden=4, head_epochs=2, **{**WHOLE, "rounds": 1})
    shared, federation = fitted(method, sites)
    shape = shared.shape
    expected = np.zeros(shape.base)
    for site in sites:
        theta, rows = shape.start(np.float64), rows_of(site)
        for _ in range(2):
            theta[shape.base :] -= 0.2 * mlp.gradient(shape, theta, rows)[shape.base :]
        head = states(federation)[site.id]["head"]
        np.testing.assert_allclose(head, theta[shape.base :], rtol=0, atol=1e-12)
        theta[: shape.base] -= 0.2 * mlp.gradient(shape, theta, rows)[: shape.base]
        expected += len(rows) / sum(SIZES) * theta[: shape.base]
    np.testing.assert_allclose(shared.theta, expected, rtol=0, atol=1e-12)
    own = personal(method, sites)[sites[0].id].theta
    np.testing.assert_array_equal(own[: shape.base], shared.theta)


def fisher_trace(shape, theta, rows, size):
    """The squared gradients of the batches, added up."""
    parts = [
        rows.take(np.arange(at, min(at + size, len(rows)))) for at in range(0, len(rows), size)
    ]
    return sum(np.sum(mlp.gradient(shape, theta, part) ** 2) for part in parts)


def test_fedas_weighs_layers_by_fisher_information(sites):
    method = FedAS(hidden=4, **SETTINGS)
    shared, federation = fitted(method, sites)
    own = {name: kept["own"] for name, kept in states(federation).items()}
    shape = shared.shape
    traces = {s.id: fisher_trace(shape, own[s.id], rows_of(s), 5) for s in sites}
    expected = sum(traces[n] * own[n][: shape.base] for n in own) / sum(traces.values())
    np.testing.assert_allclose(shared.theta, expected, rtol=0, atol=1e-5)
    by_samples = sum(len(s.train) * own[s.id][: shape.base] for s in sites) / sum(SIZES)
    assert np.abs(shared.theta - by_samples).max() > 1e-3


def test_fedas_aligns_the_shared_layer_with_the_classes_of_ones_own(sites):
    """A step against the mean squared distance of each class, and nothing is aligned at rate 0."""
    method = FedAS(hidden=4, aligning_rate=0.05, **WHOLE)
    shared, federation = fitted(method, sites)
    shape, site = shared.shape, sites[3]
    own, rows = states(federation)[site.id]["own"], rows_of(site)

    def distance(layer):
        seen, there = (
            shape.represent(np.concatenate([base, own[shape.base :]]), rows)[:, :-1]
            for base in (layer, own[: shape.base])
        )
        total = 0.0
        for code in np.unique(rows.codes):
            mine = rows.codes == code
            total += np.mean((seen[mine] - there[mine].mean(axis=0)) ** 2)
        return total

    slope = np.array(
        [
            (distance(shared.theta + step) - distance(shared.theta - step)) / 2e-6
            for step in 1e-6 * np.eye(shape.base)
        ]
    )
    client = dataclasses.replace(site, state={"own": own, "trial": 0}).client(
        np.random.default_rng(0)
    )
    aligned = method._aligned(client, shared, rows, client.rng)
    np.testing.assert_allclose(
        aligned[: shape.base], shared.theta - 0.05 * slope, rtol=0, atol=1e-8
    )
    np.testing.assert_array_equal(aligned[shape.base :], own[shape.base :])


# FedDBE


@hidden
def test_feddbes_first_whole_step_is_fedavgs(sites, hidden):
    """A head of zeros passes nothing down: the shift is still zero after it."""
    more = {**WHOLE, "rounds": 1, "hidden": hidden}
    one, other = (fitted(m, sites)[0].theta for m in (FedDBE(strength=0.0, **more), FedAvg(**more)))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def test_feddbes_mean_is_everybodys_mean_representation(sites, samples):
    model, _ = fitted(FedDBE(**WHOLE), sites)
    np.testing.assert_allclose(model.more["mean"], samples.features.real().mean(axis=0), atol=1e-12)


def dbe_loss(method, model, rows, running, parameters):
    """Loss with a shift and the pull of the running mean, in plain numpy."""
    shape = model.shape
    theta, shift = parameters[: shape.size], parameters[shape.size :]
    seen = rows.values * rows.unit
    if shape.hidden:
        inside = np.maximum(seen @ theta[: shape.base].reshape(shape.width, -1), 0)
        seen = np.column_stack([inside, np.ones(len(inside))])
    scores = (seen + shift) @ theta[shape.base :].reshape(shape.depth, -1)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    moved = (1 - method.momentum) * running + method.momentum * seen.mean(axis=0)
    pull = np.mean(0.5 * (moved - model.more["mean"]) ** 2)
    return -np.mean(scores[np.arange(len(rows)), rows.codes]) + method.strength * pull


@hidden
def test_feddbes_step_is_against_the_gradient_of_its_loss(sites, hidden):
    method = FedDBE(hidden=hidden, strength=30.0, momentum=0.4, **SETTINGS)
    model, _ = fitted(method, sites)
    rng = np.random.default_rng(0)
    rows, shape = rows_of(sites[1]), model.shape
    shift, running = rng.normal(size=(2, shape.depth))
    point = np.concatenate([model.theta, shift])
    objective = functools.partial(dbe_loss, method, model, rows, running)
    slope = np.array(
        [
            (objective(point + step) - objective(point - step)) / 2e-6
            for step in 1e-6 * np.eye(len(point))
        ]
    )
    theta, moved = model.theta.copy(), shift.copy()
    method._step(model, theta, rows, moved, running)
    found = np.concatenate([theta, moved])
    np.testing.assert_allclose(found, point - model.rate * slope, rtol=0, atol=1e-8)


def test_feddbes_shift_is_personal_and_used(sites):
    method = FedDBE(**SETTINGS)
    shared, federation = fitted(method, sites)
    for name, model in personal(method, sites).items():
        np.testing.assert_array_equal(model.offset, states(federation)[name]["shift"])
        assert np.any(model.offset)
        assert model.theta.tobytes() == shared.theta.tobytes()
    assert "shift" not in shared.more


# FedPCL


def test_fedpcl_never_predicts_a_class_that_the_client_lacks(samples, dealt):
    two_classes = samples.labels.codes != 2
    owners = np.where(two_classes, np.arange(len(samples)) % 2, 2)
    sites = dealt(samples, owners)
    for name, model in personal(FedPCL(hidden=4, **SETTINGS), sites).items():
        (site,) = (site for site in sites if site.id == name)
        guesses = predict(model, samples.features)
        assert set(guesses) <= set(site.train.labels.codes)


def test_fedpcls_prototypes_are_means_over_the_clients_that_have_the_class(samples, dealt):
    sites = dealt(samples, samples.labels.codes // 2 * 2 + np.arange(len(samples)) % 2)
    method = FedPCL(hidden=4, peers=2, **SETTINGS)
    federation = InProcess(sites)
    *_, shared = method.fit(federation)
    kept = states(federation)
    means = {}
    for site in sites:
        inside = site.train.features.real() @ kept[site.id]["projection"]
        inside /= np.linalg.norm(inside, axis=1, keepdims=True)
        for code in np.unique(site.train.labels.codes):
            mine = site.train.labels.codes == code
            means.setdefault(code, []).append(inside[mine].mean(axis=0))
    expected = np.array([np.mean(means[code], axis=0) for code in range(3)])
    np.testing.assert_allclose(
        shared.more["prototypes"].reshape(3, 4), expected, rtol=0, atol=1e-12
    )
    assert len(shared.more["peers"]) == 2


def pcl_loss(method, sets, rows, projection):
    inside = rows.values * rows.unit @ projection
    inside = inside / np.linalg.norm(inside, axis=1, keepdims=True)
    total = 0.0
    for weight, prototypes in sets:
        scores = inside @ prototypes.T / method.temperature
        scores = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        total -= weight * np.mean(scores[np.arange(len(rows)), rows.codes])
    return total


def test_fedpcls_step_is_against_the_gradient_of_its_loss(sites):
    more = {**WHOLE, "rate": 0.01}
    method = FedPCL(hidden=4, temperature=0.5, peers=3, **more)
    shared, _ = fitted(method, sites)
    sets = [(1.0, shared.more["prototypes"].reshape(3, 4))]
    sets += [(1 / 3, peer.reshape(3, 4)) for peer in shared.more["peers"]]
    rows = rows_of(sites[2])
    start = shared.shape.start(np.float64)[: shared.shape.base].reshape(-1, 4)
    objective = functools.partial(pcl_loss, method, sets, rows)
    slope = np.zeros_like(start)
    for place in np.ndindex(*start.shape):
        step = np.zeros_like(start)
        step[place] = 1e-6
        slope[place] = (objective(start + step) - objective(start - step)) / 2e-6
    client = dataclasses.replace(sites[2], state={}).client(np.random.default_rng(0))
    trained = method._trained(client, shared, rows, client.rng)
    np.testing.assert_allclose(trained, start - 0.01 * slope, rtol=0, atol=1e-8)


def test_in_a_private_federation_fedpcl_shows_no_peers(sites):
    shared, _ = fitted(FedPCL(hidden=4, **SETTINGS), sites, private=True)
    assert shared.more["peers"] == []
    openly, _ = fitted(FedPCL(hidden=4, peers=0, **SETTINGS), sites)
    assert codec.digest(openly) == codec.digest(shared)


@pytest.mark.parametrize("wrong", [{"hidden": 0}, {"temperature": 0.0}])
def test_a_projection_without_width_or_temperature_is_refused(wrong):
    with pytest.raises(ConfigError, match="must be greater than 0"):
        FedPCL(**wrong)


# Fed3R


def solved(method, sites):
    (shared,) = method.fit(InProcess(sites))
    return shared


def test_fed3r_without_normalizing_is_afl_to_the_bit(sites):
    one, other = (solved(m, sites) for m in (Fed3R(ridge=3.0, normalize=False), AFL(ridge=3.0)))
    assert codec.encode(one) == codec.encode(other)


def test_fed3rs_columns_are_afls_divided_by_their_length(sites):
    ours, plain = solved(Fed3R(ridge=3.0), sites), solved(AFL(ridge=3.0), sites)
    lengths = np.sqrt(np.sum(plain.weights[:-1] ** 2, axis=0))  # without the constant's entry
    np.testing.assert_allclose(ours.weights, plain.weights / lengths, rtol=1e-12)
    assert ours.provenance() != plain.provenance()


def test_fed3r_can_be_kept_to_the_classes_of_ones_own_samples(samples, dealt):
    sites = dealt(samples, samples.labels.codes)
    (shared,) = Fed3R().fit(InProcess(sites))
    free = set(predict(shared, samples.features))
    assert free == {0, 1, 2}
    for site in sites:
        client = site.client(np.random.default_rng(0))
        kept = Fed3R(only_local_labels=True).personalize(client, shared)
        assert isinstance(kept, ClassMasked)
        assert set(predict(kept, samples.features)) == set(site.train.labels.codes)


def test_a_client_without_labels_is_not_restricted(sites, samples):
    """Where nothing is known of a client's classes, any may be predicted."""
    (shared,) = Fed3R().fit(InProcess(sites))
    nobody = Site(id="x", train=samples.take([]), valid=samples.take([]), test=samples)
    model = Fed3R(only_local_labels=True).personalize(
        nobody.client(np.random.default_rng(0)), shared
    )
    np.testing.assert_array_equal(model(samples.features), shared(samples.features))


# FedCGS


@pytest.mark.parametrize("shrinkage", [0.01, 3.0])
def test_fedcgs_is_the_gaussian_classifier_of_all_samples(sites, samples, shrinkage):
    x, codes = samples.features.real()[:, :-1], samples.labels.codes
    inverse = np.linalg.inv(np.cov(x.T) + shrinkage * np.eye(x.shape[1]))
    expected = np.empty((len(x), 3))
    for c in range(3):
        mean = x[codes == c].mean(axis=0)
        chance = np.log(np.mean(codes == c))
        expected[:, c] = x @ inverse @ mean - mean @ inverse @ mean / 2 + chance
    found = solved(FedCGS(shrinkage=shrinkage), sites)(samples.features)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_fedcgs_is_scikit_learns_discriminant_with_the_covariance_of_all_samples(sites, samples):
    x, codes = samples.features.real()[:, :-1], samples.labels.codes

    class OfAll:
        covariance_ = np.cov(x.T) + 0.5 * np.eye(x.shape[1])

        def fit(self, _):
            return self

    lda = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=OfAll()).fit(x, codes)
    found = solved(FedCGS(shrinkage=0.5), sites)(samples.features)
    np.testing.assert_allclose(found, lda.decision_function(x), rtol=0, atol=1e-9)


def test_fedcgs_gives_a_class_without_samples_no_chance(samples, dealt):
    known = samples.take(np.flatnonzero(samples.labels.codes != 1))
    head = solved(FedCGS(), dealt(known, np.arange(len(known)) % 3))
    assert np.isfinite(head.weights).all()
    assert 1 not in predict(head, known.features)


def test_a_mean_of_nothing_is_nothing():
    """What FedRep and FedAS send where there is no layer to share."""
    total = Weighted.of(np.zeros(0), 3) + Weighted.of(np.zeros(0), 4)
    assert total.mean().shape == (0,)
