"""One runner for every method: fit, personalize, score, record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import isnan
from typing import Any

import numpy as np

from fedgram import codec
from fedgram.client import Client, Site
from fedgram.engines.inprocess import InProcess
from fedgram.errors import ConfigError
from fedgram.experiment.dealt import sites_dealt
from fedgram.experiment.metrics import macro_auroc
from fedgram.experiment.record import Record
from fedgram.experiment.sites import Sites
from fedgram.federation import Ask, traffic
from fedgram.heads import Predictor, predict
from fedgram.method import Method, Published, shared_digest
from fedgram.samples import Samples
from fedgram.stats import Tally, worst_decile


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """What to compute beyond accuracy.

    Parameters
    ----------
    auroc
        Macro AUROC on each client's own test samples, averaged over clients.
    classes
        Accuracy within each class.
    """

    auroc: bool = False
    classes: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is known of one client after scoring; only where the server may see individuals."""

    client: str
    samples: int
    correct: int
    seconds: float
    model_digest: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Scores:
    """One scoring of a set of clients.

    ``seconds`` is the time of fitting so far and of personalizing now, without scoring.
    """

    tally: Tally
    rows: list[Row]
    seconds: float
    shared_digest: str | None
    model_digest: str
    metrics: Metrics

    @property
    def accuracy(self) -> dict[str, float]:
        """The five accuracies of the table, as fractions; not a number where nobody has tests."""
        tested = np.array(list(self.by_client().values()))
        return {
            "client_mean": self.tally.client_mean,
            "sample_mean": self.tally.sample_mean,
            "worst_decile": worst_decile(tested) if self.rows else self.tally.worst_decile,
            "global": self.tally.global_mean,
            "balanced": self.tally.balanced,
        }

    def plain(self) -> dict[str, Any]:
        """Return the scores as plain numbers and texts, for JSON."""
        return {
            "accuracy": {k: _number(v) for k, v in self.accuracy.items()},
            "auroc": _number(self.tally.auroc),
            "class_accuracy": self._class_accuracy(),
            "clients": self.tally.clients,
            "untested_clients": self.tally.untested,
            "seconds": self.seconds,
            "shared_digest": self.shared_digest,
            "model_digest": self.model_digest,
        }

    def by_client(self) -> dict[str, float]:
        """Return the accuracy of every client that has test samples and may be seen."""
        return {row.client: row.correct / row.samples for row in self.rows if row.samples}

    def _class_accuracy(self) -> dict[str, float | None] | None:
        if not self.metrics.classes:
            return None
        return {name: _number(share) for name, share in self.tally.class_accuracy.items()}


@dataclass(frozen=True, eq=False, kw_only=True)
class Result:
    """What a run ends with.

    Examples
    --------
    >>> from fedgram.data.sources import load
    >>> from fedgram.experiment.sites import sites
    >>> from fedgram.methods.local import Local
    >>> result = run(Local(), sites(load("digits")))
    >>> result.method, result.rounds, result.shared_digest, len(result.models)
    ('local', 1, None, 20)
    """

    method: str
    rounds: int
    shared: Any
    models: dict[str, Predictor]
    scores: Scores
    holdout: Scores | None
    asks: list[Ask]

    @property
    def accuracy(self) -> dict[str, float]:
        """The five accuracies of the table, as fractions."""
        return self.scores.accuracy

    @property
    def shared_digest(self) -> str | None:
        """Digest of the totals behind the shared model; on the grid the same on every machine."""
        return self.scores.shared_digest

    @property
    def model_digest(self) -> str:
        """Digest of the set of models the clients ended up with."""
        return self.scores.model_digest

    def plain(self) -> dict[str, Any]:
        """Return the result as plain numbers and texts, for JSON."""
        return {
            "method": self.method,
            "rounds": self.rounds,
            **self.scores.plain(),
            "holdout": self.holdout.plain() if self.holdout else None,
            "bytes": traffic(self.asks),
        }


