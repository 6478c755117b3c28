"""FedACnnL and pFedACnnL: invariant layer by layer, and personal by formulas that are refitted."""

import numpy as np
import pytest

from fedgram.checks.federations import digits, federated, partitioned, trainable
from fedgram.core import codec
from fedgram.core.gcv import RIDGES
from fedgram.core.samples import Labels, Samples
from fedgram.core.statistics import Statistics
from fedgram.data.plan import PartitionPlan
from fedgram.data.sources import load_dataset, load_vectors
from fedgram.errors import ConfigError, DataError, MemoryLimitError
from fedgram.experiments.runner import run
from fedgram.features.grid import Grid
from fedgram.federation.federated_dataset import federate
from fedgram.federation.method import create_method
from fedgram.layerwise import solver
from fedgram.layerwise.personal import (
    STRENGTHS,
    ClassProfiles,
    blocks_of_classes,
    nearest,
)
from fedgram.layerwise.solver import LayerwiseSolver
from fedgram.layerwise.stack import LayerStack
from fedgram.models.linear import Linear, predict
from fedgram.selection.leave_one_out import PulledLeaveOneOut
from fedgram.selection.normal_equations import NormalEquations

CONV = {"image": [8, 8, 1], "layers": "conv 6 3x3 pad 1 max 2, conv 8 3x3 pad 1 max 2, dense 12"}
DENSE = {"layers": "dense 24"}


def fedacnnl(settings, **plan):
    return run(create_method("fedacnnl", {**CONV, **settings}), partitioned(**plan))


# The law, layer by layer


@pytest.mark.parametrize(
    "settings",
    [
        {"filters": "principal", "scaling": "whitened", "cells": 3},
        pytest.param(
            {"filters": "position", "scaling": "length", "cells": 0}, marks=pytest.mark.wide
        ),
        pytest.param({"filters": "backward", "scaling": "rms"}, marks=pytest.mark.wide),
    ],
)
def test_every_layers_total_is_the_same_for_any_partition_and_batch(settings, monkeypatch):
    found = []
    for partition, clients, batch in (("iid", 1, 500), ("dirichlet", 7, 3), ("classes", 20, 64)):
        monkeypatch.setattr(LayerStack, "batch_size", lambda _, batch=batch: batch)
        monkeypatch.setattr(solver, "batch_size", lambda *_, batch=batch: batch + 1)
        result = fedacnnl(settings, partition=partition, clients=clients)
        found.append((*result.shared.origins, result.model_digest))
    assert len(set(found)) == 1
    assert len(found[0]) == 4 + 1  # three layers, the head, the model


def test_another_sample_changes_every_layers_total():
    everything = trainable()
    one, other = (
        run(
            create_method("fedacnnl", CONV), federated({"a": everything.take(slice(0, n))})
        ).shared.origins
        for n in (200, 201)
    )
    assert all(x != y for x, y in zip(one, other, strict=True))


def test_without_hidden_layers_it_is_afl():
    everybody = partitioned(clients=5)
    afl = run(create_method("afl"), everybody)
    for settings in ({"filters": "none"}, {"layers": ""}):
        bare = run(create_method("fedacnnl", settings), everybody)
        assert np.array_equal(bare.shared.head.weights, afl.shared.weights)
        assert bare.accuracy == afl.accuracy


def test_layers_help_and_seeds_matter_only_where_something_is_drawn():
    bare = fedacnnl({"filters": "none"}).accuracy["global_test"]
    assert fedacnnl({"layers": "acnnl5"}).accuracy["global_test"] > bare + 0.01
    one, other = (fedacnnl({"seed": seed}).model_digest for seed in (0, 1))
    assert one == other
    one, other = (fedacnnl({"seed": s, "filters": "random"}).model_digest for s in (0, 1))
    assert one != other


def test_a_lift_goes_between_the_layers_and_the_head():
    result = fedacnnl({"lift": {"width": 100}, "layers": "conv 8 3x3 max 2"}, clients=3)
    assert result.shared.head.weights.shape == (101, 10)
    assert result.accuracy["global_test"] > 0.8


