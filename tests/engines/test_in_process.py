"""The engine in one process: order, memory, traffic, privacy, errors, state, randomness."""

import dataclasses
import threading
import weakref

import numpy as np
import pytest

from fedgram.core import codec
from fedgram.core.additive import Additive
from fedgram.core.samples import Labels, Samples
from fedgram.core.statistics import Statistics
from fedgram.engines.in_process import InProcess
from fedgram.errors import ConfigError, DataError, PrivacyError, SolveError
from fedgram.features.grid import Grid
from fedgram.federation.client import Client, Site
from fedgram.federation.protocol import traffic
from fedgram.federation.shared import PerClient
from fedgram.runtime import flops


@codec.register("Loose/1")
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Loose(Additive):
    """A float sum: its last bits show the order of additions."""

    value: float = 0.0


@codec.register("Brick/1")
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Brick(Additive):
    """An array of some size."""

    values: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))


def samples(count, seed):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 2, count)
    return Samples(Grid()(rng.normal(size=(count, 4))), Labels(codes, ("no", "yes")))


def site(name, seed=0, count=5):
    return Site(
        id=name,
        train=samples(count, seed),
        valid=samples(2, seed + 1000),
        test=samples(3, seed + 2000),
    )


def federation(names="abcdefg", **options):
    return InProcess([site(name, seed) for seed, name in enumerate(names)], **options)


def statistics(client, _):
    return Statistics.of(client.train.features, client.train.labels)


def name_of(client, _):
    return client.id


ROUGH = dict(zip("abcdefg", (0.1, 1e16, 7.0, -1e16, 0.3, 1e-8, 3e15), strict=True))


def loose(client, _):
    return Loose(value=ROUGH[client.id])


# Order and workers


def test_clients_are_named_in_order():
    assert federation("cab").clients == ["a", "b", "c"]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_sum_depends_neither_on_the_order_of_sites_nor_on_workers(workers):
    everybody = [site(name, seed) for seed, name in enumerate("abcdefg")]
    expected = InProcess(everybody)
    shuffled = [everybody[i] for i in (3, 6, 0, 5, 2, 4, 1)]
    assert sum(ROUGH[one.id] for one in shuffled) != sum(ROUGH.values())
    other = InProcess(shuffled, workers=workers)
    assert other.sum(loose).value == expected.sum(loose).value  # floats, to the last bit
    assert other.sum(statistics) == expected.sum(statistics)


@pytest.mark.parametrize("workers", [1, 2, 3, 9])
def test_replies_come_in_the_order_of_names(workers):
    replies = list(federation("gfedcba", workers=workers).gather(name_of))
    assert replies == [(name, name) for name in "abcdefg"]


def test_some_of_the_clients_may_be_asked():
    engine = federation()
    assert [name for name, _ in engine.gather(name_of, clients=["e", "b"])] == ["b", "e"]
    some = engine.sum(statistics, clients={"b", "e"})
    assert some == engine.sum(statistics, clients=["b"]) + engine.sum(statistics, clients=["e"])


def test_a_client_named_twice_is_asked_once():
    engine = federation("ab")
    assert engine.sum(statistics, clients=["a", "a"]) == engine.sum(statistics, clients=["a"])


def test_progress_is_told_after_each_reply():
    told = []
    federation("abc", on_reply=lambda *news: told.append(news)).sum(statistics)
    assert told == [("statistics", done, 3) for done in (1, 2, 3)]


# Memory


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("verb", ["sum", "gather"])
def test_few_contributions_are_alive_at_a_time(workers, verb):
    born, alive = [], []

    def contribution(client, _):
        block = Brick(values=np.ones(3))
        born.append(weakref.ref(block))
        alive.append(sum(ref() is not None for ref in born))
        return block

    engine = federation([f"c{k:02d}" for k in range(40)], workers=workers)
    if verb == "sum":
        assert engine.sum(contribution).values[0] == 40
    else:
        for _ in engine.gather(contribution):
            pass
    assert len(alive) == 40
    assert max(alive) <= workers + 3  # the workers' own, the total, and the one being added


# Traffic


def bigger(client, broadcast):
    """Integers that need one byte at client a, two at b, four at c and d."""
    return Brick(values=np.full(10, 100 ** "_abcd".index(client.id)))


@dataclasses.dataclass
class Named:
    id: str


def size(value):
    return len(codec.encode(value))