def run(
    method: Method,
    sites: Sites,
    *,
    name: str | None = None,
    seed: int = 0,
    workers: int = 1,
    private: bool = False,
    metrics: Metrics = Metrics(),
    record: Record | None = None,
    on_reply: Callable[[str, int, int], None] | None = None,
) -> Result:
    """Run a method on a federation of sites in this process.

    Examples
    --------
    >>> from fedgram.data.sources import load
    >>> from fedgram.experiment.sites import sites
    >>> from fedgram.methods.afl import AFL
    >>> result = run(AFL(), sites(load("digits")))
    >>> round(result.accuracy["sample_mean"], 2)
    0.94
    """
    record = record or Record()
    if not sites.members:
        raise ConfigError("there is nobody to federate: give at least one member")
    if not private:  # class counts are nothing that sums tell
        record.partition(sites_dealt(sites).plain())

    def federate(members: list[Site]) -> InProcess:
        return InProcess(
            [replace(site, state={}) for site in members],  # nothing is left of earlier runs
            seed=seed,
            workers=workers,
            private=private,
            on_ask=record.ask,
            on_reply=on_reply,
        )

    engine, scorer = federate(sites.members), Scorer(method, sites.test, metrics)
    rounds, shared, scores, holdout = 0, None, None, None
    fitting, start = 0.0, time.perf_counter()
    for rounds, shared in enumerate(method.fit(engine), 1):  # used after the loop
        fitting += time.perf_counter() - start
        scores = scorer.score(engine, shared, fitting)
        record.scores(rounds, "members", [asdict(row) for row in scores.rows], scores.plain())
        start = time.perf_counter()
    if scores is None:
        raise ConfigError(f"{type(method).__name__}.fit yielded nothing to share")
    if sites.holdout:
        holdout = scorer.score(federate(sites.holdout), shared, 0.0)
        record.scores(rounds, "holdout", [asdict(row) for row in holdout.rows], holdout.plain())
    published = Published(method=name or "", settings=asdict(method), shared=shared)  # type: ignore[call-overload]
    record.models(published, scorer.models)
    engine.deliver(shared)  # last, so that a recorded delivery means a complete record
    return Result(
        method=name or type(method).__name__.lower(),
        rounds=rounds,
        shared=shared,
        models=scorer.models,
        scores=scores,
        holdout=holdout,
        asks=engine.asks,
    )


class Scorer:
    """Personalizes and scores at the sites; it alone sees test data."""

    def __init__(self, method: Method, test: Samples, metrics: Metrics) -> None:
        self._method = method
        self._metrics = metrics
        self._test = test.remembering()  # every model is tried on it: lift it once
        self._everywhere: dict[str, float] = {}
        self._digests: dict[str, str] = {}
        self._seconds: dict[str, float] = {}
        self.models: dict[str, Predictor] = {}

    def score(self, engine: InProcess, shared: Any, fitting: float) -> Scores:
        """Personalize and score at every site of a federation."""
        self._everywhere.clear()
        total, rows = Tally.zero(), []
        for name, tally in engine.evaluate(self._personalize_and_score, shared):
            total = total + tally
            rows.append(
                Row(
                    client=name,
                    samples=tally.samples,
                    correct=tally.correct,
                    seconds=self._seconds[name],
                    model_digest=self._digests[name],
                )
            )
        return Scores(
            tally=total,
            rows=[] if engine.private else rows,
            seconds=fitting + sum(row.seconds for row in rows),
            shared_digest=shared_digest(self._method, shared),
            model_digest=codec.digest(sorted({row.model_digest for row in rows})),
            metrics=self._metrics,
        )

    def _personalize_and_score(self, site: Site, client: Client, shared: Any) -> Tally:
        start = time.perf_counter()
        model = self._method.personalize(client, shared)
        self._seconds[site.id] = time.perf_counter() - start
        self.models[site.id] = model
        self._digests[site.id] = digest = codec.digest(model)
        if digest not in self._everywhere:  # clients often share one model
            right = predict(model, self._test.features) == self._test.labels.codes
            self._everywhere[digest] = float(np.mean(right)) if len(right) else 0.0
        scores, truth = model(site.test.features), site.test.labels
        auroc = macro_auroc(scores, truth.codes) if self._metrics.auroc else None
        everywhere = self._everywhere[digest]
        return Tally.of(scores.argmax(axis=1), truth, everywhere=everywhere, auroc=auroc)


def _number(value: float) -> float | None:
    """Return a number for JSON, which has none that is not one."""
    return None if isnan(value) else value
