"""Whatever one site does, the others finish, and what they finish is of their own data alone."""

from dataclasses import replace

import numpy as np
import pytest
from remote_support import (
    MOST,
    REST,
    StandIn,
    at,
    changed,
    done,
    federation,
    in_process,
    kind,
    members,
    notes,
    offices,
    served,
    shared_bytes,
)

from fedgram.core import codec
from fedgram.core.samples import Space
from fedgram.core.statistics import Statistics
from fedgram.deploy.membership import Membership
from fedgram.deploy.server import alone, run_federation
from fedgram.engines.remote.messages import Answer, Refusal
from fedgram.errors import FederationError

SHORT = {"fedavg": {"rounds": 2, "epochs": 1, "rate": 0.1}}


def value(**fields):
    """Return a fault: an honest answer whose value has some fields changed."""

    def made(honest):
        new = {key: f(honest.value) if callable(f) else f for key, f in fields.items()}
        return replace(honest.value, **new)

    return changed(value=made)


def padded(request, answer):
    return answer(request) + bytes(2 << 20)


def another_request(request, answer):
    """Answer an earlier question in the place of this one."""
    return answer(codec.encode(replace(codec.decode(request), serial=77)))


def forged(value):
    """Return a value that its own type would refuse, as somebody else's program may send it."""
    bad = object.__new__(Statistics)
    for name in ("count", "energy", "space", "classes", "gram", "moment"):
        object.__setattr__(bad, name, getattr(value, name))
    object.__setattr__(bad, "gram", value.gram[:-1])
    return bad


