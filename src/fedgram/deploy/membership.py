"""The members of a federation's totals: show them, remove them, admit them again."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgram.deploy.flower.state import DATABASE, UNCLEANED, clean
from fedgram.deploy.residue import residue
from fedgram.deploy.run_state import erase_replay_logs
from fedgram.deploy.settings import FederationRules, read_federation
from fedgram.engines.ledger_backed import publish
from fedgram.errors import LedgerError, MismatchError
from fedgram.experiments.record import NOTES, SCORES, file_name, read_lines, read_object
from fedgram.ledger.certificate import Certificate
from fedgram.ledger.folder import Ledgers, unused
from fedgram.ledger.history import COHORT
from fedgram.ledger.ledger import Ledger, cohort
from fedgram.runtime import files


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The ledgers, runs and certificates in the folder of a server.

    Parameters
    ----------
    folder
        Folder with ``federation.toml`` and the ledgers.
    """

    folder: Path

    def status(self) -> dict[str, Any]:
        """Return members, excluded sites, runs, and when the server's certificate ends."""
        config, federation = read_federation(self.folder / "federation.toml")
        with Ledgers(self.folder) as ledgers:
            kept = [_account(name, ledger, federation) for name, ledger in ledgers]
            out = ledgers.shut_out()
        return {
            "methods": list(config.methods),
            "secure": config.engine.secure,
            "sites": list(federation.sites),
            "certificate_until": self._certificate_until(),
            "ledgers": kept,
            "out": out,
            "runs": [
                self._run(path.parent)
                for path in sorted((self.folder / "runs").glob("[0-9]*/course.json"))
            ],
        }

    def _certificate_until(self) -> str | None:
        """Return the day after which sites no longer believe the server; None without keys."""
        path = self.folder / "server.pem"
        if not path.is_file():
            return None
        from fedgram.deploy.tls import CertificateInfo  # needs the package cryptography

        return f"{CertificateInfo.load(path).until:%Y-%m-%d}"

    def publish(self, name: str | None, out: Path) -> dict[str, Any]:
        """Solve a ledger's current total, write the model, and record that it was published."""
        config, _ = read_federation(self.folder / "federation.toml")
        name = name or config.methods[0]
        method = config.make(name)
        with Ledgers(self.folder) as ledgers:
            for ledger in ledgers.cohorts(there=config.engine.secure):
                with suppress(MismatchError):  # contributions of another kind
                    return publish(ledger, name, method, out)
        raise LedgerError(f"{self.folder}: no ledger has contributions for {name}; run it first")

    def forget(self, client: str) -> list[Path]:
        """Remove a client from every ledger, erase what it sent, and write certificates.

        A certificate is stored with the deletion, so that `certificates` writes it again. Answers
        of unfinished runs are erased too, and the messages in Flower's database unless it is in
        use: then that is done at the next start of the server.
        """
        with files.private(self.folder), unused(self.folder), Ledgers(self.folder) as ledgers:
            files.require_writable(self.folder / "certificates" / "test")
            known = [ledger for _, ledger in ledgers if client in _known(ledger)]
            if not known:
                raise LedgerError(
                    f"client {client}: no contributions of this client; if it was forgotten "
                    "before, 'fedgram federation certificate' writes the certificates again"
                )
            erase_messages(self.folder)  # first: after a kill, the command can be repeated
            return [self.certify(_forgotten(ledger, client)) for ledger in known]

    def holding_digests(self, client: str) -> list[Path]:
        """Return the files here with digests of totals with a client that was forgotten.

        Whoever has the other contributions can check a guess of what was forgotten against such a
        digest. Models and records are not erased: the operator decides about them.
        """
        found = set()
        with Ledgers(self.folder) as ledgers:
            certificates = [c for _, ledger in ledgers for c in ledger.certificates(client)]
        for listed in [model for each in certificates for model in each.published_with]:
            model = Path(listed["model"])
            done = model.parent.with_name(f"{model.parent.name}.done")
            found |= {model, model.parent / SCORES, done}
        for path in (self.folder / "certificates").glob("*.json"):
            if client in read_object(path).get("members", []):
                found.add(path)
        return sorted(path for path in found if path.is_file())

    def residue(self) -> list[tuple[str, Path]]:
        """Return forgotten clients with messages in files of this folder, and the files."""
        with Ledgers(self.folder) as ledgers:
            out = [client for client, how in ledgers.shut_out().items() if "forgotten" in how]
        return residue(self.folder, out)

    def certificates(self, client: str) -> list[Path]:
        """Write the certificates of all deletions of a client again."""
        with Ledgers(self.folder) as ledgers:
            found = [each for _, ledger in ledgers for each in ledger.certificates(client)]
        if not found:
            raise LedgerError(f"client {client}: was not forgotten here")
        return [self.certify(certificate) for certificate in found]

    def certify(self, certificate: Certificate) -> Path:
        """Write a certificate to a file, which has the same name every time; return its path."""
        name = f"{file_name(certificate.client)}-{certificate.mark}.json"
        path = self.folder / "certificates" / name
        files.write(path, json.dumps(certificate.to_dict(), indent=2) + "\n", private=True)
        return path

    def admit(self, client: str) -> None:
        """Admit a client that has left, or was forgotten, to the next run."""
        with Ledgers(self.folder) as ledgers:
            out = [ledger for _, ledger in ledgers if client in ledger.shut_out()]
            if not out:
                raise LedgerError(f"client {client}: has neither left nor been forgotten")
            for ledger in out:
                ledger.admit(client)

    def verify(self, certificate: Path | None = None) -> dict[str, str]:
        """Recompute every total and check the histories; check a certificate too."""
        shown = None if certificate is None else Certificate.read(read_object(certificate))
        with Ledgers(self.folder) as ledgers:
            digests = {name: ledger.verify() for name, ledger in ledgers}
            if shown is not None and not any(_certified(ledger, shown) for _, ledger in ledgers):
                raise LedgerError("the certificate belongs to no ledger here, or was changed")
        return digests

    def keys(self) -> dict[str, str]:
        """Return the fingerprint of the key that signs each ledger; empty without a key."""
        with Ledgers(self.folder) as ledgers:
            return {name: ledger.signed_by for name, ledger in ledgers}

    def lost_keys(self) -> dict[str, dict[int, str]]:
        """Return the keys that replaced lost ones, as `Ledger.lost_keys`, by ledger."""
        with Ledgers(self.folder) as ledgers:
            return {name: ledger.lost_keys for name, ledger in ledgers}

    def require_no_residue(self) -> None:
        """Raise LedgerError if files of this folder hold messages of forgotten clients.

        Also raise it if Flower's database was in use when messages were to be erased.
        """
        if remains := self.residue():
            listed = ", ".join(f"{client} in {path}" for client, path in remains)
            raise LedgerError(
                f"messages of forgotten sites remain: {listed}; restart the server, which cleans "
                f"{DATABASE}; delete other files"
            )
        if (self.folder / UNCLEANED).is_file():
            raise LedgerError(
                f"{self.folder / DATABASE}: in use when a site was forgotten, and may hold its "
                "messages; restart the server, which cleans it"
            )

    def _run(self, path: Path) -> dict[str, Any]:
        state = read_object(path / "course.json")
        methods = {}
        for name in state["runs"]:
            done = path / f"{name}.done"
            notes = read_lines(path / name / NOTES)
            methods[name] = {
                "done": done.is_file(),
                "result": read_object(done) if done.is_file() else None,
                "left_out": [note for note in notes if note["text"].startswith("left out")],
            }
        return {"run": path.name, "finished": state["finished"], "methods": methods}


