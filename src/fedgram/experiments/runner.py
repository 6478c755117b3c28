"""One runner for every method: fit, personalize, score, record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any, overload

from fedgram.core.targets import Targets
from fedgram.data.plan import stated
from fedgram.engines.in_process import InProcess
from fedgram.engines.protocol import Engine
from fedgram.errors import ConfigError
from fedgram.experiments.calibration import calibration
from fedgram.experiments.partition_summary import summary_of
from fedgram.experiments.progress import ProgressLine, in_notebook
from fedgram.experiments.record import Record
from fedgram.experiments.result import ModelInputs, Result, Results
from fedgram.experiments.run_record import HOLDOUT, MEMBERS
from fedgram.experiments.scores import Scored, Scorer
from fedgram.federation.client import Site
from fedgram.federation.federated_dataset import FederatedDataset, federate
from fedgram.federation.method import Method, create_method, find_method, names, parameters
from fedgram.federation.scoring import Metrics
from fedgram.federation.shared import Published
from fedgram.federation.sites import Sites
from fedgram.runtime import flops
from fedgram.runtime.settings import propose
from fedgram.runtime.text import percent


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

    Examples
    --------
    >>> import fedgram as fg
    >>> digits = fg.federate(fg.load_dataset("digits"))
    >>> fg.run("fedavg", digits, rounds=6, scoring=fg.ScoringSchedule(every=3))
    Result(fedavg: 20 clients, client mean 69.5 %, worst 10 % 18.5 %, global test 73.3 %)
    """

    every: int = 1
    patience: int = 0

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError(f"scoring.every = {self.every}: use at least 1")
        if self.patience < 0:
            raise ConfigError(f"scoring.patience = {self.patience}: use 0 for never, or more")


@overload
def run(
    method: str | Method[Any],
    sites: FederatedDataset,
    *,
    seeds: None = None,
    **options: Any,
) -> Result: ...
@overload
def run(
    method: Sequence[str | Method[Any]],
    sites: FederatedDataset,
    *,
    seeds: Sequence[int] | None = None,
    **options: Any,
) -> Results: ...
@overload
def run(
    method: str | Method[Any],
    sites: FederatedDataset,
    *,
    seeds: Sequence[int],
    **options: Any,
) -> Results: ...
def run(
    method: str | Method[Any] | Sequence[str | Method[Any]],
    sites: FederatedDataset,
    *,
    seeds: Sequence[int] | None = None,
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
    progress: bool | None = None,
    **settings: Any,
) -> Result | Results:
    """Run a method on a federation in this process: fit, personalize, score.

    Parameters
    ----------
    method
        A name, such as "apfl"; a method; or a list of them, which gives `Results`.
    sites
        The federation, from `federate`.
    seeds
        Run once for each of these seeds, and return `Results`: each is the seed of a partition of
        its own and of the method's random numbers.
    name
        Name of the method in records; by default the one it was given by.
    seed
        Seed of the method's random numbers.
    workers
        Number of clients that compute at the same time, or of Ray workers.
    private
        Show the server sums only, as under secure aggregation.
    dropout
        Probability that a client does not answer a request during training.
    threshold
        Compute sums by secure aggregation, which needs more than this fraction of the clients until
        its end.
    ray
        The address of a Ray cluster; clients live in Ray workers.
    metrics
        What to compute beyond accuracy.
    scoring
        Which rounds are scored, and when to stop.
    record
        Collects the results, and writes them if it has a folder; for the command line.
    on_reply
        Called with the name of a step, the number of clients that have answered, and their number.
    on_round
        Called with the number of each round that has ended.
    progress
        Show one line of progress; None shows it in notebooks.
    **settings
        Settings of a method that is given by its name, such as ``balance=0.3``. Of several methods,
        those that have a setting take it.

    Examples
    --------
    >>> import fedgram as fg
    >>> digits = fg.federate(fg.load_dataset("digits"))
    >>> fg.run("apfl", digits, balance=0.3)
    Result(apfl: 20 clients, client mean 99.1 %, worst 10 % 96.0 %, global test 98.6 %)
    >>> rounds = []
    >>> result = fg.run("fedavg", digits, rounds=3, on_round=rounds.append)
    >>> rounds
    [1, 2, 3]
    >>> fg.run("apfl", digits, balanse=0.3)
    Traceback (most recent call last):
    ...
    fedgram.errors.ConfigError: method.apfl.balanse is not a setting; did you mean 'balance'?
    """
    options: dict[str, Any] = {
        "workers": workers,
        "private": private,
        "dropout": dropout,
        "threshold": threshold,
        "ray": ray,
        "metrics": metrics,
        "scoring": scoring,
        "on_reply": on_reply,
        "on_round": on_round,
        "progress": progress,
    }
    _require_federation(sites)
    several = isinstance(method, list | tuple)
    listed: list[Any] = list(method) if isinstance(method, list | tuple) else [method]
    made = [_created(each, settings, alone=not several) for each in listed]
    if several:
        _require_used(settings, made)
    if several or seeds is not None:
        for each, given in (("record", record), ("name", name)):
            if given is not None:
                raise ConfigError(f"{each}: expected one method and one seed, got several")
        wanted = [seed] if seeds is None else _listed_seeds(seeds)
        repeated = [sites if seeds is None else _with_seed(sites, each) for each in wanted]
        return Results(
            [
                _run(method_, sites_, name=called, seed=seed_, **options)
                for called, method_ in made
                for seed_, sites_ in zip(wanted, repeated, strict=True)
            ]
        )
    called, only = made[0]
    return _run(only, sites, name=name or called, seed=seed, record=record, **options)


