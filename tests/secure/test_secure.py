"""Secure sums: sharing, masks, flat values, and all that a client refuses."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from secure_support import Load, names, plain, signers, total_of

from fedgram.core import codec
from fedgram.core.census import DataSchema
from fedgram.core.samples import Labels
from fedgram.core.statistics import Statistics
from fedgram.core.tally import Tally
from fedgram.core.weighted import Weighted
from fedgram.errors import DataError, ExactnessError, MismatchError, PrivacyError
from fedgram.features.grid import Grid
from fedgram.methods.scaffold import Corrected
from fedgram.secure import masks, shamir
from fedgram.secure.flatten import flatten, restore
from fedgram.secure.messages import SealedShares, Survivors
from fedgram.secure.party import (
    FEWEST,
    Party,
    least_threshold,
    pair_mask,
    require_threshold,
    self_mask,
)
from fedgram.secure.server import Server

SECRETS = st.binary(min_size=32, max_size=32)


def test_the_field_is_one():
    """Fermat's test in some bases: a number that is not prime fails it in most."""
    assert all(pow(base, shamir.PRIME - 1, shamir.PRIME) == 1 for base in range(2, 40))
    assert shamir.PRIME > 2**256


@given(SECRETS, st.integers(1, 6), st.integers(0, 3), st.randoms())
def test_any_so_many_shares_give_the_secret(secret, threshold, more, random):
    shares = dict(enumerate(shamir.split(secret, threshold, threshold + more), 1))
    some = dict(random.sample(sorted(shares.items()), threshold))
    assert shamir.recover(some) == secret
    assert {len(share) for share in shares.values()} == {33}


def test_too_few_shares_fit_every_secret():
    """With one share missing there is, for any secret at all, a share that would give it."""
    first, _ = shamir.split(bytes(32), 2, 2)
    for secret in (0, 1, 2**255):
        # The line through (0, secret) and (1, first), at 2.
        other = (2 * int.from_bytes(first, "big") - secret) % shamir.PRIME
        found = shamir.recover({1: first, 2: other.to_bytes(33, "big")})
        assert int.from_bytes(found, "big") == secret


@pytest.mark.parametrize("threshold", [2, 3, 8])
def test_one_share_less_does_not_give_the_secret(threshold):
    secret = bytes(range(32))
    shares = dict(enumerate(shamir.split(secret, threshold, threshold), 1))
    assert shamir.recover(shares) == secret
    del shares[threshold]
    assert _found(shares) != secret


def _found(shares):
    try:
        return shamir.recover(shares)
    except DataError:  # a number just above 2^256
        return None


def test_shares_that_do_not_fit_are_refused_or_give_another_secret():
    shares = shamir.split(bytes(32), 3, 3)
    high = (shamir.PRIME - 1).to_bytes(33, "big")
    assert _found({1: shares[0], 2: shares[1], 3: shares[0]}) != bytes(32)
    with pytest.raises(DataError, match="do not belong together"):
        shamir.recover({1: high})


@given(SECRETS, st.sampled_from([0, 1, 2**15 - 1, 2**15, 2**15 + 3, 2**16 + 1]))
def test_a_mask_is_one_stream_whatever_the_pieces(key, size):
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * size))
    start = np.arange(size, dtype=np.uint64)
    vector = start.copy()
    masks.add_mask(vector, key)
    assert (vector - start).astype("<u8").tobytes() == stream
    masks.add_mask(vector, key, negative=True)
    assert (vector == start).all()


def test_purposes_do_not_run_into_each_other():
    keys = {masks.derive(bytes(32), *p) for p in ((b"ab", b"c"), (b"a", b"bc"), (b"abc",))}
    assert len(keys) == 3


def test_masks_are_of_one_roster_and_one_client():
    one, two = bytes(32), bytes(range(32))
    own = {self_mask(roster, name, one) for roster in (one, two) for name in "ab"}
    pairs = {
        pair_mask(roster, "a", name, one, masks.public(two))[0]
        for roster in (one, two)
        for name in "bc"
    }
    assert len(own) == len(pairs) == 4


