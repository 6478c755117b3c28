"""No site owns the total: a cap on its samples, and warnings that name the site to ask."""

from dataclasses import replace

import numpy as np
import pytest
from remote_support import (
    StandIn,
    at,
    changed,
    done,
    federation,
    members,
    notes,
    office_of,
    offices,
    served,
    shared_bytes,
)

from fedgram.core import codec
from fedgram.core.additive import Additive
from fedgram.core.census import Census
from fedgram.core.samples import Labels
from fedgram.core.tally import Tally
from fedgram.core.weighted import Weighted
from fedgram.deploy.membership import Membership
from fedgram.deploy.server import run_federation
from fedgram.engines.remote.contributions import Contributions
from fedgram.engines.remote.validation import require_registered
from fedgram.errors import ConfigError, DataError, ExactnessError
from fedgram.federation.method import create_method, names
from fedgram.federation.scoring import ScoreSums, SiteScore
from fedgram.ledger.folder import Ledgers

DATA = {"clients": 6, "valid_fraction": 0.1, "dirichlet": 10.0}
REST = ["c0", "c2", "c3", "c4", "c5"]
MOST = {"quorum": 0.8, "timeout": 30, "grace": 5}


def poisoned(times):
    """Return a fault: the sums of samples whose labels are all wrong, each repeated."""

    def wrong(honest):
        sums = honest.value
        fields = {name: getattr(sums, name) * times for name in sums.summed_fields()}
        bad = replace(sums, **{**fields, "moment": np.roll(sums.moment, 1, axis=1) * times})
        bad.validate()  # there are such samples: no check of a single contribution can refuse it
        return bad

    return at(101, "step", changed(value=wrong))


def warnings(out):
    return [(client, text) for client, text in notes(out, "afl") if text.startswith("warning")]


def registered(config):
    return {site.id: len(site.train) + len(site.valid) for site in members(config)}


def totals(folder):
    with Ledgers(folder) as ledgers:
        return [ledger.total for _, ledger in ledgers]


def test_honest_sites_are_not_warned_of(tmp_path):
    out, _, _, _ = served(tmp_path, "afl", clients=6, data=DATA)
    assert not warnings(out)


def test_a_poisoned_site_is_warned_of_forgotten_and_was_never_there(tmp_path):
    fault = poisoned(10**6)
    out, config, carrier, said = served(tmp_path, "afl", clients=6, data=DATA, fault=fault)
    assert done(out, "afl")["accuracy"]["client_mean"] < 0.3  # it owns the total
    assert {client for client, _ in warnings(out)} == {"c1"}
    assert any("c1: warning: has 100% of all samples" in line for line in said)
    assert any("contradict" in text for _, text in warnings(out))
    assert any("the others' error" in text for _, text in warnings(out))

    (tmp_path / "never").mkdir()
    carrier.offices.pop(101)
    never, _ = federation(tmp_path / "never", "afl", clients=5, data=DATA)
    run_federation(StandIn(dict(carrier.offices)), never, said.append)
    (before,) = totals(tmp_path / "server")
    Membership(folder=tmp_path / "server").forget("c1")
    assert totals(tmp_path / "server") == totals(never)
    assert before != totals(never)[0]

    again, _ = federation(tmp_path, "afl", clients=5, data=DATA)
    out = run_federation(StandIn(carrier.offices), again, said.append)
    assert done(out, "afl")["accuracy"]["client_mean"] > 0.8
    expected = shared_bytes(config, "afl", REST, tmp_path / "expected")
    assert (out / "afl" / "shared.safetensors").read_bytes() == expected


def test_a_contribution_of_more_samples_than_are_registered_is_refused_by_name(tmp_path):
    _, config = federation(tmp_path, "afl", clients=6, data=DATA)
    rules = {**MOST, "samples": registered(config)}
    fault = poisoned(10**6)
    out, config, _, _ = served(tmp_path, "afl", clients=6, data=DATA, rules=rules, fault=fault)
    refused = [text for client, text in notes(out, "afl") if client == "c1" and "left out" in text]
    assert "samples, and" in refused[0]
    assert "change federation.samples.c1" in refused[0]
    assert not warnings(out)
    expected = shared_bytes(config, "afl", REST, tmp_path / "expected")
    assert (out / "afl" / "shared.safetensors").read_bytes() == expected


