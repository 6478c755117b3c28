"""The ledger of contributions: join, stream, leave, forget, and verify."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from fedgram.core.samples import NO_SPACE, Space
from fedgram.core.statistics import Statistics
from fedgram.errors import DataError, ExactnessError, LedgerError, MismatchError
from fedgram.ledger.certificate import Certificate
from fedgram.ledger.contribution import Contribution, checked_classes, merged
from fedgram.ledger.history import COHORT, Event, check, check_past, contributed, lost_keys
from fedgram.ledger.signing import fingerprint
from fedgram.ledger.store import LedgerFile

_JOINED = ("join", "replace")
_MEMBERSHIP = ("join", "replace", "leave", "forget", "admit")


class Ledger:
    """A total of contributions on disk, with its members and its history.

    Every change is one transaction. Class lists merge by name, in alphabetical order.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from fedgram.core.samples import Features, Labels
    >>> def of(*rows):
    ...     features = Features(np.array(rows, dtype=np.int8), Space(width=2, bound=127))
    ...     return Statistics.of(features, Labels(np.zeros(len(rows), int), ("a", "b")))
    >>> with tempfile.TemporaryDirectory() as folder, Ledger.create(Path(folder) / "l") as ledger:
    ...     ledger.join("north", of([1, 2]))
    ...     before = ledger.total.digest()
    ...     ledger.join("south", of([3, 4], [5, 6]))
    ...     certificate = ledger.forget("south")
    ...     certificate.total_digest == before, ledger.members
    (True, ['north'])
    """

    def __init__(self, file: LedgerFile) -> None:
        self._file = file

    @classmethod
    def create(
        cls, path: Path, *, classes: Sequence[str] | None = None, key: Path | None = None
    ) -> Self:
        """Create an empty ledger.

        Parameters
        ----------
        path
            File of the ledger.
        classes
            The only classes that are allowed; None for any.
        key
            File of the key that signs the history; it is created if it is missing. Without a key
            the history is chained but not signed.
        """
        checked = None if classes is None else sorted(checked_classes(classes))
        return cls(LedgerFile(path, create=True, classes=checked, key=key))

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open an existing ledger."""
        return cls(LedgerFile(path, create=False))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def members(self) -> list[str]:
        """Names of the clients in the total, sorted."""
        return self._file.clients(members_only=True)

    @property
    def stored_clients(self) -> list[str]:
        """Names of the clients with stored contributions, also of those that left, sorted."""
        return self._file.clients(members_only=False)

    @property
    def total(self) -> Statistics:
        """The sum of the members' contributions."""
        return self._file.total

    @property
    def space(self) -> Space:
        """The space of all contributions, fixed by the first one; `NO_SPACE` before."""
        plain = self._file.get("space")
        try:
            return Space(**{**plain, "steps": tuple(plain["steps"])}) if plain else NO_SPACE
        except (TypeError, LookupError, ValueError) as error:
            raise self._file.unusable(error) from error

    @property
    def summed_clients(self) -> set[str]:
        """Names of the clients that were in a secure sum here, now or earlier."""
        return self._file.cohorts

    @property
    def runs(self) -> list[str]:
        """The runs that used the stored total of a secure sum."""
        return self._file.runs

    def add_run(self, run: str) -> None:
        """Record that another run used the stored total of a secure sum."""
        with self._file.transaction():
            self._file.runs = list(dict.fromkeys([*self.runs, run]))

    def history(self) -> list[Event]:
        """Return all events, oldest first."""
        return self._file.events()

    @property
    def chained(self) -> bool:
        """Whether the history is chained yet; a file of format 1 is so from its next change on."""
        return bool(self._file.entries())

    @property
    def id(self) -> str:
        """Random id in every event, distinguishes ledgers of one key; empty before the chain."""
        return next((str(entry.body["ledger"]) for entry in self._file.entries()), "")

    @property
    def signed_by(self) -> str:
        """Fingerprint of the key that signs the history; empty if it is not signed."""
        return fingerprint(self._file.get("key") or "")

    @property
    def lost_keys(self) -> dict[int, str]:
        """Fingerprints of keys that replaced a lost one, by event: they must be compared."""
        return lost_keys(self._file.entries())

    def change_key(self, key: Path, *, lost: bool = False) -> str:
        """Sign with another key from now on; return its fingerprint.

        Parameters
        ----------
        key
            File of the new key; it is created if it is missing.
        lost
            Whether the old key, which otherwise signs this change, is lost.
        """
        self._file.use_key(key, lost=lost)
        return self.signed_by

    def export(self) -> dict[str, Any]:
        """Return the history for JSON, as an auditor checks it, and record that it was exported."""
        with self._file.transaction():
            self._file.add_event("export", self.total)
            openings = self._file.openings().items()
            earlier = [event for event in self.history() if not event.body]
            return {
                "kind": "fedgram history, format 1",
                "events": [entry.to_dict() for entry in self._file.entries()],
                "openings": {key: {"salt": o.salt, "text": o.text} for key, o in openings},
                "earlier": [asdict(event) for event in earlier],
            }

    def of(self, client: str) -> Statistics:
        """Return the sum of a member's contributions."""
        self._require_member(client)
        return self._merged(self._file.stored(client))

    def tag(self, client: str) -> str:
        """Return the tag of the last contribution with which a client joined or was replaced."""
        joined = [e for e in self.history() if e.client == client and e.what in _JOINED]
        return str(joined[-1].detail.get("tag", "")) if joined else ""

    def shut_out(self) -> dict[str, str]:
        """Return the clients that are excluded until they are admitted again, with the reason."""
        last = {e.client: e.what for e in self.history() if e.what in _MEMBERSHIP and e.client}
        reasons = {"leave": "has left", "forget": "was forgotten"}
        return {
            client: f"{reasons[what]}; 'fedgram federation admit' lets it in again"
            for client, what in last.items()
            if what in reasons
        }

    def admit(self, client: str) -> None:
        """Allow a client that has left, or was forgotten, to join again."""
        with self._file.transaction():
            if client not in self.shut_out():
                raise LedgerError(f"client {client}: has neither left nor been forgotten")
            self._file.add_event("admit", self.total, client=client)

    def replace(
        self,
        client: str,
        statistics: Statistics,
        *,
        tag: str = "",
        keep: bool = False,
        run: str = "",
    ) -> None:
        """Replace all contributions of a member by a new one, in one transaction.

        The old contributions are erased: their difference from the new one would show the samples
        that were removed in between. A client that has left, or was forgotten, must be admitted
        first.

        Parameters
        ----------
        client
            The member; a new client joins.
        statistics
            The new contribution.
        tag
            Stored with the contribution.
        keep
            Keep the old contributions for audit, as `leave` does.
        run
            The run that made the total of a secure sum.
        """
        _require_possible(client, statistics)
        with self._file.transaction():
            if client in self.shut_out() and client not in self.members:
                raise LedgerError(f"client {client}: {self.shut_out()[client]}")
            member = client in self.members
            if member:
                self._file.replace_lost_key()
            gone = self._merged(self._file.stored(client))
            if keep:
                self._file.retire(client)
            elif client in self.stored_clients:
                self._file.erase(client, seen=True)
            if member:  # it reads the other members' contributions
                self._take_out(gone)
            what = "replace" if member else "join"
            self._add(what, Contribution(client=client, statistics=statistics, tag=tag))
            if client == COHORT:
                self._file.runs = [run]
        self._file.compact_if_due()

    def join(
        self, client: str, statistics: Statistics, *, tag: str = "", keep: bool = False
    ) -> None:
        """Add the statistics of a new member.

        What is stored of an earlier membership is erased: its difference from the new contribution
        would show the samples that were removed in between.

        Parameters
        ----------
        client
            The new member.
        statistics
            Its contribution.
        tag
            Stored with the contribution.
        keep
            Keep the contributions of an earlier membership for audit.
        """
        _require_possible(client, statistics)
        contribution = Contribution(client=client, statistics=statistics, tag=tag)
        with self._file.transaction():
            if client in self.members:
                raise LedgerError(
                    f"client {client}: is a member already; add an increment with 'stream'"
                )
            if not keep and client in self.stored_clients:
                self._file.erase(client, seen=True)
            self._add("join", contribution)
        self._file.compact_if_due()

    def stream(self, client: str, statistics: Statistics, *, tag: str = "") -> None:
        """Add an increment of a member; a negative one removes samples, in the total and on disk.

        Parameters
        ----------
        client
            The member.
        statistics
            The increment.
        tag
            Distinguishes increments with the same content. The ids of a client's increments are
            erased with removed samples, because they would confirm a guess of these, except ids
            with a `random_tag`. So only with such a tag is the same removal refused again.
        """
        contribution = Contribution(client=client, statistics=statistics, tag=tag)
        with self._file.transaction():
            self._require_member(client)
            if statistics.count < 0:
                self._remove(contribution)
            else:
                _require_possible(client, statistics)
                self._add("stream", contribution)
        if statistics.count < 0:
            self._file.compact()

    def leave(self, client: str) -> None:
        """Remove a member from the total; its contributions are kept until it joins again."""
        with self._file.transaction():
            self._require_member(client)
            self._retire(client)

    def forget(self, client: str, *, within: str | None = None) -> Certificate:
        """Remove a client and erase all its contributions, in one transaction.

        Kept totals of earlier secure sums with this client are erased as a whole.

        If the key that signs the history is lost, a new one begins (`lost_keys`).

        Parameters
        ----------
        client
            The client.
        within
            The member that is a sum of this client and others: it is erased as a whole.

        Returns
        -------
        Certificate
            It is stored with the deletion: `certificates` returns it again.
        """
        member = within or client
        with self._file.transaction():
            stored = member in self.stored_clients
            if not stored and client not in self.summed_clients:
                raise LedgerError(
                    f"client {client}: no contributions of this client; members: {self._named()}"
                )
            self._file.replace_lost_key()
            if stored:
                gone = self._merged(self._file.stored(member))
                self._file.erase(member, seen=True)
                total = self._take_out(gone)
            else:  # it was in an earlier secure sum: the total is without it
                self._file.erase_earlier(client)
                total = self.total
            more = {"erased": within} if within else {}
            number = self._deleted(client, total, among=member, **more)
        self._file.compact()
        return self._certificate(number)

    def certificates(self, client: str) -> list[Certificate]:
        """Return the certificates of all deletions of a client, oldest first."""
        deletions = [e for e in self.history() if e.what == "forget" and e.client == client]
        return [self._certificate(event.seq) for event in deletions]

    def withdraw(
        self, client: str, part: Statistics, *, within: str, tag: str, mark: str
    ) -> Certificate:
        """Subtract a client's part from a member that is the sum of several clients.

        Parameters
        ----------
        client
            The client.
        part
            Its part.
        within
            The member.
        tag
            New tag of the member.
        mark
            Identifies the request of the client; it is refused a second time.
        """
        with self._file.transaction():
            self.require_unused(client, mark)
            self._require_member(within)
            rest = self._merged([*self._file.stored(within), -part])
            _require_rest(client, rest)
            self._file.replace_lost_key()
            self._file.erase(within, seen=True)
            self._file.total = self._merged([self.total, -part])
            remaining = Contribution(client=within, statistics=rest, tag=tag)
            self._file.store(remaining)
            detail = {"id": remaining.id, "tag": tag}
            self._file.add_event(
                "replace", self.total, client=within, samples=rest.count, detail=detail
            )
            number = self._deleted(client, self.total, among=within, withdrawal=mark)
        self._file.compact()
        return self._certificate(number)

    def require_unused(self, client: str, mark: str) -> None:
        """Raise LedgerError if a withdrawal was subtracted here before."""
        if any(event.detail.get("withdrawal") == mark for event in self.history()):
            raise LedgerError(
                f"client {client}: this withdrawal was subtracted already; if the client joined "
                "again since, make a new one with 'fedgram federation withdraw'"
            )

    def _deleted(self, client: str, total: Statistics, *, among: str, **more: str) -> int:
        """Add a deletion to the history, with the models that were published before."""
        detail = {
            **more,
            "members": self._clients(),
            "published_with": [
                {
                    "time": event.time,
                    "event": event.seq,
                    "model": event.detail["model"],
                    "members": event.detail["members"],
                }
                for event in self.history()
                if event.what == "publish" and {client, among} & {*event.detail["members"]}
            ],
        }
        if client in self.summed_clients:
            self._file.cohorts = self.summed_clients - {client}
        return self._file.add_event("forget", total, client=client, detail=detail)

    def publish(self, *, shared_digest: str, model: str, total_digest: str | None = None) -> None:
        """Record that a model was computed from the current total.

        Parameters
        ----------
        shared_digest
            Digest of the model.
        model
            Path of the model.
        total_digest
            Digest of the total that was used; it must be the current one.
        """
        with self._file.transaction():
            total = self.total
            if total_digest not in (None, total.digest()):
                raise LedgerError(
                    "the ledger has changed since the model was computed; solve again"
                )
            members = self._clients()
            shared = self._file.commit(shared_digest)
            detail = {"model": model, "members": members, "shared": shared}
            self._file.add_event("publish", total, detail=detail)

    def verify(self, certificate: Certificate | None = None) -> str:
        """Recompute the total from the stored contributions and return its digest.

        Also check the history, and that the contributions are those that it names. With a
        certificate, also check that its deletion is in this ledger's history with the same digest,
        and that no contribution of the client is stored unless it joined again.
        """
        self._file.check()
        with self._file.transaction(kind="DEFERRED"):
            found: Counter[tuple[str, str, bool]] = Counter()
            recomputed = self._merged(self._counted(found, member=True))
            for _ in self._counted(found, member=False):
                pass  # contributions that are kept for audit
            digest = recomputed.digest()
            last = self.history()[-1]
            if self.total != recomputed or digest != last.total_digest:
                raise LedgerError(
                    f"{self._file.path}: the total is not the sum of its contributions; restore "
                    "it from a backup"
                )
            self._verify_history()
            if certificate is not None:
                self._verify_deletion(certificate)
            self._verify_contributions(found)
        return digest

    def _counted(
        self, found: Counter[tuple[str, str, bool]], *, member: bool
    ) -> Iterator[Statistics]:
        """Yield what is stored, and count which contributions it is."""
        for each in self._file.contributions(member=member):
            found[each.client, each.id, member] += 1
            yield each.statistics

    def _verify_contributions(self, found: Counter[tuple[str, str, bool]]) -> None:
        """Raise LedgerError if other contributions are stored than those that the history names.

        Format 1 did not record what remains after a removal: one such contribution of a client
        is accepted.
        """
        history = self.history()
        named, unnamed = contributed(history), {e.client for e in history if _leaves_unnamed(e)}
        more = [client for client, _, _ in (found - named).elements()]
        wrong = [client for client, _, _ in named - found]
        wrong += [client for client in more if client not in unnamed or more.count(client) > 1]
        if wrong:
            raise LedgerError(
                f"{self._file.path}: the contributions of client {wrong[0]} are not those that its "
                "history names; restore it from a backup"
            )

    def _verify_history(self) -> None:
        """Raise LedgerError if chain, signatures or commitments are wrong."""
        entries = self._file.entries()
        try:
            key = check(entries, self._file.openings())
            if entries:
                check_past(entries[0], [event for event in self.history() if not event.body])
        except (LedgerError, KeyError, TypeError, ValueError) as error:
            raise LedgerError(f"{self._file.path}: {error}; restore it from a backup") from error
        if key != (self._file.get("key") or ""):
            raise LedgerError(
                f"{self._file.path}: the key of this ledger is not the last of its history"
            )

    def _verify_deletion(self, certificate: Certificate) -> None:
        history = self.history()
        event = next((e for e in history if e.seq == certificate.event), None)
        if event is None or event.what != "forget" or not self._is_of(certificate, event):
            if certificate.client in self.stored_clients and self._is_later(certificate):
                raise LedgerError(
                    "the history of this ledger lacks the deletion of the certificate: the ledger "
                    "is an older copy, or the certificate was changed; forget client "
                    f"{certificate.client} again and hand out the new certificate"
                )
            raise LedgerError("the certificate belongs to another ledger, or was changed")
        later = [event for event in history if event.seq > certificate.event]
        back = any(e.client == certificate.client and e.what in _JOINED for e in later)
        if not back and certificate.client in self.stored_clients:
            raise LedgerError(f"client {certificate.client}: contributions are still stored")

    def _is_later(self, certificate: Certificate) -> bool:
        """Whether a certificate names this ledger, and an event that its history does not have."""
        if certificate.entry is None or not certificate.is_consistent():
            return False
        body = certificate.entry["body"]
        known = any(entry.body == body for entry in self._file.entries())
        return bool(body["ledger"] == self.id) and not known

    def _is_of(self, certificate: Certificate, event: Event) -> bool:
        """Whether a certificate states what an event of this ledger commits to."""
        stored = self._certificate(event.seq)
        if event.body:
            # Without a total it is good only if the ledger does not know the total either.
            opened = bool(certificate.salt) or not stored.salt
            return certificate.entry == stored.entry and certificate.is_consistent() and opened
        known = stored.total_digest in ("", certificate.total_digest)
        return known and _plain(certificate) == _plain(stored)

    def _certificate(self, number: int) -> Certificate:
        event = next(event for event in self.history() if event.seq == number)
        common: dict[str, Any] = {
            "client": event.client or "",
            "time": event.time,
            "event": event.seq,
            "total_digest": event.total_digest,
        }
        if not event.body:
            return Certificate(**common, **event.detail)
        entry = next(e for e in self._file.entries() if e.body["number"] == number)
        opened = self._file.openings().get(event.body["after"])
        samples = int(opened.text.split()[1]) if opened else None
        salt = opened.salt if opened else ""
        listed = {name: event.detail[name] for name in ("members", "published_with")}
        return Certificate(**common, **listed, samples=samples, salt=salt, entry=entry.to_dict())

    def _add(self, what: str, contribution: Contribution) -> None:
        client, statistics = contribution.client, contribution.statistics
        self._agree(contribution)
        self._file.store(contribution)
        if client == COHORT:
            self._file.cohorts = {*self.summed_clients, *contribution.tag.split("\n")}
        self._file.total = total = self._merged([self.total, statistics])
        detail = {"id": contribution.id, **({"tag": contribution.tag} if contribution.tag else {})}
        self._file.add_event(what, total, client=client, samples=statistics.count, detail=detail)

    def _retire(self, client: str) -> None:
        gone = self._merged(self._file.stored(client))
        self._file.retire(client)
        self._file.add_event("leave", self._take_out(gone), client=client)

    def _remove(self, contribution: Contribution) -> None:
        """Replace a client's contributions by their sum with a negative increment.

        No stored contribution then contains the removed samples. Contributions of an earlier
        membership may contain them too, and are erased as well.
        """
        client, statistics = contribution.client, contribution.statistics
        self._agree(contribution)
        rest = self._merged([*self._file.stored(client), statistics])
        _require_rest(client, rest)
        self._file.replace_lost_key()
        self._file.erase(client, seen=False)
        remaining = Contribution(client=client, statistics=rest, tag="after a removal")
        self._file.store(remaining)
        self._file.total = total = self._merged([self.total, statistics])
        self._file.add_event("remove", total, client=client, detail={"id": remaining.id})

    def _take_out(self, gone: Statistics) -> Statistics:
        """Subtract from the total, and remove the classes that no member has any more."""
        total = Statistics.zero()
        if self.members:
            total = self._merged([self.total, -gone])
            if self._file.get("classes") is None:
                kept = {name for part in self._file.stored() for name in part.classes}
                total = total.with_classes(sorted(kept))
        self._file.total = total
        return total

    def _merged(self, parts: Iterable[Statistics]) -> Statistics:
        return merged(parts, self._file.classes)

    def _agree(self, contribution: Contribution) -> None:
        """Store the space of the first contribution; raise MismatchError for any other."""
        space, agreed = contribution.statistics.space, self.space
        if space == NO_SPACE:
            raise LedgerError(
                f"client {contribution.client}: the contribution is empty; it needs samples"
            )
        if agreed == NO_SPACE:
            self._file.put("space", asdict(space))
        elif space != agreed:
            raise MismatchError(
                f"client {contribution.client}: made with other settings than the contributions of "
                f"this ledger: {agreed.difference(space)}; contribute again with equal settings"
            )
        if not space.exact:
            raise ExactnessError(
                f"client {contribution.client}: its sums are not exact, so it could not be removed "
                "again; use grid.bits from 2 to 16"
            )
        if self._file.seen(contribution):
            raise LedgerError(
                f"client {contribution.client}: this contribution was added already; use another "
                "tag to add it again"
            )

    def _require_member(self, client: str) -> None:
        if client not in self.members:
            raise LedgerError(f"client {client}: not a member; members: {self._named()}")

    def _clients(self) -> list[str]:
        """Return the clients in the total, also those within the total of a secure sum."""
        return sorted({*self.members, *cohort(self)} - {COHORT})

    def _named(self) -> str:
        return ", ".join(self.members) or "none"