def test_of_two_clients_one_takes_the_mask_off():
    one, two = bytes(32), bytes(range(32))
    here = pair_mask(one, "a", "b", one, masks.public(two))
    there = pair_mask(one, "b", "a", two, masks.public(one))
    assert here[0] == there[0]
    assert (here[1], there[1]) == (False, True)


def test_a_public_key_that_gives_away_the_secret_is_refused():
    with pytest.raises(PrivacyError, match="public key is invalid"):
        masks.agree(bytes(range(32)), bytes(32))


def values():
    rng = np.random.default_rng(0)
    labels = Labels(np.array([0, 1, 1]), ("no", "yes"))
    rows = Grid()(rng.normal(size=(3, 4)))
    weighted = Weighted.of(rng.normal(size=5), 3, places=54)
    yield Statistics.of(rows, labels)
    yield Tally.of(np.array([0, 1, 0]), labels, auroc=0.5)
    yield weighted
    yield Weighted.of(rng.normal(size=5), np.arange(5))
    yield DataSchema(space=rows.space, classes=("no", "yes"))
    yield Corrected(theta=weighted, control=Weighted.of(rng.normal(size=5), 1))


@pytest.mark.parametrize("value", list(values()), ids=lambda value: type(value).__name__)
def test_flat_values_add_up_as_values_do(value):
    layout, vector = flatten(value)
    sent = codec.decode(codec.encode(layout))  # as it arrives
    assert sent == layout
    assert restore(sent, vector) == value
    assert restore(sent, vector + vector + vector) == value + value + value
    assert restore(sent, vector - vector - vector) == -value


@codec.register("Narrow/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Narrow(Load):
    """Arrays that wrap earlier than at 2^64."""


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.int64, np.uint64])
def test_arrays_wrap_as_in_the_open(kind):
    edge = Narrow(values=np.array([np.iinfo(kind).max, np.iinfo(kind).min, 1], kind))
    layout, vector = flatten(edge)
    assert restore(layout, vector + vector) == edge + edge


@pytest.mark.parametrize("bad", [Load(values=np.zeros(2)), Load(values=np.zeros(2, bool))])
def test_what_is_not_of_integers_is_refused(bad):
    with pytest.raises(ExactnessError, match=r"Load.values: expected integers.*use a grid"):
        flatten(bad)


def test_numbers_that_a_sum_might_not_hold_are_refused():
    flatten(Load(count=2**62), clients=1)
    with pytest.raises(ExactnessError, match="over 3 clients could overflow"):
        flatten(Load(count=2**62), clients=3)


class Table:
    """A server with parties, taken through the rounds step by step."""

    def __init__(self, count=5, *, signed=False, kinds=None, **options):
        self.server = Server(**options)
        known = signers(names(count)) if signed else {}
        self.parties = {
            name: (kinds or {}).get(name, Party)(name, self.server.call, signer=known.get(name))
            for name in names(count)
        }

    def each(self, what, *sent):
        return [getattr(party, what)(*sent) for party in self.parties.values()]

    def enrolled(self):
        self.roster = self.server.roster(self.each("keys"))
        return self

    def shared(self):
        self.enrolled()
        self.parcels = self.server.parcels(self.each("shares", self.roster))
        return self

    def contributed(self, away=()):
        self.shared()
        for name in sorted(set(self.parties) - set(away)):
            self.server.add(self.parties[name].masked(plain(name), self.parcels[name]))
        self.survivors = self.server.survivors()
        return self


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_clients_are_refused(count):
    with pytest.raises(PrivacyError, match="hides nothing"):
        Table(count).enrolled()


