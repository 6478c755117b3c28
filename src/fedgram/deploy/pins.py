"""The keys that a site has pinned: whose messages it believes in secure sums.

A pin is a name and a public key. People compare the fingerprints of keys over another channel, such
as the telephone, and then pin them: a server cannot invent members, or replace their keys. The file
is in the site's own folder, and nothing from the server changes it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from fedgram.deploy.folders import SiteFolder, require_names
from fedgram.errors import ConfigError, DataError, PrivacyError
from fedgram.experiments.record import read_object
from fedgram.runtime import files

_SIGNED = ec.ECDSA(hashes.SHA384())
_NUMBER = 48  # bytes of each of the two numbers of a signature, with the curve P-384
_PURPOSE = b"fedgram secure sum\n"  # the key signs for Flower and for withdrawals too


@dataclass(frozen=True, kw_only=True)
class Pin:
    """A public key as OpenSSH writes it, and whether people have compared its fingerprint."""

    key: str
    compared: bool

    @property
    def fingerprint(self) -> str:
        """The fingerprint, as ``ssh-keygen -l`` prints it."""
        return fingerprint(self.key)


class KeySigner:
    """Signs with a site's key, and verifies the signatures of others by pinned keys.

    Parameters
    ----------
    name
        Name of the site.
    private
        Returns its private key; called when something is signed.
    public
        The keys of other sites, by name, as OpenSSH writes them.
    """

    def __init__(
        self,
        name: str,
        private: Callable[[], ec.EllipticCurvePrivateKey],
        public: Mapping[str, str],
    ) -> None:
        self._name = name
        self._private = cache(private)
        self._public = public
        self._keys: dict[str, ec.EllipticCurvePublicKey] = {}

    def known(self, name: str) -> bool:
        """Whether the key of a site is pinned; a site knows its own key."""
        return name == self._name or name in self._public

    def sign(self, message: bytes) -> bytes:
        """Return this site's signature of the message."""
        both = decode_dss_signature(self._private().sign(_PURPOSE + message, _SIGNED))
        return b"".join(part.to_bytes(_NUMBER, "big") for part in both)  # always of one length

    def verify(self, name: str, message: bytes, signature: bytes) -> bool:
        """Whether the pinned key of a site has signed the message.

        Parameters
        ----------
        name
            The site.
        message, signature
            The message and its signature.
        """
        if len(signature) != 2 * _NUMBER:
            return False
        both = (int.from_bytes(part, "big") for part in (signature[:_NUMBER], signature[_NUMBER:]))
        try:
            self._key(name).verify(encode_dss_signature(*both), _PURPOSE + message, _SIGNED)
        except InvalidSignature:
            return False
        return True

    def _key(self, name: str) -> ec.EllipticCurvePublicKey:
        if name not in self._keys:
            own = name == self._name
            found = self._private().public_key() if own else read_key(self._public[name])
            self._keys[name] = found
        return self._keys[name]


def site_signer(site: SiteFolder, *, compared: bool = False) -> KeySigner:
    """Return what signs for a site, with the keys that are pinned in its folder.

    With `compared`, keys that nobody has compared do not count.
    """
    public = {
        name: found.key for name, found in pins(site).items() if found.compared or not compared
    }
    return KeySigner(site.name, lambda: _private_key(site), public)


def fingerprint(key: str) -> str:
    """Return the fingerprint of a public key, as ``ssh-keygen -l`` prints it.

    Examples
    --------
    >>> fingerprint("ecdsa-sha2-nistp384 AAAA north")
    'SHA256:cJ6AyISHokEeHuTfufIqhhSS0gxHZRUMDHlKvXD4FHw'
    """
    try:
        content = base64.b64decode(key.split()[1], validate=True)
    except (IndexError, binascii.Error) as error:
        raise DataError(f"not a public key of a site: {key[:60]!r}") from error
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    return "SHA256:" + digest.rstrip("=")


def read_key(text: str) -> ec.EllipticCurvePublicKey:
    """Return the public key of a site from its text."""
    try:
        key = serialization.load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise DataError(f"not a public key of a site: {text[:60]!r} ({error})") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
        raise DataError(f"not a public key of a site: {text[:60]!r}; expected one of P-384")
    return key


