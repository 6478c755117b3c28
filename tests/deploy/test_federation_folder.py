"""The folder of a federation, and the keys in it."""

import json
import ssl
import stat
import threading
import tomllib
from datetime import UTC, datetime, timedelta
from socket import create_server, socket

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)
from hypothesis import given
from hypothesis import strategies as st

from fedgram.cli import main
from fedgram.deploy import tls
from fedgram.deploy.folders import Address, Project, create, require_names
from fedgram.deploy.keys import make_keys
from fedgram.deploy.settings import FederationRules, read_federation, read_site
from fedgram.deploy.site import site_of
from fedgram.deploy.tls import Authority, CertificateInfo, node_pair
from fedgram.engines.remote.policy import SitePolicy
from fedgram.errors import ConfigError, DataError, MismatchError
from fedgram.experiments import config as configuration
from fedgram.features.grid import Grid


def invoke(*arguments):
    return CliRunner().invoke(main, ["federation", *map(str, arguments)])


@pytest.fixture
def project(tmp_path):
    return create(
        tmp_path / "study",
        sites=["north", "west"],
        methods=["apfl-linear"],
        overrides=["method.apfl-linear.balance=0.3", "federation.timeout=60"],
        address=Address.read("fl.example.org:8443"),
    )


@pytest.fixture
def keyed(project):
    make_keys(project, hosts=["10.0.0.5"])
    return project


