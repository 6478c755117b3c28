from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from fedgram.core.quadratic import Quadratic
from fedgram.core.samples import Floats
from fedgram.core.solve import Factor
from fedgram.core.targets import outputs_named
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.method import Method
from fedgram.federation.protocol import Federation
from fedgram.federation.shared import Tuned, unwrap
from fedgram.federation.step import step
from fedgram.methods._tuning import require_strength, select_strength
from fedgram.models.adjusted import Shifted
from fedgram.models.linear import Linear, Predictor, lifted
from fedgram.runtime.threads import single_threaded_blas
from fedgram.selection.correct_counts import CorrectCounts
from fedgram.selection.leave_one_out import one_minus_leverage
from fedgram.selection.squared_errors import SquaredErrors, left_out_sums

TRIED = (1000.0, 100.0, 30.0, 10.0, 3.0, 1.0)  # the least personal first


@dataclass(frozen=True, kw_only=True)
class Intercept(Method[Linear | Tuned]):
    """A shared ridge head with a shrunk intercept per client, for clients whose inputs are offset.

    The minimizer over W and all c_k of ``sum_k |Y_k - F_k W - 1 c_k'|^2 + strength |c_k|^2`` with a
    ridge on W: each client eliminates its own intercept from its statistics. With u_k the sum of
    its features, ``W = (sum G_k - u_k u_k' / (n_k + strength))^-1 (...)`` and ``c_k = sum (y - W'f)
    / (n_k + strength)``. W depends on the partition by design.

    Exchanges: one sum of centered Gram matrices and class sums; with strength "auto" one such sum
    and one of counts for each of six strengths.

    Parameters
    ----------
    strength
        Pseudo-count of the intercept: number of samples with residual 0 that are added to each
        client's, > 0. "auto" selects from 1, 3, 10, 30, 100, 1000 by leave-one-out accuracy over
        all clients: six times the messages and the work.
    ridge
        Weight of the shared head's squared norm, for features of unit size; 0 is plain least
        squares. In a regression the weight of the constant is not in the norm.
    lift
        Random projection and activation before the head; width 0 for no lift.
    """

    predicts_numbers: ClassVar[bool] = True

    strength: float | Literal["auto"] = 10.0
    ridge: float = 100.0
    lift: Lift = Lift()

    def __post_init__(self) -> None:
        require_strength(self.strength)

    @step
    def centered(self, client: Client, strength: float) -> Quadratic:
        features, labels = lifted(client.samples, self.lift)
        rows, targets = features.real(), labels.onehot()
        count, weight = len(rows), len(rows) + strength
        sums = rows.sum(axis=0)
        with single_threaded_blas():
            matrix = rows.T @ rows - np.outer(sums, sums) / weight
            moment = rows.T @ targets - np.outer(sums, targets.sum(axis=0)) / weight
        share = max(1, count)
        return Quadratic.of(matrix / share, moment / share, count, features.space, labels.classes)

    @step
    def left_out(self, client: Client, sent: dict[str, Any]) -> CorrectCounts | SquaredErrors:
        scores = self.scores_left_out(client, sent)
        return left_out_sums([scores[None]], [client.samples.labels])[0]

    def scores_left_out(self, client: Client, sent: dict[str, Any]) -> Floats:
        """Return the leave-one-out scores of each sample, exactly."""
        features, labels = lifted(client.samples, self.lift)
        strength, total, rows = sent["strength"], sent["total"], features.real()
        factor = self._factor(total)
        with single_threaded_blas():
            left_over = labels.onehot() - rows @ factor.solve(total.moment)
        weight = len(rows) + strength
        residual = left_over - left_over.sum(axis=0) / weight
        leverage = np.full(len(rows), 1 / weight)
        if client.in_total_of("centered"):
            leverage += np.sum(factor.whitened(rows - rows.sum(axis=0) / weight) ** 2, axis=1)
        scores: Floats = labels.onehot() - residual / one_minus_leverage(leverage)[:, None]
        return scores

    def fit(self, federation: Federation) -> Iterator[Linear | Tuned]:
        if self.strength != "auto":
            yield self._head(federation.sum(self.centered, self.strength))
            return
        total, choice = select_strength(federation, self.centered, self.left_out, TRIED)
        yield replace(choice, shared=self._head(total))

    def personalize(self, client: Client, shared: Any) -> Predictor:
        head, setting = unwrap(shared, strength=self.strength)
        return Shifted(model=head, shift=own_intercept(head, client, setting["strength"]))

    def _factor(self, total: Quadratic) -> Factor:
        """Return the factorized matrix; of a regression the weight of the constant has no ridge.

        So predictions do not depend on where the outputs lie in their declared range.
        """
        if not (outputs_named(total.classes) and total.space.has_constant):
            return total.factor(self.ridge)
        return Factor.of(total.matrix, self.ridge, free=total.space.constant)

    def _head(self, total: Quadratic) -> Linear:
        return Linear(
            weights=self._factor(total).solve(total.moment),
            space=total.space,
            classes=total.classes,
            lift=self.lift,
        )


def own_intercept(head: Linear, client: Client, strength: float) -> Floats:
    """Return the shrunk mean residual of a head on a client's samples."""
    samples = client.samples
    left_over = samples.labels.onehot() - head(samples.features)
    shift: Floats = left_over.sum(axis=0) / (len(samples) + strength)
    return shift
