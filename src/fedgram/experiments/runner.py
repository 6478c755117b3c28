"""One runner for every method: fit, personalize, score, record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from fedgram.engines.in_process import InProcess
from fedgram.engines.protocol import Engine
from fedgram.errors import ConfigError
from fedgram.experiments.partition_summary import summary_of
from fedgram.experiments.record import Record
from fedgram.experiments.run_record import HOLDOUT, MEMBERS, RunRecord
from fedgram.experiments.scores import Scored, Scorer, Scores
from fedgram.federation.client import Site
from fedgram.federation.federated_dataset import FederatedDataset
from fedgram.federation.method import Method
from fedgram.federation.scoring import Metrics
from fedgram.federation.shared import Published
from fedgram.federation.sites import Sites
from fedgram.models.linear import Predictor
from fedgram.runtime import flops


@dataclass(frozen=True, kw_only=True)
class ScoringSchedule:
    """Which rounds are scored, and when to stop.

    The last round is always scored. Where validation samples are kept for choices, the round that
    is best on them is the chosen one, and its models are the result; else the last round is.

    Parameters
    ----------
    every
        Number of rounds from one scoring to the next.
    patience
        Stop after this number of scored rounds without a better one on validation samples; 0 for
        never.
    """

    every: int = 1
    patience: int = 0

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError(f"scoring.every = {self.every}: use at least 1")
        if self.patience < 0:
            raise ConfigError(f"scoring.patience = {self.patience}: use 0 for never, or more")


@dataclass(frozen=True, eq=False, kw_only=True)
class Result:
    """What a run ends with.

    Parameters
    ----------
    method
        Its name.
    chosen, last
        The round whose models are the result, and the last one.
    models
        The result: every client's model.
    holdout
        Scores of clients that took no part in training, if there are any.
    record
        The run as it is recorded.

    Examples
    --------
    >>> from fedgram.data.sources import load_dataset
    >>> from fedgram.federation.federated_dataset import federate
    >>> from fedgram.methods.local import Local
    >>> result = run(Local(), federate(load_dataset("digits")))
    >>> result.method, result.rounds, result.shared_digest, len(result.models)
    ('local', 1, None, 20)
    """

    method: str
    chosen: Scored
    last: Scored
    models: Mapping[str, Predictor]
    holdout: Scores | None
    record: RunRecord

    @property
    def rounds(self) -> int:
        """Number of rounds that were run."""
        return self.last.round

    @property
    def scores(self) -> Scores:
        """Scores of the chosen round."""
        return self.chosen.scores

    @property
    def shared(self) -> Any:
        """What was shared after the chosen round."""
        return self.chosen.shared

    @property
    def accuracy(self) -> dict[str, float]:
        """The five accuracies of the table, as fractions."""
        return self.scores.accuracy

    @property
    def shared_digest(self) -> str | None:
        """Digest of the totals behind the shared model; on the grid the same on every machine."""
        return self.scores.shared_digest

    @property
    def model_digest(self) -> str | None:
        """Digest of the set of models; None if the server must not see single models."""
        return self.scores.model_digest

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain numbers and texts, for JSON."""
        return self.record.to_dict()


def run(
    method: Method[Any],
    sites: FederatedDataset,
    *,
    name: str | None = None,
    seed: int = 0,
    workers: int = 1,
    private: bool = False,
    dropout: float = 0.0,
    threshold: float | None = None,
    ray: str | None = None,
    metrics: Metrics = Metrics(),
    scoring: ScoringSchedule = ScoringSchedule(),
    record: Record | None = None,
    on_reply: Callable[[str, int, int], None] | None = None,
    on_round: Callable[[int], None] | None = None,
) -> Result:
    """Run a method on a federation of sites in this process.

    With a `threshold` sums are computed by secure aggregation, which needs more than this fraction
    of the clients until its end. With the address of a Ray cluster as `ray`, clients live in this
    number of Ray workers.

    Examples
    --------
    >>> from fedgram.data.sources import load_dataset
    >>> from fedgram.federation.federated_dataset import federate
    >>> from fedgram.methods.afl import AFL
    >>> result = run(AFL(), federate(load_dataset("digits")))
    >>> round(result.accuracy["sample_mean"], 2)
    0.94
    """
    record = record or Record()
    if not sites.members:
        raise ConfigError("the federation has no clients; give at least one member")
    if not private and threshold is None:  # sums do not reveal class counts
        record.partition(summary_of(sites))

    with ExitStack() as stack:
        engine_type: Callable[..., InProcess] = partial(InProcess, private=private)
        if threshold is not None:
            engine_type = _secure(threshold)
        elif ray is not None:
            engine_type = _on_ray(stack, record, method, name, address=ray, private=private)

        def federate(members: Sequence[Site]) -> InProcess:
            return engine_type(
                Sites.of(members).fresh(),  # nothing is left of earlier runs
                seed=seed,
                workers=workers,
                dropout=dropout,
                on_ask=record.ask,
                on_reply=on_reply,
            )

        kept_valid = keeps_valid(method) or sites.reserves_valid
        return run_on(
            method,
            federate(sites.members),
            Scorer(method, sites.test, metrics, kept_valid=kept_valid),
            name=name,
            late=federate(sites.holdout) if sites.holdout else None,
            scoring=scoring,
            record=record,
            on_round=on_round,
        )