def test_a_member_that_joined_before_its_number_was_registered_is_noted(tmp_path):
    """It is not asked again, so that there is no answer to refuse."""
    fault = poisoned(10**6)
    _, config, carrier, _ = served(tmp_path, "afl", clients=6, data=DATA, fault=fault)
    rules = {"samples": registered(config)}
    folder, _ = federation(tmp_path, "afl", clients=6, data=DATA, rules=rules)
    out = run_federation(carrier, folder, [].append)
    assert [client for client, _ in warnings(out)] == ["c1"]
    assert "are registered; 'fedgram federation forget'" in warnings(out)[0][1]


def repeated(value, times):
    """Return the sums of the same samples, each repeated."""
    parts = {name: getattr(value, name) for name in value.summed_fields()}
    many = {
        name: repeated(part, times) if isinstance(part, Additive) else part * times
        for name, part in parts.items()
        if name not in ("clients", "fine")  # a site is one client; the rest of rounding
    }
    return replace(value, **many)


def repeating(steps, times):
    """Return a fault: each of some sites repeats the samples of one step."""

    def fault(node, request, answer):
        said = codec.decode(answer(request))
        if steps.get(node) == codec.decode(request).step:
            said = replace(said, value=repeated(said.value, times))
        return codec.encode(said)

    return fault


LAYERS = {"image": [8, 8, 1], "layers": "conv 2 3x3 max 2, dense 4"}
BLOCKS = {"blocks": 1, "width": 8}
SHORT = {
    "auto": {"exchanges": 1, "effort": "low"},
    "logistic": {"exchanges": 1},
    "fedacnnl": LAYERS,
    "pfedacnnl": {**LAYERS, "groups": 2, "strength": "auto"},
    **dict.fromkeys(("deepafl", "deepafl-apfl", "deepafl-fedhip"), BLOCKS),
}


def tables_of(method):
    trained = hasattr(create_method(method), "rounds")
    short = {"rounds": 1, "epochs": 1, "rate": 0.1} if trained else SHORT.get(method, {})
    return {"clients": 6, "data": DATA, "method": {method: short}}


wide = pytest.mark.wide
OTHERS = sorted({*names()} - {"afl", "auto", "fedavg", "central"})  # central asks for samples


@pytest.mark.parametrize(
    ("method", "steps", "times"),
    [
        ("auto", ["residuals", "pseudo_counts", "left_out", "pool"], 10**6),
        ("fedavg", ["update"], 10**5),
        pytest.param("scaffold", ["corrected"], 2, marks=wide),
        pytest.param("prior", ["left_out"], 10**6, marks=wide),
        pytest.param("closed-pfedme", ["envelope"], 2, marks=wide),
        pytest.param("closed-maml", ["ahead"], 10**5, marks=wide),
        pytest.param("pfedacnnl", ["group_statistics", "right"], 10**6, marks=wide),
    ],
)
def test_no_sum_of_a_method_may_be_of_more_samples_than_are_registered(
    tmp_path, method, steps, times
):
    tables = tables_of(method)
    _, config = federation(tmp_path, method, **tables)
    rules = {**MOST, "samples": registered(config)}
    liars = dict(enumerate(steps, start=101))
    fault = repeating(liars, times)
    out, _, _, _ = served(tmp_path, method, rules=rules, fault=fault, **tables)
    refused = {(client, text) for client, text in notes(out, method) if "left out" in text}
    assert {client for client, _ in refused} == {f"c{node - 100}" for node in liars}
    assert all(f"change federation.samples.{client}" in text for client, text in refused)


@pytest.mark.parametrize(
    "method", ["afl", "auto", "fedavg", *(pytest.param(name, marks=wide) for name in OTHERS)]
)
def test_honest_sites_keep_to_their_registered_numbers(tmp_path, method):
    tables = tables_of(method)
    _, config = federation(tmp_path, method, **tables)
    rules = {"samples": registered(config)}
    out, _, _, _ = served(tmp_path, method, rules=rules, **tables)
    assert not [text for _, text in notes(out, method) if "left out" in text]