def test_the_ridge_of_the_head_can_choose_itself():
    everybody = partitioned(clients=3)
    pull = personal({"ridge": "auto", "strength": 50.0}, everybody).shared
    for ridge in ("auto", pull.ridge):
        model = run(create_method("fedacnnl", {**DENSE, "ridge": ridge}), everybody).shared
        assert np.array_equal(model.head.weights, pull.model.head.weights)
    assert pull.ridge in RIDGES
    grouped = personal({"ridge": "auto", "groups": 2}, everybody).shared
    assert grouped.ridge == pull.ridge  # that of everybody's total


def test_without_a_grid_partitions_agree_up_to_rounding():
    plans = (PartitionPlan(clients=1, partition="iid"), PartitionPlan(clients=7))
    models = [
        run(
            create_method("fedacnnl", CONV),
            federate(load_dataset("digits"), plan, Grid(bits="off")),
        )
        for plan in plans
    ]
    rows = federate(load_dataset("digits"), plans[0], Grid(bits="off")).test.features
    one, other = (result.shared(rows) for result in models)
    np.testing.assert_allclose(one, other, atol=0.05)
    assert (one.argmax(axis=1) == other.argmax(axis=1)).mean() > 0.99


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"layers": "lenett"}, "expected .conv 32 5x5"),
        ({"layers": "lenet"}, "expected images, got vectors"),
        ({"image": [8, 8, 3]}, "with the product 64"),
        ({"seed": -1}, "seed = -1"),
        ({"layer_ridge": -1.0}, "layer_ridge = -1"),
        ({"cells": -1}, "cells = -1"),
        ({"filters": "principle"}, "filters"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings, cause):
    with pytest.raises(ConfigError, match=cause):
        run(create_method("fedacnnl", settings), partitioned(clients=2))


def test_a_head_that_would_not_fit_is_refused_before_anything_is_solved():
    settings = {"image": [8, 8, 1], "layers": "conv 90000 3x3 pad 1"}
    with pytest.raises(MemoryLimitError, match=r"outputs of 8x8x90000 needs .* use more pooling"):
        run(create_method("fedacnnl", settings), partitioned(clients=2))


# Personal heads


def personal(settings, everybody):
    return run(create_method("pfedacnnl", {**DENSE, **settings}), everybody)


def test_a_pull_leads_from_ones_own_regression_to_the_shared_one():
    everybody = partitioned(clients=4)
    rows = everybody.test.features
    shared = run(create_method("fedacnnl", DENSE), everybody)
    tight = personal({"strength": 1e9}, everybody)
    loose = personal({"strength": 0.0, "ridge": 30.0}, everybody)
    for site in everybody.members:
        np.testing.assert_allclose(tight.predictors[site.id](rows), shared.shared(rows), atol=1e-3)
        model = loose.predictors[site.id]
        own = Samples(model.stack(site.train.features), site.train.labels)
        alone = Linear.fitted(own, own.labels.onehot(), ridge=30.0)
        np.testing.assert_allclose(model.head.weights, alone.weights, atol=1e-10)


def test_a_pull_is_the_minimizer_it_says_it_is():
    everybody = partitioned(clients=3)
    result = personal({"strength": 50.0, "ridge": 20.0}, everybody)
    shared = result.shared.model.head.weights
    for site in everybody.members:
        model = result.predictors[site.id]
        rows, targets = model.stack(site.train.features).real(), site.train.labels.onehot()
        head = model.head.weights
        slope = rows.T @ (rows @ head - targets) + 20.0 * head + 50.0 * (head - shared)
        assert np.abs(slope).max() < 1e-8


def test_personal_layers_end_where_a_strong_pull_leaves_them():
    everybody = partitioned(clients=3)
    layers = {"filters": "position", "layers": "dense 20, dense 16", "cells": 1}
    settings = {"scope": "all", **layers}
    tight = personal({**settings, "layer_strength": 1e12}, everybody)
    loose = personal({**settings, "layer_strength": 1.0}, everybody)
    shared = tight.shared.model.stack
    for site in everybody.members:
        assert tight.predictors[site.id].stack.digest == shared.digest
        assert loose.predictors[site.id].stack.digest != shared.digest
    assert loose.shared.model.stack.digest == shared.digest
    assert len({loose.predictors[site.id].stack.digest for site in everybody.members}) == 3