@pytest.mark.parametrize("verb", ["sum", "gather"])
def test_what_goes_up_and_down_is_counted_in_encoded_bytes(verb):
    engine, broadcast = federation("abc"), {"round": 3, "values": np.arange(7)}
    if verb == "sum":
        engine.sum(bigger, broadcast)
    else:
        list(engine.gather(bigger, broadcast))
    (ask,) = engine.asks
    assert (ask.step, ask.phase, ask.clients) == ("bigger", "train", 3)
    assert ask.bytes_up == sum(size(Brick(values=np.full(10, 100**k))) for k in (1, 2, 3))
    assert ask.bytes_down == 3 * size(broadcast)


def test_nothing_broadcast_costs_nothing():
    engine = federation()
    engine.sum(statistics)
    assert engine.asks[0].bytes_down == 0


def test_the_final_result_is_delivered_once_to_every_client():
    engine, shared = federation("abc"), Brick(values=np.arange(5.0))
    engine.deliver(shared)
    (ask,) = engine.asks
    assert (ask.phase, ask.clients, ask.bytes_up, ask.bytes_down) == (
        "deliver",
        3,
        0,
        3 * size(shared),
    )


def test_of_a_tailored_result_each_client_is_sent_its_own_part():
    common, own = Brick(values=np.arange(9.0)), Brick(values=np.arange(2.0))
    engine, shared = federation("abc"), PerClient(common=common, own={"b": own})
    engine.deliver(shared)
    assert engine.asks[0].bytes_down == 2 * size(common) + size(own)
    seen = dict(engine.evaluate(lambda site, client, part: part, shared))
    assert seen == {"a": common, "b": own, "c": common}
    assert engine.asks[1].bytes_down == 2 * size(common) + size(own)


def test_scoring_is_counted_apart():
    engine = federation("abc")
    engine.sum(statistics)
    before = traffic(engine.asks)
    list(engine.evaluate(lambda site, client, shared: Loose(value=1.0), Brick()))
    assert engine.asks[-1].phase == "score"
    assert engine.asks[-1].bytes_up == 3 * size(Loose(value=1.0))
    assert traffic(engine.asks) == before


def test_traffic_is_the_mean_over_all_clients_also_those_that_are_not_asked():
    engine, broadcast = federation("abcd"), {"round": 1}
    engine.sum(bigger, broadcast)
    engine.sum(bigger, broadcast, clients=["a", "b"])
    engine.deliver(Brick())
    sizes = [size(bigger(Named(name), None)) for name in "abcd"]
    assert traffic(engine.asks) == {
        "up": round((sum(sizes) + sum(sizes[:2])) / 4),
        "down": round(1.5 * size(broadcast)) + size(Brick()),
    }


@pytest.mark.parametrize("workers", [1, 3])
def test_every_exchange_is_told_once_and_recorded_even_if_broken_off(workers):
    told = []
    engine = federation("abc", on_ask=told.append, workers=workers)
    replies = engine.gather(bigger)
    next(replies)
    replies.close()
    assert told == engine.asks
    assert (told[0].clients, told[0].bytes_up) == (1, size(bigger(Named("a"), None)))


# Privacy


def test_a_private_federation_refuses_to_gather_before_anything_is_computed():
    def never(client, _):
        raise AssertionError

    engine = federation(private=True)
    with pytest.raises(PrivacyError, match="never would show the server"):
        engine.gather(never)
    assert engine.private
    assert not engine.asks


def test_a_private_federation_sums():
    assert federation(private=True).sum(statistics) == federation().sum(statistics)


# Errors


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_fedgrams_own_names_the_client_and_keeps_its_kind(workers):
    def step(client, _):
        if client.id == "d":
            raise SolveError("singular")
        return Loose()

    with pytest.raises(SolveError, match=r"^client d: singular$"):
        federation(workers=workers).sum(step)


@pytest.mark.parametrize("workers", [1, 2])
def test_any_other_error_carries_a_note_with_the_client(workers):
    def step(client, _):
        return 1 / (client.id != "d")

    with pytest.raises(ZeroDivisionError) as caught:
        list(federation(workers=workers).gather(step))
    assert caught.value.__notes__ == ["at client d, in step"]


def test_an_error_in_scoring_names_the_client():
    def step(site, client, shared):
        raise DataError("no good")

    with pytest.raises(DataError, match="client a: no good"):
        list(federation().evaluate(step, None))


def test_unknown_clients_are_refused_by_name():
    with pytest.raises(ConfigError, match="unknown clients: x, z"):
        federation().sum(statistics, clients=["a", "x", "z"])


