"""The federation's own authority, the server's certificate, and a key pair for every site.

Connections are encrypted, and the server has a certificate that is signed by the federation's own
authority. A site proves that it has the private key whose public part is registered at the server.
The package `cryptography` makes all keys: neither openssl nor ssh-keygen is needed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedgram.errors import ConfigError, DataError
from fedgram.runtime import files

AUTHORITY_DAYS, SERVER_DAYS = 3650, 397
# Programs on the server's own machine connect by these names.
HERE = ("localhost", "127.0.0.1", "::1")
# What `cryptography` raises for files that are damaged, or of another kind.
_UNREADABLE = (
    *(ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion),
    *(x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType),
)
_SKEW = timedelta(hours=1)  # for sites whose clocks are behind


@dataclass(frozen=True, kw_only=True)
class Authority:
    """The authority that signs the server's certificate: its own certificate and private key.

    Examples
    --------
    >>> authority = Authority.create()
    >>> server = authority.issue(["fl.example.org"])
    >>> server.certificate.splitlines()[0]
    b'-----BEGIN CERTIFICATE-----'
    """

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, *, days: int = AUTHORITY_DAYS) -> Authority:
        """Return a new authority."""
        key = ec.generate_private_key(ec.SECP384R1())
        name = _named("fedgram federation authority")
        signs = _usage(key_cert_sign=True, crl_sign=True)
        built = (
            _builder(key, name, issuer=name, until=_now() + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(signs, critical=True)
        )
        return cls(certificate=built.sign(key, hashes.SHA384()), key=key)

    @classmethod
    def load(cls, folder: Path) -> Authority:
        """Return the authority that `save` wrote into a folder."""
        try:
            certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
            key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
            public = certificate.public_key()  # not read before it is needed
        except OSError as error:
            raise ConfigError(
                f"{error.filename}: cannot be read ({error.strerror}); restore the "
                "authority's files, or make a new authority with --authority"
            ) from error
        except _UNREADABLE as error:
            raise DataError(
                f"{folder}: not an authority's certificate and key ({error}); restore them, or "
                "make a new authority with --authority"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or (key.public_key() != public):
            raise DataError(f"{folder}: ca.key is not the key of ca.crt; restore the right one")
        return cls(certificate=certificate, key=key)

    def save(self, folder: Path) -> None:
        """Write certificate and key; whoever has the key can impersonate the server."""
        files.write(folder / "ca.key", _private(self.key), private=True)
        files.write(folder / "ca.crt", self.root)

    @property
    def root(self) -> bytes:
        """The certificate, as PEM, by which sites recognize the server."""
        return bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, hosts: Iterable[str], *, days: int = SERVER_DAYS) -> IssuedCertificate:
        """Return a new key and its certificate for a server with these names.

        Parameters
        ----------
        hosts
            Domain names and IP addresses; those of the local machine are added.
        days
            Number of days for which the certificate is valid, at most as long as the authority.
        """
        end = self.certificate.not_valid_after_utc
        if end <= _now():
            raise ConfigError(
                f"the authority's certificate expired on {end:%Y-%m-%d}; make a new one with "
                "--renew --authority"
            )
        key = ec.generate_private_key(ec.SECP384R1())
        names = list(dict.fromkeys([*hosts, *HERE]))
        until = min(_now() + timedelta(days=days), end)
        subject = _named(names[0][:64])  # the standard's limit; clients read the extension below
        issuer = self.certificate.subject
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        built = (
            _builder(key, subject, issuer=issuer, until=until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName(map(_host, names)), critical=False)
            .add_extension(signer, critical=False)
        )
        certificate = built.sign(self.key, hashes.SHA384())
        shown = certificate.public_bytes(serialization.Encoding.PEM)
        return IssuedCertificate(certificate=shown, key=_private(key), until=until)


@dataclass(frozen=True, kw_only=True)
class IssuedCertificate:
    """A server's certificate and private key, as PEM, and when they expire."""

    certificate: bytes
    key: bytes
    until: datetime


def node_pair(name: str) -> tuple[bytes, bytes]:
    """Return a new private and public key of a site, in the OpenSSH formats that Flower reads.

    Examples
    --------
    >>> private, public = node_pair("north")
    >>> public.split()[0], public.split()[2]
    (b'ecdsa-sha2-nistp384', b'north')
    """
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return private, public + b" " + name.encode() + b"\n"


@dataclass(frozen=True, kw_only=True)
class CertificateInfo:
    """The names in a server's certificate, and when it expires."""

    hosts: tuple[str, ...]
    until: datetime

    @classmethod
    def load(cls, path: Path) -> CertificateInfo:
        """Read a certificate file."""
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except OSError as error:
            raise DataError(
                f"{path}: cannot be read ({error.strerror}); run 'fedgram federation keys'"
            ) from error
        except _UNREADABLE as error:
            raise DataError(f"{path}: not a server's certificate ({error}); use --renew") from error
        hosts = tuple(str(name.value) for name in names.value)
        return cls(hosts=hosts, until=certificate.not_valid_after_utc)


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name.encode("idna").decode("ascii"))
    except UnicodeError as error:
        raise ConfigError(f"{name!r} is neither a host name nor an IP address") from error


def _builder(
    key: ec.EllipticCurvePrivateKey, subject: x509.Name, *, issuer: x509.Name, until: datetime
) -> x509.CertificateBuilder:
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - _SKEW)
        .not_valid_after(until)
        .add_extension(own, critical=False)
    )


def _usage(**used: bool) -> x509.KeyUsage:
    """Return the allowed uses of a key; all other uses are forbidden."""
    kinds = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    chosen: dict[str, Any] = {kind: used.get(kind, False) for kind in kinds}
    return x509.KeyUsage(**chosen)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)  # certificates count seconds
