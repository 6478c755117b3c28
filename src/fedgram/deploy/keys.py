"""Create, renew and distribute the keys of a federation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedgram.deploy.folders import Project, SiteFolder
from fedgram.deploy.pins import pin_each_other
from fedgram.deploy.tls import SERVER_DAYS, Authority, CertificateInfo, node_pair
from fedgram.errors import ConfigError
from fedgram.runtime import files


def make_keys(
    project: Project,
    *,
    hosts: Sequence[str] = (),
    days: int = SERVER_DAYS,
    renew: bool = False,
    authority: bool = False,
) -> list[str]:
    """Create missing keys; return a line for each. With `renew`, replace the certificate too.

    Parameters
    ----------
    project
        The federation.
    hosts
        More names and addresses of the server, besides the address that sites connect to.
    days
        Number of days for which the server's certificate is valid.
    renew
        Replace the server's certificate and key; it keeps its names, and sites need no change.
    authority
        Replace the authority as well. Every site then needs the new ``ca.crt``.
    """
    if authority and not renew:
        raise ConfigError(
            "--authority replaces the certificate that sites trust; use it together with --renew"
        )
    made = []
    new = authority or not _has_authority(project)
    if new:
        signer = Authority.create()
        signer.save(project.authority)
        made.append(f"{project.authority}: a new authority; move ca.key to a safe place")
    missing = not all((project.server / name).exists() for name in ("server.pem", "server.key"))
    if new or renew or missing:
        signer = Authority.load(project.authority)
        old = () if missing else CertificateInfo.load(project.server / "server.pem").hosts
        issued = signer.issue([project.address.host, *hosts, *old], days=days)
        files.write(project.server / "server.key", issued.key, private=True)
        files.write(project.server / "server.pem", issued.certificate)
        files.write(project.server / "ca.crt", signer.root)
        made.append(f"{project.server}: a certificate, valid until {issued.until:%Y-%m-%d}")
    for site in project.sites:
        made += _hand_out(project, site)
    if not made:
        until = CertificateInfo.load(project.server / "server.pem").until
        raise ConfigError(
            f"{project.folder}: all keys exist, and the server's certificate is valid until "
            f"{until:%Y-%m-%d}; --renew replaces it"
        )
    return [*made, *_pinned(project)]


def make_pair(site: SiteFolder, *, renew: bool = False) -> str:
    """Create a site's key pair and return a line about it; only `renew` replaces an old pair."""
    there = [path for path in (site.key, site.public_key) if path.exists()]
    if there and not renew:
        raise ConfigError(
            f"{there[0]}: exists; --renew replaces it, and then 'fedgram federation register' must "
            "register the new key"
        )
    private, public = node_pair(site.name)
    files.write(site.key, private, private=True)
    files.write(site.public_key, public)
    return f"{site.folder}: a new key pair"


def renew_pairs(project: Project, names: Iterable[str]) -> list[str]:
    """Replace the key pairs of these sites; return a line for each."""
    sites = [SiteFolder.open(project.site(name).folder) for name in names]
    return [*(make_pair(site, renew=True) for site in sites), *_pinned(project)]


def _pinned(project: Project) -> list[str]:
    """Pin the keys of sites that were made here, for each other; return a line about it."""
    names = pin_each_other(project.sites)
    if not names:
        return []
    return [
        f"{', '.join(names)}: these sites have pinned each other's keys without a comparison; this "
        "is for trying out: before secure sums of real sites, compare fingerprints ('fedgram "
        "federation pin')"
    ]


def _has_authority(project: Project) -> bool:
    """Whether there is an authority, with its key here or elsewhere."""
    return (project.authority / "ca.crt").exists() or (project.server / "ca.crt").exists()


def _hand_out(project: Project, site: SiteFolder) -> list[str]:
    """Write the keys that a site lacks; a public key that the site has sent is kept."""
    made = []
    root = (project.server / "ca.crt").read_bytes()
    if not site.root.exists() or site.root.read_bytes() != root:
        files.write(site.root, root)
        made.append(f"{site.root}: the certificate of the authority, for the site")
    if not site.public_key.exists():
        made.append(make_pair(site))
    return made