def handshake(server, root, host):
    """Shake hands with a server that shows the certificate in a folder; return an error or None."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / "server.pem", server / "server.key")
    with create_server(("127.0.0.1", 0)) as listening:

        def answer():
            connection, _ = listening.accept()
            try:
                context.wrap_socket(connection, server_side=True).close()
            except (ssl.SSLError, OSError):
                connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        trusting = ssl.create_default_context(cafile=root)
        trusting.verify_flags |= ssl.VERIFY_X509_STRICT
        try:
            with socket() as plain:
                plain.connect(listening.getsockname())
                trusting.wrap_socket(plain, server_hostname=host).close()
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        finally:
            thread.join()
    return None


@pytest.mark.parametrize("host", ["fl.example.org", "10.0.0.5", "localhost", "127.0.0.1", "::1"])
def test_sites_accept_the_server_under_each_of_its_names(keyed, host):
    assert handshake(keyed.server, keyed.site("north").root, host) is None


def test_sites_refuse_a_server_of_another_name_or_authority(keyed, tmp_path):
    root = keyed.site("north").root
    assert "mismatch" in handshake(keyed.server, root, "other.example.org")
    assert "mismatch" in handshake(keyed.server, root, "10.0.0.6")
    Authority.create().save(tmp_path / "other")
    refused = handshake(keyed.server, tmp_path / "other" / "ca.crt", "localhost")
    assert refused is not None


def test_a_certificate_that_has_ended_is_refused(keyed, monkeypatch):
    authority = Authority.load(keyed.authority)
    then = datetime.now(UTC) - timedelta(days=10)
    with monkeypatch.context() as patch:
        patch.setattr(tls, "_now", lambda: then)
        issued = authority.issue(["localhost"], days=9)
    (keyed.server / "server.pem").write_bytes(issued.certificate)
    (keyed.server / "server.key").write_bytes(issued.key)
    assert "expired" in handshake(keyed.server, keyed.server / "ca.crt", "localhost")


def test_an_authority_that_has_ended_signs_no_more(monkeypatch):
    short = Authority.create(days=3)
    monkeypatch.setattr(tls, "_now", lambda: datetime.now(UTC) + timedelta(days=4))
    with pytest.raises(ConfigError, match="make a new one with --renew --authority"):
        short.issue(["a"])


def test_certificates_say_what_they_are_for(keyed):
    authority = x509.load_pem_x509_certificate((keyed.authority / "ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((keyed.server / "server.pem").read_bytes())
    server.verify_directly_issued_by(authority)
    basic = [
        c.extensions.get_extension_for_class(x509.BasicConstraints) for c in (authority, server)
    ]
    assert [(b.value.ca, b.critical) for b in basic] == [(True, True), (False, True)]
    assert server.not_valid_after_utc <= authority.not_valid_after_utc
    left = server.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=396) < left <= timedelta(days=397)


def test_no_server_outlives_its_authority():
    short = Authority.create(days=3)
    assert short.issue(["a"], days=100).until == short.certificate.not_valid_after_utc


def test_private_files_are_their_owners_alone(keyed):
    private = [
        keyed.authority / "ca.key",
        keyed.server / "server.key",
        keyed.site("north").key,
        keyed.site("west").key,
        keyed.site("west").pins,
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}


def test_a_site_has_a_key_pair_of_its_own_in_the_formats_of_openssh(keyed):
    pairs = [keyed.site(name) for name in ("north", "west")]
    keys = [load_ssh_private_key(site.key.read_bytes(), None) for site in pairs]
    shown = [load_ssh_public_key(site.public_key.read_bytes()) for site in pairs]
    assert all(isinstance(key.curve, ec.SECP384R1) for key in keys)
    assert [key.public_key() for key in keys] == shown
    assert shown[0] != shown[1]
    assert keyed.site("north").public_key.read_text().endswith(" north\n")


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_is_overwritten_without_being_told_to(keyed):
    before = content(keyed.folder)
    again = invoke("keys", keyed.folder)
    assert again.exit_code == 2
    assert "all keys exist" in again.stderr
    of_site = invoke("keys", keyed.site("north").folder)
    assert of_site.exit_code == 2
    assert "--renew" in of_site.stderr
    assert content(keyed.folder) == before


def changed(before, after):
    return {path.name for path in after if before.get(path) != after[path]}


def test_a_renewed_certificate_keeps_names_authority_and_sites(keyed):
    before = content(keyed.folder)
    assert invoke("keys", keyed.folder, "--renew", "--host", "new.example.org").exit_code == 0
    assert changed(before, content(keyed.folder)) == {"server.pem", "server.key"}
    hosts = CertificateInfo.load(keyed.server / "server.pem").hosts
    assert {"fl.example.org", "10.0.0.5", "new.example.org", "::1"} <= set(hosts)
    assert handshake(keyed.server, keyed.site("west").root, "new.example.org") is None


def test_the_class_list_of_a_site_is_the_declared_one(tmp_path):
    """Whether or not there are samples of a class."""
    project = create(tmp_path / "study", sites=["a"], methods=["afl"], demo=True)
    path = project.site("a").settings
    settings, declared = path.read_text(), [str(digit) for digit in range(12)]
    path.write_text(f"classes = {json.dumps(declared)}\n{settings}")
    site = site_of(read_site(path))
    assert {part.labels.classes for part in (site.train, site.valid, site.test)} == {
        tuple(declared)
    }
    path.write_text(f"classes = {json.dumps(declared[:5])}\n{settings}")
    with pytest.raises(MismatchError, match="not in the shared class list"):
        site_of(read_site(path))
    for wrong in ("3", '["a", "a"]', "[1]"):
        path.write_text(f"classes = {wrong}\n{settings}")
        with pytest.raises(ConfigError, match="classes: expected"):
            read_site(path)


def test_a_renewed_pair_is_of_one_site(keyed):
    before = content(keyed.folder)
    assert invoke("keys", keyed.folder, "--renew", "--site", "west").exit_code == 0
    after = content(keyed.folder)
    pinned = keyed.site("north").pins  # keys that were made on one machine
    changes = {p for p in after if before.get(p) != after[p]}
    assert changes == {keyed.site("west").key, keyed.site("west").public_key, pinned}


def test_a_new_authority_reaches_every_site(keyed):
    assert invoke("keys", keyed.folder, "--authority").exit_code == 2  # not without --renew
    old = keyed.site("north").root.read_bytes()
    assert invoke("keys", keyed.folder, "--renew", "--authority").exit_code == 0
    roots = {keyed.site(name).root.read_bytes() for name in ("north", "west")}
    assert roots == {(keyed.authority / "ca.crt").read_bytes()}
    assert old not in roots
    assert handshake(keyed.server, keyed.site("north").root, "fl.example.org") is None


def test_a_site_is_added_later_without_the_authoritys_key(keyed):
    (keyed.authority / "ca.key").unlink()
    before = content(keyed.folder)
    done = invoke("keys", keyed.folder, "--site", "east")
    assert done.exit_code == 0, done.stderr
    after = content(keyed.folder)
    assert {p.relative_to(keyed.folder).parts[0] for p in after if before.get(p) != after[p]} == {
        "sites",
        "server",
    }
    assert changed(before, after) == {
        *("README.md", "site.toml", "connection.toml", "ca.crt", "node", "node.pub"),
        *("federation.toml", "pins.json"),
    }
    assert tomllib.loads(keyed.settings.read_text())["federation"]["sites"] == [
        *("north", "west", "east"),
    ]
    refused = invoke("keys", keyed.folder, "--renew")
    assert refused.exit_code == 2
    assert "ca.key: cannot be read" in refused.stderr


SITES = """\
sites = [
    "north",  # since May
    "west",   # the pilot
]  # more in autumn
"""


def test_adding_a_site_keeps_the_comments_of_the_settings(project):
    text = project.settings.read_text(encoding="utf-8")
    mine = "# Agreed on 3 May.\n" + text.replace('sites = ["north", "west"]\n', SITES)
    project.settings.write_text(mine, encoding="utf-8")
    project.add_site("east")
    expected = mine.replace("# the pilot\n", '# the pilot\n    "east",\n')
    assert expected != mine
    assert project.settings.read_text(encoding="utf-8") == expected


@pytest.mark.parametrize("line", ["", "sites = []\n"])
def test_adding_a_site_does_not_shut_out_others_where_every_site_is_allowed(project, line):
    text = project.settings.read_text(encoding="utf-8")
    allowing_all = text.replace('sites = ["north", "west"]\n', line)
    assert allowing_all != text
    project.settings.write_text(allowing_all, encoding="utf-8")
    project.add_site("east")
    assert project.settings.read_text(encoding="utf-8") == allowing_all
    assert project.site("east").settings.is_file()


def test_a_list_of_sites_of_another_type_is_refused(project):
    text = project.settings.read_text(encoding="utf-8")
    project.settings.write_text(text.replace('sites = ["north", "west"]', 'sites = "north"'))
    with pytest.raises(ConfigError, match=r"federation\.sites = 'north': expected a list"):
        project.add_site("east")
    assert not project.site("east").folder.exists()


def test_a_site_that_is_added_later_has_the_servers_grid(tmp_path):
    project = create(tmp_path / "g", sites=["a"], overrides=["grid.bits=16"])
    assert read_site(project.add_site("b").settings).grid == Grid(bits=16)


def test_a_folder_name_with_quotes_is_written_as_valid_toml(tmp_path):
    project = create(tmp_path / 'a "b" \\c $d', sites=["a"])
    app = tomllib.loads((project.app / "pyproject.toml").read_text(encoding="utf-8"))
    assert app["tool"]["flwr"]["app"]["config"] == {"server": str(project.server)}


def test_a_site_that_made_its_own_key_keeps_it(project):
    site = project.site("north")
    assert invoke("keys", site.folder).exit_code == 0
    site.key.rename(site.folder.parent / "kept at the site")
    public = site.public_key.read_bytes()
    make_keys(project)
    assert site.public_key.read_bytes() == public
    assert not site.key.exists()


def test_a_key_that_is_not_the_authoritys_is_refused(keyed):
    _, other = Authority.create(), Authority.create()
    other.save(keyed.folder / "other")
    (keyed.folder / "other" / "ca.key").replace(keyed.authority / "ca.key")
    with pytest.raises(DataError, match=r"ca\.key is not the key of ca\.crt"):
        make_keys(keyed, renew=True)
    (keyed.authority / "ca.key").write_text("nonsense")
    with pytest.raises(DataError, match="not an authority's certificate and key"):
        make_keys(keyed, renew=True)


def test_no_two_pairs_are_equal():
    assert node_pair("a")[0] != node_pair("a")[0]


def test_the_folder_says_what_was_asked_for(project):
    settings = tomllib.loads(project.settings.read_text(encoding="utf-8"))
    assert settings["federation"]["timeout"] == 60
    config, rules = read_federation(project.settings)
    assert rules == FederationRules(sites=("north", "west"), minimum=2, timeout=60)
    assert config.methods == ("apfl-linear",)
    assert config.make("apfl-linear").balance == 0.3
    assert config.data.clients == 2
    app = tomllib.loads((project.app / "pyproject.toml").read_text(encoding="utf-8"))
    assert app["tool"]["flwr"]["app"]["config"] == {"server": str(project.server)}
    for part in app["tool"]["flwr"]["app"]["components"].values():
        module = part.removesuffix(":app").replace(".", "/")
        assert (project.app / f"{module}.py").is_file()
    site = read_site(project.site("west").settings)
    assert (site.name, site.data.source, site.accept) == ("west", "features.npz", SitePolicy())
    assert str(project.address) == str(project.site("west").server) == "fl.example.org:8443"
    assert "fedgram federation site west" in (project.folder / "README.md").read_text()


@pytest.mark.parametrize("setting", ["grid=16", "grid.bits=16"])
def test_sites_are_on_the_servers_grid(tmp_path, setting):
    project = create(tmp_path / "g", sites=["a"], overrides=[setting, "data.test_fraction=0.5"])
    config, _ = read_federation(project.settings)
    site = read_site(project.site("a").settings)
    assert site.grid == config.grid == Grid(bits=16)
    assert site.data.test_fraction == 0.5


def test_sites_of_a_regression_declare_its_range(tmp_path):
    task = ("-s", "data.task=regression", "-s", "data.output_range=[0,100]")
    done = invoke("init", tmp_path / "f", "--site", "a", "--site", "b", "-m", "afl", *task)
    assert done.exit_code == 0, done.stderr
    project = Project.open(tmp_path / "f")
    project.add_site("c")
    for name in "abc":
        site = read_site(project.site(name).settings)
        assert (site.data.task, site.data.output_range) == ("regression", (0, 100))


def test_the_demo_deals_the_digits(tmp_path):
    done = invoke("init", tmp_path / "d", "--demo", "-m", "afl", "-s", "data.dirichlet=1")
    assert done.exit_code == 0, done.stderr
    project = Project.open(tmp_path / "d")
    sites = [tomllib.loads(site.settings.read_text()) for site in project.sites]
    assert sorted(site["share"] for site in sites) == [0, 1, 2]
    data = {"clients": 3, "dirichlet": 1, "source": "digits"}
    assert all(site["data"] == data for site in sites)
    dealt = configuration.read_toml(project.settings)["data"]
    assert {**dealt, "source": "digits"} == data  # a simulation deals the same


def test_a_folder_with_something_in_it_is_left_alone(project):
    before = content(project.folder)
    refused = invoke("init", project.folder, "--demo")
    assert refused.exit_code == 2
    assert "not empty" in refused.stderr
    assert content(project.folder) == before


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "no sites are given"),
        (["--site", "a b"], "--site 'a b': use up to 63 letters"),
        (["--site", "Zürich"], "--site 'Zürich'"),
        (["--site", "../up"], "--site '../up'"),
        (["--site", ""], "--site ''"),
        (["--site", "a" * 64], "up to 63"),
        (["--site", "a\n"], "--site 'a\\n'"),
        (["--site", "north", "--site", "North"], "site north exists"),
        (["--demo", "-m", "apfl-linea"], "did you mean 'apfl-linear'?"),
        (["--demo", "-s", "data.client=3"], "did you mean 'clients'?"),
        (["--demo", "-s", "federation.quorums=1"], "did you mean 'quorum'?"),
        (["--demo", "-s", "federation=1"], "expected a table"),
        (["--demo", "--address", "nowhere"], "'nowhere' is not an address"),
        (["--demo", "--address", "a:70000"], "'a:70000' is not an address"),
        (["--demo", "--address", "http://a:80"], "is not an address"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_written(tmp_path, arguments, reason):
    refused = invoke("init", tmp_path / "new", *arguments)
    assert refused.exit_code == 2
    assert reason in refused.stderr
    assert not (tmp_path / "new").exists()


def test_a_method_in_a_file_is_refused(tmp_path):
    own = tmp_path / "own.py"
    text = (
        configuration.__file__,
        "from fedgram.methods.afl import AFL\n\n\nclass Own(AFL): ...\n",
    )
    own.write_text(text[1])
    refused = invoke("init", tmp_path / "new", "--demo", "-m", own)
    assert refused.exit_code == 2
    assert "only have the methods that come with fedgram" in refused.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", ["keys"])
def test_a_folder_of_something_else_is_refused(tmp_path, command):
    refused = invoke(command, tmp_path)
    assert refused.exit_code == 2
    assert "fedgram federation init" in refused.stderr


@given(st.text(max_size=70))
def test_names_that_pass_are_plain_folder_names(name):
    try:
        require_names([name])
    except ConfigError:
        return
    assert name.isascii()
    assert "/" not in name
    assert name not in (".", "..")
    assert 0 < len(name) <= 63


@given(st.integers(1, 65535), st.sampled_from(["a", "10.0.0.1", "fe80::1", "a-b.example"]))
def test_an_address_reads_as_it_is_written(port, host):
    assert Address.read(str(Address(host=host, port=port))) == Address(host=host, port=port)


def test_status_says_when_the_certificate_of_the_server_ends(project):
    assert "certificate" not in invoke("status", project.folder).output
    make_keys(project, hosts=[], days=100)
    until = CertificateInfo.load(project.server / "server.pem").until
    shown = invoke("status", project.folder)
    assert f"the server's certificate is valid until {until:%Y-%m-%d}" in shown.output
    found = json.loads(invoke("status", project.folder, "--json").output)
    assert found["certificate_until"] == f"{until:%Y-%m-%d}"