def _require_federation(sites: Any) -> None:
    if not isinstance(sites, FederatedDataset):
        raise ConfigError(
            f"sites: expected a FederatedDataset, got {type(sites).__name__}; use federate(data)"
        )
    if not sites.members:
        raise ConfigError("the federation has no clients; give at least one member")


def _created(
    method: str | Method[Any], settings: Mapping[str, Any], *, alone: bool
) -> tuple[str | None, Method[Any]]:
    """Return a method with its name; of several methods each takes the settings that it has."""
    if isinstance(method, Method):
        if settings and alone:
            raise ConfigError(
                f"{next(iter(settings))}: settings belong to a method that is given by its name; "
                "use create_method(name, ...)"
            )
        return None, method
    if not isinstance(method, str):
        raise ConfigError(
            f"method: expected a name such as 'apfl', or a method, got {type(method).__name__}"
        )
    if not alone:
        has = {parameter.name for parameter in parameters(find_method(method))}
        settings = {key: value for key, value in settings.items() if key in has}
    return method, create_method(method, settings)


def _require_used(
    settings: Mapping[str, Any], made: Sequence[tuple[str | None, Method[Any]]]
) -> None:
    """Raise ConfigError for methods that are given twice, and for settings that none has."""
    if not made:
        raise ConfigError("method: expected one method or more, got an empty list")
    names = [name for name, _ in made if name is not None]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"method: expected different methods, got {twice!r} more than once")
    known = {parameter.name for name in names for parameter in parameters(find_method(name))}
    unknown = next((key for key in settings if key not in known), None)
    if unknown is not None:
        raise ConfigError(
            f"{unknown}: no method of the list that is given by its name has this setting; "
            f"{propose(unknown, sorted(known))}"
        )


def _listed_seeds(seeds: Any) -> list[int]:
    try:
        listed = list(seeds)
    except TypeError:
        raise ConfigError(
            f"seeds: expected a list such as [0, 1, 2] or range(3), got {seeds!r}"
        ) from None
    if not listed or len(set(listed)) < len(listed):
        raise ConfigError(f"seeds: expected one seed or more, each once, got {listed}")
    return listed


def _with_seed(sites: FederatedDataset, seed: int) -> FederatedDataset:
    """Return the same data in the partition of another seed."""
    if sites.made is None:
        raise ConfigError("seeds: expected a federation from federate(), whose data are known")
    made = sites.made
    return federate(made.data, replace(made.plan, seed=seed), made.grid)


