"""Deep networks trained by torch: slow references, finite differences, and the laws."""

import builtins
import dataclasses
import functools

import numpy as np
import pytest

from fedgram import InProcess, Space
from fedgram.checks import laws
from fedgram.checks.federations import partitioned
from fedgram.core import codec
from fedgram.errors import ConfigError
from fedgram.experiments.runner import run
from fedgram.features.lift import ACTIVATIONS
from fedgram.federation.method import create_method, find_method, names
from fedgram.models import mlp
from fedgram.models.architecture import Conv, MapShape, read, shapes
from fedgram.models.mlp import TrainingRows
from fedgram.models.torch_network import TorchNetwork
from fedgram.runtime import flops
from fedgram.training.descent import SGD
from fedgram.training.loop import GradientMethod

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.vision

SMALL = "conv 3 3x3 pad 1 max 2, dense 6 tanh"
DIGITS = {"layers": SMALL, "image": [8, 8, 1]}
DEEP = [
    n for n in names() if issubclass(find_method(n), GradientMethod) and find_method(n).any_layers
]
TOWERS = [
    TorchNetwork(text=SMALL, image=(4, 4, 2), classes=3),
    TorchNetwork(
        text="conv 2 2x2 stride 2 gelu, conv 3 1x1 mean 2 sigmoid", image=(5, 4, 1), classes=3
    ),
    TorchNetwork(text="dense 5, dense 4 hardswish", image=(1, 1, 7), classes=2),
]
towers = pytest.mark.parametrize("tower", TOWERS, ids=["pooled", "strided", "dense"])


