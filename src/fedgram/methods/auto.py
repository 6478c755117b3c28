from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from fedgram.core import codec
from fedgram.core.gcv import SLACK, best_ridges, resolved
from fedgram.core.samples import Array, Features, Floats, Integers, Labels, Samples
from fedgram.core.statistics import Statistics, TargetStatistics
from fedgram.core.targets import Targets
from fedgram.errors import ConfigError, DataError
from fedgram.features.grid import Grid
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.federation.shared import Tuned, unwrap
from fedgram.federation.stacked_step import alike, stacked_step
from fedgram.federation.step import step
from fedgram.federation.union_step import statistics_step, summed_step
from fedgram.methods._closed_form import ClosedForm
from fedgram.methods._pooling import (
    SOFT_SCALES,
    STRENGTHS,
    Judged,
    Part,
    PoolParts,
    Question,
    integer_head,
    likeliest_parts,
    sentence,
    side_by_side,
)
from fedgram.models.linear import Classifier, Predictor, lifted, require_lift
from fedgram.selection.candidates import Candidates, Setting, described, personal, scales
from fedgram.selection.class_prior import (
    MOST_REPEATS,
    PriorEvidence,
    class_counts,
    counts_of,
    left_out_log_odds,
    log_odds,
    prior_evidence,
    repeats,
    summed_evidence,
)
from fedgram.selection.correct_counts import CorrectCounts
from fedgram.selection.holdout import folds, folds_for
from fedgram.selection.leave_one_out import HatMatrix
from fedgram.selection.lift_gain import gains, left_out_alone
from fedgram.selection.normal_equations import NormalEquations
from fedgram.selection.pool import (
    LikelihoodSums,
    LogLinear,
    PoolSums,
    PoolWeights,
    likeliest_weights,
)
from fedgram.selection.squared_errors import SquaredErrors
from fedgram.softmax.arithmetic import SoftmaxGrid
from fedgram.softmax.fit import LeftOut, SoftmaxFit
from fedgram.softmax.left_out import FoldLogits, left_out_logits
from fedgram.softmax.personal import OwnRows
from fedgram.softmax.sums import IntegerHead, ResidualSums, SoftmaxQuery

HIGH_WIDTH = 4096  # width of the lift with high effort
FEWEST_JUDGES = 4  # clients: a secure sum over fewer hides nothing, or tolerates no drop-out
_ENTRIES_AT_A_TIME = 2**16  # of scores: more would leave the processor's cache
_LISTED = 4  # candidates of a regression whose R2 is recorded
# With standard effort: the most features that are always lifted, the factor, and the limits of the
# width. How many random features are of use depends on the shapes of the classes, not on the number
# of columns: so also a few columns are lifted to many.
NARROW, RATIO, FEWEST, WIDEST = 1024, 8, 1024, 2048
SIGNS = 16  # of a projection, at least: fewer have too few different sums


_Scored = tuple[Sequence[float], Array]  # scales, and the scores of several models


