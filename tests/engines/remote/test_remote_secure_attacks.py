"""Servers that do not keep to the protocol of secure sums, against sites that answer requests."""

import gc
import json
import multiprocessing
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
from remote_support import kind, served
from secure_sites_support import DEAD, LIVE, Remote, loads, node, office  # noqa: F401
from secure_support import Load, leaks, names, plain, signers, total_of

from fedgram.core import codec
from fedgram.engines.remote.messages import Answer, Refusal, ScoreRequest, request_digest
from fedgram.engines.remote.policy import AnswerRecord
from fedgram.errors import FederationError, PrivacyError
from fedgram.federation.shared import PerClient
from fedgram.federation.step import step
from fedgram.methods.afl import AFL
from fedgram.secure import party, server
from fedgram.secure.messages import Reveal, SessionStart, Survivors
from fedgram.secure.party import Party

pytestmark = pytest.mark.usefixtures("loads")
COUNT = 6  # of whom five must stay
VICTIM = "c02"


def hostile(change):
    """Return a fault: requests are changed on their way, and answers pass for those asked for."""

    def fault(asked, request, answer):
        sent = codec.decode(request)
        other = change(asked, sent)
        if other is sent:
            return answer(request)
        honest = codec.decode(answer(codec.encode(other)))
        return codec.encode(replace(honest, request_digest=request_digest(request)))

    return fault


# One model to the victim, another to the rest (Pasquini et al. 2022).


def other_model(asked, request):
    """Send the victim the live model, once the others have been promised a dead one."""
    if asked == node(VICTIM) and request.kind == "masked":
        return replace(request, broadcast=replace(request.broadcast, broadcast=LIVE))
    return request


def other_session(asked, request):
    """Tell the victim from the start that the session is about the live model."""
    if asked == node(VICTIM) and isinstance(request.broadcast.content, SessionStart):
        about = request.broadcast.content
        changed = replace(about.commitment, broadcast=codec.digest(LIVE))
        content = replace(about, commitment=changed)
        return replace(request, broadcast=replace(request.broadcast, content=content))
    return other_model(asked, request)


@pytest.mark.parametrize("signed", [False, True])
def test_the_victim_refuses_a_model_that_was_not_announced(tmp_path, signed):
    known = signers(names(COUNT)) if signed else None
    remote = Remote(tmp_path, COUNT, hostile(other_model), signers=known)
    assert remote.sum(DEAD) == Load()  # of the five others
    assert any(
        who == VICTIM and "not the one that the session started with" in text
        for who, text in remote.notes
    )
    assert leaks([remote.view]) == set()


@pytest.mark.parametrize("signed", [False, True])
def test_a_session_about_another_model_gives_no_sum(tmp_path, signed):
    known = signers(names(COUNT)) if signed else None
    remote = Remote(tmp_path, COUNT, hostile(other_session), signers=known)
    with pytest.raises(FederationError, match="sites answered and 5 are needed"):
        remote.sum(DEAD)
    assert not any(isinstance(message, Reveal) for message in remote.view)


def test_without_the_binding_the_server_reads_the_victims_update(tmp_path, monkeypatch):
    """A planted mistake: this is what the binding is for."""
    monkeypatch.setattr(Party, "_check_broadcast", lambda *_: None)
    for module in (party, server):
        monkeypatch.setattr(module, "binding", lambda roster, _: roster.digest())
    assert Remote(tmp_path, COUNT, hostile(other_model)).sum(DEAD) == plain(VICTIM)


def test_without_the_comparison_the_masks_do_not_cancel(tmp_path, monkeypatch):
    monkeypatch.setattr(Party, "_check_broadcast", lambda *_: None)
    found = Remote(tmp_path, COUNT, hostile(other_model)).sum(DEAD)
    assert np.abs(found.values.astype(float)).mean() > 2**60


