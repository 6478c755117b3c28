from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.samples import Array, Floats
from fedgram.core.solve import ridge_solve
from fedgram.errors import ConfigError, SolveError
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.method import Method, for_all_clients
from fedgram.federation.protocol import Federation
from fedgram.federation.step import step
from fedgram.models.adjusted import ClassMasked
from fedgram.models.linear import Linear, Predictor
from fedgram.runtime.threads import single_threaded_blas
from fedgram.selection.class_sums import ClassSums


@dataclass(frozen=True, kw_only=True)
class FedCOF(Method[Linear]):
    """FedCOF (Goswami et al., NeurIPS 2025, arXiv 2412.14326): a covariance from class means.

    The class means of clients scatter around the mean of all samples of the class, the less the
    more samples they are made of. With n_kc samples of class c at client k, N_c at all K_c clients
    that have the class, and means m_kc and m_c, the covariance of the class is estimated by
    ``sum_k n_kc (m_kc - m_c)(m_kc - m_c)' / (K_c - 1)``: without bias if a client's samples of a
    class are drawn like those of any other. The head is ``G^-1 B`` with columns of norm one, where
    B are the class sums and G is the sum of ``(N_c - 1) (covariance_c + shrinkage I)`` over
    classes, plus N times the outer product of the mean of all samples: the Gram matrix without
    the scatter between classes, as in the authors' code. The constant feature is not used. A
    class at one client adds the shrinkage only.

    The server sees the class sums and class counts of each client, not only their total: a class
    with one sample at a client shows this sample. A federation that allows sums only refuses it.

    Exchanges: each client's class sums and class counts are gathered; the server solves the head.

    Parameters
    ----------
    shrinkage
        Added to the variance of each feature, for features of unit size (gamma in the paper), > 0.
    lift
        Random projection and activation before the head; width 0 for no lift.
    """

    shrinkage: float = 0.1
    lift: Lift = Lift()

    def __post_init__(self) -> None:
        if not 0 < self.shrinkage < float("inf"):
            raise ConfigError(f"shrinkage = {self.shrinkage}: use a number > 0")

    @step
    def class_sums(self, client: Client, _: None) -> ClassSums:
        """Return the class sums and class counts of a client's lifted samples."""
        return ClassSums.of(self.lift(client.samples.features), client.samples.labels)

    def fit(self, federation: Federation) -> Iterator[Linear]:
        replies = dict(federation.gather(self.class_sums))
        parts = [replies[client] for client in sorted(replies)]
        total = sum(parts, ClassSums.zero())
        if not total.present.any():
            raise SolveError("no class means: the clients have no samples")
        weights = np.zeros((total.space.width, len(total.classes)))
        weights[total.space.without_constant] = self._solved(parts, total)
        yield Linear(weights=weights, space=total.space, classes=total.classes, lift=self.lift)

    @for_all_clients
    def personalize(self, client: Client, shared: Any) -> Predictor:
        head: Linear = shared
        present: Array = np.any(head.weights, axis=0)
        return head if present.all() else ClassMasked(model=head, allowed=present)

    def _solved(self, parts: Sequence[ClassSums], total: ClassSums) -> Floats:
        """Return the head without the constant, (features, classes), with columns of norm one."""
        samples, unit = total.claimed_samples(), total.space.unit
        deviations = scaled_deviations(parts, total)
        class_sums = total.sums * np.float64(unit)
        center = class_sums.sum(axis=1) / samples
        with single_threaded_blas():
            gram = deviations.T @ deviations + samples * np.outer(center, center)
        ridge = self.shrinkage * max(1, samples - int(total.present.sum()))
        head = ridge_solve(gram, class_sums, ridge, samples=samples)
        norms = np.linalg.norm(head, axis=0)
        normalized: Floats = head / np.where(norms > 0, norms, 1.0)
        return normalized


def scaled_deviations(parts: Sequence[ClassSums], total: ClassSums) -> Floats:
    """Return rows D such that ``D'D`` is the sum of ``(N_c - 1) covariance_c`` over classes.

    There is one row for each client and class: the deviation of the client's mean, times
    ``sqrt(n_kc (N_c - 1) / (K_c - 1))``.
    """
    clients = np.sum([part.present for part in parts], axis=0)
    factor = np.maximum(total.counts - 1, 0) / np.maximum(clients - 1, 1)
    rows = []
    for part in parts:
        shares = np.sqrt(part.counts * factor)
        rows.append(((part.means - total.means) * shares)[:, part.present].T)
    return np.concatenate(rows)