def _run(
    method: Method[Any],
    sites: FederatedDataset,
    *,
    name: str | None,
    seed: int,
    workers: int,
    private: bool,
    dropout: float,
    threshold: float | None,
    ray: str | None,
    metrics: Metrics,
    scoring: ScoringSchedule,
    record: Record | None = None,
    on_reply: Callable[[str, int, int], None] | None,
    on_round: Callable[[int], None] | None,
    progress: bool | None,
) -> Result:
    called = name or type(method).__name__.lower()
    _require_task(method, called, sites, metrics)
    record = record or Record(settings=_about(method, called, sites, seed))
    if not private and threshold is None:  # sums do not reveal class counts
        record.partition(summary_of(sites))
    line = None
    if progress or (progress is None and in_notebook()):
        line = ProgressLine(called, method.number_of_rounds())
        on_reply, on_round = _both(on_reply, line.reply), _both(on_round, line.round)

    with ExitStack() as stack:
        engine_type: Callable[..., InProcess] = partial(InProcess, private=private)
        if threshold is not None:
            engine_type = _secure(threshold)
        elif ray is not None:
            engine_type = _on_ray(stack, record, method, name, address=ray, private=private)

        def engine(members: Sequence[Site]) -> InProcess:
            return engine_type(
                Sites.of(members).fresh(),  # nothing is left of earlier runs
                seed=seed,
                workers=workers,
                dropout=dropout,
                on_ask=record.ask,
                on_reply=on_reply,
            )

        kept_valid = keeps_valid(method) or sites.reserves_valid
        result = run_on(
            method,
            engine(sites.members),
            Scorer(method, sites.test, metrics, kept_valid=kept_valid),
            name=name,
            late=engine(sites.holdout) if sites.holdout else None,
            scoring=scoring,
            record=record,
            on_round=on_round,
        )
    if line is not None:
        line.end(f"client mean {percent(result.accuracy['client_mean'])} %")
    return replace(result, seed=seed, common=_common(method, sites, seed))


def _require_task(
    method: Method[Any], name: str, sites: FederatedDataset, metrics: Metrics
) -> None:
    if not isinstance(sites.test.labels, Targets):
        return
    for metric in ("auroc", "classes"):
        if getattr(metrics, metric):
            raise ConfigError(
                f"metrics.{metric}: expected classes, got numbers of a regression, whose scores "
                f"are R2, RMSE and MAE; leave metrics.{metric} out"
            )
    if not method.predicts_numbers:
        able = [each for each in names() if find_method(each).predicts_numbers]
        raise ConfigError(
            f"method {name}: expected classes, got numbers of a regression; methods for these are "
            f"{', '.join(able)}"
        )


def _common(method: Method[Any], sites: FederatedDataset, seed: int) -> ModelInputs | None:
    """Return what the models of a run have in common; None if the data are not known."""
    if sites.made is None:
        return None
    data = sites.made.data
    return ModelInputs(
        inputs=sites.made.inputs,
        labels=tuple(data.labels.tolist()),
        calibrate=cache(partial(calibration, method, sites, seed=seed)),
        outputs=data.targets.outputs if data.targets is not None else (),
    )


def _about(
    method: Method[Any], name: str, sites: FederatedDataset, seed: int
) -> dict[str, Any] | None:
    """Return what is recorded of a run that has no configuration file."""
    if sites.made is None:
        return None
    made = sites.made
    config = {
        "data": {"source": made.data.name, **stated(asdict(made.plan))},
        "grid": asdict(made.grid),
        "engine": {"seed": seed},
        "methods": [name],
    }
    return {"method": name, "parameters": method.settings(), "config": config}


def _both(one: Callable[..., None] | None, other: Callable[..., None]) -> Callable[..., None]:
    """Return a callback that calls two."""

    def call(*given: Any) -> None:
        if one is not None:
            one(*given)
        other(*given)

    return call


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
    published = Published(method=name or "", settings=method.settings(), shared=chosen.shared)
    record.models(published, models)
    # Last, so that a recorded delivery means a complete record.
    engine.deliver(chosen.shared, chosen.round)
    called = name or type(method).__name__.lower()
    return Result(
        method=called,
        chosen=chosen,
        last=last,
        predictors=models,
        holdout=holdout,
        record=record.to_run_record(called, published.settings),
        shared_predictor=partial(method.shared_predictor, chosen.shared),
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