@pytest.mark.parametrize("change", [{"seed": 1}, {"settings": {"ridge": 2.0}}, {"run": "1" * 32}])
@pytest.mark.parametrize("kinds", ["keys", "shares", "masked", "confirm", "reveal"])
def test_the_terms_of_a_session_are_the_same_in_all_rounds(tmp_path, change, kinds):
    def other_terms(asked, request):
        if asked == node(VICTIM) and request.kind == kinds:
            return replace(request, terms=replace(request.terms, **change))
        return request

    remote = Remote(tmp_path, COUNT, hostile(other_terms))
    remote.sum()
    said = [text for who, text in remote.notes if who == VICTIM]
    assert any("is about another" in text or "unknown here" in text for text in said)


def test_a_sum_or_a_score_of_parts_is_refused(tmp_path):
    remote = Remote(tmp_path, COUNT)
    parts = PerClient(common=DEAD, own={VICTIM: LIVE})
    with pytest.raises(PrivacyError, match="all clients receive the same broadcast"):
        remote.sum(parts)
    assert remote.carrier.sent == []


def test_scores_are_not_asked_for_under_the_name_of_another_step(tmp_path):
    """Sums are recorded by the names of their steps: other names would hide how they differ."""
    remote = Remote(tmp_path, 3)
    scoring = ScoreRequest(part=None, round=1)
    with pytest.raises(FederationError, match="expected scores as the step 'score'"):
        remote.engine._masked_total("statistics", scoring, names(3), Load())


# Signed by every site, each round in a process of its own.


def test_signed_rounds_give_the_sum(tmp_path):
    remote = Remote(tmp_path, COUNT, signers=signers(names(COUNT)))
    assert remote.sum() == total_of(names(COUNT))
    assert Counter(kind(request) for _, request in remote.carrier.sent)["confirm"] == COUNT
    assert leaks([remote.view]) == set()


def test_a_site_of_unpinned_keys_ends_the_sum(tmp_path):
    known = signers(names(COUNT))
    stranger = signers(names(COUNT))[VICTIM]  # in its own right, by a key that nobody has pinned
    remote = Remote(tmp_path, COUNT, signers={**known, VICTIM: stranger})
    with pytest.raises(FederationError, match="the signature of c02 is invalid"):
        remote.sum()


def test_without_confirmations_of_pinned_keys_nothing_is_revealed(tmp_path):
    def forged(asked, request):
        if request.kind != "reveal":
            return request
        content = request.broadcast.content
        signatures = dict.fromkeys(content.signatures, "00" * 64)
        content = replace(content, signatures=signatures)
        return replace(request, broadcast=replace(request.broadcast, content=content))

    remote = Remote(tmp_path, COUNT, hostile(forged), signers=signers(names(COUNT)))
    with pytest.raises(FederationError, match="the signature of"):
        remote.sum()
    assert not any(isinstance(message, Reveal) for message in remote.view)


# Two answers to the last question.


@pytest.fixture
def last_question(tmp_path):
    """Return a site that was asked everything but the last round, and that request."""
    remote = Remote(tmp_path, COUNT, difference=0)
    kept = {}

    def hold(asked, request, answer):
        if asked == node("c00") and kind(request) == "reveal":
            kept["request"] = codec.decode(request)
            return None
        return answer(request)

    remote.carrier.fault = hold
    remote.sum()
    return tmp_path, kept["request"]


def with_survivors(request, some):
    content = Survivors(names=tuple(some), signatures=request.broadcast.content.signatures)
    return codec.encode(replace(request, broadcast=replace(request.broadcast, content=content)))