def some_rows(tower, count=7, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.integers(-9, 10, (count, int(np.prod(tower.image)) + 1)).astype(np.float64)
    return TrainingRows(values=values, codes=rng.integers(tower.classes, size=count), unit=0.25)


def some_theta(tower, seed=1):
    return np.random.default_rng(seed).normal(size=tower.size) / 2


def patches(maps, layer):
    """Yield every place's patch of one sample, as a row."""
    padded = np.pad(maps, [(layer.padding,) * 2, (layer.padding,) * 2, (0, 0)])
    for down in range(0, padded.shape[0] - layer.kernel + 1, layer.stride):
        for right in range(0, padded.shape[1] - layer.kernel + 1, layer.stride):
            window = padded[down : down + layer.kernel, right : right + layer.kernel]
            yield window.reshape(-1)


def slow_layer(layer, weights, maps):
    """One layer on one sample, place by place."""
    activate = ACTIVATIONS[layer.activation]
    if not isinstance(layer, Conv):
        return activate(np.append(maps.reshape(-1), 1.0) @ weights).reshape(1, 1, -1)
    out = layer.filtered(MapShape(height=len(maps), width=len(maps[0]), channels=maps.shape[2]))
    sums = np.array([np.append(patch, 1.0) @ weights for patch in patches(maps, layer)])
    sums = sums.reshape(out.height, out.width, -1)
    size, pooled = layer.pool, []
    for down in range(out.height // size):
        for right in range(out.width // size):
            cell = sums[down * size : (down + 1) * size, right * size : (right + 1) * size]
            if layer.pooling == "max":
                pooled.append(activate(cell.max(axis=(0, 1))))
            else:
                pooled.append(activate(cell).mean(axis=(0, 1)))
    return np.array(pooled).reshape(out.height // size, out.width // size, -1)


def slow_scores(tower, theta, rows):
    found = []
    *below, head = tower.layers(theta)
    for row in rows.values[:, :-1] * rows.unit:
        maps = row.reshape(tower.image)
        for layer, weights in zip(read(tower.text), below, strict=True):
            maps = slow_layer(layer, weights, maps)
        found.append(np.append(maps.reshape(-1), 1.0) @ head)
    return np.array(found)


# The arithmetic


@towers
def test_scores_are_those_of_a_slow_computation(tower):
    theta, rows = some_theta(tower), some_rows(tower)
    np.testing.assert_allclose(
        tower.logits(theta, rows), slow_scores(tower, theta, rows), atol=1e-12
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_is_that_of_a_lift(activation):
    tower = TorchNetwork(text=f"dense 9 {activation}", image=(1, 1, 4), classes=2)
    theta, rows = some_theta(tower), some_rows(tower)
    np.testing.assert_allclose(
        tower.logits(theta, rows), slow_scores(tower, theta, rows), atol=1e-12
    )


@towers
def test_the_gradient_is_that_of_finite_differences(tower):
    theta, rows = some_theta(tower), some_rows(tower)
    wanted, step = np.zeros_like(theta), 1e-6
    for i in range(len(theta)):
        there = theta.copy()
        there[i] += step
        up = mlp.loss(tower, there, rows)
        there[i] -= 2 * step
        wanted[i] = (up - mlp.loss(tower, there, rows)) / (2 * step)
    np.testing.assert_allclose(mlp.gradient(tower, theta, rows), wanted, atol=2e-9)


@towers
def test_a_step_may_be_taken_in_place(tower):
    theta, rows = some_theta(tower), some_rows(tower)
    wanted = 0.9 * theta - 0.3 * mlp.gradient(tower, theta, rows)
    tower.backward(theta, rows, into=theta, scale=-0.3, keep=0.9)
    np.testing.assert_allclose(theta, wanted, rtol=1e-12)


@towers
def test_without_keep_it_does_not_matter_what_was_there(tower):
    theta, rows = some_theta(tower), some_rows(tower)
    into = np.full_like(theta, np.nan)
    tower.backward(theta, rows, into=into, scale=2.0)
    np.testing.assert_allclose(into, 2 * mlp.gradient(tower, theta, rows))


@towers
def test_layers_cover_every_parameter_once_the_head_last(tower):
    theta = np.zeros(tower.size)
    for layer in tower.layers(theta):
        layer += 1
    np.testing.assert_array_equal(theta, 1)
    assert tower.layers(theta)[-1].shape == (tower.hidden + 1, tower.classes)
    assert theta[tower.base :].size == tower.layers(theta)[-1].size


@towers
def test_the_start_is_public_random_below_and_zero_in_the_head(tower):
    start = tower.start(np.float64)
    np.testing.assert_array_equal(start, tower.start(np.float64))
    assert not start[tower.base :].any()
    for layer in tower.layers(start)[:-1]:
        assert layer[:-1].all()
        assert not layer[-1].any()


def test_operations_are_counted_as_products_are():
    """A dense tower does the arithmetic of a plain shape: forwards once, backwards twice."""
    tower = TorchNetwork(text="dense 5", image=(1, 1, 7), classes=3)
    rows, theta = some_rows(tower), some_theta(tower)
    before = flops.total()
    tower.logits(theta, rows)
    once = flops.total() - before
    tower.backward(theta, rows, into=theta, scale=1.0)
    assert once == 2 * len(rows) * (8 * 5 + 6 * 3)
    assert flops.total() - before == 4 * once


def test_parameters_that_may_not_be_changed_are_read_all_the_same():
    tower = TOWERS[0]
    theta, rows = some_theta(tower), some_rows(tower)
    wanted = tower.logits(theta, rows)
    theta.flags.writeable = False
    np.testing.assert_array_equal(tower.logits(theta, rows), wanted)


def test_descent_is_that_of_torchs_own_optimizer():
    tower = TorchNetwork(text="conv 2 3x3 pad 1 max 2, dense 4", image=(4, 4, 1), classes=3)
    rows = some_rows(tower, count=12)
    theta = tower.start(np.float64)
    conv, dense, head = (torch.from_numpy(layer.copy()) for layer in tower.layers(theta))
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3, padding=1),
        torch.nn.MaxPool2d(2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 4),
        torch.nn.ReLU(),
        torch.nn.Linear(4, 3),
    ).double()
    with torch.no_grad():
        model[0].weight.copy_(conv[:-1].reshape(3, 3, 1, 2).permute(3, 2, 0, 1))
        model[0].bias.copy_(conv[-1])
        # Ours are flattened place by place, torch's channel by channel.
        model[4].weight.copy_(dense[:-1].reshape(2, 2, 2, 4).permute(3, 2, 0, 1).reshape(4, 8))
        model[4].bias.copy_(dense[-1])
        model[6].weight.copy_(head[:-1].T)
        model[6].bias.copy_(head[-1])
    images = torch.from_numpy(rows.values[:, :-1] * rows.unit).reshape(-1, 1, 4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), torch.from_numpy(rows.codes)).backward()
        optimizer.step()
    SGD(rate=0.1, epochs=5, batch=0)(tower, theta, rows, np.random.default_rng(0))
    np.testing.assert_allclose(
        tower.logits(theta, rows), model(images).detach().numpy(), atol=1e-12
    )


def test_the_number_of_torchs_threads_is_given_back(monkeypatch):
    seen = []
    real = torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd, "grad", lambda *a: (seen.append(torch.get_num_threads()), real(*a))[1]
    )
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        mlp.gradient(TOWERS[0], some_theta(TOWERS[0]), some_rows(TOWERS[0]))
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


# The methods


@functools.cache
def everybody():
    return partitioned(clients=3, dirichlet=0.5, valid_fraction=0.2)


def short(name, **settings):
    return create_method(
        name, {"rounds": 2, "epochs": 1, "rate": 0.1, "batch": 32, **DIGITS, **settings}
    )


def test_the_methods_are_those_that_were_looked_for():
    assert set(DEEP) >= {"fedavg", "fedavg-ft", "fedprox", "pfedme", "ditto", "fedrep"}


@pytest.mark.parametrize("name", DEEP)
def test_every_method_repeats_with_any_number_of_workers(name):
    one, two = (run(short(name), everybody(), workers=workers) for workers in (1, 2))
    assert one.shared_digest == two.shared_digest
    assert one.model_digest == two.model_digest
    for model in one.predictors.values():
        assert np.isfinite(model(everybody().test.features)).all()


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "pfedme"])
@pytest.mark.parametrize(
    "law",
    [
        laws.personalizing_changes_nothing,
        laws.tiny_and_one_sided_clients_work,
        laws.late_clients_get_a_model_and_change_no_other,
    ],
    ids=lambda law: law.__name__,
)
def test_what_is_compared_keeps_the_laws(name, law):
    law(short(name))


