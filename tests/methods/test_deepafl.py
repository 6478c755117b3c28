"""Residual blocks: exact integers, the paper's solution, and methods on top of them."""

import dataclasses
import itertools

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from fedgram import InProcess
from fedgram.checks.federations import digits, federated, partitioned, trainable
from fedgram.cli import main
from fedgram.core import codec
from fedgram.core.samples import Features, Samples, Space
from fedgram.errors import ConfigError, MismatchError, SolveError
from fedgram.experiments.runner import run
from fedgram.features.grid import Grid
from fedgram.features.lift import Lift
from fedgram.features.residual import SOLVED_BITS, Block, Residual, concat, rounded
from fedgram.methods._residual_blocks import deepened, mixing
from fedgram.methods._stacked import StackedModel
from fedgram.methods.afl import AFL
from fedgram.methods.apfl import APFL
from fedgram.methods.apfl_linear import APFLLinear
from fedgram.methods.deepafl import DeepAFL
from fedgram.methods.deepafl_apfl import DeepAFLAPFL
from fedgram.methods.deepafl_fedhip import DeepAFLFedHiP
from fedgram.methods.fedhip import FedHiP

SMALL = {"blocks": 2, "width": 24}


def fitted(method, everybody):
    return list(method.fit(InProcess(everybody.members)))


# The grid of what is solved


@given(st.integers(0, 2**32), st.integers(-40, 40))
def test_what_is_solved_is_rounded_to_the_nearest_step_of_a_public_power_of_two(seed, power):
    matrix = np.random.default_rng(seed).normal(size=(5, 3)) * 2.0**power
    steps, places = rounded(matrix)
    most = 2 ** (SOLVED_BITS - 1) - 1
    assert most / 2 <= np.abs(steps).max() <= most
    assert np.abs(steps - matrix * 2.0**places).max() <= 1
    inside = np.abs(matrix) * 2.0**places <= most
    assert np.abs(steps - matrix * 2.0**places)[inside].max() <= 0.5


def test_zeros_are_rounded_to_zeros():
    steps, _ = rounded(np.zeros((2, 2)))
    assert not steps.any()


# A block


def whole_numbers(rows, lift, block, bound):
    """A block in Python's integers: nothing can be lost in them."""
    lifted = lift(rows).values.tolist()
    deep = []
    for row, random in zip(rows.values.tolist(), lifted, strict=True):
        inner = [
            sum(f * d for f, d in zip(random, column, strict=True))
            for column in block.down.T.tolist()
        ]
        mixed = [
            sum(s * u for s, u in zip(inner, column, strict=True)) for column in block.up.T.tolist()
        ]
        step = 2**block.places
        moved = [
            round((value * step + more) / step) for value, more in zip(row, mixed, strict=False)
        ]
        deep.append([max(-bound, min(bound, value)) for value in moved] + [row[-1]])
    return np.array(deep)


@given(st.integers(0, 2**32), st.sampled_from([1, 3, 40]))
def test_a_block_is_exact(seed, size):
    rng = np.random.default_rng(seed)
    space = Space(width=6, unit=0.003, bound=4095)
    rows = Features(rng.integers(-4095, 4096, (4, 6)).astype(np.int16), space)
    lift = Lift(width=7, activation="tanh", seed=seed % 100)
    block = Block.of(lift, rng.normal(size=(8, 3)) * size, rng.normal(size=(3, 5)) / 50)
    assert np.array_equal(block(rows).values, whole_numbers(rows, lift, block, 4095))


def test_a_block_of_any_rows_at_a_time_is_the_same(monkeypatch):
    rows = Residual(inputs=digits().features.space)(digits().features.take(slice(50)))
    rng = np.random.default_rng(0)
    lift = Lift(width=9, activation="gelu")
    block = Block.of(lift, rng.normal(size=(10, 2)), rng.normal(size=(2, 64)))
    whole = block(rows).values
    monkeypatch.setattr("fedgram.features.residual._ENTRIES_AT_A_TIME", 65 * 7)
    assert np.array_equal(block(rows).values, whole)
    assert np.any(whole != rows.values)


def test_other_blocks_make_other_spaces():
    space = Residual(inputs=digits().features.space).space
    made = [
        Block.of(Lift(width=2, seed=seed), np.full((3, 1), down), np.ones((1, 64)))
        for seed, down in ((0, 1.0), (1, 1.0), (0, 1.1))
    ]
    assert len({block.space(space) for block in (*made, made[0])}) == 3


