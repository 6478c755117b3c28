"""Steps for several clients at once: the replies are those of one client after the other."""

import dataclasses
import itertools
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network_support import some_rows, some_theta

from fedgram import InProcess
from fedgram.checks.federations import partitioned as digits
from fedgram.core import codec
from fedgram.core.additive import Additive
from fedgram.engines import in_process
from fedgram.errors import DataError
from fedgram.experiments.runner import run
from fedgram.federation import scoring, union_scoring
from fedgram.federation.method import create_method, find_method, names
from fedgram.federation.step import step_name
from fedgram.models.mlp import MLP
from fedgram.training import descent
from fedgram.training.batched import batched_step
from fedgram.training.descent import SGD, run_batched
from fedgram.training.loop import GradientMethod
from fedgram.training.zeroth_order import ZerothOrderMethod

GRADIENT = [name for name in names() if issubclass(find_method(name), GradientMethod)]
JOINT = {
    *("fedavg", "fedavg-ft", "fedprox", "fedprox-ft", "ditto"),
    *("fedala", "fedas", "fedzo", "perfedavg", "pfedme", "pfedzo"),
}
SHAPE = MLP(width=40, hidden=0, classes=4)

# Tasks


def tasks(sizes, *, batch, epochs, strength, drifting, dtype):
    """A task of each client, from its own start, pull and drift."""
    made = []
    for seed, count in enumerate(sizes):
        rng = np.random.default_rng(seed)
        options = {}
        if strength:
            towards = rng.normal(size=SHAPE.size).astype(dtype)
            options |= {"towards": towards, "strength": strength}
        if drifting:
            options["drift"] = rng.normal(size=SHAPE.size).astype(dtype)
        theta = some_theta(SHAPE, seed, dtype)
        rows = some_rows(SHAPE, count, seed, dtype, unit=0.1 + 0.01 * seed)
        own = SGD(rate=0.2, epochs=epochs, batch=batch)
        made.append(own.task(SHAPE, theta, rows, np.random.default_rng(seed), **options))
    return made


