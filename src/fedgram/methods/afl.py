from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fedgram.core.disk_store import DiskStore
from fedgram.core.gcv import Ridge, best_ridge_for_new_clients
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.method import for_all_clients
from fedgram.federation.protocol import Federation, gather_to_disk
from fedgram.methods._closed_form import ClosedForm
from fedgram.models.linear import Linear, Predictor


@dataclass(frozen=True, kw_only=True)
class AFL(ClosedForm[Linear]):
    """AFL (He et al., CVPR 2025, arXiv 2405.16240): the ridge regression of all clients' samples.

    The paper aggregates local solutions pairwise by its absolute aggregation law and then removes
    the ridge that each client added. In exact arithmetic this recursion equals the ridge regression
    of the summed statistics, which is solved here. Unlike the paper's last step, one ridge is kept,
    because it improves accuracy. It is counted once, whatever the number of clients; `ridge` close
    to 0 gives the paper's plain least squares.

    Exchanges: one sum of Gram matrices and class sums; the server solves the head.

    Parameters
    ----------
    ridge
        Weight of the head's squared norm, for features of unit size; 0 is plain least squares.
        "auto" selects the smallest ridge with nearly the smallest generalized cross-validation
        error, which the sum alone determines. "clients" selects the ridge with the smallest
        leave-one-client-out error: the server sees each client's statistics and computes one
        factorization per client and evaluated ridge.
    lift
        Random projection and activation before the head; width 0 for no lift.

    Examples
    --------
    >>> AFL(ridge=10.0)
    AFL(ridge=10.0, lift=Lift(width=0, activation='relu', seed=0, scale=1.0, copies=1))
    """

    predicts_numbers: ClassVar[bool] = True

    ridge: Ridge | Literal["clients"] = 100.0
    lift: Lift = Lift()

    def fit(self, federation: Federation) -> Iterator[Linear]:
        if self.ridge == "clients":
            yield self._for_new_clients(federation)
        else:
            yield Linear.of(federation.sum(self.statistics), ridge=self.ridge, lift=self.lift)

    @for_all_clients
    def personalize(self, client: Client, shared: Any) -> Predictor:
        head: Linear = shared
        return head

    def _for_new_clients(self, federation: Federation) -> Linear:
        with DiskStore() as store:
            total = gather_to_disk(federation, self.statistics, store)
            ridge = best_ridge_for_new_clients(total, lambda: map(store.__getitem__, sorted(store)))
        return Linear.of(total, ridge=ridge, lift=self.lift)