@pytest.mark.parametrize("bits", [2, 8, 12, 16, "off"])
def test_finer_features_are_the_same_features(bits):
    rows = Grid(bits=bits)(np.random.default_rng(0).normal(size=(5, 7)))
    deep = Residual(inputs=rows.space)(rows)
    assert np.allclose(deep.real(), rows.real(), rtol=1e-12)
    assert deep.space.exact == rows.space.exact


def test_going_on_from_what_was_kept_is_starting_anew():
    rows = digits().features.take(slice(30))
    *_, last = fitted(DeepAFL(**SMALL), partitioned(clients=2))
    below = last.below
    shallow = dataclasses.replace(below, blocks=below.blocks[:1])
    other = dataclasses.replace(below, lift=Lift(width=64))
    whole = below.apply_from(rows)
    for kept in (shallow(rows), below(rows), other(rows)):
        again = below.apply_from(rows, kept)
        assert again.space == whole.space
        assert np.array_equal(again.values, whole.values)
    assert below.apply_from(rows, whole) is whole


def test_what_many_models_are_tried_on_goes_from_depth_to_depth():
    depths = [model.below for model in fitted(DeepAFL(**SMALL), partitioned(clients=2))]
    rows = digits().take(slice(30)).with_cache().features
    for below in (*depths, depths[0]):
        assert np.array_equal(below(rows).values, below.apply_from(rows).values)
        assert below(rows) is below(rows)
    assert len(rows.cache) == 2  # the deepest, and the one that was asked for again


# The solution


def problem(seed, *, features=4, random=6, classes=3):
    rng = np.random.default_rng(seed)
    f, residual = rng.normal(size=(20, random)), rng.normal(size=(20, classes))
    return f, residual, rng.normal(size=(features, classes))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("features", [2, 4])
def test_a_block_minimizes_what_the_head_leaves_over(seed, features):
    """Against the same problem written out, entry by entry of Omega."""
    f, residual, head = problem(seed, features=features)
    omega = mixing(f.T @ f, f.T @ residual, head, 0.7) @ head.T
    wide = np.kron(f, head.T)  # row-wise entries of F Omega head, of those of Omega
    straight = np.linalg.solve(
        wide.T @ wide + 0.7 * np.eye(wide.shape[1]), wide.T @ residual.reshape(-1)
    )
    assert np.allclose(omega.reshape(-1), straight, rtol=1e-9, atol=1e-12)


def test_the_thin_decomposition_gives_what_the_papers_does():
    f, residual, head = problem(5, features=9)
    ours = mixing(f.T @ f, f.T @ residual, head, 0.05) @ head.T
    energies, v = np.linalg.eigh(f.T @ f)
    squares, u = np.linalg.eigh(head @ head.T)
    theirs = v @ ((v.T @ f.T @ residual @ head.T @ u) / (0.05 + np.outer(energies, squares))) @ u.T
    assert np.allclose(ours, theirs, rtol=1e-10)
    assert np.linalg.matrix_rank(theirs, tol=1e-10) == 3


def test_what_the_blocks_minimize_never_grows():
    """Theorem 3 of the paper, where features are floats: no grid rounds them."""
    method = DeepAFL(blocks=4, width=40, ridge=3.0, block_ridge=2.0)
    everybody = federated({"only": trainable()})
    rows = Grid(bits="off")(digits().features.real()[:, :-1])
    samples = Samples(rows, digits().labels)
    for site in everybody.members:
        object.__setattr__(site, "train", samples)
        object.__setattr__(site, "valid", samples.take([]))
    depths = fitted(method, everybody)
    penalty, found = 0.0, []
    for depth in depths:
        if depth.below.blocks:
            block = depth.below.blocks[-1]
            omega = np.ldexp(block.down.astype(float) @ block.up, -block.places)
            penalty += method.block_ridge * np.sum(omega**2)
        left = samples.labels.onehot() - depth(rows)
        norm = method.ridge * np.sum(depth.model.weights**2)
        found.append(np.sum(left**2) + norm + penalty)
    assert len(found) == 5
    assert all(later < earlier for earlier, later in itertools.pairwise(found))


