"""Calibration of a method's scores for all clients, by the likelihood of left-out samples.

The method is fitted again without a part of every client's training samples. Clients score these
samples with their models and add up the log-loss under each candidate, in integers. The candidate
with the smallest sum is kept. Which samples are left out depends on a hash of their content.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedgram.core.samples import Integers, Samples
from fedgram.engines.in_process import InProcess
from fedgram.errors import DataError
from fedgram.federation.client import Client, Site
from fedgram.federation.federated_dataset import FederatedDataset
from fedgram.federation.method import Method
from fedgram.models.model import Calibration
from fedgram.selection.holdout import PARTS, content_hashes, folds_for
from fedgram.selection.pool import LikelihoodSums

CANDIDATES = [
    *(Calibration(power=2.0 ** (step / 4)) for step in range(-16, 45)),  # from 1/16 to 2048
    *(
        Calibration(power=2.0 ** (step / 4), sharpness=sharpness)
        for sharpness in (4.0, 8.0, 16.0, 32.0, 64.0)
        for step in range(-8, 21)  # from 1/4 to 32
    ),
]
_SALT = np.uint64(0x9E3779B97F4A7C15)  # other samples than those that methods leave out themselves


@dataclass(frozen=True, eq=False, kw_only=True)
class CalibrationTask:
    """Sum the log-loss of a client's left-out samples under each candidate.

    An engine calls it with a site whose test samples are the left-out ones.
    """

    method: Method[Any]

    def __call__(self, site: Site, client: Client, shared: object) -> LikelihoodSums:
        model = self.method.personalize(client, shared)
        scores = model(site.test.features)
        codes = site.test.labels.codes
        parts = [LikelihoodSums.of([each.logits(scores)], codes) for each in CANDIDATES]
        return LikelihoodSums(
            weight=len(codes),
            loss=np.concatenate([part.loss for part in parts]),
            correct=np.concatenate([part.correct for part in parts]),
        )


def calibration(method: Method[Any], sites: FederatedDataset, *, seed: int = 0) -> Calibration:
    """Return the likeliest calibration of a method's scores, from sums over clients.

    Parameters
    ----------
    method
        The method.
    sites
        The clients; their test samples are not used.
    seed
        Seed of the method's random numbers.

    Examples
    --------
    >>> import fedgram as fg
    >>> digits = fg.federate(fg.load_dataset("digits"), clients=5)
    >>> found = calibration(fg.create_method("afl"), digits)
    >>> found.samples, found.log_loss < 0.4
    (1347, True)
    """
    count = sum(len(site.train) for site in sites.members)
    number = folds_for(count, count * len(sites.test.labels.classes))
    total = LikelihoodSums.zero()
    for fold in range(number):
        left = [each for site in sites.members if (each := _without(site, fold, number))]
        if not any(len(site.test) for site in left):
            continue
        engine = InProcess(left, seed=seed)
        shared = None
        for shared in method.fit(engine):  # noqa: B007  # the last one is used
            pass
        task = CalibrationTask(method=method)
        parts = [sums for _, sums in engine.evaluate(task, shared) if sums.weight]
        total = LikelihoodSums.sum_of([total, *parts])
    if not total.weight:
        raise DataError("calibration: expected at least 2 training samples at a client, got fewer")
    best = total.best
    loss = float(total.mean_loss[best])
    return replace(CANDIDATES[best], samples=total.weight, log_loss=loss)


def _without(site: Site, fold: int, number: int) -> Site | None:
    """Return a site without the training samples of a fold, which are its test samples."""
    out = _folds(site.train, number) == fold
    if out.all():
        return None
    return Site(
        id=site.id,
        train=site.train.take(np.flatnonzero(~out)),
        valid=site.valid,
        test=site.train.take(np.flatnonzero(out)),
        reserve_valid=site.reserve_valid,
    )


def _folds(samples: Samples, number: int) -> Integers:
    """Return the fold of each sample; with one fold, -1 for nine tenths of the samples."""
    hashes = content_hashes(samples).view(np.uint64) * _SALT
    part = ((hashes >> np.uint64(32)) % np.uint64(PARTS)).astype(np.int64)
    return np.where(part == 0, 0, -1) if number == 1 else part * number // PARTS
