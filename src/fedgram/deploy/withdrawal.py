"""Withdraw from a secure sum: the site sends the part to subtract, with its signature.

After a secure sum the server has only the total of a cohort, so it cannot remove one site without
that site's help. A withdrawal shows the server the sums of this one site. If the site does not want
that, forget it instead: the whole total is erased, and the other sites are summed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from fedgram.core import codec
from fedgram.core.statistics import Statistics
from fedgram.deploy.folders import Project, SiteFolder
from fedgram.deploy.membership import erase_messages
from fedgram.deploy.settings import read_site
from fedgram.deploy.site import site_of
from fedgram.engines.remote.site import fingerprint, relabel
from fedgram.engines.remote.validation import require_possible
from fedgram.errors import ConfigError, DataError, LedgerError, PrivacyError
from fedgram.experiments.record import read_object
from fedgram.federation.client import Client
from fedgram.federation.method import create_method
from fedgram.ledger.certificate import Certificate
from fedgram.ledger.folder import Ledgers, unused
from fedgram.ledger.history import COHORT
from fedgram.ledger.ledger import cohort
from fedgram.runtime import files

_SIGNED = ec.ECDSA(hashes.SHA384())


@codec.register("Withdrawal/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Withdrawal:
    """The part that a site subtracts from a cohort's total, with its signature."""

    client: str
    statistics: Statistics
    signature: str = ""

    def signed_part(self, run: str) -> bytes:
        """Return the bytes that are signed: a withdrawal is from the sum of one run."""
        about = codec.digest([self.client, self.statistics, run])
        return b"fedgram withdrawal\n" + about.encode()

    @property
    def mark(self) -> str:
        """Identifies a signed withdrawal, and says nothing about its statistics.

        It is a hash of the random number in the signature: who changes the signature into another
        valid one, without the key, cannot change this number.
        """
        random, _ = decode_dss_signature(bytes.fromhex(self.signature))
        return hashlib.sha256(str(random).encode()).hexdigest()


def withdraw(site: SiteFolder, method: str) -> Withdrawal:
    """Return a site's signed withdrawal of its contribution to a method's total."""
    settings = read_site(site.settings)
    path = settings.folder / "models" / f"{method}.json"
    if not path.is_file():
        raise ConfigError(f"{path}: missing; this site has not taken part in {method}")
    card = read_object(path)
    samples, classes = site_of(settings), tuple(card["classes"])
    if fingerprint(samples, reserve_valid=card["reserve_valid"]) != card["fingerprint"]:
        raise DataError(
            f"{settings.name}: the samples differ from the contributed ones; restore them, or "
            "ask the server to forget this site and to sum again"
        )
    step = create_method(method, card["settings"]).statistics_step()
    if step is None:
        raise ConfigError(f"method {method!r} sends no statistics")
    client = Client(
        id=settings.name,
        train=relabel(samples.train, classes),
        valid=relabel(samples.valid, classes),
        reserve_valid=card["reserve_valid"],
    )
    unsigned = Withdrawal(client=settings.name, statistics=step(client, None))
    key = serialization.load_ssh_private_key(site.key.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(
            f"{site.key}: not the private key of a site; see 'fedgram federation keys'"
        )
    signature = key.sign(unsigned.signed_part(card["run"]), _SIGNED).hex()
    return Withdrawal(client=unsigned.client, statistics=unsigned.statistics, signature=signature)


def accept(project: Project, path: Path) -> Certificate:
    """Check the signature of a withdrawal and subtract it from its cohort's total.

    It is accepted once: the site is then not in the sum any more, and when it joins again, that is
    the sum of another run.
    """
    withdrawal = codec.load(path)
    if not isinstance(withdrawal, Withdrawal):
        raise DataError(f"{path}: not a withdrawal; make one with 'fedgram federation withdraw'")
    key = _public_key(project, withdrawal)
    client, part = withdrawal.client, withdrawal.statistics
    require_possible(part)
    folder = project.server
    with files.private(folder), unused(folder), Ledgers(folder) as ledgers:
        for _, ledger in ledgers:
            names = cohort(ledger)
            if client in names and ledger.space == part.space:
                _require_signed(key, withdrawal, ledger.runs)
                for _, each in ledgers:
                    each.require_unused(client, withdrawal.mark)
                rest = [name for name in names if name != client]
                erase_messages(folder)
                tag, mark = "\n".join(rest), withdrawal.mark
                return ledger.withdraw(client, part, within=COHORT, tag=tag, mark=mark)
    raise LedgerError(
        f"client {client}: not in the total of a secure sum here, or withdrawn already"
    )


def _public_key(project: Project, withdrawal: Withdrawal) -> ec.EllipticCurvePublicKey:
    site = next((each for each in project.sites if each.name == withdrawal.client), None)
    if site is None or not site.public_key.is_file():  # no name from a file becomes a path
        raise PrivacyError("the withdrawal is of a site whose key is not here; nothing was changed")
    key = serialization.load_ssh_public_key(site.public_key.read_bytes())
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"{site.public_key}: not the public key of a site")
    return key


def _require_signed(
    key: ec.EllipticCurvePublicKey, withdrawal: Withdrawal, runs: Sequence[str]
) -> None:
    """Raise PrivacyError unless a site withdraws from the sum of one of these runs."""
    for run in runs:
        with suppress(InvalidSignature, TypeError, ValueError):
            key.verify(bytes.fromhex(withdrawal.signature), withdrawal.signed_part(run), _SIGNED)
            return
    raise PrivacyError(
        f"the withdrawal is not signed by {withdrawal.client}, or is from an earlier sum; make a "
        "new one after a run; nothing was changed"
    )
