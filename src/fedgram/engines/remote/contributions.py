"""Contributions that are kept one by one at the server: who is in, and with which samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fedgram.core.statistics import Statistics
from fedgram.errors import LedgerError
from fedgram.ledger.ledger import COHORT, Ledger


class Contributions:
    """A ledger as the engine uses it: it asks for what is missing, and keeps what comes.

    A contribution carries the fingerprint of the samples it was made of. A member whose samples are
    still the same is not asked again, not even in a later run; other samples take its place.

    Parameters
    ----------
    ledger
        Where contributions are kept.
    fingerprints
        Of the sites that are here, by name.
    """

    def __init__(self, ledger: Ledger, fingerprints: Mapping[str, str]) -> None:
        self._ledger = ledger
        self._fingerprints = fingerprints

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return who must be asked."""
        members = set(self._ledger.members)
        return [
            name
            for name in names
            if name not in members or self._ledger.tag(name) != self._fingerprints[name]
        ]

    def refusal(self, client: str) -> str:
        """Return why a client may not join any more, nothing where it may."""
        return self._ledger.shut_out().get(client, "")

    def join(self, client: str, statistics: Statistics) -> None:
        """Keep a contribution; it is on the disk when this returns."""
        self._ledger.replace(client, statistics, tag=self._fingerprints[client])

    def join_cohort(self, names: Sequence[str], total: Statistics) -> None:
        """Keep the total of a secure sum, which is all there is of its members."""
        out = self._ledger.shut_out()
        if gone := sorted(out.keys() & set(names)):
            raise LedgerError(
                f"client {', '.join(gone)}: forgotten, or has left, while its sum was made; start "
                "again"
            )
        if COHORT in out:  # not a client: what was forgotten was one of them
            self._ledger.admit(COHORT)
        tag = "\n".join(names)
        same = self._ledger.members == [COHORT] and self._ledger.tag(COHORT) == tag
        if not same or self._ledger.total.digest() != total.digest():
            self._ledger.replace(COHORT, total, tag=tag)

    def total(self, classes: Sequence[str]) -> Statistics:
        """Return the sum over all members, here or not, over this class list."""
        return self._ledger.total.with_classes(classes)

    def each(self, classes: Sequence[str]) -> Iterator[tuple[str, Statistics]]:
        """Yield every member's part, one in memory at a time."""
        for name in self._ledger.members:
            yield name, self._ledger.of(name).with_classes(classes)
