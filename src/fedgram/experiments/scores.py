"""The scores of a round, from what the sites return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from typing import Any

import numpy as np

from fedgram.core import codec
from fedgram.core.error_tally import ErrorTally
from fedgram.core.samples import Samples
from fedgram.core.tally import FIXED_POINT_ONE, Tally, worst_decile
from fedgram.core.targets import Targets
from fedgram.engines.protocol import Engine
from fedgram.experiments.client_scores import SameModel, UnionRows, accuracies, model_digests
from fedgram.experiments.run_record import (
    ClientScore,
    RateSearchRecord,
    ScoreSummary,
    TunedSettings,
)
from fedgram.federation.method import Method, shared_digest
from fedgram.federation.protocol import Exchange, traffic
from fedgram.federation.scoring import ErrorScoreSums, Metrics, ScoreSums, ScoreTask
from fedgram.federation.shared import Tuned, tuned_settings
from fedgram.federation.union_scoring import UnionScores
from fedgram.models.linear import Predictor, predict
from fedgram.training.pilots import RateSearch


@dataclass(frozen=True, eq=False, kw_only=True)
class Scores:
    """One scoring of a set of clients.

    Parameters
    ----------
    tally, valid
        On test samples, and on validation samples if they were kept for choices.
    rows
        One for each client, where the server may see them.
    seconds
        Time of fitting so far and of personalizing now, without scoring.
    flops
        Operations of fitting so far, at the clients and the server, and of personalizing now.
    bytes
        Up and down per client so far, with the delivery of what is shared.
    model_digest
        Of the set of models; None if the server must not see single models.
    global_test
        Whether each model was tested on the test samples of all clients too.
    tuned
        Settings that were chosen for all clients, if any.
    errors
        Errors on test samples, of a regression.
    search
        The pilots behind the learning rate, if it was searched for.
    """

    tally: Tally
    valid: Tally | None
    rows: Sequence[ClientScore]
    seconds: float
    flops: int
    bytes: dict[str, int]
    shared_digest: str | None
    model_digest: str | None
    metrics: Metrics
    global_test: bool = False
    tuned: Tuned | None = None
    search: RateSearch | None = None
    errors: ErrorTally | None = None

    @property
    def accuracy(self) -> dict[str, float]:
        """The five accuracies of the table, as fractions; NaN if no client has test samples.

        Of a regression these are R2 in place of accuracies.
        """
        if self.errors is not None:
            return {
                "client_mean": self.errors.client_mean,
                "sample_mean": self.errors.r2,
                "worst_decile": worst_decile(accuracies(self.rows)) if self.rows else nan,
                "global_test": self.tally.global_mean if self.global_test else nan,
                "balanced": nan,
            }
        lowest = worst_decile(accuracies(self.rows)) if self.rows else self.tally.worst_decile
        return {
            "client_mean": self.tally.client_mean,
            "sample_mean": self.tally.sample_mean,
            "worst_decile": lowest,
            "global_test": self.tally.global_mean if self.global_test else nan,
            "balanced": self.tally.balanced,
        }

    @property
    def validity(self) -> float:
        """Accuracy over all validation samples; NaN if there are none."""
        return self.valid.sample_mean if self.valid else nan

    def summary(self) -> ScoreSummary:
        """Return what is recorded of all clients together."""
        tuned, search = self.tuned, self.search
        return ScoreSummary(
            accuracy={k: _number(v) for k, v in self.accuracy.items()},
            valid=_number(self.validity),
            auroc=_number(self.tally.auroc),
            class_accuracy=self._class_accuracy(),
            clients=self.tally.clients,
            untested_clients=self.tally.clients_without_test,
            seconds=self.seconds,
            flops=self.flops,
            bytes=self.bytes,
            shared_digest=self.shared_digest,
            model_digest=self.model_digest,
            tuned=TunedSettings.from_dict(tuned.to_dict()) if tuned else None,
            rate_search=RateSearchRecord.from_dict(search.to_dict()) if search else None,
            errors=self._errors(),
        )

    def _errors(self) -> dict[str, float | None] | None:
        if self.errors is None:
            return None
        return {"rmse": _number(self.errors.rmse), "mae": _number(self.errors.mae)}

    def _class_accuracy(self) -> dict[str, float | None] | None:
        if not self.metrics.classes:
            return None
        return {name: _number(share) for name, share in self.tally.class_accuracy.items()}


@dataclass(frozen=True, eq=False, kw_only=True)
class Scored:
    """A scored round: what was shared, each client's model, and the scores."""

    round: int
    shared: Any
    models: Mapping[str, Predictor]
    scores: Scores


