from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.gcv import Ridge
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.method import for_all_clients
from fedgram.federation.protocol import Federation
from fedgram.methods._closed_form import ClosedForm
from fedgram.models.adjusted import ClassMasked
from fedgram.models.linear import Linear, Predictor


@dataclass(frozen=True, kw_only=True)
class Fed3R(ClosedForm[Linear]):
    """Fed3R (Fanì et al., ICML 2024, arXiv 2406.01116): ridge regression with normalized columns.

    The sum and the head are those of `afl`. Then each class's column of the head is divided by its
    norm (without the entry of the constant, as in the authors' code), which helps rare classes.
    With ``only_local_labels`` a client never predicts a class of which it has no sample.

    Exchanges: the sum of `afl`.

    Parameters
    ----------
    ridge
        Weight of the head's squared norm, for features of unit size; 0 is plain least squares.
        "auto" selects the smallest ridge with nearly the smallest generalized cross-validation
        error, which the sum alone determines.
    normalize
        Divide each column of the head by its norm.
    only_local_labels
        Restrict each client to the classes of its own samples.
    lift
        Random projection and activation before the head; width 0 for no lift.
    """

    ridge: Ridge = 100.0
    normalize: bool = True
    only_local_labels: bool = False
    lift: Lift = Lift()

    def fit(self, federation: Federation) -> Iterator[Linear]:
        head = Linear.of(federation.sum(self.statistics), ridge=self.ridge, lift=self.lift)
        yield head.normalized() if self.normalize else head

    @functools.partial(for_all_clients, unless=lambda method: method.only_local_labels)
    def personalize(self, client: Client, shared: Any) -> Predictor:
        head: Linear = shared
        if not self.only_local_labels:
            return head
        labels = client.samples.labels
        present = np.bincount(labels.codes, minlength=len(labels.classes)) > 0
        return ClassMasked(model=head, allowed=present)
