"""Federations of real processes, by Flower's own programs, on this machine."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedgram.deploy.folders import Address, Project, create
from fedgram.deploy.keys import make_keys
from fedgram.deploy.operator import Operator, operator_of, register, start_superlink
from fedgram.deploy.processes import Processes, free_ports


def project(
    folder: Path, *overrides: str, sites: Sequence[str], methods: Sequence[str] = ("afl",)
) -> Project:
    """Return the folder of a federation on a free port, with keys; its sites share the digits."""
    (port,) = free_ports(1)
    made = create(
        folder,
        sites=sites,
        methods=methods,
        overrides=overrides,
        address=Address(host="127.0.0.1", port=port),
        demo=True,
    )
    make_keys(made)
    return made


@contextmanager
def served(made: Project) -> Iterator[tuple[Operator, Processes]]:
    """Start a federation's server and register its sites' keys; end all with the body."""
    with Processes(made.logs) as processes:
        start_superlink(made, processes)
        operator = operator_of(made, processes)
        register(operator, print)
        yield operator, processes
