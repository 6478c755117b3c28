"""One model to the victim and another to the rest (Pasquini et al. 2022): no sum comes out."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from secure_support import Load, federation, names, plain, signers

from fedgram.core import codec
from fedgram.errors import PrivacyError
from fedgram.federation.shared import PerClient
from fedgram.secure import messages, party, server
from fedgram.secure.messages import NOTHING, Commitment
from fedgram.secure.party import Party
from fedgram.secure.server import Server

VICTIM = "c02"
LIVE, DEAD = "a model that shows the samples", "a model of zeros"
COMMITMENT = Commitment(step="update", broadcast=codec.digest(DEAD))


def update(name, model):
    """Return a client's update: a dead model gives zeros, whatever the samples are."""
    return plain(name) if model == LIVE else Load()


class Careless(Party):
    """Does not compare the broadcast with the one that the session started with."""

    def _check_broadcast(self, broadcast):
        pass


@dataclass
class Attack:
    """A server that sends the victim another broadcast than the rest, with five clients."""

    kind: type = Party
    announced: dict = field(default_factory=dict)  # commitments other than `COMMITMENT`, by name
    signed: bool = False

    def total(self):
        """Return the sum that the server reads, in the rounds of the protocol."""
        own = Server(COMMITMENT)
        known = signers(names(5)) if self.signed else {}
        calls = dict.fromkeys(names(5), own.call)
        for name, commitment in self.announced.items():
            calls[name] = replace(own.call, commitment=commitment)
        parties = {
            name: self.kind(name, call, signer=known.get(name)) for name, call in calls.items()
        }
        roster = own.roster([each.keys() for each in parties.values()])
        parcels = own.parcels([each.shares(roster) for each in parties.values()])
        for name, each in parties.items():
            model = LIVE if name == VICTIM else DEAD
            sums = update(name, model)
            own.add(each.masked(sums, parcels[name], codec.digest(model)))
        survivors = own.survivors()
        if known:
            survivors = own.survivors([each.confirm(survivors) for each in parties.values()])
        return own.total([each.reveal(survivors) for each in parties.values()])


@pytest.mark.parametrize("signed", [False, True])
def test_a_client_refuses_another_broadcast_than_the_announced_one(signed):
    with pytest.raises(PrivacyError, match="not the one that the session started with"):
        Attack(signed=signed).total()


def test_announcing_another_broadcast_to_the_victim_gives_shares_that_do_not_open():
    other = replace(COMMITMENT, broadcast=codec.digest(LIVE))
    with pytest.raises(PrivacyError, match="clients received different keys"):
        Attack(announced={VICTIM: other}).total()


def test_with_signatures_clients_notice_before_they_share_anything():
    other, own, known = replace(COMMITMENT, step="other"), Server(COMMITMENT), signers(names(5))
    calls = dict.fromkeys(names(5), own.call)
    calls[VICTIM] = replace(own.call, commitment=other)
    parties = {name: Party(name, call, signer=known[name]) for name, call in calls.items()}
    roster = own.roster([each.keys() for each in parties.values()])
    for each in parties.values():
        with pytest.raises(PrivacyError, match=r"the signature of .* asked about something else"):
            each.shares(roster)


def test_masks_of_different_broadcasts_do_not_cancel():
    """Also if clients compared nothing: the masks are made of what each one received."""
    total = Attack(kind=Careless).total()
    assert (total.values != plain(VICTIM).values).mean() > 0.99
    # Far from small integers: noise of all 64 bits.
    assert np.abs(total.values.astype(float)).mean() > 2**60


def test_without_the_binding_the_attack_reads_the_victims_update(monkeypatch):
    """A planted mistake, so that the tests above are those of a real attack."""
    for module in (party, server):
        monkeypatch.setattr(module, "binding", lambda roster, _: roster.digest())
    assert Attack(kind=Careless).total() == plain(VICTIM)


FIELDS = {
    "federation": st.text(max_size=3),
    "run": st.text(max_size=3),
    "ask_number": st.integers(0, 3),
    "step": st.sampled_from(["update", "score"]),
    "method": st.sampled_from(["fedavg", "afl"]),
    "settings": st.sampled_from([NOTHING, codec.digest({"rate": 1})]),
    "classes": st.sampled_from([NOTHING, codec.digest(["no", "yes"])]),
    "broadcast": st.sampled_from([NOTHING, codec.digest(LIVE)]),
    "state": st.sampled_from(["", "0" * 64]),
    "totals": st.sampled_from([NOTHING, codec.digest({"statistics": ["c00"]})]),
}
COMMITMENTS = st.builds(Commitment, **FIELDS)


@given(COMMITMENTS, COMMITMENTS)
def test_shares_open_between_equal_commitments_only(one, two):
    own = Server(one)
    parties = [Party(name, own.call) for name in names(2)]
    parties.append(Party(names(3)[2], replace(own.call, commitment=two)))
    roster = own.roster([each.keys() for each in parties])
    parcels = own.parcels([each.shares(roster) for each in parties])

    def masked():
        return parties[0].masked(plain("c00"), parcels["c00"], one.broadcast)

    if one == two:
        masked()
    else:
        with pytest.raises(PrivacyError, match="clients received different keys"):
            masked()


def test_every_field_of_a_commitment_is_bound():
    assert set(FIELDS) == {each.name for each in messages.Commitment.__dataclass_fields__.values()}


def test_a_secure_sum_refuses_a_broadcast_with_parts():
    engine = federation(4)
    parts = PerClient(common=DEAD, own={VICTIM: LIVE})
    with pytest.raises(PrivacyError, match="all clients receive the same broadcast"):
        engine.sum(lambda client, model: update(client.id, model), parts)
    assert engine.sum(lambda client, model: update(client.id, model), DEAD) == Load()