def test_the_federation_solves_what_one_place_would():
    """A plain implementation on all samples at once, with rounding as the only thing in common."""
    method = DeepAFL(**SMALL, lift=Lift(width=30, activation="tanh"))
    *_, last = fitted(method, partitioned(clients=5))
    below = Residual(inputs=digits().features.space, lift=method.lift)
    everybody = partitioned(clients=1).members[0].train
    y = everybody.labels.onehot()
    for number in range(2):
        phi = below(everybody.features)
        f = method.random(number)(phi).values.astype(float)
        x, unit = phi.values.astype(float), phi.space.unit
        head = np.linalg.solve(x.T @ x + method.ridge / unit**2 * np.eye(len(x[0])), x.T @ y)
        energies, v = np.linalg.eigh(f.T @ f)
        _, t, u = np.linalg.svd(head[:-1], full_matrices=False)
        scaled = (v.T @ f.T @ (y - x @ head) @ u.T) / (
            method.block_ridge + np.outer(energies, t**2)
        )
        below = below.deeper(Block.of(method.random(number), v @ scaled @ u, head[:-1].T))
    assert below.space == last.below.space
    assert codec.digest(below) == codec.digest(last.below)


# The method


def test_without_blocks_it_is_afl():
    everybody = partitioned()
    shallow, (afl,) = fitted(DeepAFL(blocks=0), everybody), fitted(AFL(), everybody)
    first, *_ = fitted(DeepAFL(**SMALL), everybody)
    for deep in (shallow[0], first):
        assert np.allclose(deep.model.weights, afl.weights, rtol=1e-9, atol=1e-12)
    assert len(shallow) == 1


def test_the_order_in_which_classes_are_listed_does_not_matter():
    everybody = partitioned(clients=2)
    turned = [
        dataclasses.replace(
            site,
            train=dataclasses.replace(
                site.train, labels=site.train.labels.relabel(site.train.labels.classes[::-1])
            ),
            valid=dataclasses.replace(
                site.valid, labels=site.valid.labels.relabel(site.valid.labels.classes[::-1])
            ),
        )
        for site in everybody.members
    ]
    *_, last = fitted(DeepAFL(**SMALL), everybody)
    *_, other = DeepAFL(**SMALL).fit(InProcess(turned))
    assert other.classes == last.classes[::-1]
    assert other.provenance() == last.provenance()


def test_depth_helps_on_digits():
    result = run(DeepAFL(blocks=3, width=64), partitioned())
    assert result.rounds == 4
    assert result.accuracy["global_test"] > run(AFL(), partitioned()).accuracy["global_test"] + 0.01


def test_a_block_is_one_sum():
    result = run(DeepAFL(**SMALL), partitioned(clients=3))
    steps = [ask.step for ask in result.record.exchanges if ask.phase == "train"]
    assert steps == ["opening", *["depth_statistics"] * 3]


def test_clients_that_kept_nothing_send_the_same():
    method, forgetful = DeepAFL(**SMALL), DeepAFL(**SMALL)
    everybody = partitioned(clients=3)
    engine = InProcess(everybody.members)
    totals = []

    def watched(step, broadcast=None, *, clients=None):
        for site in everybody.members:
            site.state.clear()
        totals.append(InProcess.sum(engine, step, broadcast, clients=clients))
        return totals[-1]

    engine.sum = watched
    *_, last = forgetful.fit(engine)
    *_, kept = fitted(method, partitioned(clients=3))
    assert codec.digest(last) == codec.digest(kept)


def test_a_model_of_other_features_is_refused():
    *_, last = fitted(DeepAFL(**SMALL), partitioned(clients=2))
    with pytest.raises(MismatchError, match=r"made for other features: .*4 bits"):
        last(Grid(bits=4)(np.ones((1, 64))))