def pins(site: SiteFolder) -> dict[str, Pin]:
    """Return the pinned keys of a site, by name."""
    if not site.pins.is_file():
        return {}
    try:
        return {
            str(name): Pin(key=str(entry["key"]), compared=bool(entry["compared"]))
            for name, entry in read_object(site.pins).items()
        }
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{site.pins}: not a list of pinned keys ({error}); delete it and pin the keys again"
        ) from error


def pin(
    site: SiteFolder, name: str, public_key: Path, *, read_out: str, replace: bool = False
) -> Pin:
    """Pin the key of another site, if its fingerprint is the one that its people read out.

    Parameters
    ----------
    site
        The site that pins.
    name
        Name of the other site.
    public_key
        Its public key, ``node.pub``.
    read_out
        The fingerprint that the people of the other site have read out.
    replace
        Whether the key may replace another one with this name.
    """
    key = _text(public_key)
    read_key(key)
    found, given = fingerprint(key), read_out.strip().removeprefix("SHA256:").rstrip("=")
    if not hmac.compare_digest(found.removeprefix("SHA256:").encode(), given.encode()):
        raise PrivacyError(
            f"{public_key}: its fingerprint is {found}, and {read_out!r} was read out; this is not "
            f"the key of {name}: nothing is pinned"
        )
    known = pins(site)
    if name == site.name:
        raise ConfigError(f"{name} is this site; it knows its own key")
    if name in known and known[name].fingerprint != found and known[name].compared and not replace:
        raise PrivacyError(
            f"another key of {name} is pinned ({known[name].fingerprint}); if {name} has a new "
            "key, use --replace"
        )
    taken = [other for other, each in known.items() if other != name and each.fingerprint == found]
    own = fingerprint(_text(site.public_key)) if site.public_key.is_file() else ""
    if taken or found == own:
        raise PrivacyError(
            f"this is the key of {', '.join(taken) or site.name} already; one site would count as "
            "two"
        )
    made = Pin(key=key, compared=True)
    _write(site, {**known, name: made})
    return made


def peer(public_key: Path, name: str | None = None) -> tuple[str, str]:
    """Return the name in the file of a public key, unless one is given, and the fingerprint."""
    try:
        words = public_key.read_text(encoding="utf-8").split()
    except (OSError, UnicodeError):
        words = []
    found = name or (words[2] if len(words) > 2 else "")
    key = _text(public_key)
    read_key(key)
    require_names([found])
    return found, fingerprint(key)


def pin_each_other(sites: Iterable[SiteFolder]) -> list[str]:
    """Pin the keys of sites whose private keys are on this machine; return their names.

    Nobody has compared these keys: this is for trying things out. Keys that people have compared
    are not changed.
    """
    here = [site for site in sites if site.key.is_file() and site.public_key.is_file()]
    keys = {site.name: _text(site.public_key) for site in here}
    for site in here:
        known = pins(site)
        new = {
            name: Pin(key=key, compared=False)
            for name, key in keys.items()
            if name != site.name and not (name in known and known[name].compared)
        }
        if {**known, **new} != known:
            _write(site, {**known, **new})
    return sorted(keys) if len(keys) > 1 else []


def own_fingerprint(site: SiteFolder) -> str:
    """Return the fingerprint of a site's own key, for its people to read out."""
    return fingerprint(_text(site.public_key))


def _text(path: Path) -> str:
    try:
        words = path.read_text(encoding="ascii").split()
    except (OSError, UnicodeError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}); expected the node.pub of a site"
        ) from error
    return " ".join(words[:2])  # without the comment, which anybody can change


def _private_key(site: SiteFolder) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_ssh_private_key(site.key.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{site.key}: not the private key of a site ({error}); see 'fedgram federation keys'"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(
            f"{site.key}: not the private key of a site; see 'fedgram federation keys'"
        )
    return key


def _write(site: SiteFolder, found: dict[str, Pin]) -> None:
    plain = {name: asdict(each) for name, each in sorted(found.items())}
    files.write(site.pins, json.dumps(plain, indent=2) + "\n", private=True)