def _require_possible(client: str, statistics: Statistics) -> None:
    """Raise for a contribution that no samples can have."""
    _refuse_negative(client, statistics)
    try:
        statistics.validate()
    except DataError as error:
        raise DataError(f"client {client}: {error}; contribute again") from error


def _require_rest(client: str, rest: Statistics) -> None:
    """Raise LedgerError for what remains of a contribution, if no samples can have it."""
    _refuse_negative(client, rest)
    try:
        rest.validate()
    except DataError as error:
        raise _exceeds(client) from error


def _refuse_negative(client: str, statistics: Statistics) -> None:
    space, wrong = statistics.space, statistics.count < 0 or (statistics.diagonal() < 0).any()
    if statistics.labeled and space.traceable and space.has_constant:
        # Its row of the moment counts the classes.
        wrong = wrong or (statistics.moment[space.constant] < 0).any()
    if wrong:
        raise _exceeds(client)


def _exceeds(client: str) -> LedgerError:
    return LedgerError(
        f"client {client}: more would be removed than was contributed; was it removed already?"
    )


def _leaves_unnamed(event: Event) -> bool:
    """Whether an event of format 1 has stored a contribution without its id."""
    return not event.body and event.what in ("remove", "replace") and "id" not in event.detail


def _plain(certificate: Certificate) -> list[Any]:
    """Return what a certificate of format 1 states, without digests that may be erased."""
    models = [{**model, "shared_digest": ""} for model in certificate.published_with]
    about = (certificate.client, certificate.time, certificate.samples, certificate.members)
    return [*about, models, certificate.salt, certificate.entry]


def cohort(ledger: Ledger) -> list[str]:
    """Return the clients in the total of a secure sum; empty if there is none."""
    return ledger.tag(COHORT).split("\n") if COHORT in ledger.members else []
