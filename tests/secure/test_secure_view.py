"""What the server of a secure sum sees: nothing of an individual, and faults are noticed."""

import dataclasses
import hashlib

import pytest
from secure_support import Load, federation, leaks, names, plain, session, stripped, total_of

from fedgram.core import codec
from fedgram.errors import PrivacyError
from fedgram.secure.flatten import flatten
from fedgram.secure.messages import Masked, Reveal, Roster
from fedgram.secure.party import Party

COUNT = 12
LATE = {"late": ["c03"]}


class Reusing(Party):
    """Has the same secrets in every session."""

    def _secret(self):
        self.drawn = getattr(self, "drawn", 0) + 1
        return hashlib.sha256(f"{self.name} {self.drawn}".encode()).digest()


class Bare(Party):
    """Leaves its own mask out."""

    def _masks(self):
        masks = super()._masks()
        next(masks)
        return masks


class Talkative(Party):
    """Reveals both secrets of one client that stayed."""

    def reveal(self, survivors):
        said = super().reveal(survivors)
        return dataclasses.replace(said, keys={**said.keys, "c05": self._received["c05"][0].hex()})


@pytest.mark.parametrize("absent", [{}, LATE, {"masked": ["c01"], "reveal": ["c02"], **LATE}])
def test_the_server_learns_nothing_of_an_individual(absent):
    sums, views = zip(*(session(COUNT, absent=absent) for _ in range(3)), strict=True)
    away = {name for stage in ("masked", "late") for name in absent.get(stage, ())}
    assert all(total == total_of(set(names(COUNT)) - away) for total in sums)
    assert leaks(views) == set()


def test_masks_that_are_used_twice_are_noticed(monkeypatch):
    monkeypatch.setattr(Roster, "digest", lambda self: bytes(32))
    sums, views = zip(*(session(COUNT, party=Reusing) for _ in range(2)), strict=True)
    assert sums[0] == sums[1] == total_of(names(COUNT))  # the sums are right all the same
    assert leaks(views) == {(name, "difference of two sums") for name in names(COUNT)}


def test_secrets_that_are_used_twice_still_give_other_masks():
    _, views = zip(*(session(COUNT, party=Reusing) for _ in range(2)), strict=True)
    assert leaks(views) == set()


def test_a_missing_mask_of_ones_own_is_noticed():
    _, view = session(COUNT, party=Bare, absent=LATE)
    assert ("c03", "contribution") in leaks([view])
    assert (stripped(view)["c03"] == flatten(plain("c03"))[1]).all()


def test_two_secrets_of_one_client_are_noticed():
    refused, view = session(COUNT, party=Talkative)
    assert "shares of other clients" in str(refused)  # this server did not want to know
    assert leaks([view]) == {("c05", "contribution")}
    assert (stripped(view)["c05"] == flatten(plain("c05"))[1]).all()


def test_fifty_clients_of_whom_ten_drop_out_after_sharing_keys():
    away = names(50)[::5]
    total, view = session(50, absent={"masked": away})
    assert total == total_of(set(names(50)) - set(away))
    assert leaks([view]) == set()


@pytest.mark.parametrize("stage", ["keys", "shares", "masked", "late", "reveal"])
def test_with_fewer_than_the_threshold_nothing_is_revealed(stage):
    away = names(COUNT)[:4]  # nine are needed
    outcome, view = session(COUNT, absent={stage: away})
    if stage == "keys":  # a sum of those who came
        assert outcome == total_of(names(COUNT)[4:])
        return
    assert isinstance(outcome, PrivacyError)
    assert "8 of 12 clients" in str(outcome)
    assert leaks([view] if any(isinstance(m, Masked) for m in view) else []) == set()
    assert stage == "reveal" or not any(isinstance(m, Reveal) for m in view)


def test_messages_of_different_contributions_are_of_the_same_sizes():
    def nothing(client, _):
        return Load()

    (_, one), (_, two) = session(5), session(5, step=nothing)
    assert [codec.size(message) for message in one] == [codec.size(message) for message in two]


def test_what_is_recorded_is_what_the_server_saw():
    view = []
    engine = federation(5, on_message=lambda _, message: view.append(message))
    engine.sum(lambda client, _: plain(client.id))
    counted = sum(ask.bytes_up + ask.bytes_down for ask in engine.asks)
    assert counted == sum(codec.size(message) for message in view)
    assert [ask.clients for ask in engine.asks] == [5, 5, 5, 5]
