"""Patches, their exact sums and solved layers, against slow and independent ones."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import scipy.signal
from hypothesis import given
from hypothesis import strategies as st

from fedgram.checks.federations import digits
from fedgram.core import codec
from fedgram.core.samples import Features, Labels, Samples, Space
from fedgram.core.solve import unpack_symmetric
from fedgram.features.grid import Grid
from fedgram.features.lift import signs_of
from fedgram.layerwise import filters, patches
from fedgram.layerwise.label_codes import codes_seed, table
from fedgram.layerwise.patches import PatchSums
from fedgram.layerwise.solver import LayerwiseSolver
from fedgram.layerwise.stack import LayerStack
from fedgram.models.architecture import Conv, Dense, MapShape, read, shapes

BOUND, UNIT, CONSTANT = 127, 6 / 127, 21
SPACE = Space(width=1, unit=UNIT, bound=BOUND)
LAYERS = st.one_of(
    st.builds(Dense, channels=st.integers(1, 4)),
    st.builds(
        Conv,
        channels=st.integers(1, 4),
        kernel=st.integers(1, 3),
        stride=st.integers(1, 2),
        padding=st.integers(0, 2),
    ),
)
MAPS = st.builds(
    MapShape, height=st.integers(3, 6), width=st.integers(3, 6), channels=st.integers(1, 3)
)


def slow_patches(values, layer, maps):
    """Patches place by place, straight from the definition."""
    rows = []
    for sample in values:
        image = sample.reshape(maps.height, maps.width, maps.channels).astype(np.int64)
        if isinstance(layer, Dense):
            rows.append([*image.ravel(), CONSTANT])
            continue
        p, out = layer.padding, layer.filtered(maps)
        image = np.pad(image, ((p, p), (p, p), (0, 0)))
        for i, j in itertools.product(range(out.height), range(out.width)):
            top, left = i * layer.stride, j * layer.stride
            patch = image[top : top + layer.kernel, left : left + layer.kernel]
            rows.append([*patch.ravel(), CONSTANT])
    return np.array(rows)


def drawn(maps, count, seed=0, high=BOUND):
    return np.random.default_rng(seed).integers(-high, high + 1, (count, maps.size), np.int8)


@given(LAYERS, MAPS, st.integers(1, 5))
def test_patches_are_what_a_filter_sees(layer, maps, count):
    values = drawn(maps, count)
    found = patches.patches(values, layer, maps, CONSTANT, np.int64)
    assert np.array_equal(found, slow_patches(values, layer, maps))


@given(LAYERS, MAPS, st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 99))
def test_sums_are_exact_in_batches_of_any_size(layer, maps, sizes, seed):
    count, classes = sum(sizes), 3
    values, rng = drawn(maps, count, seed), np.random.default_rng(seed)
    codes = rng.integers(0, classes, count)
    targets = rng.integers(-BOUND, BOUND + 1, (classes, patches.positions(layer, maps), 2))
    sums = PatchSums(layer, maps, SPACE, classes)
    for part in np.split(np.arange(count), np.cumsum(sizes)[:-1]):
        sums.add(values[part], codes[part])
    rows = slow_patches(values, layer, maps)
    moment = rows.T @ targets[codes].reshape(len(rows), -1)
    assert np.array_equal(unpack_symmetric(sums.gram(), rows.shape[1]), rows.T @ rows)
    assert np.array_equal(sums.moment(targets.astype(np.int8)), moment)
    assert np.array_equal(sums.counts, np.bincount(codes, minlength=classes))


def test_images_too_bright_for_one_block_are_exact_too():
    layer, maps = Conv(channels=1, kernel=2), MapShape(height=64, width=64, channels=1)
    values = np.full((3, maps.size), BOUND, np.int8)  # 3969 patches of 127: beyond 2^24 in one
    values[:, ::7] = -126
    sums = PatchSums(layer, maps, SPACE, 1)
    sums.add(values, np.zeros(3, np.int64))
    rows = slow_patches(values, layer, maps)
    assert np.array_equal(unpack_symmetric(sums.gram(), 5), rows.T @ rows)


def test_a_client_short_of_memory_takes_smaller_batches_and_sends_the_same_bytes(monkeypatch):
    samples, method = digits().take(slice(0, 50)), LayerwiseSolver(image=(8, 8, 1), layers="acnnl5")
    stack = method.start(samples.features.space)
    plenty = method.patches_of(samples, stack, None)
    layer, sizes = read("acnnl5")[0], []
    for free in (10**9, 10**6, 10**5, 1):
        monkeypatch.setattr("fedgram.runtime.memory.available", lambda free=free: free)
        monkeypatch.setattr("fedgram.runtime.memory.require", lambda *_: None)
        sizes.append(patches.batch_size(layer, stack.maps))
        assert method.patches_of(samples, stack, None).digest() == plenty.digest()
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 100 > sizes[1] > sizes[3] == 1


# Solved layers


def solved(samples, method):
    """The stack of a method that is alone with some samples."""
    stack = method.start(samples.features.space)
    for _ in method.hidden(samples.features.space):
        total = method.patches_of(samples, stack, None)
        stack = stack.plus(method.next_layer(stack, total))
    return stack


def slow_layer(image, layer, solved_layer):
    """Convolution by scipy, pooling cell by cell, in integers and plain floats."""
    weights = solved_layer.filters.astype(np.float64)
    kernel = weights[:-1].reshape(layer.kernel, layer.kernel, image.shape[2], -1)
    p = layer.padding
    padded = np.pad(image.astype(np.float64), ((p, p), (p, p), (0, 0)))
    sums = np.stack(
        [
            sum(
                scipy.signal.correlate(padded[..., c], kernel[..., c, k], "valid", "direct")
                for c in range(image.shape[2])
            )
            + CONSTANT * weights[-1, k]
            for k in range(weights.shape[1])
        ],
        axis=2,
    )[:: layer.stride, :: layer.stride]
    levels = np.clip(np.rint(sums / 2.0**solved_layer.shifts), -BOUND, BOUND)
    down, right = (side // layer.pool for side in levels.shape[:2])
    out = np.empty((down, right, levels.shape[2]))
    for i, j in itertools.product(range(down), range(right)):
        cell = levels[i * layer.pool : (i + 1) * layer.pool, j * layer.pool : (j + 1) * layer.pool]
        if layer.pooling == "max":
            out[i, j] = np.maximum(cell.max(axis=(0, 1)), 0)
        else:
            out[i, j] = np.rint(np.maximum(cell, 0).mean(axis=(0, 1)))
    return out


@pytest.mark.parametrize(
    "text", ["conv 5 3x3 pad 1 max 2", "conv 4 2x2 stride 2", "conv 3 3x3 pad 2 mean 3"]
)
def test_layers_are_convolutions(text):
    samples = digits().take(slice(0, 20))
    stack = solved(samples, LayerwiseSolver(image=(8, 8, 1), layers=f"{text}, conv 3 2x2"))
    found = stack(samples.features)
    for row, pixels in zip(found.values, samples.features.values, strict=True):
        maps = pixels[:-1].reshape(8, 8, 1)
        for layer in stack.solved:
            maps = slow_layer(maps, layer.layer, layer)
        assert np.array_equal(row, [*maps.ravel(), CONSTANT])
    assert found.space == stack.space
    assert found.space.width == stack.maps.size + 1


@pytest.mark.parametrize("text", ["mlp", "dense 7 tanh, dense 5 gelu"])
def test_what_comes_out_does_not_depend_on_the_batch(text, monkeypatch):
    features = digits().features.take(slice(0, 40))
    stack = solved(digits().take(slice(0, 99)), LayerwiseSolver(layers=text))
    whole = stack(features).values
    monkeypatch.setattr(LayerStack, "batch_size", lambda _: 3)
    assert np.array_equal(stack(features).values, whole)
    assert stack(features.take(slice(0, 0))).values.shape == (0, stack.maps.size + 1)


@pytest.mark.parametrize("cells", [1, 2, 3, 9])
def test_the_head_sees_the_means_of_every_layers_cells(cells, monkeypatch):
    samples = digits().take(slice(0, 20))
    method = LayerwiseSolver(image=(8, 8, 1), layers="conv 5 3x3 pad 1, conv 4 3x3 mean 2, dense 6")
    plain = solved(samples, method)
    stack = replace(plain, cells=cells)
    wanted = []
    for height in (1, 2, 3):
        below = replace(plain, solved=plain.solved[:height])
        wanted.append(slow_means(below(samples.features).values[:, :-1], below.maps, cells))
    found = stack(samples.features).values
    assert np.array_equal(found[:, :-1], np.hstack(wanted))
    assert found.shape[1] == stack.maps.size + 1 == stack.space.width
    assert stack.space != plain.space
    monkeypatch.setattr(LayerStack, "batch_size", lambda _: 3)
    assert np.array_equal(stack(replace(samples.features, cache=None)).values, found)


def slow_means(values, maps, cells):
    """Means cell by cell, a little enlarged where a cell has many places."""
    rows = []
    down, right = (min(cells, side) for side in (maps.height, maps.width))
    for sample in values.astype(np.int64):
        image, row = sample.reshape(maps.height, maps.width, maps.channels), []
        for i, j in itertools.product(range(down), range(right)):
            top, bottom = (k * maps.height // down for k in (i, i + 1))
            left, end = (k * maps.width // right for k in (j, j + 1))
            cell = image[top:bottom, left:end].reshape(-1, maps.channels)
            gain = max(1, np.sqrt(len(cell)) / 2)
            row.extend(np.clip(np.rint(cell.sum(axis=0) * (gain / len(cell))), -BOUND, BOUND))
        rows.append(row)
    return np.array(rows)


def test_no_sum_leaves_what_float32_holds_exactly():
    rng, layer = np.random.default_rng(0), Dense(channels=6)
    for width in (3, 300, 30_000):
        shape = (width, 6)
        weights = rng.standard_normal(shape) * 10.0 ** rng.integers(-9, 9, 6)
        weights[:, 5] = 0
        made = filters.rounded(weights, layer, np.ones(6), BOUND)
        assert np.abs(made.filters).max() <= 2**11 - 1
        assert made.longest * BOUND <= 2**24
        close = np.abs(made.real() - weights) <= 0.5 / 2.0**made.shifts
        assert close.all()
        assert (made.real()[:, 5] == 0).all()


def test_principal_filters_are_the_principal_axes():
    samples, method = (
        digits().take(slice(0, 300)),
        LayerwiseSolver(layers="dense 6", scaling="length"),
    )
    (layer,) = solved(samples, method).solved
    rows = samples.features.values[:, :-1].astype(np.float64)
    _, _, axes = np.linalg.svd(rows - rows.mean(axis=0))
    found = layer.real()[:-1]
    found /= np.linalg.norm(found, axis=0)
    for k in range(3):
        assert abs(found[:, 2 * k] @ axes[k]) > 1 - 1e-4
        assert found[:, 2 * k] @ found[:, 2 * k + 1] < -1 + 1e-4
    # Their outputs have mean zero before the activation.
    sums = rows @ layer.real()[:-1] + CONSTANT * layer.real()[-1]
    assert np.abs(sums.mean(axis=0)).max() < 0.05 * np.abs(sums).max()


def test_where_there_are_too_few_axes_the_rest_is_random():
    samples = digits().take(slice(0, 300))
    settings = {"image": (8, 8, 1), "layers": "conv 11 2x2", "scaling": "length"}
    principal, random = (
        solved(samples, LayerwiseSolver(filters=kind, **settings)).solved[0].real()[:-1]
        for kind in ("principal", "random")
    )
    principal, random = (found / np.linalg.norm(found, axis=0) for found in (principal, random))
    np.testing.assert_allclose(principal[:, :8] @ principal[:, :8].T, 2 * np.eye(4), atol=1e-2)
    np.testing.assert_allclose(principal[:, 8:], random[:, :3], atol=1e-2)


@pytest.mark.parametrize("kind", ["position", "shared", "backward"])
def test_labeled_filters_are_ridge_regressions_on_the_codes(kind):
    samples = digits().take(slice(0, 200))
    method = LayerwiseSolver(
        image=(8, 8, 1), layers="conv 4 3x3 max 2, dense 5", filters=kind, layer_ridge=0.01
    )
    stack = method.start(samples.features.space)
    layers, maps = method.hidden(stack.inputs), stack.maps
    rows = slow_patches(samples.features.values[:, :-1], layers[0], maps) * UNIT
    codes = table(kind, samples.labels.classes, layers, shapes(layers, maps), 0, method.seed)
    targets = codes[samples.labels.codes].reshape(len(rows), -1)
    ridge = 0.01 * len(rows) * np.eye(rows.shape[1])
    wanted = np.linalg.solve(rows.T @ rows + ridge, rows.T @ targets)
    total = method.patches_of(samples, stack, None)
    assert total.energy == np.sum(targets.astype(np.int64) ** 2)
    layer = method.next_layer(stack, total)
    found = layer.real() * layer.sizes / UNIT
    np.testing.assert_allclose(found, wanted, atol=2e-3 * np.abs(wanted).max())


def test_filters_of_one_size_have_outputs_of_one_size():
    samples = digits().take(slice(0, 300))
    rows = samples.features.values.astype(np.float64)
    for scaling in ("rms", "length"):
        method = LayerwiseSolver(layers="dense 8", filters="position", scaling=scaling)
        (layer,) = solved(samples, method).solved
        sizes = np.sqrt(np.mean((rows @ layer.real()) ** 2, axis=0)) * UNIT
        lengths = np.linalg.norm(layer.real()[:-1], axis=0)
        assert np.sqrt(np.mean(sizes**2)) == pytest.approx(1, rel=0.01)
        assert (np.ptp(sizes) < 0.02) == (scaling == "rms")
        assert (np.ptp(lengths) < 0.02 * lengths.max()) == (scaling == "length")


def test_whitened_axes_vary_alike_but_for_noise():
    samples = digits().take(slice(0, 300))
    (layer,) = solved(samples, LayerwiseSolver(layers="dense 128", scaling="whitened")).solved
    rows = samples.features.values.astype(np.float64)
    spread = np.linalg.eigvalsh(np.cov(rows[:, :-1].T, bias=True))[::-1]
    wanted = spread / (spread + 0.01 * spread.mean())
    found = np.var(rows @ layer.real(), axis=0)[::2]  # every other filter has the other sign
    np.testing.assert_allclose(found * UNIT**2, wanted / wanted.mean(), atol=0.01)
    assert wanted.min() < 0.1 < 0.9 < np.median(wanted)


# Codes


@pytest.mark.parametrize("kind", ["position", "shared", "backward"])
def test_codes_go_with_the_names_of_classes(kind):
    layers = read("conv 9 3x3 max 2, conv 8 2x2, dense 12")
    maps = shapes(layers, MapShape(height=8, width=8, channels=1))
    names = ("c", "a", "d", "b")
    for index in range(3):
        there = table(kind, names, layers, maps, index, 5)
        here = table(kind, sorted(names), layers, maps, index, 5)
        assert here.dtype == np.int8
        assert here.shape == (4, layers[index].filtered(maps[index]).places, layers[index].channels)
        assert np.array_equal(there, here[[2, 0, 3, 1]])
        assert len(np.unique(here.reshape(4, -1), axis=0)) == 4
        if kind == "shared":
            assert np.array_equal(here, np.broadcast_to(here[:, :1], here.shape))


def test_backward_codes_are_answered_with_the_class_by_the_random_layers_above():
    layers = read("dense 40, dense 30")
    maps = shapes(layers, MapShape(channels=9))
    codes = table("backward", tuple("abcd"), layers, maps, 0, 0)[:, 0].astype(np.float64)
    second, head = (
        signs_of(rows, columns, codes_seed(0, index) + 1).astype(np.float64)
        for rows, columns, index in ((40, 30, 1), (30, 4, 2))
    )
    scores = codes @ second @ head
    scores /= np.abs(scores).max()
    np.testing.assert_allclose(scores, np.eye(4), atol=0.1)


# Spaces and files


def test_a_stack_goes_through_bytes_and_refuses_other_features():
    samples = digits().take(slice(0, 50))
    stack = solved(samples, LayerwiseSolver(layers="dense 4"))
    again = codec.decode(codec.encode(stack))
    assert np.array_equal(again(samples.features).values, stack(samples.features).values)
    (layer,) = stack.solved
    near = replace(stack, solved=(replace(layer, sizes=layer.sizes * (1 + 1e-15)),))
    assert near.space == stack.space  # another machine's last bits
    far = replace(stack, solved=(replace(layer, shifts=layer.shifts + 1),))
    assert far.space != stack.space
    other = replace(samples.features.space, backbone="other")
    with pytest.raises(Exception, match="made for other features"):
        stack(Features(samples.features.values, other))


def test_without_a_grid_layers_are_plain_numbers():
    rng = np.random.default_rng(0)
    x, codes = rng.standard_normal((60, 16)), rng.integers(0, 3, 60)
    samples = Samples(Grid(bits="off")(x), Labels(codes, tuple("abc")))
    for text in ("conv 4 2x2 max 3, dense 3", "conv 4 2x2 mean 3 tanh"):
        stack = solved(samples, LayerwiseSolver(layers=text, image=(4, 4, 1), filters="position"))
        out = stack(samples.features)
        assert out.values.dtype == np.float64
        assert not out.space.exact
        mean = replace(stack, cells=1)(samples.features).values[:, :-1]
        last = out.values[:, :-1]
        assert mean.shape[1] == sum(layer.layer.channels for layer in stack.solved)
        np.testing.assert_allclose(mean[:, -last.shape[1] :], last)  # one place: its own mean
        assert np.isfinite(out.values).all()