@given(st.integers(3, 200), st.floats(0.5, 0.99))
def test_two_disjoint_lists_of_survivors_cannot_both_be_completed(count, share):
    """Those on the server's side reveal for both lists, and the others for one."""
    colluding = int((2 * share - 1) * count - 1e-6)
    threshold = least_threshold(count, share)
    assert 2 * threshold > count + colluding
    if threshold <= count:
        require_threshold(threshold, count, share)
    if threshold > FEWEST:
        with pytest.raises(PrivacyError, match="not safe"):
            require_threshold(threshold - 1, count, share)


@pytest.mark.parametrize(
    ("count", "threshold"), [(5, 2), (4, 2), (8, 4), (8, 5), (5, 6), (3, 2), (6, 4)]
)
def test_a_client_refuses_an_unsafe_threshold(count, threshold):
    table = Table(count).enrolled()
    roster = replace(table.roster, threshold=threshold)
    with pytest.raises(PrivacyError, match="not safe"):
        table.parties["c00"].shares(roster)


def other_own_key(roster):
    first, *rest = roster.members
    return replace(roster, members=(replace(first, mask=bytes(32).hex()), *rest))


def somebody_twice(roster):
    return replace(roster, members=(*roster.members, roster.members[-1]), threshold=5)


def one_key_for_two(roster):
    *rest, last = roster.members
    return replace(roster, members=(*rest, replace(last, mask=rest[1].mask)))


def left_out(roster):
    return replace(roster, members=roster.members[1:])


def other_session(roster):
    return replace(roster, session=bytes(32).hex())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (other_own_key, "other keys for this client"),
        (left_out, "other keys for this client"),
        (somebody_twice, "a client or a key twice"),
        (one_key_for_two, "a client or a key twice"),
        (other_session, "another session"),
    ],
)
def test_a_client_refuses_a_strange_roster(change, says):
    table = Table().enrolled()
    with pytest.raises(PrivacyError, match=says):
        table.parties["c00"].shares(change(table.roster))


def test_clients_that_were_shown_different_keys_notice():
    """A server puts its own key in the place of one client's, for one of the others."""
    table = Table().enrolled()
    foreign = replace(table.roster.members[1], encryption=masks.public(bytes(range(32))).hex())
    members = (table.roster.members[0], foreign, *table.roster.members[2:])
    other = replace(table.roster, members=members)
    shares = [
        party.shares(other if name == "c00" else table.roster)
        for name, party in table.parties.items()
    ]
    parcels = table.server.parcels(shares)
    for name in table.parties:
        with pytest.raises(PrivacyError, match="received different keys"):
            table.parties[name].masked(plain(name), parcels[name])


def test_every_round_is_answered_once_and_in_order():
    table = Table().contributed()
    party = table.parties["c00"]
    party.reveal(table.survivors)
    for again in (
        lambda: party.keys(),
        lambda: party.shares(table.roster),
        lambda: party.masked(plain("c00"), table.parcels["c00"]),
        lambda: party.reveal(table.survivors),
        lambda: Party("c00", table.server.call).reveal(table.survivors),
    ):
        with pytest.raises(PrivacyError, match="twice or out of order"):
            again()


@pytest.mark.parametrize(
    ("listed", "says"),
    [
        (("c00", "c01", "c02"), "3 clients are left, and 4 are needed"),
        (("c01", "c02", "c03", "c04"), "not in the list of survivors"),
        (("c00", "c01", "c02", "c03", "c09"), "unknown clients"),
        (("c00", "c00", "c01", "c02"), "twice"),
    ],
)
def test_a_client_says_nothing_about_a_strange_list_of_survivors(listed, says):
    party = Table().contributed().parties["c00"]
    with pytest.raises(PrivacyError, match=says):
        party.reveal(Survivors(names=listed))


def test_of_every_client_one_secret_is_revealed():
    table = Table().contributed(away=["c03"])
    said = table.parties["c00"].reveal(table.survivors)
    assert set(said.seeds) == {"c00", "c01", "c02", "c04"}
    assert set(said.keys) == {"c03"}