@st.composite
def federations(draw):
    """Sizes of clients, few of them different, and the groups that they descend in."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 7, 8, 13, 30]), min_size=1, max_size=9))
    order = draw(st.permutations(range(len(sizes))))
    cuts = sorted(draw(st.sets(st.integers(0, len(sizes)))))
    groups = [order[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(sizes)])]
    return sizes, groups


def require_equal_bits(federation, *, dual, **options):
    """Raise AssertionError unless each client trains as alone, whoever is in its group."""
    sizes, groups = federation
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(descent, "dual_is_cheaper", lambda *_: dual)
        alone, beside = tasks(sizes, **options), tasks(sizes, **options)
        for task in alone:
            run_batched([task])
        for group in groups:
            run_batched([beside[place] for place in group])
    for one, other in zip(alone, beside, strict=True):
        assert one.theta.dtype == options["dtype"]
        assert one.theta.tobytes() == other.theta.tobytes()
        assert one.rng.bit_generator.state == other.rng.bit_generator.state


@given(
    federation=federations(),
    dual=st.booleans(),
    batch=st.integers(0, 12),
    epochs=st.integers(1, 3),
    strength=st.sampled_from([0.0, 0.3, 5.0]),
    drifting=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=300)
def test_no_bit_depends_on_who_descends_beside(federation, **options):
    require_equal_bits(federation, **options)


def summed_in_another_order(patch):
    """Products of a stack whose sums depend on the number of clients in it."""
    products = descent.stack_matmul

    def reversed_products(left, right, scale=1.0, out=None):
        if len(left) > 1:
            left, right = left[:, :, ::-1].copy(), right[:, ::-1].copy()
        return products(left, right, scale, out)

    patch.setattr(descent, "stack_matmul", reversed_products)


def products_of_another_kind(patch):
    """The products of a client alone are those of `matmul`, in a stack those of `einsum`."""
    products = descent.stack_matmul

    def mixed(left, right, scale=1.0, out=None):
        if len(left) == 1:
            return products(left, right, scale, out)
        found = np.einsum("cij,cjk->cik", left, right, out=out)
        found *= scale
        return found

    patch.setattr(descent, "stack_matmul", mixed)


def batches_as_large_as_those_of_the_first(patch):
    patch.setattr(descent._JointDescent, "per_row", lambda self, stacks, number, values: values[0])


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize(
    "mistake",
    [summed_in_another_order, products_of_another_kind, batches_as_large_as_those_of_the_first],
)
def test_the_law_finds_a_mistake(mistake, dual, monkeypatch):
    options = {"batch": 5, "epochs": 2, "strength": 0.3, "drifting": True, "dtype": np.float32}
    everybody = [13, 7, 13, 8, 7], [[0, 1, 2, 3, 4]]
    require_equal_bits(everybody, dual=dual, **options)
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        require_equal_bits(everybody, dual=dual, **options)


def test_clients_of_equal_sizes_are_one_stack_if_they_are_small(monkeypatch):
    """A large client has products of its own, and trains as alone; so do its bits."""
    monkeypatch.setattr(descent, "_SMALL", SHAPE.width * 9)
    options = {"batch": 4, "epochs": 1, "strength": 0.0, "drifting": False, "dtype": np.float32}
    some = tasks([9, 12, 9, 3, 12, 9], **options)
    stacks = descent._DualDescent(some).stacks
    assert [(stack.samples, len(stack.tasks)) for stack in stacks] == [
        *((12, 1), (12, 1)),
        *((9, 3), (3, 1)),
    ]
    monkeypatch.setattr(descent, "dual_is_cheaper", lambda *_: False)
    kinds = [task.kind() for task in tasks([9, 12], **options)]
    assert kinds[0] is not None
    assert kinds[1] is None


def test_whoever_diverges_changes_nobody_else():
    """Exponentials overflow at two of three clients."""
    options = {"batch": 4, "epochs": 3, "strength": 0.0, "drifting": False, "dtype": np.float32}
    calm = tasks([9, 11, 9], **options)
    wild = tasks([9, 11, 9], **options)
    for task in (wild[0], wild[2]):
        task.theta[:] *= 1e4
    run_batched([calm[1]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(descent, "dual_is_cheaper", lambda *_: True)
        run_batched(wild)
    assert np.abs(wild[0].theta).max() > 1e3
    assert wild[1].theta.tobytes() == calm[1].theta.tobytes()


def test_tasks_of_all_kinds_are_done(monkeypatch):
    """Only those alike go side by side; masks, hidden layers, other pulls and rates do not."""
    monkeypatch.setattr(descent, "dual_is_cheaper", lambda shape, *_: not shape.hidden)
    deep = MLP(width=40, hidden=3, classes=4)

    def made():
        plain = tasks([5, 7], batch=3, epochs=2, strength=0.0, drifting=False, dtype=np.float64)
        pulled = [
            tasks([6], batch=3, epochs=2, strength=strength, drifting=True, dtype=dtype)[0]
            for strength, dtype in ((0.3, np.float64), (0.5, np.float64), (0.5, np.float32))
        ]
        masked = dataclasses.replace(
            plain[0], theta=some_theta(SHAPE), mask=np.arange(SHAPE.size) % 2
        )
        slow = dataclasses.replace(
            plain[1], theta=some_theta(SHAPE), descent=SGD(rate=0.1, epochs=1, batch=3)
        )
        hidden = dataclasses.replace(plain[0], shape=deep, theta=some_theta(deep))
        found = [*plain, *pulled, masked, slow, hidden]
        return [
            dataclasses.replace(task, rng=np.random.default_rng(k)) for k, task in enumerate(found)
        ]

    alone, beside = made(), made()
    before = [task.theta.copy() for task in beside]
    for task in alone:
        run_batched([task])
    run_batched(beside)
    for one, other, start in zip(alone, beside, before, strict=True):
        assert one.theta.tobytes() == other.theta.tobytes()
        assert np.any(other.theta != start)


# Steps


@codec.register("Told/1")
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Told(Additive):
    """What a client has to say."""

    values: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))


class Walk:
    """As many descents as the number in a client's name, and an account of them."""

    def __init__(self):
        self.order = []
        self.born = []
        self.alive = []

    @batched_step
    def update(self, client, broadcast):
        """Walk."""
        if isinstance(broadcast, str) and client.id == broadcast:
            raise DataError("nothing here")
        theta, rows = some_theta(SHAPE), some_rows(SHAPE, 5)
        for _ in range(int(client.id[1:])):
            self.order.append(client.id)
            yield SGD(rate=0.1, epochs=1, batch=2).task(SHAPE, theta, rows, client.rng)
        reply = Told(values=theta.copy())
        self.born.append(weakref.ref(reply))
        self.alive.append(sum(ref() is not None for ref in self.born))
        return reply


def walking(count, **options):
    sites = digits(clients=count).members
    named = [dataclasses.replace(site, id=f"c{k}", state={}) for k, site in enumerate(sites)]
    return InProcess(named, **options)


def test_clients_take_turns_and_replies_come_in_order(monkeypatch):
    joint, plain = Walk(), Walk()
    found = dict(walking(4).gather(joint.update))
    monkeypatch.setattr(in_process, "_MOST_TOGETHER", 1)
    wanted = dict(walking(4).gather(plain.update))
    assert joint.order == ["c1", "c2", "c3", "c2", "c3", "c3"]
    assert plain.order == ["c1", "c2", "c2", "c3", "c3", "c3"]
    assert list(found) == ["c0", "c1", "c2", "c3"]
    for name, reply in found.items():
        assert reply.values.tobytes() == wanted[name].values.tobytes()


