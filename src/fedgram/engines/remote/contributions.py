"""Contributions that a server stores one by one, with fingerprints of their samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fedgram.core.statistics import Statistics
from fedgram.errors import DataError, ExactnessError, LedgerError
from fedgram.ledger.history import COHORT
from fedgram.ledger.ledger import Ledger, cohort


class Contributions:
    """A ledger as the engine uses it: only missing contributions are requested.

    A contribution has the fingerprint of its samples. A member with unchanged samples is not asked
    again, not even in a later run. If the samples have changed, the contribution is replaced.

    Parameters
    ----------
    ledger
        Stores the contributions.
    fingerprints
        Fingerprints of the connected sites, by name.
    keep_replaced
        Keep replaced contributions for audit instead of erasing them.
    """

    def __init__(
        self, ledger: Ledger, fingerprints: Mapping[str, str], *, keep_replaced: bool = False
    ) -> None:
        self._ledger = ledger
        self._fingerprints = fingerprints
        self._keep = keep_replaced
        self.total_digest: str | None = None  # of the total that was used

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return the sites that must be asked."""
        members = set(self._ledger.members)
        return [
            name
            for name in names
            if name not in members or self._ledger.tag(name) != self._fingerprints[name]
        ]

    def refusal(self, client: str) -> str:
        """Return the reason why a client may not join; empty if it may."""
        return self._ledger.shut_out().get(client, "")

    def samples(self, client: str) -> int:
        """Return the number of samples that a member has contributed; 0 if it is no member."""
        return self._ledger.of(client).count if client in self._ledger.members else 0

    def require_room(self, client: str, statistics: Statistics) -> None:
        """Raise an error if the total with this contribution could wrap."""
        count = self._ledger.total.count - self.samples(client) + statistics.count
        if count > statistics.space.most_samples:
            raise ExactnessError(
                f"with {statistics.count} samples the total would have {count}, and the maximum "
                f"with this grid is {statistics.space.most_samples}; forget a member that claims "
                "more samples than it has"
            )

    def join(self, client: str, statistics: Statistics) -> None:
        """Store a contribution; it is on disk when this returns."""
        tag = self._fingerprints[client]
        self._ledger.replace(client, statistics, tag=tag, keep=self._keep)

    def join_cohort(self, names: Sequence[str], total: Statistics, *, run: str) -> None:
        """Store the total of a secure sum; there are no contributions of single members.

        Masks hide contributions, but a total of true sums is possible too, so it is checked.

        Parameters
        ----------
        names
            The members of the sum.
        total
            The sum.
        run
            The run that made it: members withdraw from it by this name.
        """
        try:
            total.validate()
        except DataError as error:
            raise error.with_context(
                f"the secure sum of {', '.join(names)}: at least one site sent sums of no samples"
            ) from error
        out = self._ledger.shut_out()
        if gone := sorted(out.keys() & set(names)):
            raise LedgerError(
                f"client {', '.join(gone)}: forgotten, or has left, during the secure sum; start "
                "again"
            )
        if COHORT in out:  # a client of the cohort was forgotten, not the cohort
            self._ledger.admit(COHORT)
        tag = "\n".join(names)
        same = self._ledger.members == [COHORT] and self._ledger.tag(COHORT) == tag
        if not same or self._ledger.total.digest() != total.digest():
            self._ledger.replace(COHORT, total, tag=tag, keep=self._keep, run=run)
        else:
            self._ledger.add_run(run)

    @property
    def names(self) -> list[str]:
        """Names of the clients in the total, also of those that a secure sum joined together."""
        return sorted({*self._ledger.members, *cohort(self._ledger)} - {COHORT})

    def total(self, classes: Sequence[str]) -> Statistics:
        """Return the sum over all members, connected or not, with this class list."""
        total = self._ledger.total
        self.total_digest = total.digest()
        return total.with_classes(classes)

    def each(self, classes: Sequence[str]) -> Iterator[tuple[str, Statistics]]:
        """Yield every member's contribution; one is in memory at a time."""
        for name in self._ledger.members:
            yield name, self._ledger.of(name).with_classes(classes)