def test_a_deep_model_survives_its_bytes():
    *_, last = fitted(DeepAFL(**SMALL), partitioned(clients=2))
    again = codec.decode(codec.encode(last))
    rows = digits().features.take(slice(20))
    assert np.array_equal(again(rows), last(rows))
    assert again.provenance() == last.provenance()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"blocks": -1}, "blocks = -1"),
        ({"width": 0}, "width = 0"),
        ({"block_ridge": 0.0}, "block_ridge = 0"),
        ({"activation": "rleu"}, "activation 'rleu'"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_wrong_settings_are_refused(wrong, words):
    with pytest.raises(ConfigError, match=words):
        DeepAFL(**wrong)


def test_a_wrong_ridge_is_refused():
    with pytest.raises(SolveError, match="ridge = -1"):
        DeepAFL(ridge=-1.0)


# On top


def on_deep_features(top, everybody, below):
    """The method on top alone, in a federation whose features were made deep beforehand."""
    members = [
        dataclasses.replace(
            site, train=Samples(below(site.train.features), site.train.labels), state={}
        )
        for site in everybody.members
    ]
    engine = InProcess(members)
    *_, shared = top.fit(engine)
    step = lambda _, client, part: top.personalize(client, part)  # noqa: E731
    return dict(engine.evaluate(step, shared))


@pytest.mark.parametrize(
    ("kind", "top"),
    [
        (DeepAFLAPFL, APFL(balance=0.3, refinement=Lift(width=20, seed=3))),
        (DeepAFLFedHiP, FedHiP(alpha=3.0)),
        (DeepAFLFedHiP, FedHiP(alpha=3.0, solver="client")),
    ],
    ids=["apfl", "fedhip", "fedhip at the client"],
)
def test_what_is_on_top_is_what_it_would_be_on_deep_features(kind, top):
    everybody = partitioned(clients=4)
    *_, last = fitted(DeepAFL(**SMALL), everybody)
    expected = on_deep_features(top, everybody, last.below)
    result = run(kind(**SMALL, top=top), everybody)
    for client, model in expected.items():
        assert isinstance(result.predictors[client], StackedModel)
        assert codec.digest(result.predictors[client].model) == codec.digest(model)
        assert codec.digest(result.predictors[client].below) == codec.digest(last.below)


def test_validation_samples_are_deep_too():
    everybody = partitioned(clients=2, valid_fraction=0.3, reserve_valid=True)
    *_, last = fitted(DeepAFL(**SMALL), everybody)
    client = everybody.members[0].client(np.random.default_rng(0))
    deep = deepened(client, last.below)
    assert np.array_equal(deep.valid.features.values, last.below(client.valid.features).values)
    assert len(deep.samples) == len(client.train)
    assert len(deep.valid) > 0


def test_depth_helps_under_a_personal_method():
    everybody = partitioned(clients=8, dirichlet=0.5)
    deep = run(DeepAFLAPFL(blocks=3, width=64), everybody).accuracy["sample_mean"]
    assert deep > run(APFLLinear(), everybody).accuracy["sample_mean"]


def test_random_features_stand_beside_their_inputs():
    rows = Residual(inputs=digits().features.space)(digits().features.take(slice(3)))
    lift = Lift(width=5, seed=2)
    both = concat(rows, lift)
    assert np.array_equal(both.values[:, :65], rows.values)
    assert np.array_equal(both.values[:, 65:], lift(rows).values)


def test_files_of_deep_models_personalize_and_predict(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5))
    np.savez("own.npz", x=x, y=(x[:, 0] * x[:, 1] > 0).astype(int))

    def fedgram(*words):
        done = CliRunner().invoke(main, list(words))
        assert done.exit_code == 0, done.output
        return done.stdout

    for name in ("deepafl", "deepafl-apfl", "deepafl-fedhip"):
        small = [f"method.{name}.blocks=1", f"method.{name}.width=8", "data.clients=3"]
        settings = [word for text in ("data.source=own.npz", *small) for word in ("-s", text)]
        fedgram("run", "-m", name, *settings, "--out", name)
        (shared,) = (tmp_path / name).rglob("shared.safetensors")
        fedgram("personalize", str(shared), "own.npz", "-o", f"{name}.safetensors")
        text = fedgram("predict", f"{name}.safetensors", "own.npz", "-o", f"{name}.csv")
        assert len((tmp_path / f"{name}.csv").read_text().splitlines()) == 61, text


def test_a_total_is_no_model_however_deep(tmp_path):
    everybody = partitioned(clients=2)
    result = run(DeepAFLFedHiP(**SMALL, top=FedHiP(solver="client")), everybody, private=True)
    codec.save(tmp_path / "shared.safetensors", result.shared)
    np.savez(tmp_path / "new.npz", x=np.ones((1, 64)), y=[0])
    done = CliRunner().invoke(
        main, ["predict", str(tmp_path / "shared.safetensors"), str(tmp_path / "new.npz")]
    )
    assert done.exit_code == 3
    assert "expected a model that predicts" in done.stderr


@pytest.mark.parametrize("kind", [DeepAFL, DeepAFLAPFL, DeepAFLFedHiP])
def test_secure_sums_give_the_same_bytes(kind):
    pytest.importorskip("cryptography")
    method, everybody = kind(**SMALL), partitioned(clients=4)
    secure, private = run(method, everybody, threshold=0.6), run(method, everybody, private=True)
    assert secure.shared_digest == private.shared_digest
    assert secure.model_digest == private.model_digest