@dataclass(frozen=True, kw_only=True)
class Auto(ClosedForm[Tuned]):
    """The default: a log-linear pool of softmax and squared-loss heads with each client's prior.

    One sum of statistics gives the squared-loss models: the ridge head of `afl`, `lda`, `fed3r`,
    `fedhip`, `apfl-linear` (with a balance of 1 it is `closed-ditto`; also with a lift of its
    shared stream), a personal intercept, and the head of a client's own samples alone (`local`). A
    few sums of residuals give the softmax head of `logistic`. Clients compute the likelihood of
    their left-out samples under each model; the server adds these up, selects the likeliest model
    of each kind, and pools them with the class prior: a weighted sum of scores, with the weights
    that maximize the likelihood of left-out samples. At least one part of the pool is shared. No
    validation samples are needed, and test samples are never used.

    Exchanges: the sum of `afl`; for more than 1,024 features, counts that say whether clients gain
    by a lift; the sum of lifted features, for fewer or where they gain; the residual sums of
    `logistic`; log-losses of left-out samples.

    Parameters
    ----------
    exchanges
        Number of residual sums for the softmax head (one more fits the selected head to all
        samples); 0 leaves the softmax head out.
    effort
        Width of the lifted features on which squared-loss heads are solved too. "low": no lift.
        "standard": for up to 1,024 features eight times as many, but at least 1,024 and at most
        2,048; for more features 2,048, if heads of single clients become better by it. "high":
        4,096.
    judges
        Approximate number of samples used for model selection, from at least four randomly drawn
        clients; 0 uses all clients.
    classes_alike
        Give all classes equal weight, whatever their frequency: in the selection and in
        predictions.
    lift
        Random projection and activation before all shared heads; width 0 for no lift.
    """

    predicts_numbers: ClassVar[bool] = True

    exchanges: int = 8
    effort: Literal["low", "standard", "high"] = "standard"
    judges: int = 10_000
    classes_alike: bool = False
    lift: Lift = Lift()

    def __post_init__(self) -> None:
        if self.exchanges < 0:
            raise ConfigError(f"exchanges: expected 0 or more, got {self.exchanges}")
        if self.judges < 0:
            raise ConfigError(f"judges: expected 0 (all clients) or more, got {self.judges}")

    def most_weight(self, samples: int) -> int | None:
        return samples * MOST_REPEATS if self.classes_alike else samples

    # Steps at a client

    def shortened(self, *, search: bool = True) -> Self:
        """Return the method with at most two exchanges."""
        del search
        return replace(self, exchanges=min(2, self.exchanges))

    @statistics_step
    def lifted_statistics(self, samples: Samples, width: int) -> tuple[Features, Labels]:
        return lifted(samples, _lift_beside(samples.features.space.inputs, width))

    @step
    def lift_gain(self, client: Client, width: int) -> CorrectCounts | SquaredErrors:
        """Count what heads of some of the client's samples predict, without a lift and with."""
        return left_out_alone(client.samples, Lift(width=width))

    @summed_step(lambda union, query: query.total(union))
    def residuals(self, client: Client, query: SoftmaxQuery) -> ResidualSums:
        return query.sums(client.samples)

    @summed_step(lambda union, counts: summed_evidence(union.class_counts(), counts))
    def pseudo_counts(self, client: Client, counts: Floats) -> PriorEvidence:
        return prior_evidence(counts_of(client.samples.labels), counts)

    @stacked_step
    def left_out(self, clients: Sequence[Client], question: Question) -> list[Judged]:
        """Evaluate all models on left-out samples; store the scores for `pool`."""
        parts = [client.samples for client in clients]
        logits = self._logits_left_out(parts, question)
        replies: dict[int, Judged] = {}
        for places in alike([len(part) for part in parts], 4 * len(question.counts)):
            some = [clients[place] for place in places]
            scored: Iterable[_Scored] = _by_scales(self._squared_left_out(some, question))
            if len(some) > 1:  # those of a large client are made when they are used
                scored = list(scored)
            for k, place in enumerate(places):
                mine = ((steps, scores[:, k]) for steps, scores in scored)
                replies[place] = self._judged(clients[place], question, logits[place], mine)
        return [replies[place] for place in range(len(clients))]

    def _judged(
        self,
        client: Client,
        question: Question,
        logits: Array,
        squared_scores: Iterable[_Scored],
    ) -> Judged:
        """Evaluate all models of a client.

        Parameters
        ----------
        client
            The client.
        question
            The models.
        logits
            Logits of softmax heads, for each strength.
        squared_scores
            Scores of squared-loss models with equal scales, (models, samples, classes).
        """
        samples, in_total = client.samples, client.in_total
        codes, counts = samples.labels.codes, question.counts
        own, strength = counts_of(samples.labels), question.pseudo_count
        odds = left_out_log_odds(codes, own, counts, strength, in_total=in_total)
        odds = self._class_term(odds, counts)
        weights = self._sample_weights(codes, counts)
        out = np.flatnonzero(folds(samples, question.folds) >= 0)
        kept: list[Array] = []
        squared: list[LikelihoodSums] = []
        for steps, scores in squared_scores:
            kept.append(scores[:, out])
            squared.append(LikelihoodSums.over_scales(scores, odds, steps, codes, weights))
        logits, odds, codes, weights = logits[:, out], odds[out], codes[out], weights[out]
        soft = LikelihoodSums.zero()
        if len(logits):
            soft = LikelihoodSums.over_scales(logits, odds, SOFT_SCALES, codes, weights)
        scores = np.concatenate([logits, *kept])
        client.remember(
            left_out={"scores": scores, "odds": odds, "codes": codes, "weights": weights}
        )
        return Judged(squared=side_by_side(squared), soft=soft)

    def _squared_left_out(
        self, clients: Sequence[Client], question: Question
    ) -> Iterator[tuple[Setting, Array]]:
        """Yield each squared-loss candidate with its scores, (clients, samples, classes)."""
        parts = [client.samples for client in clients]
        summed = "statistics", "lifted_statistics"  # a client may be missing in either total
        # Of a client's own fits, for every lift.
        hats = [HatMatrix.of(part.features.values) for part in parts]
        for each, name in zip(self._candidates(question.equations), summed, strict=False):
            in_total = [client.in_total_of(name) for client in clients]
            scored = each.left_out_of_all(parts, in_total=in_total, hats=hats)
            yield from zip(each.settings, scored, strict=True)

    @step
    def left_out_errors(self, client: Client, equations: dict[str, Any]) -> SquaredErrors:
        """Sum the squared leave-one-out errors of all candidates for a regression."""
        samples = client.samples
        summed = "statistics", "lifted_statistics"  # a client may be missing in either total
        hat = HatMatrix.of(samples.features.values)
        scores = [
            scored
            for each, name in zip(self._candidates(equations["equations"]), summed, strict=False)
            for scored in each.left_out(samples, in_total=client.in_total_of(name), hat=hat)
        ]
        truth = samples.labels
        if not isinstance(truth, Targets):
            raise DataError("expected numbers of a regression, got classes")
        return SquaredErrors.of(scores, truth)

    @stacked_step
    def pool(self, clients: Sequence[Client], asked: dict[str, Any]) -> list[PoolSums]:
        """Evaluate a pool on the left-out samples, from the stored scores."""
        weights, places = np.asarray(asked["weights"]), list(asked["places"])
        zeros = np.zeros(len(weights), np.int64)
        nothing = PoolSums(slope=zeros, curvature=np.outer(zeros, zeros))
        found = [nothing] * len(clients)
        known = {
            k: client.state["left_out"]
            for k, client in enumerate(clients)
            if "left_out" in client.state and len(client.state["left_out"]["codes"])
        }
        counts = [each["codes"].size for each in known.values()]
        classes = max((each["odds"].shape[1] for each in known.values()), default=1)
        for group in alike(counts, len(weights) * classes):
            some = [list(known)[place] for place in group]
            each = [known[k] for k in some]
            terms = [np.concatenate([one["scores"][places], one["odds"][None]]) for one in each]
            sums = PoolSums.of_each(
                np.nan_to_num(np.stack(terms).astype(np.float64)),
                np.stack([one["codes"] for one in each]),
                weights,
                np.stack([one["weights"] for one in each]),
            )
            for k, reply in zip(some, sums, strict=True):
                found[k] = reply
        return found

    # At the server

    def fit(self, federation: Federation) -> Iterator[Tuned]:
        total = federation.sum(self.statistics)
        require_lift(total.space, self.lift)
        ridge, soft_ridge = best_ridges(total, [SLACK, 0.0])
        equations = [NormalEquations(total=total, ridge=ridge)]
        if width := self._beside(federation, total):
            more = federation.sum(self.lifted_statistics, width)
            equations.append(NormalEquations(total=more, ridge=resolved("auto", more)))
        if isinstance(total, TargetStatistics):
            yield self._for_numbers(federation, equations)
            return
        counts = class_counts(total)[0]
        pseudo_count = federation.sum(self.pseudo_counts, counts).best
        fit = SoftmaxFit.of(
            federation,
            self.residuals,
            total,
            grid=SoftmaxGrid(),
            exchanges=self.exchanges,
            lift=self.lift,
        )
        soft = fit.choose(soft_ridge) if self.exchanges else None
        question = Question(
            equations=tuple(equations),
            soft=np.zeros((0, 0, 0), np.int64) if soft is None else soft.values,
            folds=folds_for(total.count, total.moment.size),
            counts=counts,
            pseudo_count=pseudo_count,
        )
        judges = self._judging(federation, total.count)
        judged = federation.sum(self.left_out, question, clients=judges)
        candidates = self._candidates(equations)
        parts = likeliest_parts(candidates, judged)
        found, shares = self._pooled(federation, judges, parts)
        *weights, prior = found.weights.tolist()
        used = [(part, weight) for part, weight in zip(parts, weights, strict=True) if weight]
        heads = tuple(self._head(part, candidates, fit, soft) for part, _ in used)
        origin = codec.digest([[each.provenance() for each in equations], fit.provenance()])
        yield Tuned(
            shared=PoolParts(heads=heads, counts=counts, pseudo_count=pseudo_count, origin=origin),
            setting=_setting(used, prior),
            description=self._sentence(used, prior, pseudo_count, found),
            left_out_accuracy=shares,
            notes={
                **fit.notes(),
                "log_loss": found.sums.mean_loss,
                "judges": judges or "all",
                "pool": self._weights(used, prior),
            },
        )

    def _for_numbers(self, federation: Federation, equations: Sequence[NormalEquations]) -> Tuned:
        """Return the candidate with the smallest squared leave-one-out errors, of a regression."""
        total = equations[0].total
        judges = self._judging(federation, total.count)
        sent = {"equations": tuple(equations)}
        judged = federation.sum(self.left_out_errors, sent, clients=judges)
        tried = [
            (candidates, setting)
            for candidates in self._candidates(equations)
            for setting in candidates.settings
        ]
        best = np.argsort(-judged.accuracy, kind="stable")[:_LISTED]
        candidates, setting = tried[best[0]]
        shared = candidates.shared(setting)
        head = shared if isinstance(shared, NormalEquations) else integer_head(shared)
        share = float(judged.accuracy[best[0]])
        words = f"{described(setting)}: R2 {share:.3f} on {judged.samples:,} left-out samples"
        return Tuned(
            shared=PoolParts(
                heads=(head,),
                counts=np.zeros(len(total.classes)),
                pseudo_count=1.0,
                origin=codec.digest([each.provenance() for each in equations]),
            ),
            setting={"parts": [{**setting, "weight": 1.0}], "prior": 0.0},
            description=words,
            left_out_accuracy={described(tried[k][1]): float(judged.accuracy[k]) for k in best},
            notes={"judges": judges or "all"},
        )

    def _pooled(
        self, federation: Federation, judges: list[str] | None, parts: Sequence[Part]
    ) -> tuple[PoolWeights, dict[str, float]]:
        """Return the likeliest weights of a pool, and the accuracy of each part alone."""
        places = [part.place for part in parts]

        def ask(weights: Floats) -> PoolSums:
            return federation.sum(self.pool, {"weights": weights, "places": places}, clients=judges)

        alone = [_alone(part, k, len(parts), ask) for k, part in enumerate(parts)]
        own = sum(part.own for part in parts)
        first = alone[: len(parts) - own]
        best = min(first, key=lambda each: (not each.sums.weight, each.sums.mean_loss))
        shares = {
            f"{part.words} alone": each.sums.accuracy
            for part, each in zip(parts, alone, strict=True)
        }
        return likeliest_weights(ask, best.weights, own=own), shares

    def personalize(self, client: Client, shared: Any) -> Predictor:
        parts, setting = unwrap(shared)
        samples = client.samples
        odds = log_odds(counts_of(samples.labels), parts.counts, parts.pseudo_count)
        pool = [
            (part["weight"], self._personal(part, head, samples))
            for part, head in zip(setting["parts"], parts.heads, strict=True)
        ]
        return LogLinear.of(pool, setting["prior"] * self._class_term(odds, parts.counts))

    def shared_predictor(self, shared: Any) -> Predictor:
        """Return the pool for a client without samples: no class prior, no personal part."""
        space, classes = shared.space, shared.classes
        rows = Grid.of(space)(np.zeros((0, space.inputs)), backbone=space.backbone)
        nothing = Samples(rows, Labels(np.zeros(0, np.int64), classes))
        return self.personalize(Client(id="", train=nothing, valid=nothing), shared)

    def _head(
        self,
        part: Part,
        candidates: Sequence[Candidates],
        fit: SoftmaxFit,
        soft: LeftOut | None,
    ) -> IntegerHead | NormalEquations:
        if part.candidates is None:
            assert soft is not None  # noqa: S101  # such a part exists only with a softmax head
            return fit.refit(soft)
        shared = candidates[part.candidates].shared(part.setting)
        return shared if isinstance(shared, NormalEquations) else integer_head(shared)

    def _personal(
        self, part: Setting, head: IntegerHead | NormalEquations, samples: Samples
    ) -> Classifier:
        if isinstance(head, NormalEquations):
            return personal(part, samples, head, self.lift)
        linear = head.linear()
        if part["family"] != "softmax":
            return personal(part, samples, linear, self.lift)
        if not part["strength"]:
            return linear
        own = OwnRows.of(linear.lift(samples.features).real())
        logits, targets = linear(samples.features), samples.labels.onehot()
        added = own.weights(logits, targets, strength=part["strength"])
        return replace(linear, weights=linear.weights + added, origin="")

    def _logits_left_out(self, parts: Sequence[Samples], question: Question) -> list[Array]:
        """Return the logits of each client's samples under the folds' heads, for each strength."""
        space, classes = question.equations[0].total.space, question.equations[0].total.classes
        if not question.soft.size:
            return [np.zeros((0, len(each), len(classes)), np.float32) for each in parts]
        heads = [
            IntegerHead(
                values=values, grid=SoftmaxGrid(), space=space, classes=classes, lift=self.lift
            ).linear()
            for values in question.soft
        ]
        clients = []
        for each in parts:
            fold, rows = folds(each, question.folds), self.lift(each.features).real()
            if len(rows) < rows.shape[1]:  # products of samples are well conditioned
                rows = rows.astype(np.float32)  # as the scores are; in half of the time
            present = set(fold.tolist())
            logits = {k: head(each.features) for k, head in enumerate(heads) if k in present}
            targets = each.labels.onehot()
            clients.append(FoldLogits(rows=rows, targets=targets, fold=fold, logits=logits))
        return left_out_logits(clients, [strength * space.width for strength in STRENGTHS])

    def _candidates(self, equations: Sequence[NormalEquations]) -> list[Candidates]:
        first, *more = equations
        numbers = isinstance(first.total, TargetStatistics)
        # A client's own head prefers the classes that the client has.
        return [
            Candidates.of(first, self.lift, alone=not self.classes_alike, numbers=numbers),
            *(
                Candidates.of(
                    each,
                    _lift_beside(each.total.space.inputs, each.total.space.constant),
                    beside=True,
                    numbers=numbers,
                )
                for each in more
            ),
        ]

    def _class_term(self, odds: Floats, counts: Floats) -> Floats:
        """Return the class prior or, with equal classes, minus the global log-frequencies."""
        if not self.classes_alike:
            return odds
        frequencies = np.maximum(counts, 0.5) / max(1.0, counts.sum())
        return np.broadcast_to(-np.log(frequencies), odds.shape)

    def _sentence(
        self,
        used: Sequence[tuple[Part, float]],
        prior: float,
        pseudo_count: float,
        found: PoolWeights,
    ) -> str:
        words = f"class prior x {prior:.2g} (pseudo-count {pseudo_count:g})"
        if self.classes_alike:
            words = f"equal class frequencies x {prior:.2g}"
        return sentence(used, words if prior else "", found, alike=self.classes_alike)

    def _weights(self, used: Sequence[tuple[Part, float]], prior: float) -> dict[str, float]:
        """Return the weight of each part of the pool, by its name."""
        term = "equal class frequencies" if self.classes_alike else "class prior"
        return {part.words: weight for part, weight in used} | ({term: prior} if prior else {})

    def _sample_weights(self, codes: Integers, counts: Floats) -> Integers:
        return repeats(counts)[codes] if self.classes_alike else np.ones(len(codes), np.int64)

    def _beside(self, federation: Federation, total: Statistics) -> int:
        """Return the width of the second lift, for squared-loss heads; 0 for no second lift."""
        space = total.space
        if self.lift.width or self.effort == "low" or not space.traceable:
            return 0
        if self.effort == "high":
            return HIGH_WIDTH
        if space.inputs <= NARROW:
            return min(WIDEST, max(FEWEST, RATIO * space.inputs))
        # Features of a backbone hardly need a lift, raw pixels do: samples at their clients tell.
        some = sorted(federation.clients)
        if number := self._number_judging(federation, total.count):
            some = some[:: len(some) // number][:number]
        return WIDEST if gains(federation.sum(self.lift_gain, WIDEST, clients=some)) else 0

    def _judging(self, federation: Federation, samples: int) -> list[str] | None:
        """Return the clients used for model selection; None means all."""
        number = self._number_judging(federation, samples)
        if not number:
            return None
        drawn = federation.rng.choice(list(federation.clients), number, replace=False)
        return sorted(drawn.tolist())

    def _number_judging(self, federation: Federation, samples: int) -> int:
        """Return the number of clients used for model selection; 0 means all."""
        clients = len(federation.clients)
        if not self.judges or samples <= self.judges:
            return 0
        some = max(FEWEST_JUDGES, -(-clients * self.judges // samples))
        return some if some < clients else 0


def _lift_beside(inputs: int, width: int) -> Lift:
    return Lift(width=width, copies=max(1, -(-SIGNS // inputs)))


def _by_scales(
    found: Iterable[tuple[Setting, Array]],
) -> Iterator[_Scored]:
    """Yield the scores of successive candidates with equal scales, stacked."""
    steps: Sequence[float] = ()
    stack: list[Array] = []
    for setting, scores in found:
        full = len(stack) * scores[0].size >= _ENTRIES_AT_A_TIME
        if stack and (full or scales(setting) is not steps):
            yield steps, np.stack(stack)
            stack = []
        steps = scales(setting)
        stack.append(scores)
    if stack:
        yield steps, np.stack(stack)


def _setting(used: Sequence[tuple[Part, float]], prior: float) -> dict[str, Any]:
    return {
        "parts": [{**part.setting, "weight": weight} for part, weight in used],
        "prior": prior,
    }


def _alone(part: Part, place: int, terms: int, ask: Any) -> PoolWeights:
    """Return a pool of one part alone, at its likeliest scale."""
    weights = np.zeros(terms + 1)
    weights[place], weights[-1] = part.scale, part.prior
    return PoolWeights(weights=weights, sums=ask(weights))