ANSWERS = {
    "silent": (lambda request, answer: None, "no answer in time"),
    "silent when all is done": (lambda request, answer: answer(request) and None, "no answer in"),
    "crashed": (lambda request, answer: "ClientApp stopped (8)", "ClientApp stopped"),
    "cut short": (lambda request, answer: answer(request)[:-9], "damaged or foreign"),
    "nothing": (lambda request, answer: b"", "truncated"),
    "noise": (lambda request, answer: np.random.default_rng(0).bytes(5000), "not a fedgram file"),
    "too large": (padded, "bytes; the limit is"),
    "replayed": (another_request, "answer to another request"),
    "another name": (changed(client="c0"), "answer in the name of 'c0'"),
    "no answer at all": (
        lambda request, answer: codec.encode([1, 2]),
        "expected an answer, got list",
    ),
    "not a number": (value(gram=lambda v: np.full(v.gram.shape, np.nan)), "float64, not int64"),
    "other shapes": (changed(value=lambda honest: forged(honest.value)), "damaged or foreign"),
    "another width": (
        changed(
            value=lambda honest: Statistics(
                gram=np.ones(1, np.int64),
                moment=np.ones((1, 10), np.int64),
                space=Space(width=1, bound=127),
                classes=honest.value.classes,
            )
        ),
        "space differs",
    ),
    "other classes": (value(classes=lambda v: tuple(f"x{c}" for c in v.classes)), "classes differ"),
    "another kind": (changed(value=7), "expected Statistics, got int"),
    "impossible": (value(gram=lambda v: -v.gram), "negative count or sum of squares"),
    "room for nobody": (value(count=2**48, energy=2**48), "leave room"),
    "work of no sense": (changed(flops="much"), "invalid FLOP count"),
    "a space of no sense": (
        value(space=lambda v: replace(v.space, steps=5)),
        "invalid answer (TypeError",
    ),
    "a refusal": (
        lambda request, answer: codec.encode(
            Refusal(
                client="c1", request_digest="", error="OSError", text="no\nspace " + "x" * 10**5
            )
        ),
        "no space xxx",
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_bad_answer_is_left_out_by_name_and_the_others_finish(tmp_path, name):
    say, reason = ANSWERS[name]
    out, config, _, _ = served(tmp_path, "afl", fault=at(101, "step", say), rules=MOST)
    told = [text for client, text in notes(out, "afl") if client == "c1"]
    assert any(text.startswith("left out") and reason in text for text in told)
    assert max(map(len, told)) < 500
    assert not [text for client, text in notes(out, "afl") if client in REST and "left" in text]
    written = (out / "afl" / "shared.safetensors").read_bytes()
    assert written == shared_bytes(config, "afl", REST, tmp_path / "expected")
    status = Membership(folder=tmp_path / "server").status()
    assert status["ledgers"][0]["members"] == REST
    assert [note["client"] for note in status["runs"][0]["methods"]["afl"]["left_out"]] == ["c1"]
    Membership(folder=tmp_path / "server").verify()


@pytest.mark.parametrize("name", ["silent", "cut short", "another name"])
def test_rounds_of_training_go_on_without_the_one_that_fails(tmp_path, name):
    say, reason = ANSWERS[name]
    fault = at(101, "step", say)
    out, config, _, _ = served(tmp_path, "fedavg", fault=fault, rules=MOST, method=SHORT)
    assert any(c == "c1" and reason in text for c, text in notes(out, "fedavg"))
    expected = in_process(config, "fedavg", REST)
    assert done(out, "fedavg")["shared_digest"] == expected.shared_digest
    assert done(out, "fedavg")["rounds"] == SHORT["fedavg"]["rounds"]


def test_a_site_that_falls_silent_after_its_upload_is_in_the_model(tmp_path):
    fault = at(101, "score deliver", lambda request, answer: None)
    out, config, _, _ = served(tmp_path, "apfl-linear", fault=fault, rules=MOST)
    everybody = ["c0", "c1", "c2", "c3"]
    written = (out / "apfl-linear" / "shared.safetensors").read_bytes()
    assert written == shared_bytes(config, "apfl-linear", everybody, tmp_path / "expected")
    told = [text for client, text in notes(out, "apfl-linear") if client == "c1"]
    assert told.count("left out: no answer in time") == 2  # in scoring, and in delivery
    assert done(out, "apfl-linear")["clients"] == 3


def test_a_slow_site_is_waited_for_where_all_must_answer(tmp_path):
    def slow(request, answer):
        return None

    with pytest.raises(FederationError, match=r"3 of 4 .* missing: c1 \(no answer in time\)"):
        served(tmp_path, "afl", fault=at(101, "step", slow), rules={"timeout": 30})
    status = Membership(folder=tmp_path / "server").status()
    assert status["ledgers"][0]["members"] == REST  # what was sent is kept
    out, config, carrier, _ = served(tmp_path, "afl", rules={"timeout": 30})
    assert [node for node, request in carrier.sent if kind(request) == "step"] == [101]
    assert out.name == "0001"  # the same run goes on, and its notes too
    assert ("c1", "left out: no answer in time") in notes(out, "afl")
    everybody = ["c0", "c1", "c2", "c3"]
    written = (out / "afl" / "shared.safetensors").read_bytes()
    assert written == shared_bytes(config, "afl", everybody, tmp_path / "expected")


def test_an_exchange_ends_soon_where_enough_have_answered(tmp_path):
    policy = {"quorum": 0.7, "timeout": 5000, "grace": 7}
    fault = at(101, "step score deliver", lambda request, answer: None)
    _, _, carrier, _ = served(tmp_path, "afl", fault=fault, rules=policy)
    assert carrier.time < 60


def test_a_site_that_comes_back_as_another_node_is_asked_again(tmp_path):
    folder, config = federation(tmp_path, "apfl-linear", rules={"timeout": 30})
    carrier = StandIn(offices(config, tmp_path / "sites"))

    def moves(asked, request, answer):
        if asked == 101 and kind(request) == "step":
            carrier.offices[201] = carrier.offices.pop(101)
            return None
        return answer(request)

    carrier.fault = moves
    out = run_federation(carrier, folder, print)
    assert ("c1", "reconnected as another node; asked again") in notes(out, "apfl-linear")
    assert (
        done(out, "apfl-linear")["shared_digest"] == in_process(config, "apfl-linear").shared_digest
    )


def test_a_site_that_is_back_before_it_is_missed_has_to_wait_and_gets_in(tmp_path):
    folder, config = federation(tmp_path, "apfl-linear", rules={"timeout": 90})

    class Late(StandIn):
        """Takes a while to see that a node is gone, as Flower does."""

        def nodes(self):
            return [node for node in self.offices if node != 101 or self.time < 50]

    carrier = Late(offices(config, tmp_path / "sites"))
    carrier.offices[201] = carrier.offices[101]
    carrier.fault = at(101, "step", lambda request, answer: None)
    out = run_federation(carrier, folder, print)
    assert any(
        c == "node 201" and "connected already" in text for c, text in notes(out, "apfl-linear")
    )
    assert ("c1", "connected, as node 201") in notes(out, "apfl-linear")
    assert (
        done(out, "apfl-linear")["shared_digest"] == in_process(config, "apfl-linear").shared_digest
    )


def test_a_crash_that_passes_is_no_loss_and_nothing_counts_twice(tmp_path):
    tries = []

    def sometimes(request, answer):
        tries.append(request)
        answer(request)  # the site has answered; the answer was lost
        return "connection lost" if len(tries) % 3 else answer(request)

    fault = at(101, "step score deliver", sometimes)
    out, config, _, _ = served(tmp_path, "fedavg", fault=fault, method=SHORT)
    assert done(out, "fedavg")["shared_digest"] == in_process(config, "fedavg").shared_digest
    assert [t for c, t in notes(out, "fedavg") if c == "c1"].count(
        "connection lost; asked again"
    ) == 2 * len(tries) // 3


def test_a_second_answer_to_one_question_is_not_counted(tmp_path):
    class Twice(StandIn):
        def receive(self, tickets):
            for ticket, content in super().receive(tickets):
                yield ticket, content
                yield ticket, content

    folder, config = federation(tmp_path, "afl", "fedavg", method=SHORT)
    out = run_federation(Twice(offices(config, tmp_path / "sites")), folder, print)
    for name in ("afl", "fedavg"):
        assert done(out, name)["shared_digest"] == in_process(config, name).shared_digest


def test_a_site_killed_after_it_was_handed_the_result_still_has_its_model(tmp_path):
    """It takes the last request again, without the answer that it gave."""
    short = {"ditto": {"rounds": 2, "epochs": 1, "rate": 0.1}}
    _, _, carrier, _ = served(tmp_path, "ditto", method=short)
    folder = tmp_path / "sites" / "c1"
    before = (folder / "models" / "ditto.safetensors").read_bytes()
    for path in folder.glob("cache/runs/*/answer-*-deliver"):
        path.unlink()
    node, request = next((n, r) for n, r in carrier.sent if n == 101 and kind(r) == "deliver")
    assert isinstance(codec.decode(carrier.offices[node].answer(request)), Answer)
    assert (folder / "models" / "ditto.safetensors").read_bytes() == before


def test_sums_of_different_modes_are_not_added_up(tmp_path):
    for secure in (True, False, True):
        out, config, _, _ = served(tmp_path, "afl", engine={"secure": secure})
        assert done(out, "afl")["shared_digest"] == in_process(config, "afl").shared_digest
        said = Membership(folder=tmp_path / "server").publish("afl", tmp_path / "model.safetensors")
        assert said["shared_digest"] == done(out, "afl")["shared_digest"]
        assert said["samples"] == sum(len(s.train) + len(s.valid) for s in members(config))


def test_two_servers_do_not_work_in_one_folder(tmp_path):
    folder, config = federation(tmp_path, "afl")
    carrier = StandIn(offices(config, tmp_path / "sites"))
    with (
        alone(folder, StandIn({})),
        pytest.raises(FederationError, match="another server is using this folder"),
    ):
        run_federation(carrier, folder, print)
    assert carrier.sent == []
    run_federation(carrier, folder, print)
