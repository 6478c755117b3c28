"""The connection to Ray: workers that are started, asked and ended."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, Self

from fedgram.errors import ConfigError, FederationError

LOCAL = "local"
# Read when Ray is imported: no reports to its makers, and no message about graphics cards.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_RESERVED = 2**20  # bytes; Ray places a worker that reserves nothing by chance, and does not spread


class WorkerLost(FederationError):  # noqa: N818  # caught where the worker is replaced
    """A Ray worker that ended before it answered."""


class Cluster:
    """Ray, connected while the body of a ``with`` statement runs.

    A connection that this process has already is used, and stays.

    Parameters
    ----------
    address
        "local" to start Ray on this machine, "auto" for the cluster that this machine is part of,
        or the address of a cluster.
    cpus
        Number of processors that a local Ray counts.
    """

    def __init__(self, address: str = LOCAL, *, cpus: int = 1) -> None:
        self._address = address
        self._cpus = cpus
        self._ours = False
        self._ray = _imported()

    def __enter__(self) -> Self:
        if not self._ray.is_initialized():
            self._connect()
            self._ours = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._ours:
            self._ray.shutdown()

    def _connect(self) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "WARNING"}
        if self._address == LOCAL:
            options |= {"num_cpus": self._cpus, "include_dashboard": False}
        try:
            self._ray.init(address=self._address, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"Ray address {self._address!r}: no Ray cluster answers there "
                f"({' '.join(str(error).split())[:200]}); start one with 'ray start --head', "
                f"or use {LOCAL!r}"
            ) from error

    @property
    def cores(self) -> int:
        """Number of processors that the cluster counts."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def start(self, kind: type, *arguments: Any) -> Any:
        """Start a worker: an object of this class in a process of its own, on some machine.

        Workers are spread over the machines. With no processors reserved, a worker starts even if
        there are more workers than processors. Ray sets ``OMP_NUM_THREADS`` to 1 in it.
        """
        options = {
            "num_cpus": 0,
            "memory": _RESERVED,
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
        }
        return self._ray.remote(kind).options(**options).remote(*arguments)

    def put(self, content: bytes) -> Any:
        """Return a reference to bytes that travel to each machine at most once."""
        return self._ray.put(content)

    def call(self, worker: Any, name: str, *arguments: Any) -> Any:
        """Call a method of a worker; return a reference to its result at once."""
        return getattr(worker, name).remote(*arguments)

    def first_of(self, references: list[Any]) -> Any:
        """Wait until one of the results is there, and return its reference."""
        return self._ray.wait(references, num_returns=1)[0][0]

    def get(self, reference: Any) -> Any:
        """Return a result; raise `WorkerLost` if its worker has ended."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError:  # an error of the worker's own code
            raise
        except self._ray.exceptions.RayError as error:
            raise WorkerLost(" ".join(str(error).split())[:300]) from error

    def end(self, worker: Any) -> None:
        """End a worker."""
        with suppress(Exception):  # it may have ended, with its machine
            self._ray.kill(worker)


def _imported() -> Any:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise ConfigError("Ray is not installed; use: pip install 'fedgram[ray]'") from error
    return ray