def refitted(own, common, labels, rest, i, ridge, strength):
    """The prediction for one sample by heads that have never seen it, solved anew."""
    left = np.delete(np.arange(len(labels)), i)
    samples = [(common.take(left), labels.take(left)), rest]
    shared = Statistics.over(samples).solve(ridge)
    rows, targets = own.real()[left], labels.onehot()[left]
    gram = rows.T @ rows + (ridge + strength) * np.eye(rows.shape[1])
    head = np.linalg.solve(gram, rows.T @ targets + strength * shared)
    return own.real()[i] @ head


@pytest.mark.parametrize("count", [12, 60])  # fewer, and more, than the 25 features
def test_leaving_one_out_is_exact(count):
    everything = trainable().take(slice(0, 200))
    method = LayerwiseSolver(layers="dense 24")
    stacks = []
    for part in (slice(0, 200), slice(0, 90)):  # the shared layers, and a client's own
        stack = method.start(everything.features.space)
        total = method.patches_of(everything.take(part), stack, None)
        stacks.append(stack.plus(method.next_layer(stack, total)))
    mine, others = everything.take(slice(0, count)), everything.take(slice(count, None))
    common, own = (stack(mine.features) for stack in stacks)
    rest = (stacks[0](others.features), others.labels)
    total = Statistics.over([(common, mine.labels), rest])
    whole = NormalEquations(total=total, ridge=3.0)
    left_out = PulledLeaveOneOut.of(own, common, mine.labels, whole, total.solve(3.0))
    for strength in (0.1, 30.0, 1e4):
        found = left_out.predictions(strength)
        for i in (0, 3, count - 1):
            slow = refitted(own, common, mine.labels, rest, i, 3.0, strength)
            np.testing.assert_allclose(found[i], slow, atol=1e-8)


def test_the_strength_that_is_right_most_often_on_unseen_samples_is_chosen():
    everybody = partitioned(clients=5, partition="classes")
    chosen = personal({"strength": "auto"}, everybody)
    model, counts = chosen.shared.model, np.zeros(len(STRENGTHS), int)
    lifted = [Samples(model.stack(s.train.features), s.train.labels) for s in everybody.members]
    total = Statistics.over([(part.features, part.labels) for part in lifted])
    whole = NormalEquations(total=total, ridge=100.0)
    for part in lifted:
        rows = part.features
        left_out = PulledLeaveOneOut.of(rows, rows, part.labels, whole, model.head.weights)
        for k, strength in enumerate(STRENGTHS):
            winners = left_out.predictions(strength).argmax(axis=1)
            counts[k] += int((winners == part.labels.codes).sum())
    assert chosen.shared.strength == STRENGTHS[counts.argmax()]
    fixed = personal({"strength": chosen.shared.strength}, everybody)
    assert fixed.model_digest == chosen.model_digest
    assert (
        chosen.accuracy["client_mean"]
        > run(create_method("fedacnnl", DENSE), everybody).accuracy["client_mean"]
    )


# Groups


def two_kinds():
    """Four clients: two with the low digits, two with the high ones."""
    everything, codes = trainable(), trainable().labels.codes
    low, high = np.flatnonzero(codes < 5), np.flatnonzero(codes >= 5)
    parts = {"a": low[::2], "b": low[1::2], "y": high[::2], "z": high[1::2]}
    return {name: everything.take(part) for name, part in parts.items()}


def test_groups_are_of_similar_clients_and_have_the_head_of_their_own():
    parts = two_kinds()
    result = personal({"groups": 2, "strength": 1e9}, federated(parts))
    pull = result.shared
    groups = {name: nearest(part.labels, pull.centers) for name, part in parts.items()}
    assert groups == {"a": 0, "b": 0, "y": 1, "z": 1}
    stack = pull.model.stack
    for group, names in enumerate(("ab", "yz")):
        batches = [(stack(parts[n].features), parts[n].labels) for n in names]
        wanted = Statistics.over(batches).solve(100.0)
        assert np.array_equal(pull.heads[group].weights, wanted)
    ungrouped = personal({"strength": 1e9}, federated(parts))
    assert ungrouped.shared.model.head.origin == pull.model.head.origin
    assert np.array_equal(ungrouped.shared.model.head.weights, pull.model.head.weights)