def test_a_network_learns():
    result = run(short("fedavg", rounds=8, epochs=3, batch=8), everybody())
    assert result.accuracy["global_test"] > 0.8


def test_without_strength_fedprox_is_fedavg_to_the_bit():
    prox, plain = (
        run(method, everybody()).shared.theta
        for method in (short("fedprox", strength=0.0), short("fedavg"))
    )
    assert prox.tobytes() == plain.tobytes()


def test_a_strong_pull_keeps_a_client_near_the_shared_model():
    def moved(strength):
        method = short("fedprox", strength=strength, rounds=1)
        (model,) = method.fit(InProcess(everybody().members))
        return np.abs(model.theta - model.shape.start(np.float32)).max()

    assert moved(9.0) < 0.6 * moved(0.0)


def test_one_whole_step_a_round_is_central_descent():
    method = short("fedavg", epochs=1, batch=0, precision="double")
    models = [
        list(method.fit(InProcess(partitioned(clients=clients).members)))[-1].theta
        for clients in (1, 5)
    ]
    np.testing.assert_allclose(models[0], models[1], atol=1e-13)
    assert np.any(models[0] != models[0][0])


def test_what_is_shared_survives_its_bytes():
    result = run(short("pfedme"), everybody())
    again = codec.decode(codec.encode(result.shared))
    features = everybody().test.features.take(slice(9))
    np.testing.assert_array_equal(again.network(features), result.shared.network(features))


def test_pixels_that_know_their_shape_need_no_image():
    space = Space(width=785, inputs=784, backbone="image 28x28x1")
    assert TorchNetwork.of("lenet", space, 10).image == (28, 28, 1)


# What is refused


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"layers": "conv 3"}, "expected .conv 32 5x5"),
        ({"layers": SMALL, "hidden": 4}, "hidden = 4: use one of the two settings"),
        ({"layers": " "}, "use one of the two settings"),
    ],
)
def test_wrong_layers_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        create_method("fedavg", settings)


@pytest.mark.parametrize("name", ["fedas", "feddbe", "fedpcl"])
def test_methods_of_one_hidden_layer_say_so(name):
    with pytest.raises(ConfigError, match="supports at most one hidden layer"):
        create_method(name, {"layers": "mlp"})


def test_vectors_have_no_convolutions():
    method = dataclasses.replace(short("fedavg"), image=())
    with pytest.raises(ConfigError, match="expected images, got vectors"):
        run(method, everybody())


def test_without_torch_it_is_said_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "torch":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"needs torch: pip install 'fedgram\[torch\]'"):
        run(short("fedavg"), everybody())


def test_the_shapes_of_a_tower_are_those_of_its_layers():
    tower = TorchNetwork(text="lenet", image=(28, 28, 1), classes=10)
    maps = shapes(read("lenet"), MapShape(height=28, width=28, channels=1))
    sides = [layer.fan_in(m) + 1 for layer, m in zip(read("lenet"), maps, strict=False)]
    assert [len(layer) for layer in tower.layers(np.zeros(tower.size))[:-1]] == sides