def at_once(folder, requests, meet=True):
    """Return the answers of a site to requests that two processes of it get at the same time."""
    context = multiprocessing.get_context("fork")
    barrier, queue = context.Barrier(len(requests)), context.Queue()

    def both_inside(self, survivors, reveal=Party.reveal):
        said = reveal(self, survivors)
        with suppress(threading.BrokenBarrierError):
            # Reached by both only if nothing keeps them apart; then one writes after the other.
            time.sleep(0.3 * barrier.wait(1.0))
        return said

    def work(request):
        gc.freeze()  # what other tests left, sessions with threads that are not here among it
        if meet:
            Party.reveal = both_inside
        queue.put(office(folder, "c00", difference=0).answer(request))

    workers = [context.Process(target=work, args=(request,)) for request in requests]
    for each in workers:
        each.start()
    said = [queue.get(timeout=60) for _ in workers]
    for each in workers:
        each.join()
    return said


def test_of_two_processes_one_reveals(last_question):
    folder, request = last_question
    everybody = request.broadcast.content.names
    # Both lists are possible for a site that has confirmed none, as without signers.
    state = next((folder / "c00" / "runs").glob("*/party-*"))
    kept = codec.load(state)
    codec.save(state, {**kept, "party": {**kept["party"], "confirmed": None}}, private=True)
    asked = [with_survivors(request, everybody), with_survivors(request, everybody[:5])]
    said = [codec.decode(answer) for answer in at_once(folder, asked)]
    assert sorted(type(each).__name__ for each in said) == ["Answer", "Refusal"]


def test_the_same_last_question_gets_the_same_answer_in_two_processes(last_question):
    folder, request = last_question
    one, two = at_once(folder, [codec.encode(request)] * 2, meet=False)
    assert one == two
    assert isinstance(codec.decode(one), Answer)
    assert AnswerRecord(folder / "c00").to_dict()["sums"][0]["times"] == 1


# Rosters that differ by few.


def is_answer(message):
    return isinstance(message, Answer)


def sums_of(folder, *rosters, **policy):
    """Return the totals over these members, one after the other."""
    count = 1 + max(int(name[1:]) for roster in rosters for name in roster)
    remote = Remote(folder, count, **policy)
    return [remote.sum(clients=roster) for roster in rosters]


def test_a_roster_that_differs_by_one_is_refused(tmp_path):
    everybody = names(COUNT)
    with pytest.raises(FederationError, match=r"the members differ by 1 .*accept.difference"):
        sums_of(tmp_path, everybody, everybody[:5])


def test_without_the_rule_the_difference_is_the_contribution_of_one(tmp_path):
    """What the rule is for; 0 turns it off."""
    everybody = names(COUNT)
    one, two = sums_of(tmp_path, everybody, everybody[:5], difference=0)
    assert one - two == plain(everybody[5])


@pytest.mark.parametrize("change", [0, 1, 2, 3, 4])
def test_rosters_differ_by_nobody_or_by_enough(tmp_path, change):
    first, second = names(5), names(5 + change)
    if 0 < change < 3:
        with pytest.raises(FederationError, match=f"the members differ by {change}"):
            sums_of(tmp_path, first, second, difference=3)
    else:
        both = sums_of(tmp_path, first, second, difference=3)
        assert both == [total_of(first), total_of(second)]


def test_by_default_a_step_is_summed_with_the_same_members_only(tmp_path):
    """Pairs that differ by enough do not suffice: all - {0, 1, 2} - {3, 4, 5} is one site."""
    every, one, two = names(7), names(3), names(6)[3:]
    parts = sums_of(tmp_path / "number", one, two, every, difference=3)
    assert parts[2] - parts[0] - parts[1] == plain(every[6])
    for rosters in ([one, every], [every, one], [every, names(6)]):
        folder = tmp_path / "-".join(map(str, map(len, rosters)))
        with pytest.raises(FederationError, match="expected the same members"):
            sums_of(folder, *rosters)
    assert sums_of(tmp_path / "again", every, every) == [total_of(every)] * 2


def test_other_members_are_accepted_once_a_site_allows_them(tmp_path):
    fewer = names(4)
    Remote(tmp_path, 5, run="1").sum()
    with pytest.raises(FederationError, match="expected the same members"):
        Remote(tmp_path, 5, run="2").sum(clients=fewer)
    for name in fewer:
        AnswerRecord(tmp_path / name).allow_others()
    assert Remote(tmp_path, 5, run="3").sum(clients=fewer) == total_of(fewer)