@pytest.mark.parametrize("verb", ["sum", "gather"])
def test_an_empty_federation_is_refused(verb):
    with pytest.raises(ConfigError, match="no clients"):
        getattr(InProcess([]), verb)(statistics)
    with pytest.raises(ConfigError, match="no clients"):
        getattr(federation(), verb)(statistics, clients=[])


def test_a_name_can_be_taken_once_only():
    with pytest.raises(DataError, match="client a: two clients have this name"):
        federation("aba")


@pytest.mark.parametrize("workers", [0, -1])
def test_somebody_must_work(workers):
    with pytest.raises(ConfigError, match=r"engine\.workers"):
        federation(workers=workers)


def test_a_negative_seed_is_refused():
    with pytest.raises(ConfigError, match="seed"):
        federation(seed=-1)


# State and test data


def count_asks(client, _):
    client.state["asked"] = client.state.get("asked", 0) + 1
    return client.state["asked"]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_client_keeps_its_own_state_between_asks(workers):
    engine = federation("abc", workers=workers)
    list(engine.gather(count_asks, clients=["b"]))
    assert dict(engine.gather(count_asks)) == {"a": 1, "b": 2, "c": 1}


def test_state_can_be_read_but_not_written_while_scoring():
    engine = federation("ab")
    list(engine.gather(count_asks))
    seen = dict(engine.evaluate(lambda site, client, shared: client.state["asked"], None))
    assert seen == {"a": 1, "b": 1}
    with pytest.raises(TypeError):
        list(engine.evaluate(lambda site, client, shared: count_asks(client, None), None))


def test_a_client_holds_no_test_data():
    assert not [field.name for field in dataclasses.fields(Client) if "test" in field.name]
    alone = site("a")
    hidden = alone.test.features.values

    def step(client, _):
        assert isinstance(client, Client)
        assert not hasattr(client, "test")
        held = [client.train, client.valid, client.samples]
        assert not any(np.shares_memory(part.features.values, hidden) for part in held)
        assert len(client.samples) == len(alone.train) + len(alone.valid)
        return Loose()

    InProcess([alone]).sum(step)


# Randomness


def draw(client, _):
    return int(client.rng.integers(2**62))


def draws(engine, asks=1):
    for _ in range(asks - 1):
        list(engine.gather(draw))
    return dict(engine.gather(draw))


def test_randomness_depends_on_seed_client_and_ask():
    first = draws(federation(seed=1))
    assert len(set(first.values())) == 7
    assert first == draws(federation(seed=1))
    assert not set(first.values()) & set(draws(federation(seed=2)).values())
    assert not set(first.values()) & set(draws(federation(seed=1), asks=2).values())


@pytest.mark.parametrize("options", [{"workers": 3}, {"names": "gfedcba"}, {"names": "bd"}])
def test_randomness_depends_on_nothing_else(options):
    expected = draws(federation(), asks=2)
    for name, value in draws(federation(**options), asks=2).items():
        assert value == expected[name]


def test_asks_in_between_do_not_change_the_randomness_of_one_under_way():
    expected = draws(federation())
    engine = federation()
    interleaved = {}
    for name, value in engine.gather(draw):
        interleaved[name] = value
        engine.sum(statistics)
    assert interleaved == expected


def test_scoring_has_randomness_of_its_own_that_is_the_same_every_time():
    """So that personalizing can be repeated, and scoring changes nothing in training."""

    def drawn(site, client, shared):
        return draw(client, None)

    engine, expected = federation(), draws(federation(), asks=2)
    list(engine.gather(draw))
    scored = [dict(engine.evaluate(drawn, None)) for _ in range(3)]
    assert scored[0] == scored[1] == scored[2]
    assert not set(scored[0].values()) & set(expected.values())
    assert dict(engine.gather(draw)) == expected


def server_draws(engine, asks=3):
    found = []
    for _ in range(asks):
        assert engine.rng.random() == engine.rng.random()  # the same until the next ask
        found.append(engine.rng.random())
        engine.sum(statistics)
    return found


def test_the_servers_randomness_comes_from_the_seed_and_the_ask():
    first = server_draws(federation(seed=1))
    assert len(set(first)) == 3
    assert first == server_draws(federation(seed=1, workers=3, dropout=0.5))
    assert not set(first) & set(server_draws(federation(seed=2)))


# Clients that drop out