def test_where_numbers_are_registered_a_site_without_one_is_refused(tmp_path):
    _, config = federation(tmp_path, "afl", clients=6, data=DATA)
    known = {name: count for name, count in registered(config).items() if name != "c1"}
    rules = {**MOST, "samples": known}
    out, _, _, _ = served(tmp_path, "afl", clients=6, data=DATA, rules=rules)
    assert any(c == "c1" and "0 are registered" in text for c, text in notes(out, "afl"))


def test_a_site_that_grows_is_noted(tmp_path):
    folder, config = federation(tmp_path, "afl", clients=6, data=DATA)
    nodes = offices(config, tmp_path / "sites")
    whole = next(site for site in members(config) if site.id == "c1")
    half = replace(whole, train=whole.train.take(range(len(whole.train) // 2)))
    first = {**nodes, 101: office_of(half, config, tmp_path / "half")}
    out = run_federation(StandIn(first), folder, [].append)
    assert not [text for _, text in notes(out, "afl") if "before" in text]
    out = run_federation(StandIn(nodes), folder, [].append)
    grown = [(client, text) for client, text in notes(out, "afl") if "before" in text]
    count = len(whole.train) + len(whole.valid)
    assert grown == [
        ("c1", f"{count} samples, {len(half.train) + len(half.valid)} before; ask the site if it "
         "has more data")
    ]  # fmt: skip


def test_a_total_that_would_wrap_leaves_out_the_site_and_not_the_run(tmp_path):
    """A member of an earlier run has used up the range: the site that is asked has no room."""
    folder, config = federation(tmp_path, "afl", clients=6, data=DATA)
    nodes = offices(config, tmp_path / "sites")
    run_federation(StandIn(nodes), folder, [].append)
    with Ledgers(folder) as ledgers:
        ((_, ledger),) = ledgers
        ledger.leave("c3")
        ledger.admit("c3")
        own = ledger.of("c1")
        times = (own.space.most_samples - ledger.total.count) // own.count
        huge = replace(own, **{name: getattr(own, name) * times for name in own.summed_fields()})
        ledger.join("x", huge)
        kept = Contributions(ledger, {})
        kept.require_room("x", huge)  # in the place of the same
        with pytest.raises(ExactnessError, match="forget a member"):
            kept.require_room("y", huge)
    federation(tmp_path, "afl", clients=6, data=DATA, rules=MOST)
    out = run_federation(StandIn(nodes), folder, [].append)
    assert any(c == "c3" and "the total would have" in text for c, text in notes(out, "afl"))


@pytest.mark.parametrize("samples", [{"c1": -1}, {"c1": 1.5}, {"c1": True}, {"c1": "5"}, 5])
def test_registered_numbers_are_counts(tmp_path, samples):
    with pytest.raises(ConfigError, match=r"federation\.samples"):
        federation(tmp_path, "afl", rules={"samples": samples})


def test_values_without_samples_have_no_limit():
    require_registered("north", 5, 0, lambda samples: samples)
    heavy = Weighted.of(np.zeros(2), 1000)
    require_registered("north", heavy, 0, lambda samples: None)
    with pytest.raises(DataError, match="weight 1000, expected at most 64 with 1 registered"):
        require_registered("north", heavy, 1, lambda samples: 64 * samples)
    with pytest.raises(DataError, match="0 are registered"):
        require_registered("north", Census(count=1), 0, lambda samples: None)


def test_validation_samples_of_scores_are_counted():
    labels = Labels(np.zeros(9, np.int64), ("a",))
    scored = SiteScore(sums=ScoreSums(valid=Tally.of(labels.codes, labels)))
    require_registered("north", scored, 9, lambda samples: samples)
    with pytest.raises(DataError, match="9 samples, and 8 are registered"):
        require_registered("north", scored, 8, lambda samples: samples)