def test_every_sum_that_was_answered_counts_not_only_the_last(tmp_path):
    first, second = names(5), names(9)
    with pytest.raises(FederationError, match="the members differ by 1"):
        sums_of(tmp_path, first, second, names(6), difference=3)


def test_one_that_drops_out_of_a_repeated_sum_ends_it_before_anything_is_revealed(tmp_path):
    remote = Remote(tmp_path, COUNT)
    remote.sum()
    before = len(remote.carrier.answered)

    def silent(asked, request, answer):
        away = asked == node(VICTIM) and kind(request) in ("masked", "confirm", "reveal")
        return None if away else answer(request)

    remote.carrier.fault = silent
    with pytest.raises(FederationError, match="the members differ by 1"):
        remote.sum()
    later = map(codec.decode, remote.carrier.answered[before:])
    assert not any(isinstance(answer.value, Reveal) for answer in later if is_answer(answer))


def test_the_record_outlives_runs_and_processes(tmp_path):
    everybody = names(COUNT)
    assert Remote(tmp_path, COUNT, run="1").sum() == total_of(everybody)
    with pytest.raises(FederationError, match="the members differ by 1"):
        Remote(tmp_path, COUNT, run="2").sum(clients=everybody[:5])
    (entry,) = AnswerRecord(tmp_path / "c00").to_dict()["sums"]
    assert (entry["members"], entry["times"]) == (everybody, 1)


def test_an_unreadable_record_refuses(tmp_path):
    Remote(tmp_path, COUNT).sum()
    for name in names(COUNT):
        (tmp_path / name / "answers.json").write_text("{}")
    with pytest.raises(FederationError, match="cannot be used"):
        Remote(tmp_path, COUNT, run="1").sum()


# Who must be in a sum, and how many questions there may be.


def test_too_few_members_or_others_than_required_are_refused(tmp_path):
    with pytest.raises(FederationError, match=r"a secure sum of 6 members; .*accept.members"):
        Remote(tmp_path / "1", COUNT, members=7).sum()
    with pytest.raises(FederationError, match=r"without c07; .*accept.peers"):
        Remote(tmp_path / "2", COUNT, peers=("c01", "c07")).sum()
    assert Remote(tmp_path / "3", COUNT, members=6, peers=("c01",)).sum() == total_of(names(COUNT))


def test_survivors_are_checked_as_rosters_are(tmp_path):
    def silent(asked, request, answer):
        away = asked == node(VICTIM) and kind(request) in ("masked", "confirm", "reveal")
        return None if away else answer(request)

    with pytest.raises(FederationError, match="a secure sum of 5 members"):
        Remote(tmp_path / "1", COUNT, silent, members=6).sum()
    with pytest.raises(FederationError, match="without c02"):
        Remote(tmp_path / "2", COUNT, silent, peers=(VICTIM,)).sum()


def test_the_threshold_is_the_sites_own(tmp_path):
    remote = Remote(tmp_path, COUNT)
    remote.engine._threshold = 0.5
    with pytest.raises(FederationError, match="a threshold of 4 among 6 clients is not safe"):
        remote.sum()


@pytest.mark.parametrize(("policy", "most"), [("questions", 3), ("questions_per_run", 2)])
def test_questions_are_counted_on_disk(tmp_path, policy, most):
    for number in range(most):  # each in processes of its own
        run = str(number) if policy == "questions" else "0"
        remote = Remote(tmp_path, 3, run=run, **{policy: most})
        if policy == "questions":
            remote.sum()
        else:
            remote.engine._serial = remote.engine._asked = number
            remote.engine._replay_log = type(remote.engine._replay_log)(tmp_path / f"log {number}")
            remote.sum()
    remote = Remote(tmp_path, 3, run="9" if policy == "questions" else "0", **{policy: most})
    remote.engine._serial = remote.engine._asked = most
    remote.engine._replay_log = type(remote.engine._replay_log)(tmp_path / "last")
    with pytest.raises(FederationError, match="the rules of this site do not allow it"):
        remote.sum()
    log = (tmp_path / "c00" / "refusals.log").read_text()
    assert f"its limit is {most}" in log