@pytest.mark.parametrize(("kind", "owner"), [("seeds", "c02"), ("seeds", "c01"), ("keys", "c03")])
def test_a_wrong_share_names_the_client_that_sent_it_and_not_its_owner(kind, owner):
    table = Table().contributed(away=["c03"])
    said = [table.parties[name].reveal(table.survivors) for name in table.survivors.names]
    wrong = {**getattr(said[1], kind), owner: bytes(33).hex()}
    with pytest.raises(PrivacyError, match=f"^client c01: .* wrong share of the secret of {owner}"):
        table.server.total([said[0], replace(said[1], **{kind: wrong}), *said[2:]])


class Unfitting(Party):
    """Gives out shares of another seed than the one that it has committed to."""

    def shares(self, roster):
        own, self._seed = self._seed, bytes(32)
        made = super().shares(roster)
        self._seed = own
        return made


def test_shares_of_another_secret_name_the_client_that_gave_them_out():
    table = Table(kinds={"c02": Unfitting}).contributed()
    said = [table.parties[name].reveal(table.survivors) for name in table.survivors.names]
    with pytest.raises(PrivacyError, match=r"^client c02: the shares that it gave out"):
        table.server.total(said)


def test_a_share_that_is_not_the_announced_one_names_its_sender():
    """Of one who sends one peer a wrong share, under digests of right ones."""
    table = Table().enrolled()
    shares = {each.name: each for each in table.each("shares", table.roster)}
    digests = {**shares["c02"].digests, "c01": shares["c02"].digests["c00"]}
    shares["c02"] = replace(shares["c02"], digests=digests)
    parcels = table.server.parcels(shares.values())
    with pytest.raises(PrivacyError, match="client c02: its shares are not those"):
        table.parties["c01"].masked(plain("c01"), parcels["c01"])
    table.parties["c00"].masked(plain("c00"), parcels["c00"])


def test_shares_that_are_missing_or_too_many_are_noticed():
    table = Table().enrolled()
    first, *rest = table.each("shares", table.roster)
    with pytest.raises(PrivacyError, match="c00: it sent shares of other clients"):
        table.server.parcels([replace(first, sealed={}), *rest])
    table = Table().contributed(away=["c03"])
    first, *rest = (table.parties[name].reveal(table.survivors) for name in table.survivors.names)
    with pytest.raises(PrivacyError, match="c00: it sent shares of other clients"):
        table.server.total([replace(first, keys={**first.keys, "c01": "00"}), *rest])
    with pytest.raises(PrivacyError, match="3 of 5 clients helped"):
        table.server.total([first, first, *rest[:2]])  # one of them twice


def test_damaged_letters_are_refused():
    table = Table().shared()
    for name, spoil in (("c00", lambda text: text[:-2] + "zz"), ("c01", lambda text: text[2:])):
        sealed = {sender: spoil(text) for sender, text in table.parcels[name].sealed.items()}
        with pytest.raises(PrivacyError, match=r"not hexadecimal|changed in transit"):
            table.parties[name].masked(plain(name), SealedShares(sealed=sealed))


def test_a_client_sends_nothing_if_too_few_have_shared():
    table = Table().shared()
    few = dict(list(table.parcels["c00"].sealed.items())[:2])
    with pytest.raises(PrivacyError, match="3 clients are left, and 4 are needed"):
        table.parties["c00"].masked(plain("c00"), replace(table.parcels["c00"], sealed=few))


def test_a_contribution_counts_once():
    table = Table().shared()
    sent = table.parties["c00"].masked(plain("c00"), table.parcels["c00"])
    table.server.add(sent)
    for again in (sent, replace(sent, name="c99")):
        with pytest.raises(PrivacyError, match=r"unexpected, or added already"):
            table.server.add(again)


def test_contributions_that_do_not_belong_together_are_refused():
    table = Table().shared()
    party = table.parties["c01"]
    other = replace(plain("c01"), unit="lb")
    table.server.add(table.parties["c00"].masked(plain("c00"), table.parcels["c00"]))
    with pytest.raises(MismatchError, match=r"c01: its layout .* differs from that of c00"):
        table.server.add(party.masked(other, table.parcels["c01"]))