def answers(engine, asks=40):
    return [[name for name, _ in engine.gather(name_of)] for _ in range(asks)]


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.9])
def test_clients_drop_out_by_chance_and_at_least_one_answers(chance):
    found = answers(federation(dropout=chance, seed=3), asks=200)
    assert all(found)
    assert all(names == sorted(names) for names in found)
    # One of seven, drawn first, always answers.
    share = np.mean([len(names) for names in found]) / 7
    assert share == pytest.approx(1 - chance * 6 / 7, abs=0.05)
    assert set().union(*found) == set("abcdefg")


def test_who_drops_out_comes_from_the_seed_alone():
    first = answers(federation(dropout=0.5, seed=1))
    assert first == answers(federation("gfedcba", dropout=0.5, seed=1, workers=3))
    assert first != answers(federation(dropout=0.5, seed=2))
    assert len(set(map(tuple, first))) > 10


def test_whoever_does_not_answer_is_not_counted():
    engine = federation("abcd", dropout=0.5)
    for _ in range(5):
        some = dict(engine.gather(bigger, {"round": 1}))
        ask = engine.asks[-1]
        assert ask.clients == len(some)
        assert ask.bytes_up == sum(size(reply) for reply in some.values())
        assert ask.bytes_down == len(some) * size({"round": 1})
    assert {ask.clients for ask in engine.asks} > {4}


def test_whoever_does_not_answer_keeps_the_state_and_catches_up_later():
    engine, asked = federation("abcd", dropout=0.5), {}
    for _ in range(12):
        for name, count in engine.gather(count_asks):
            asked[name] = asked.get(name, 0) + 1
            assert count == asked[name]
    assert len(set(asked.values())) > 1


def test_contributors_are_the_clients_that_answered_the_last_sum():
    engine = federation("abcd", dropout=0.5)
    assert list(engine.contributors) == []
    found = set()
    for _ in range(12):
        total = engine.sum(bigger)
        found.add(tuple(engine.contributors))
        assert engine.asks[-1].clients == len(engine.contributors)
        each = [bigger(Named(name), None).values for name in engine.contributors]
        assert (total.values == sum(each)).all()
    assert len(found) > 1
    engine.sum(bigger, clients="b")
    dict(engine.gather(bigger))
    assert engine.contributors == ["b"]


def test_nobody_drops_out_of_scoring():
    engine = federation("abcd", dropout=0.9)
    for _ in range(5):
        assert len(dict(engine.evaluate(lambda site, client, shared: 1, None))) == 4


def test_of_those_who_are_asked_some_drop_out():
    engine = federation(dropout=0.5)
    for _ in range(20):
        some = [name for name, _ in engine.gather(name_of, clients="ace")]
        assert some
        assert set(some) <= set("ace")


@pytest.mark.parametrize("chance", [-0.1, 1.0, 2.0, float("nan")])
def test_a_chance_that_is_none_is_refused(chance):
    with pytest.raises(ConfigError, match=r"engine\.dropout"):
        federation(dropout=chance)


# Work


def working(client, _):
    flops.add({"a": 1, "b": 20, "c": 300}[client.id])
    return Loose()


@pytest.mark.parametrize("workers", [1, 3])
def test_work_is_counted_at_the_clients_and_not_at_the_server(workers):
    engine = federation("abc", workers=workers)
    before = flops.total()
    engine.sum(working)
    flops.add(5)
    list(engine.evaluate(lambda site, client, shared: working(client, None), None))
    assert flops.total() - before == 5
    assert [ask.flops for ask in engine.asks] == [321, 321]


def test_other_threads_work_is_not_counted():
    before = flops.total()
    thread = threading.Thread(target=flops.add, args=(7,))
    thread.start()
    thread.join()
    assert flops.total() == before


def test_clients_know_the_last_total_of_each_step():
    """One who missed the last sum of a step is not in its total."""
    seen = {}

    def one(client, _):
        seen[client.id] = client.totals
        return statistics(client, None)

    def two(client, _):
        return statistics(client, None)

    engine = federation("abc")
    engine.sum(one)
    assert set(seen.values()) == {frozenset()}
    engine.sum(two, clients=["a", "b"])
    list(engine.gather(one))
    assert seen == {"a": {"one", "two"}, "b": {"one", "two"}, "c": {"one"}}
    engine.sum(two, clients=["c"])
    engine.sum(one)
    expected = {"a": {"one"}, "b": {"one"}, "c": {"one", "two"}}
    assert seen == expected
    seen.clear()
    scored = engine.evaluate(lambda site, client, _: seen.update({site.id: client.totals}), None)
    assert len(list(scored)) == 3
    assert seen == expected