def erase_messages(folder: Path) -> None:
    """Erase the messages of sites in unfinished runs, and in Flower's database unless in use."""
    erase_replay_logs(folder)
    clean(folder / DATABASE)


def _account(name: str, ledger: Ledger, federation: FederationRules) -> dict[str, Any]:
    total, history = ledger.total, ledger.history()
    together = cohort(ledger)
    members = together or ledger.members
    return {
        "ledger": name,
        "members": members,
        "cohort": bool(together),
        "missing": sorted(set(federation.sites) - set(members)),
        "samples": total.count,
        "classes": list(total.classes),
        "total_digest": history[-1].total_digest,
        "published": [event.detail for event in history if event.what == "publish"],
    }


def _known(ledger: Ledger) -> set[str]:
    """Return the clients with contributions in a ledger, alone or within a cohort, also earlier."""
    return {*ledger.stored_clients, *cohort(ledger), *ledger.summed_clients} - {COHORT}


def _forgotten(ledger: Ledger, client: str) -> Certificate:
    """Forget a client; within a cohort the whole total is erased, and must be summed again."""
    return ledger.forget(client, within=COHORT if client in cohort(ledger) else None)


def _certified(ledger: Ledger, certificate: Certificate) -> bool:
    try:
        ledger.verify(certificate)
    except LedgerError:
        return False
    return True