def test_a_repeated_request_is_counted_once(tmp_path):
    remote = Remote(tmp_path, 3)
    remote.sum()
    for asked, request in list(remote.carrier.sent):
        remote.carrier.offices[asked].answer(request)
    assert AnswerRecord(tmp_path / "c00").to_dict()["answers"] == 1


# Nothing beside the sum.


def form(value):
    """Return a message without its contents: fields, types and lengths."""
    if isinstance(value, np.ndarray):
        return [value.dtype.name, *value.shape]
    if is_dataclass(value):
        inside = {each.name: form(getattr(value, each.name)) for each in fields(value)}
        return {"type": type(value).__name__, **inside}
    if isinstance(value, dict):
        return {key: form(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [form(each) for each in value]
    if isinstance(value, str):
        return len(value)
    return value if isinstance(value, int) else type(value).__name__


def transcript(carrier):
    sent = [[asked, len(request), form(codec.decode(request))] for asked, request in carrier.sent]
    return sent, [[len(answer), form(codec.decode(answer))] for answer in carrier.answered]


@pytest.fixture
def honest(loads, monkeypatch):  # noqa: F811
    monkeypatch.undo()


@pytest.mark.parametrize(
    "method", ["afl", "fedhip", pytest.param("logistic", marks=pytest.mark.wide)]
)
def test_redistributed_samples_give_the_same_transcript(tmp_path, honest, method):
    """Fields, lengths and all numbers that are not masked, keys or digests."""
    found = []
    for alpha in (0.2, 100.0):
        data = {"clients": 4, "dirichlet": alpha, "seed": 0}
        folder = tmp_path / str(alpha)
        folder.mkdir()
        # Settings that are selected differ in length: they depend on who has which samples.
        given = {"fedhip": {"alpha": 10.0, "ridge": 100.0}}
        _, _, carrier, _ = served(folder, method, engine={"secure": True}, data=data, method=given)
        found.append(transcript(carrier))
    assert found[0] == found[1]


def test_operations_are_not_counted_in_the_answers_of_a_secure_run(tmp_path, honest):
    def flops(secure):
        folder = tmp_path / str(secure)
        folder.mkdir()
        _, _, carrier, _ = served(folder, "afl", engine={"secure": secure})
        return {answer.flops for answer in map(codec.decode, carrier.answered)}

    assert flops(True) == {0}
    assert flops(False) != {0}


def test_refusals_tell_nothing_of_the_data(tmp_path, monkeypatch):
    def statistics(self, client, _):
        raise RuntimeError("sample 17 of class leprosy")

    monkeypatch.setattr(AFL, "statistics", step(statistics))
    remote = Remote(tmp_path, 3)
    monkeypatch.setattr(remote.engine, "_example", lambda *_: Load())
    with pytest.raises(FederationError, match="this site cannot compute the answer"):
        remote.sum()
    assert b"leprosy" not in remote.seen()
    refusals = [codec.decode(answer) for answer in remote.carrier.answered]
    assert {(r.error, r.text) for r in refusals if isinstance(r, Refusal)} == {
        (
            "FedgramError",
            "this site cannot compute the answer; the reason is in refusals.log at the site",
        )
    }
    assert "leprosy" in (tmp_path / "c00" / "refusals.log").read_text()


def test_the_record_of_answers_is_json_that_people_can_read(tmp_path):
    Remote(tmp_path, 3).sum()
    plain_ = json.loads((tmp_path / "c00" / "answers.json").read_text())
    assert plain_["sums"][0]["members"] == names(3)