def test_groups_are_found_by_sums_alone_and_may_be_empty():
    everybody = federated(two_kinds())
    settings = {"groups": 9, "strength": "auto"}
    openly = personal(settings, everybody)
    method = create_method("pfedacnnl", {**DENSE, **settings})
    secretly = run(method, everybody, private=True, threshold=0.5)
    assert secretly.shared_digest == openly.shared_digest
    assert secretly.model_digest == openly.model_digest
    assert len(openly.shared.heads) == 9


def test_an_empty_group_stays_where_it_was():
    before = blocks_of_classes(2, 4)
    assert np.array_equal(before, [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])
    labels = Labels(np.array([0, 0, 0, 1]), tuple("abcd"))
    method = create_method("pfedacnnl", {"groups": 2})
    client = type("C", (), {"samples": type("S", (), {"labels": labels})})
    moved = (ClassProfiles.zero() + method.profile(client, before)).centers(before)
    assert np.array_equal(moved, [[0.75, 0.25, 0, 0], before[1]])


@pytest.mark.parametrize("name", ["strength", "layer_strength", "groups"])
def test_wrong_weights_are_refused_by_name(name):
    with pytest.raises(ConfigError, match=f"{name} = -1"):
        create_method("pfedacnnl", {name: -1})


# Images, files


def test_images_are_taken_pixel_by_pixel(tmp_path):
    data = load_dataset("digits")
    images = np.clip(data.x, 0, 16).astype(np.uint8).reshape(-1, 8, 8)
    np.savez(tmp_path / "images.npz", x=images, y=data.y)
    np.savez(tmp_path / "rows.npz", x=images.reshape(-1, 64), y=data.y)
    pictures, rows = (load_dataset(str(tmp_path / f"{name}.npz")) for name in ("images", "rows"))
    assert pictures.backbone == "image 8x8x1"
    assert load_vectors(str(tmp_path / "images.npz")).backbone == "image 8x8x1"
    layers = {"layers": "conv 4 3x3 max 2"}
    seen = run(create_method("fedacnnl", layers), federate(pictures, PartitionPlan(clients=2)))
    told = run(
        create_method("fedacnnl", {**layers, "image": [8, 8, 1]}),
        federate(rows, PartitionPlan(clients=2)),
    )
    assert seen.accuracy == told.accuracy
    np.savez(tmp_path / "color.npz", x=np.zeros((4, 5, 6, 3), np.uint8), y=np.arange(4))
    assert load_dataset(str(tmp_path / "color.npz")).backbone == "image 5x6x3"


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes()


def test_a_folder_of_mnist_files_is_data_and_others_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    for prefix, count in (("train", 40), ("t10k", 20)):
        images, labels = rng.integers(0, 256, (count, 6, 6)), np.arange(count) % 4
        for part, array in (("images-idx3", images), ("labels-idx1", labels)):
            path = tmp_path / "mnist" / f"{prefix}-{part}-ubyte"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(idx(array.astype(np.uint8)))
    data = load_dataset(str(tmp_path / "mnist"))
    assert (len(data), data.backbone, data.split.tolist()) == (
        60,
        "image 6x6x1",
        [0] * 40 + [2] * 20,
    )
    with pytest.raises(DataError, match="neither the idx files of MNIST"):
        load_dataset(str(tmp_path))


def test_models_go_through_bytes():
    everybody = partitioned(clients=3)
    for name in ("fedacnnl", "pfedacnnl"):
        result = run(
            create_method(name, {**CONV, "strength": 10.0} if name[0] == "p" else CONV), everybody
        )
        shared = codec.decode(codec.encode(result.shared))
        assert codec.digest(shared) == codec.digest(result.shared)
        model = result.predictors[everybody.members[0].id]
        again = codec.decode(codec.encode(model))
        rows = digits().features
        assert np.array_equal(predict(again, rows), predict(model, rows))
