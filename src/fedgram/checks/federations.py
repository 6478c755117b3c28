"""Small federations of the embedded digits, on which methods are checked."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedgram.core.samples import Features, Labels, Samples, concatenate
from fedgram.data.plan import PartitionPlan
from fedgram.data.sources import load_dataset
from fedgram.engines.in_process import InProcess
from fedgram.features.grid import Grid
from fedgram.federation.client import Site
from fedgram.federation.federated_dataset import FederatedDataset, federate
from fedgram.federation.protocol import Total
from fedgram.federation.step import Reply, Step


@functools.cache
def digits() -> Samples:
    """Return all digits, quantized."""
    data = load_dataset("digits")
    return Samples(Grid()(data.x), Labels(data.y, data.classes))


def partitioned(**plan: Any) -> FederatedDataset:
    """Return the digits partitioned over clients; eight clients by default."""
    made = _federated(PartitionPlan(**{"clients": 8, **plan}))
    # Copies: a method that is checked may change the arrays.
    members, holdout = (
        [
            replace(
                site,
                train=_copied(site.train),
                valid=_copied(site.valid),
                test=_copied(site.test),
                state={},
            )
            for site in group
        ]
        for group in (made.members, made.holdout)
    )
    return FederatedDataset(members=members, holdout=holdout, test=_copied(made.test))


@functools.lru_cache(maxsize=32)
def _federated(plan: PartitionPlan) -> FederatedDataset:
    return federate(load_dataset("digits"), plan)


def _copied(samples: Samples) -> Samples:
    return samples.take(np.arange(len(samples)))


def trainable() -> Samples:
    """Return the digits that are not in the test set of `federated`."""
    return digits().take(np.flatnonzero(np.arange(len(digits())) % 5))


def federated(parts: Mapping[str, Samples], holdout: Iterable[str] = ()) -> FederatedDataset:
    """Return sites with these training samples; the test set of all is a fifth of the digits."""
    test = digits().take(slice(0, None, 5))
    held_out = set(holdout)
    built = [
        Site(id=name, train=train, valid=test.take([]), test=test) for name, train in parts.items()
    ]
    return FederatedDataset(
        members=[site for site in built if site.id not in held_out],
        holdout=[site for site in built if site.id in held_out],
        test=test,
    )


def with_random_test_data(federation: FederatedDataset) -> FederatedDataset:
    """Return the same federation with random test features and wrong test labels."""
    rng = np.random.default_rng(0)

    def randomized(samples: Samples) -> Samples:
        space, labels = samples.features.space, samples.labels
        values = rng.integers(-space.bound, space.bound + 1, samples.features.values.shape)
        values = values.astype(samples.features.values.dtype)
        codes = (labels.codes + rng.integers(1, len(labels.classes), len(labels))) % len(
            labels.classes
        )
        return Samples(Features(values, space), Labels(codes, labels.classes))

    members, holdout = (
        [replace(site, test=randomized(site.test)) for site in group]
        for group in (federation.members, federation.holdout)
    )
    test = concatenate([site.test for site in (*members, *holdout)])
    return FederatedDataset(members=members, holdout=holdout, test=test)


class ReversedReplies:
    """A federation whose replies arrive in the opposite order."""

    def __init__(self, engine: InProcess) -> None:
        self._engine = engine

    @property
    def clients(self) -> Sequence[str]:
        return self._engine.clients

    @property
    def private(self) -> bool:
        return self._engine.private

    @property
    def contributors(self) -> Sequence[str]:
        return self._engine.contributors

    @property
    def rng(self) -> np.random.Generator:
        return self._engine.rng

    def gather(
        self, step: Step[Reply], broadcast: Any = None, *, clients: Iterable[str] | None = None
    ) -> Iterator[tuple[str, Reply]]:
        """Yield the replies in the opposite order.

        Parameters
        ----------
        step
            The step to run at the clients.
        broadcast
            Argument of the step.
        clients
            Names of the clients; all by default.
        """
        return reversed(list(self._engine.gather(step, broadcast, clients=clients)))

    def sum(
        self, step: Step[Total], broadcast: Any = None, *, clients: Iterable[str] | None = None
    ) -> Total:
        """Return the sum of the replies, added in the opposite order.

        Parameters
        ----------
        step
            The step to run at the clients.
        broadcast
            Argument of the step.
        clients
            Names of the clients; all by default.
        """
        replies = (reply for _, reply in self.gather(step, broadcast, clients=clients))
        return functools.reduce(operator.add, replies)
