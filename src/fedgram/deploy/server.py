"""A federation's server: runs the methods of ``federation.toml``, and continues after a crash.

``runs/NNNN/METHOD`` is the record of a run, as ``fedgram run`` writes it; a replay log beside it
holds the answers of the sites so far. A server that was killed reads both, and its ledgers, and
computes the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedgram.core import codec
from fedgram.deploy.folders import federation_digest
from fedgram.deploy.run_state import RunState
from fedgram.deploy.settings import FederationRules, plain_grid, read_federation, registered
from fedgram.engines.remote.collector import Collector
from fedgram.engines.remote.contributions import Contributions
from fedgram.engines.remote.enrollment import Enrollment
from fedgram.engines.remote.messages import Terms
from fedgram.engines.remote.replay_log import ReplayLog
from fedgram.engines.remote.server import RemoteFederation
from fedgram.engines.remote.transport import Transport
from fedgram.errors import ConfigError, FederationError
from fedgram.experiments.config import Config
from fedgram.experiments.measures import score_words
from fedgram.experiments.record import Record
from fedgram.experiments.result import Result
from fedgram.experiments.runner import keeps_valid, run_on
from fedgram.experiments.scores import Scorer
from fedgram.federation.method import Method
from fedgram.ledger.folder import LOCK, Ledgers
from fedgram.ledger.ledger import Ledger
from fedgram.runtime import files
from fedgram.runtime.version import own_version

SETTINGS = "federation.toml"
_PATIENCE = 60.0  # seconds to wait for another server to end
Say = Callable[[str], None]


def run_federation(transport: Transport, folder: Path, say: Say) -> Path:
    """Run every method of the folder's ``federation.toml``.

    Parameters
    ----------
    transport
        The connection to the sites.
    folder
        Folder of the server.
    say
        Called with each line of output.

    Returns
    -------
    Path
        The folder of the records.
    """
    with files.private(folder), alone(folder, transport):
        return _served(transport, folder, say)


@contextmanager
def alone(folder: Path, transport: Transport) -> Iterator[None]:
    """Lock a folder: a server that lost its connection may still be working there."""
    end = transport.now() + _PATIENCE
    with (folder / LOCK).open("a") as file:
        while not files.locked(file):
            if transport.now() >= end:
                raise FederationError(
                    f"{folder}: another server is using this folder; wait until it ends"
                )
            transport.wait(1.0)
        yield  # closing the file ends the lock, as the end of this process does


def _served(transport: Transport, folder: Path, say: Say) -> Path:
    config, federation = read_federation(folder / SETTINGS)
    plan = [config.to_dict(), asdict(federation), own_version()]
    run_state = RunState.begin(folder, codec.digest(plan), config.methods)
    for name in config.methods:
        if run_state.done(name):
            continue
        with Ledgers(folder) as ledgers:
            run = _Run(
                name=name,
                method=config.make(name),
                config=config,
                federation=federation,
                run_state=run_state,
                ledgers=ledgers,
                registered=registered(folder),
                federation_id=federation_digest(folder / "ca.crt"),
                say=say,
            )
            result = run.conducted(transport)
        outcome = result.to_dict()
        del outcome["run"]  # where this server keeps it
        run_state.end(name, outcome)
        mean, score = (
            result.accuracy["client_mean"],
            score_words(numbers=result.scores.errors is not None),
        )
        say(f"{name}: {score.one} {mean:.4f}, shared {result.shared_digest}")
    run_state.finish()
    return run_state.folder


@dataclass(frozen=True, eq=False, kw_only=True)
class _Run:
    """The run of one method on the connected sites."""

    name: str
    method: Method[Any]
    config: Config
    federation: FederationRules
    run_state: RunState
    ledgers: Ledgers
    registered: Mapping[str, int]
    federation_id: str
    say: Say
    used: dict[Ledger, Contributions] = field(default_factory=dict)

    def conducted(self, transport: Transport) -> Result:
        """Enroll the sites, fit, score, record and deliver."""
        record = Record(self.run_state.record(self.name), self.config.about(self.name))

        def note(client: str, text: str) -> None:
            record.note(client, text)
            self.say(f"{client}: {text}")

        roll = Enrollment(
            transport,
            self.federation,
            listed=self.federation.sites,
            excluded=self.ledgers.shut_out(),
            registered=self.registered,
            classes=sorted({name for _, ledger in self.ledgers for name in ledger.total.classes}),
            note=note,
        )
        terms = self._agreed(roll.assemble(self._terms()), roll)
        compressed = terms.compress and not terms.secure
        collector = Collector(transport, roll.node, self.federation, note, compressed=compressed)
        engine = self._engine(collector, roll, terms, record)
        scorer = Scorer(self.method, None, terms.metrics, kept_valid=terms.kept_valid)
        result = run_on(
            self.method,
            engine,
            scorer,
            name=self.name,
            scoring=self.config.scoring,
            record=record,
        )
        self._publish(result)
        return result

    def _terms(self) -> Terms:
        kept_valid = keeps_valid(self.method) or self.config.data.reserve_valid
        return Terms(
            version=own_version(),
            run=self.run_state.runs[self.name],
            seed=self.config.engine.seed,
            method=self.name,
            settings=self.method.settings(),
            grid=plain_grid(self.config.grid),
            secure=self.config.engine.secure,
            metrics=replace(self.config.metrics, global_test=False),
            kept_valid=kept_valid,
            reserve_valid=self.config.data.reserve_valid,
            compress=self.federation.compress,
        )

    def _agreed(self, terms: Terms, roll: Enrollment) -> Terms:
        """Return the terms with the name of the run of these sites, with these samples."""
        party = codec.digest([replace(terms, run=""), roll.fingerprints])
        return replace(terms, run=self.run_state.run(self.name, party))

    def _engine(
        self, collector: Collector, roll: Enrollment, terms: Terms, record: Record
    ) -> RemoteFederation:
        replay_log = ReplayLog(self.run_state.replay_log(self.name))
        names = list(roll.greetings)
        if self.config.engine.secure:
            return self._masked(collector, names, terms, replay_log, record)
        private, prints = self.config.engine.private, roll.fingerprints
        return RemoteFederation(
            collector,
            names,
            terms,
            replay_log,
            members=None if private else lambda kind: self._contributions(kind, prints),
            private=private,
            samples=self.federation.samples,
            on_ask=record.ask,
        )

    def _masked(
        self,
        collector: Collector,
        names: list[str],
        terms: Terms,
        replay_log: ReplayLog,
        record: Record,
    ) -> RemoteFederation:
        try:
            from fedgram.engines.remote.secure_server import SecureRemoteFederation
        except ImportError as error:
            raise ConfigError("secure sums need: pip install 'fedgram[secure]'") from error
        return SecureRemoteFederation(
            collector,
            names,
            terms,
            replay_log,
            members=lambda kind: self._contributions(kind, {}, cohort=True),
            threshold=self.config.engine.threshold,
            federation=self.federation_id,
            on_ask=record.ask,
        )

    def _contributions(
        self, kind: str, prints: Mapping[str, str], *, cohort: bool = False
    ) -> Contributions:
        ledger, keep = self.ledgers.of(kind, cohort=cohort), self.federation.keep_replaced
        self.used[ledger] = Contributions(ledger, prints, keep_replaced=keep)
        return self.used[ledger]

    def _publish(self, result: Result) -> None:
        """Record in the ledgers, once, which model was computed from their totals.

        Raises LedgerError if a total has changed since: the next run sums again.
        """
        model = str(self.run_state.folder / self.name / "shared.safetensors")
        said: dict[str, Any] = {"shared_digest": result.shared_digest, "model": model}
        for ledger, contributions in self.used.items():
            before = [event.detail for event in ledger.history() if event.what == "publish"]
            if result.shared_digest and not any(said.items() <= d.items() for d in before):
                ledger.publish(**said, total_digest=contributions.total_digest)