def test_a_step_is_one_for_a_single_client_too():
    step = Walk().update
    assert step_name(step) == "update"
    assert Walk.update.__doc__ == "Walk."
    (client, reply), *_ = walking(3).gather(step, clients=["c2"])
    lone = walking(3).sum(lambda client, broadcast: step(client, broadcast), clients=["c2"])
    assert client == "c2"
    assert reply.values.tobytes() == lone.values.tobytes()


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_names_its_client(workers):
    with pytest.raises(DataError, match=r"^client c2: nothing here$"):
        walking(5, workers=workers).sum(Walk().update, "c2")


def test_any_other_error_carries_a_note():
    class Broken:
        @batched_step
        def update(self, client, _):
            yield from ()
            return 1 / (client.id != "c1")

    with pytest.raises(ZeroDivisionError) as caught:
        walking(3).sum(Broken().update)
    assert caught.value.__notes__ == ["at client c1, in update"]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 5, 8])
@pytest.mark.parametrize("most", [1, 3, 10])
def test_progress_traffic_and_operations_are_told_as_if_one_by_one(
    workers, count, most, monkeypatch
):
    told = []
    for number in (most, 1):
        monkeypatch.setattr(in_process, "_MOST_TOGETHER", number)
        news = []
        engine = walking(count, workers=workers, on_reply=lambda *args, to=news: to.append(args))
        engine.sum(Walk().update)
        (ask,) = engine.asks
        told.append((news, dataclasses.replace(ask, seconds=0.0)))
    assert told[0] == told[1]
    assert told[0][0] == [("update", done, count) for done in range(1, count + 1)]
    assert told[0][1].clients == count


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [1, 2, 9, 20, 21, 100])
def test_every_worker_has_as_many_groups(workers, count):
    names = [f"c{k}" for k in range(count)]
    groups = InProcess([], workers=workers)._groups(names, 10)
    assert [name for group in groups for name in group] == names
    assert {len(group) for group in groups} <= set(range(1, 11))
    assert len(groups) % workers == 0 or len(groups) == count
    assert max(map(len, groups)) - min(map(len, groups)) <= 1


@pytest.mark.parametrize(("room", "most"), [(2**23, 8), (2**13, 1)])
def test_those_who_go_together_are_few_where_parameters_are_many(room, most, monkeypatch):
    monkeypatch.setattr(in_process, "_ROOM", room)
    walk = Walk()
    walking(8).sum(walk.update, np.zeros(2**10))
    assert len(walk.alive) == 8
    assert max(walk.alive) <= most + 2  # with the total, and the one being added
    assert max(walk.alive) >= most


# Methods


@pytest.mark.parametrize("precision", ["single", "double"])
def test_no_bit_of_feddbe_depends_on_the_stack(precision, monkeypatch):
    """A stack of equal sizes, some of two batches and some of one."""
    settings = {"rounds": 2, "rate": 0.1, "batch": 16, "precision": precision}
    method = create_method("feddbe", settings)
    found = []
    for most in (64, 1, 3):
        monkeypatch.setattr("fedgram.federation.sites._STACK_CLIENTS", most)
        members = digits(clients=40).members
        sizes = [len(site.train) for site in members]
        assert len(set(sizes)) < len(sizes)
        assert min(sizes) < 16 < max(sizes)
        engine = InProcess(members)
        *_, last = method.fit(engine)
        shifts = [site.state["shift"].tobytes() for site in members]
        found.append((codec.digest(last.theta), shifts))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", GRADIENT)
@pytest.mark.parametrize("hidden", [0, 5])
def test_no_method_depends_on_how_many_go_together(name, hidden, monkeypatch):
    """Eleven unequal clients: models, traffic and operations are the same, to the bit."""
    settings = {"rounds": 2, "epochs": 2, "batch": 20, "rate": 0.05}
    if hidden or name == "fedpcl":
        settings["hidden"] = 5
    if name == "fedala":
        settings["settled"] = 10.0  # soon
    if issubclass(find_method(name), ZerothOrderMethod):
        settings["directions"] = 2
    # A site reports how long it took, and a longer time has more digits: more bytes.
    for module in (scoring, union_scoring):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    found = []
    for most, workers in ((10, 1), (1, 1), (3, 2)):
        monkeypatch.setattr(in_process, "_MOST_TOGETHER", most)
        monkeypatch.setattr("fedgram.federation.sites._STACK_CLIENTS", most)
        everybody = digits(clients=11, dirichlet=0.5)  # anew: nothing has been kept with them
        assert len({len(site.train) for site in everybody.members}) > 5
        result = run(create_method(name, settings), everybody, workers=workers)
        asks = [dataclasses.replace(ask, seconds=0.0) for ask in result.record.exchanges]
        models = {client: codec.digest(model) for client, model in result.predictors.items()}
        found.append((result.model_digest, models, asks))
    assert found[0] == found[1] == found[2]


def test_which_methods_go_together():
    steps = {name: create_method(name).update for name in GRADIENT if name != "scaffold"}
    assert {name for name, step in steps.items() if hasattr(step, "together")} == JOINT
    assert hasattr(create_method("scaffold").corrected, "together")