def keeps_valid(method: Method[Any]) -> bool:
    """Whether the method makes choices on validation samples, and so does not train on them."""
    return method.keeps_valid


def run_on(
    method: Method[Any],
    engine: Engine,
    scorer: Scorer,
    *,
    name: str | None = None,
    late: Engine | None = None,
    scoring: ScoringSchedule = ScoringSchedule(),
    record: Record,
    on_round: Callable[[int], None] | None = None,
) -> Result:
    """Fit a method with an engine; score, record and deliver.

    Clients of `late` take no part in training, and get a model of their own afterwards.
    """
    loop = _RoundLoop(engine, scorer, record, scoring)
    loop.follow(method, on_round)
    chosen, last = loop.finish()
    holdout, models = None, chosen.models
    if late is not None:
        scored = scorer.score(late, chosen.round, chosen.shared)
        holdout, models = scorer.with_global_test(scored).scores, {**models, **scored.models}
        record.scores(chosen.round, HOLDOUT, holdout.rows, holdout.summary())
    settings = asdict(method)  # type: ignore[call-overload]
    published = Published(method=name or "", settings=settings, shared=chosen.shared)
    record.models(published, models)
    # Last, so that a recorded delivery means a complete record.
    engine.deliver(chosen.shared, chosen.round)
    called = name or type(method).__name__.lower()
    return Result(
        method=called,
        chosen=chosen,
        last=last,
        models=models,
        holdout=holdout,
        record=record.to_run_record(called, settings),
    )


def _secure(threshold: float) -> Callable[..., InProcess]:
    try:
        from fedgram.engines.secure_in_process import Secure
    except ImportError as error:
        raise ConfigError("secure aggregation needs: pip install 'fedgram[secure]'") from error
    return partial(Secure, threshold=threshold)


def _on_ray(
    stack: ExitStack,
    record: Record,
    method: Method[Any],
    name: str | None,
    *,
    address: str,
    private: bool,
) -> Callable[..., InProcess]:
    """Return a function that starts a federation on Ray, which ends with the stack."""
    from fedgram.engines.ray.federation import RayFederation

    def note(clients: int, reason: str) -> None:
        record.note(f"{clients} clients", f"their Ray worker was lost and is replaced: {reason}")

    def started(sites: Sequence[Site], **options: Any) -> InProcess:
        return stack.enter_context(
            RayFederation(
                sites,
                method=method,
                name=name,
                address=address,
                private=private,
                on_loss=note,
                **options,
            )
        )

    return started


class _RoundLoop:
    """Scores the rounds of a run when due, and keeps the best one."""

    def __init__(
        self, engine: Engine, scorer: Scorer, record: Record, scoring: ScoringSchedule
    ) -> None:
        self._engine = engine
        self._scorer = scorer
        self._record = record
        self._scoring = scoring
        self._seconds, self._flops = 0.0, 0
        self._best: Scored | None = None
        self._last: Scored | None = None
        self._waiting = 0  # scored rounds since the best one

    def follow(self, method: Method[Any], on_round: Callable[[int], None] | None) -> None:
        """Run all rounds, or stop early when they no longer get better."""
        rounds, shared = 0, None
        start, before = time.perf_counter(), flops.total()
        for rounds, shared in enumerate(method.fit(self._engine), 1):  # used after the loop
            self._seconds += time.perf_counter() - start
            self._flops += flops.total() - before
            if rounds % self._scoring.every == 0:
                self._score(rounds, shared)
            if on_round:
                on_round(rounds)
            if self._scoring.patience and self._waiting >= self._scoring.patience:
                return
            start, before = time.perf_counter(), flops.total()
        if not rounds:
            raise ConfigError(f"{type(method).__name__}.fit yielded nothing to share")
        if rounds % self._scoring.every:
            self._score(rounds, shared)

    def finish(self) -> tuple[Scored, Scored]:
        """Return the chosen and the last round, tested on the test samples of all clients."""
        assert self._last is not None  # noqa: S101  # `follow` has scored one
        chosen = self._best or self._last
        final = self._completed(chosen)
        return final, final if chosen is self._last else self._completed(self._last)

    def _score(self, round_: int, shared: Any) -> None:
        clients = sum(ask.flops for ask in self._engine.asks if ask.phase == "train")
        scored = self._scorer.score(
            self._engine,
            round_,
            shared,
            best=self._best.round if self._best else 0,
            seconds=self._seconds,
            flops=self._flops + clients,
        )
        scores = scored.scores
        self._record.scores(round_, MEMBERS, scores.rows, scores.summary())
        self._last = scored
        if scores.valid is None:
            return
        self._waiting += 1
        if self._best is None or scores.validity > self._best.scores.validity:
            self._best, self._waiting = scored, 0

    def _completed(self, scored: Scored) -> Scored:
        """Record the summary of a round again, now with the global test."""
        final = self._scorer.with_global_test(scored)
        self._record.scores(final.round, MEMBERS, [], final.scores.summary())
        return final
