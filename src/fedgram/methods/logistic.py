from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from fedgram.core import codec
from fedgram.core.gcv import resolved
from fedgram.core.samples import Floats, Space
from fedgram.core.shared import Shared
from fedgram.core.solve import ridge_solve, unpack_symmetric
from fedgram.core.statistics import Statistics
from fedgram.errors import ConfigError
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.federation.shared import Tuned, unwrap
from fedgram.federation.union_step import summed_step
from fedgram.methods._closed_form import ClosedForm
from fedgram.models.adjusted import Shifted
from fedgram.models.linear import Linear, Predictor, require_lift
from fedgram.selection.class_prior import (
    PriorEvidence,
    class_counts,
    counts_of,
    log_odds,
    prior_evidence,
    summed_evidence,
)
from fedgram.softmax.arithmetic import SoftmaxGrid
from fedgram.softmax.fit import SoftmaxFit
from fedgram.softmax.sums import IntegerHead, ResidualSums, SoftmaxQuery


@codec.register("SoftmaxHead/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class SoftmaxHead(Shared):
    """A shared softmax head, and the class counts for a client's class prior.

    Parameters
    ----------
    head
        Integer weights; the scores are logits.
    counts
        Number of samples of each class in the federation.
    pseudo_count
        Number of samples with the global class frequencies that are added to a client's counts; 0
        for no class prior.
    """

    head: IntegerHead
    counts: Floats
    pseudo_count: float = 0.0

    @property
    def space(self) -> Space:
        """The space of the head."""
        return self.head.space

    @property
    def classes(self) -> tuple[str, ...]:
        """The class list, in the order of the scores."""
        return self.head.classes

    def predictor(self) -> Linear:
        """Return the head without a class prior."""
        return self.head.linear()

    def provenance(self) -> str:
        """Digest of the totals behind the head."""
        return self.head.provenance()


@dataclass(frozen=True, kw_only=True)
class Logistic(ClosedForm[Tuned]):
    """Softmax regression of all samples from exact sums, the same for any partition.

    A ridge head is the first Newton step of softmax regression; the next steps need only sums over
    samples too. After the statistics of `afl`, each exchange broadcasts integer weights and sums
    residual products (features by classes) and the loss, in exact integers. The server updates the
    weights by L-BFGS in the metric of the Gram matrix. The totals of all exchanges, and therefore
    the model, are the same to the bit for any partition of the samples.

    Exchanges: the sum of `afl`, then a few sums of residual products and losses.

    Parameters
    ----------
    exchanges
        Number of residual sums, without the one at zero weights; 0 gives the ridge head.
    ridge
        Weight of the head's squared norm in ``-log likelihood + ridge / 2 |W|^2``, for features of
        unit size, > 0. "auto" evaluates ridges around the best one for squared loss, one exchange
        each, and selects the head with the largest held-out likelihood. Held out is a tenth of the
        samples, selected by a hash of their content, or each of five folds if there are few weights
        or samples. One more residual sum fits the selected head to all samples.
    prior
        Multiply probabilities by each client's class frequencies, smoothed by a pseudo-count that
        maximizes the likelihood over all clients. One number per class is personal.
    constant
        Apply the ridge to the weight of the constant feature too.
    weight_bits, table_bits, residual_bits
        The public grids: binary places of a logit, of the table of exponentials, of a probability.
    lift
        Random projection and activation before the head; width 0 for no lift.
    """

    exchanges: int = 8
    ridge: float | Literal["auto"] = "auto"
    prior: bool = False
    constant: bool = False
    weight_bits: int = 16
    table_bits: int = 12
    residual_bits: int = 14
    lift: Lift = Lift()

    def __post_init__(self) -> None:
        if self.exchanges < 0:
            raise ConfigError(f"exchanges: expected 0 or more, got {self.exchanges}")
        if self.ridge != "auto" and not 0 < self.ridge < float("inf"):
            raise ConfigError(f"ridge: expected a number > 0 or 'auto', got {self.ridge}")
        if self.prior and not self.exchanges:
            raise ConfigError(
                "prior: scores of a ridge head are not log-likelihoods; expected exchanges of 1 or "
                "more, got 0"
            )
        self._grid()

    def shortened(self, *, search: bool = True) -> Self:
        """Return the method with at most two exchanges."""
        del search
        return replace(self, exchanges=min(2, self.exchanges))

    @summed_step(lambda union, query: query.total(union))
    def residuals(self, client: Client, query: SoftmaxQuery) -> ResidualSums:
        return query.sums(client.samples)

    @summed_step(lambda union, counts: summed_evidence(union.class_counts(), counts))
    def pseudo_counts(self, client: Client, counts: Floats) -> PriorEvidence:
        return prior_evidence(counts_of(client.samples.labels), counts)

    def fit(self, federation: Federation) -> Iterator[Tuned]:
        total = federation.sum(self.statistics)
        require_lift(total.space, self.lift)
        suited = resolved("auto", total, slack=0.0)
        fit = SoftmaxFit.of(
            federation,
            self.residuals,
            total,
            grid=self._grid(),
            exchanges=self.exchanges,
            constant=self.constant,
            lift=self.lift,
        )
        ridge, head, reasons = self._solved(fit, total, suited)
        counts = class_counts(total)[0]
        pseudo_count = federation.sum(self.pseudo_counts, counts).best if self.prior else 0.0
        words = f"ridge {ridge:.3g}"
        if self.exchanges:
            words += f", {fit.used} residual sums over {fit.samples:,} samples"
        if self.prior:
            words += f", class prior with a pseudo-count of {pseudo_count:g}"
        yield Tuned(
            shared=SoftmaxHead(head=head, counts=counts, pseudo_count=pseudo_count),
            setting={"ridge": ridge},
            description=words,
            left_out_accuracy=reasons,
            invariant=not self.prior,
            notes=fit.notes(),
        )

    def personalize(self, client: Client, shared: Any) -> Predictor:
        softmax, _ = unwrap(shared)
        head = softmax.head.linear()
        if not softmax.pseudo_count:
            model: Predictor = head
            return model
        odds = log_odds(counts_of(client.samples.labels), softmax.counts, softmax.pseudo_count)
        return Shifted(model=head, shift=odds)

    def _solved(
        self, fit: SoftmaxFit, total: Statistics, suited: float
    ) -> tuple[float, IntegerHead, dict[str, float]]:
        """Return the ridge, the head, and the held-out accuracy of the ridge."""
        if not self.exchanges:
            ridge = suited if self.ridge == "auto" else self.ridge
            return ridge, self._ridge_head(total, ridge), {}
        if self.ridge != "auto":
            return self.ridge, fit.solve(self.ridge), {}
        found = fit.choose(suited)
        return found.ridge, fit.refit(found), {f"ridge {found.ridge:.3g}": found.accuracy}

    def _ridge_head(self, total: Statistics, ridge: float) -> IntegerHead:
        space = total.space
        stored = ridge_solve(
            unpack_symmetric(total.gram, space.width),
            total.moment.astype(np.float64),
            ridge / space.unit**2,
            samples=total.count,
        )
        origin = codec.digest({"total": total.digest(), "ridge": float(ridge)})
        return IntegerHead.of(
            stored / space.unit, self._grid(), space, total.classes, self.lift, origin
        )

    def _grid(self) -> SoftmaxGrid:
        return SoftmaxGrid(
            weights=self.weight_bits, table=self.table_bits, residuals=self.residual_bits
        )
