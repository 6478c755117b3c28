"""One command for each thing that is checked: `nox -s check`, `nox -s test`, `nox -s all`.

Each session has a virtual environment of its own, in a folder that git ignores.
"""

import nox

nox.options.envdir = ".venv-nox"
nox.options.sessions = ["check", "test"]

CONSTRAINED = ("-c", "constraints.txt")


def install(session: nox.Session, extras: str = "dev") -> None:
    """Install fedgram as it stands here, with these extras."""
    session.install(*CONSTRAINED, "-e", f".[{extras}]")


@nox.session
def check(session: nox.Session) -> None:
    """Style, types, and imports that point one way."""
    install(session)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports")


@nox.session
def test(session: nox.Session) -> None:
    """Run the tests that run by default; what follows `--` goes to pytest."""
    install(session)
    session.run("pytest", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site, run the commands and examples of its pages, and check its links."""
    install(session, "dev,docs")
    session.run("sphinx-build", "-q", "-W", "docs", "build/site")
    session.run("pytest", "-q", "README.md", "tests/test_docs.py")
    session.run("pytest", "-q", "-m", "docs", "tests")


@nox.session
def vision(session: nox.Session) -> None:
    """Test the backbones for images: the embedded one, transformers and timm."""
    install(session, "dev,vision,hf,datasets")
    session.run("pytest", "-q", "-m", "vision", "tests")
    session.run("pytest", "-q", "tests/data/test_hub.py")
    # In a process of its own: see tests/torchvision_ops.py.
    aside = f"{session.virtualenv.location}/aside"
    session.install(*CONSTRAINED, "--no-deps", "timm")
    session.install(*CONSTRAINED, "--no-deps", "--target", aside, "torchvision")
    path = {"PYTHONPATH": f"tests:{aside}"}
    session.run("pytest", "-q", "-p", "torchvision_ops", "tests/features/test_timm.py", env=path)


@nox.session
def flower(session: nox.Session) -> None:
    """Test a federation of real processes, carried by Flower."""
    install(session, "dev,flower,simulation")
    session.run("pytest", "-q", "--dist", "loadgroup", "-m", "flower", "tests")


@nox.session
def ray(session: nox.Session) -> None:
    """Test clients and studies on a Ray cluster of this machine."""
    install(session, "dev,ray")
    session.run("pytest", "-q", "-n", "0", "-m", "ray", "tests/engines/ray")


@nox.session
def wide(session: nox.Session) -> None:
    """Test laws and digests on larger data."""
    install(session)
    session.run("pytest", "-q", "-m", "wide", "tests")


@nox.session
def faults(session: nox.Session) -> None:
    """Test sites, servers and disks that fail, Flower's processes among them."""
    install(session, "dev,flower,simulation")
    session.run("pytest", "-q", "--dist", "loadgroup", "-m", "faults", "tests")


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Run small forms of the benchmarks; fail on a clear regression."""
    install(session)
    session.run("python", "-m", "benchmarks", "check")
    session.run("python", "-m", "benchmarks.core", "--quick")
    session.run("python", "-m", "benchmarks.extract", "--quick")


@nox.session(venv_backend="none")
def nightly(session: nox.Session) -> None:
    """Run what takes hours, before a release; what follows `--` are parts of `.ci/nightly`."""
    session.run(".ci/nightly", *session.posargs, external=True)


@nox.session(name="all", venv_backend="none")
def everything(session: nox.Session) -> None:
    """Run what `.ci/run` runs, each part in a session of its own."""
    for name in (
        "check",
        "test",
        "docs",
        "vision",
        "flower",
        "ray",
        "wide",
        "faults",
        "benchmarks",
    ):
        session.notify(name)