def test_masking_leaves_the_client_its_value():
    table, value = Table().shared(), plain("c00")
    sent = table.parties["c00"].masked(value, table.parcels["c00"])
    assert value == plain("c00")
    assert not np.shares_memory(sent.vector, value.values)


@pytest.mark.parametrize("away", list(itertools.combinations(names(7), 2))[::5])
def test_whoever_drops_out_the_rest_add_up(away):
    table = Table(7).contributed(away)
    said = [table.parties[name].reveal(table.survivors) for name in table.survivors.names]
    assert table.server.total(said) == total_of(table.survivors.names)


def confirmed(table):
    stayed = table.survivors.names
    answers = [table.parties[name].confirm(table.survivors) for name in stayed]
    return table.server.survivors(answers)


def test_with_signatures_the_sum_is_the_same():
    table = Table(signed=True).contributed(away=["c02"])
    survivors = confirmed(table)
    said = [table.parties[name].reveal(survivors) for name in survivors.names]
    assert table.server.total(said) == total_of(survivors.names)


def test_with_signatures_a_key_of_the_servers_own_is_refused():
    table = Table(signed=True).enrolled()
    forged = replace(table.roster.members[1], encryption=masks.public(bytes(range(32))).hex())
    members = (table.roster.members[0], forged, *table.roster.members[2:])
    with pytest.raises(PrivacyError, match="the signature of c01 is invalid"):
        table.parties["c00"].shares(replace(table.roster, members=members))


def test_with_signatures_changed_shares_are_refused():
    table = Table(signed=True).shared()
    parcel = table.parcels["c00"]
    digests = {**parcel.digests, "c03": parcel.digests["c02"]}
    with pytest.raises(PrivacyError, match="the signature of c03 is invalid"):
        table.parties["c00"].masked(plain("c00"), replace(parcel, digests=digests))


def test_with_signatures_invented_clients_are_refused():
    """A server adds a party of its own, with keys and signatures of its own."""
    table = Table(signed=True)
    invented = Party("c99", table.server.call, signer=signers(["c99"])["c99"])
    roster = table.server.roster([*table.each("keys"), invented.keys()])
    with pytest.raises(PrivacyError, match=r"no pinned key of c99 here.*federation pin"):
        table.parties["c00"].shares(roster)


def test_a_confirmation_is_kept_between_processes():
    """Every round in a process of its own, with signatures."""
    table = Table(signed=True).contributed()
    known = {name: party._signer for name, party in table.parties.items()}

    def renewed():
        for name, party in table.parties.items():
            kept = codec.decode(codec.encode(party.to_dict()))
            table.parties[name] = Party.restored(kept, signer=known[name])

    renewed()
    survivors = confirmed(table)
    renewed()
    other = Survivors(names=survivors.names[:4], signatures=survivors.signatures)
    with pytest.raises(PrivacyError, match="not the one that was confirmed"):
        table.parties["c00"].reveal(other)
    renewed()
    said = [table.parties[name].reveal(survivors) for name in survivors.names[1:]]
    assert table.server.total(said) == total_of(survivors.names)


def test_with_signatures_survivors_must_be_confirmed_by_enough():
    table = Table(signed=True).contributed()
    party = table.parties["c00"]
    with pytest.raises(PrivacyError, match="not confirmed"):
        party.reveal(table.survivors)
    survivors = confirmed(table)
    few = dict(list(survivors.signatures.items())[:3])
    with pytest.raises(PrivacyError, match="3 clients are left"):
        party.reveal(replace(survivors, signatures=few))
    other = replace(survivors, names=survivors.names[:4])
    with pytest.raises(PrivacyError, match="not the one that was confirmed"):
        table.parties["c01"].reveal(replace(other, signatures={}))
    forged = {**survivors.signatures, "c04": survivors.signatures["c03"]}
    with pytest.raises(PrivacyError, match="the signature of c04 is invalid"):
        table.parties["c02"].reveal(replace(survivors, signatures=forged))
