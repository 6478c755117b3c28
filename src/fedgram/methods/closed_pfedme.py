from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fedgram.core.quadratic import Quadratic
from fedgram.core.samples import Floats
from fedgram.core.solve import Factor
from fedgram.errors import ConfigError
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.method import Method
from fedgram.federation.protocol import Federation
from fedgram.federation.shared import Tuned, unwrap
from fedgram.federation.step import step
from fedgram.methods._tuning import require_strength, select_strength
from fedgram.methods.closed_ditto import pulled
from fedgram.models.linear import Linear, Predictor, lifted
from fedgram.runtime.threads import single_threaded_blas
from fedgram.selection.correct_counts import CorrectCounts
from fedgram.selection.leave_one_out import correct, one_minus_leverage

TRIED = (10_000.0, 3000.0, 1000.0, 300.0, 100.0)  # the least personal first


@dataclass(frozen=True, kw_only=True)
class ClosedPFedMe(Method[Linear | Tuned]):
    """pFedMe's objective (Dinh et al., NeurIPS 2020) on squared loss, in closed form.

    The shared head W minimizes the sum over clients of their Moreau envelopes, ``min_V |F_k V -
    Y_k|^2 + strength |V - W|^2``. With ``Q_k = (G_k + strength I)^-1`` it is ``(sum Q_k G_k)^-1 sum
    Q_k b_k``; a client's head is ``Q_k (b_k + strength W)``. Unlike the head of `afl` it depends on
    the partition by design.

    Exchanges: one sum of Gram matrices and class sums, each multiplied by the client's
    ``(G_k + strength I)^-1``; with strength "auto" one such sum and one of counts for each of five
    strengths.

    Parameters
    ----------
    strength
        Weight of the squared distance to the shared head (lambda / 2 in the paper), > 0. "auto"
        selects from 100, 300, ..., 10,000 by leave-one-out accuracy over all clients: five times
        the messages and the work.
    ridge
        Weight of the shared head's squared norm, for features of unit size, > 0.
    lift
        Random projection and activation before the head; width 0 for no lift.
    """

    strength: float | Literal["auto"] = 1000.0
    ridge: float = 100.0
    lift: Lift = Lift()

    def __post_init__(self) -> None:
        require_strength(self.strength)
        if not 0 < self.ridge < float("inf"):
            raise ConfigError(f"ridge = {self.ridge}: use a number > 0")

    def most_weight(self, samples: int) -> int | None:
        return 1  # clients have equal weights

    @step
    def envelope(self, client: Client, strength: float) -> Quadratic:
        features, labels = lifted(client.samples, self.lift)
        rows = features.real()
        with single_threaded_blas():
            through = _resolved(rows, strength)
            matrix, moment = through @ rows, through @ labels.onehot()
        return Quadratic.of(matrix, moment, 1, features.space, labels.classes)

    @step
    def left_out(self, client: Client, sent: dict[str, Any]) -> CorrectCounts:
        scores = self.scores_left_out(client, sent)
        return CorrectCounts.of(correct(scores, client.samples.labels.codes)[:, None])

    def scores_left_out(self, client: Client, sent: dict[str, Any]) -> Floats:
        """Return the leave-one-out scores of each sample, exactly."""
        features, labels = lifted(client.samples, self.lift)
        strength, total, rows = sent["strength"], sent["total"], features.real()
        factor = total.factor(self.ridge / strength)
        head = factor.solve(total.moment)
        with single_threaded_blas():
            through = _resolved(rows, strength)  # columns: Q f
            own = np.einsum("ij,ji->i", rows, through)
            residual = labels.onehot() - rows @ (through @ labels.onehot())
            shared = through.T @ head
        errors = residual / one_minus_leverage(own)[:, None]
        scores: Floats = labels.onehot() - errors
        reach = np.zeros(len(rows))  # f' Q (sum Q G)^-1 Q f, if the client is in the sum
        if client.in_total_of("envelope"):
            reach = np.sum(factor.whitened(through.T) ** 2, axis=1)
        scores += (
            strength
            * (shared - reach[:, None] * errors)
            / one_minus_leverage(own + strength * reach)[:, None]
        )
        return scores

    def fit(self, federation: Federation) -> Iterator[Linear | Tuned]:
        if self.strength != "auto":
            yield self._head(federation.sum(self.envelope, self.strength), self.strength)
            return
        total, choice = select_strength(federation, self.envelope, self.left_out, TRIED)
        yield replace(choice, shared=self._head(total, choice.setting["strength"]))

    def personalize(self, client: Client, shared: Any) -> Predictor:
        head, setting = unwrap(shared, strength=self.strength)
        return pulled(head, client, setting["strength"])

    def _head(self, total: Quadratic, strength: float) -> Linear:
        return Linear(
            weights=total.solve(self.ridge / strength),
            space=total.space,
            classes=total.classes,
            lift=self.lift,
        )


def _resolved(rows: Floats, strength: float) -> Floats:
    """Return ``(rows' rows + strength I)^-1 rows'``, in the cheaper of the two forms."""
    count, width = rows.shape
    if count < width:
        return Factor.of(rows @ rows.T, strength).solve(rows).T
    return Factor.of(rows.T @ rows, strength).solve(rows.T)