class Scorer:
    """Asks the sites to personalize and score, and adds up their answers.

    Parameters
    ----------
    method
        The method to evaluate.
    test
        The test samples of all clients, if they are in one place.
    metrics
        What to compute beyond accuracy.
    kept_valid
        Whether validation samples were kept for choices.
    """

    def __init__(
        self, method: Method[Any], test: Samples | None, metrics: Metrics, *, kept_valid: bool
    ) -> None:
        self._method = method
        self._metrics = metrics
        self._kept_valid = kept_valid
        # Every model is tested on these samples: lift them once.
        self._test = test.with_cache() if test is not None and metrics.global_test else None

    def score(
        self,
        engine: Engine,
        round_: int,
        shared: Any,
        *,
        best: int = 0,
        seconds: float = 0.0,
        flops: int = 0,
    ) -> Scored:
        """Personalize and score at every site; add to the time and work of fitting so far."""
        models: dict[str, Predictor] = {}
        task = ScoreTask(
            method=self._method,
            metrics=self._metrics,
            kept_valid=self._kept_valid,
            round=round_,
            best=best,
            keep=models.__setitem__,
        )
        before = len(engine.asks)
        total, rows, made = _answers(engine, task, shared)
        scores = Scores(
            tally=total.tally,
            valid=total.valid if self._kept_valid and total.valid.samples else None,
            rows=[] if engine.private else rows,
            seconds=seconds + total.microseconds / 1e6,
            flops=flops + total.flops,
            bytes=_bytes(engine.asks[:before], engine.asks[before:]),
            shared_digest=shared_digest(self._method, shared),
            model_digest=codec.digest(model_digests(rows)) if rows else None,
            metrics=self._metrics,
            tuned=tuned_settings(shared),
            search=getattr(shared, "search", None),
            errors=total.errors if isinstance(total, ErrorScoreSums) else None,
        )
        return Scored(round=round_, shared=shared, models=made or models, scores=scores)

    def with_global_test(self, scored: Scored) -> Scored:
        """Test every model on the test samples of all clients too; too slow for every round."""
        if self._test is None or not len(self._test):
            return scored
        if isinstance(scored.models, SameModel):
            total = len(scored.models) * self._global_accuracy(scored.models.model, self._test)
        else:
            found: dict[str, int] = {}  # clients often share one model
            total, digests = 0, codec.Digests()
            for model in scored.models.values():
                digest = digests(model)
                if digest not in found:
                    found[digest] = self._global_accuracy(model, self._test)
                total += found[digest]
        tally = replace(scored.scores.tally, global_accuracy_sum=total)
        return replace(scored, scores=replace(scored.scores, tally=tally, global_test=True))

    @staticmethod
    def _global_accuracy(model: Predictor, test: Samples) -> int:
        """Return the accuracy of a model on the test samples of all clients, in fixed point.

        Of a regression it is R2; 0 where that is not defined.
        """
        if isinstance(test.labels, Targets):
            found = ErrorTally.of(model(test.features), test.labels).r2
            return 0 if isnan(found) else round(found * FIXED_POINT_ONE)
        correct = predict(model, test.features) == test.labels.codes
        share = float(np.mean(correct)) if len(correct) else 0.0
        return round(share * FIXED_POINT_ONE)


_SUMS_AT_A_TIME = 256  # bounds the memory of sums that are added together
_Answers = tuple[ScoreSums, Sequence[ClientScore], Mapping[str, Predictor] | None]


def _answers(engine: Engine, task: ScoreTask, shared: Any) -> _Answers:
    """Return the sum of all answers and the rows; also the models, if scored together."""
    answers = engine.evaluate(task, shared)
    if isinstance(answers, UnionScores):
        made = answers.made
        models: Mapping[str, Predictor] = SameModel(answers.names, made.models[0])
        if not made.same:
            models = dict(zip(answers.names, made.models, strict=True))
        return answers.sums(), UnionRows(scores=answers), models
    rows: list[ClientScore] = []
    sums: list[ScoreSums] = []
    for name, found in answers:
        sums.append(found.sums)
        if len(sums) > _SUMS_AT_A_TIME:
            sums = [ScoreSums.sum_of(sums)]
        if found.model_digest is not None:  # else it may be a sum over all
            rows.append(_row(name, found.sums, found.model_digest))
    return ScoreSums.sum_of(sums), rows, None


def _row(name: str, sums: ScoreSums, model_digest: str) -> ClientScore:
    return ClientScore(
        client=name,
        samples=sums.tally.samples,
        correct=sums.tally.correct,
        seconds=sums.microseconds / 1e6,
        model_digest=model_digest,
        valid_samples=sums.valid.samples,
        valid_correct=sums.valid.correct,
        **_error_row(sums),
    )


def _error_row(sums: ScoreSums) -> dict[str, float | None]:
    if not isinstance(sums, ErrorScoreSums):
        return {}
    found = {name: getattr(sums.errors, name) for name in ("r2", "rmse", "mae")}
    return {name: _number(value) for name, value in found.items()}


def _bytes(before: Iterable[Exchange], scoring: Iterable[Exchange]) -> dict[str, int]:
    """Return the bytes of training so far, and of delivering what was just scored."""
    train = traffic(exchange for exchange in before if exchange.phase == "train")
    delivered = traffic(replace(exchange, phase="deliver") for exchange in scoring)
    return {"up": train["up"], "down": train["down"] + delivered["down"]}


def _number(value: float) -> float | None:
    """Return the number for JSON, which has no NaN: None instead."""
    return None if isnan(value) else value
