"""Score many sites at once, where all of them have the same model.

The counts of each site, and the bytes of its answer, are those of `ScoreTask` at each site.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedgram.core import codec
from fedgram.core.samples import Array, Integers, Labels, Samples
from fedgram.core.shared import same_for_all
from fedgram.core.tally import FIXED_POINT_ONE, HISTOGRAM_BINS, Tally
from fedgram.core.targets import Targets
from fedgram.errors import MismatchError
from fedgram.federation.client import Client
from fedgram.federation.method import same_model
from fedgram.federation.scoring import ScoreSums, ScoreTask, SiteScore
from fedgram.federation.sites import Owners, SitePart, Sites, union
from fedgram.models.linear import Predictor, predict
from fedgram.models.mlp import TrainedModel
from fedgram.runtime import flops

_TYPES = (np.int8, np.int16, np.int32, np.int64)  # those that the codec narrows to
_LIMITS = np.array([np.iinfo(kind).max for kind in _TYPES[:-1]])
_DIGITS = 10 ** np.arange(1, 18)  # the smallest numbers of 2, 3, ... digits


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnedLabels(Owners):
    """The labels of a batch of clients together.

    Parameters
    ----------
    labels
        The labels.
    """

    labels: Labels


@dataclass(frozen=True, eq=False, kw_only=True)
class PartScores:
    """Scores of many sites on one part of their samples.

    Parameters
    ----------
    samples, correct
        Number of samples and of correct predictions of each site.
    samples_type, correct_type
        Places of the integer types in which each site sends its samples and correct predictions
        by class.
    class_samples, class_correct
        The same of each class, over all sites.
    classes
        The class list.
    hits
        Whether each sample is predicted correctly, site after site.
    """

    samples: Integers
    correct: Integers
    samples_type: Array
    correct_type: Array
    class_samples: Integers
    class_correct: Integers
    classes: tuple[str, ...]
    hits: NDArray[np.bool_]

    @classmethod
    def of(cls, part: OwnedLabels, predicted: Integers) -> PartScores:
        """Compare the predictions for a union with its labels."""
        codes, classes = part.labels.codes, part.labels.classes
        hit = predicted == codes
        return cls(
            samples=part.count(),
            correct=part.count(hit),
            samples_type=_type_of_counts(part, np.ones(len(codes), bool)),
            correct_type=_type_of_counts(part, hit),
            class_samples=np.bincount(codes, minlength=len(classes)),
            class_correct=np.bincount(codes[hit], minlength=len(classes)),
            classes=classes,
            hits=hit,
        )

    @classmethod
    def joined(cls, parts: Sequence[PartScores]) -> PartScores:
        """Return the scores of the sites of all batches."""
        if len(parts) == 1:
            return parts[0]
        listed = ("samples", "correct", "samples_type", "correct_type", "hits")
        return cls(
            **{key: np.concatenate([getattr(part, key) for part in parts]) for key in listed},
            class_samples=np.sum([part.class_samples for part in parts], axis=0),
            class_correct=np.sum([part.class_correct for part in parts], axis=0),
            classes=parts[0].classes,
        )

    @cached_property
    def _ends(self) -> Integers:
        return np.cumsum(self.samples)

    @property
    def shares(self) -> Array:
        """The accuracy of each site; 0 without samples."""
        shares: Array = self.correct / np.maximum(self.samples, 1)
        return shares

    @property
    def accuracies(self) -> Integers:
        """The accuracy of each site in fixed point, rounded as in `Tally.of`."""
        rounded: Integers = np.rint(self.shares * FIXED_POINT_ONE).astype(np.int64)
        return rounded

    def tally(self) -> Tally:
        """Return the tally of all sites."""
        tested = self.samples > 0
        percents = np.rint(self.shares[tested] * (HISTOGRAM_BINS - 1)).astype(np.int64)
        return Tally(
            clients=len(self.samples),
            clients_without_test=int((~tested).sum()),
            samples=int(self.samples.sum()),
            correct=int(self.correct.sum()),
            accuracies=int(self.accuracies.sum()),
            histogram=np.bincount(percents, minlength=HISTOGRAM_BINS),
            class_samples=self.class_samples,
            class_correct=self.class_correct,
            classes=self.classes,
        )

    def of_site(self, site: int, truth: Labels) -> Tally:
        """Return the tally of one site, whose labels are `truth`."""
        end = self._ends[site]
        hit = self.hits[end - self.samples[site] : end]
        truth = truth.take(slice(len(hit)))  # none, if this part is not scored
        return Tally.of(np.where(hit, truth.codes, -1), truth)

    def numbers(self) -> list[Integers]:
        """Return the numbers of each site that its answer writes in digits."""
        return [self.samples, self.correct, self.accuracies]

    def like(self, site: int) -> Tally:
        """Return a tally that is encoded in as many bytes as that of one site."""
        arrays = [np.zeros(len(self.classes), np.int64) for _ in range(2)]
        for array, kind in zip(arrays, (self.samples_type, self.correct_type), strict=True):
            array[:1] = np.iinfo(_TYPES[kind[site]]).max
        samples, correct, accuracy = (int(number[site]) for number in self.numbers())
        return Tally(
            clients=1,
            samples=samples,
            correct=correct,
            accuracies=accuracy,
            class_samples=arrays[0],
            class_correct=arrays[1],
            classes=self.classes,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class UnionScores:
    """The scores of all sites, and the model that all of them have.

    Iterated, these are the names and scores of single sites.

    Parameters
    ----------
    task, sites
        What was scored, and where.
    test, valid
        Scores on test samples, and on validation samples if training did not use them.
    model, model_digest
        The model and its digest.
    microseconds, flops
        Time and FLOPs of one personalization.
    """

    task: ScoreTask
    sites: Sites
    test: PartScores
    valid: PartScores
    model: Predictor
    model_digest: str
    microseconds: int
    flops: int

    @property
    def names(self) -> Sequence[str]:
        """Names of the sites."""
        return self.sites.names

    def __iter__(self) -> Iterator[tuple[str, SiteScore]]:
        for place, name in enumerate(self.names):
            if self.task.keep:
                self.task.keep(name, self.model)
            sums = ScoreSums(
                tally=self.test.of_site(place, self.sites.test[place].labels),
                valid=self.valid.of_site(place, self.sites.valid[place].labels),
                flops=self.flops,
            )
            yield name, SiteScore(sums=sums, model_digest=self.model_digest)

    def sums(self) -> ScoreSums:
        """Return the sum of the sites' scores; the model was made once."""
        return ScoreSums(
            tally=self.test.tally(),
            valid=self.valid.tally(),
            microseconds=self.microseconds,
            flops=self.flops * len(self.names),
        )

    def size(self) -> int:
        """Return the number of bytes of all sites' answers (`SiteScore`).

        Sites whose numbers have equally many digits, and counts of classes in equal integer types,
        have answers of equal length: one of each kind is measured.
        """
        kinds = np.zeros(len(self.names), np.int64)
        for number in self.test.numbers() + self.valid.numbers():
            kinds += np.searchsorted(_DIGITS, number, side="right")
        for part in (self.test, self.valid):
            kinds = (kinds * len(_TYPES) + part.samples_type) * len(_TYPES) + part.correct_type
        _, first, number = np.unique(kinds, return_index=True, return_counts=True)
        pairs = zip(first.tolist(), number.tolist(), strict=True)
        return sum(sites * codec.counted(self._like(site)) for site, sites in pairs)

    def _like(self, site: int) -> SiteScore:
        sums = ScoreSums(tally=self.test.like(site), valid=self.valid.like(site), flops=self.flops)
        return SiteScore(sums=sums, model_digest=self.model_digest)


def can_score_together(task: ScoreTask, shared: Any) -> bool:
    """Whether all sites have one model, and only counts of correct predictions are needed."""
    return same_model(task.method) and same_for_all(shared) and not task.metrics.auroc


def score_together(task: ScoreTask, sites: Sites, client: Client, shared: Any) -> UnionScores:
    """Personalize once, and score all sites.

    Parameters
    ----------
    task
        What is scored.
    sites
        The sites.
    client
        One of the clients; the model does not depend on it.
    shared
        The shared result.
    """
    if isinstance(client.train.labels, Targets):
        raise MismatchError("only counts of correct predictions are made together")
    start, before = time.perf_counter(), flops.total()
    model = task.method.personalize(client, shared)
    seconds, operations = time.perf_counter() - start, flops.total() - before
    flops.add(operations * (len(sites) - 1))  # every client makes its model
    tests, valids = [], []
    for batch in sites.batches(np.arange(len(sites))):
        tests.append(_scores(model, sites, batch, "test"))
        valids.append(_scores(model, sites, batch, "valid", scored=task.kept_valid))
    return UnionScores(
        task=task,
        sites=sites,
        test=PartScores.joined(tests),
        valid=PartScores.joined(valids),
        model=model,
        model_digest=codec.digest(model),
        microseconds=round(seconds * 1e6),
        flops=operations,
    )


def _scores(
    model: Predictor,
    sites: Sites,
    batch: Integers,
    part: Literal["test", "valid"],
    *,
    scored: bool = True,
) -> PartScores:
    """Return the scores of a batch of sites; those of no samples if the part is not scored."""
    whole: SitePart = getattr(sites, part)
    if not scored:
        labels = sites[int(batch[0])].valid.labels.take(slice(0))
        nothing = OwnedLabels(labels=labels, owners=labels.codes, clients=len(batch))
        return PartScores.of(nothing, labels.codes)
    if not isinstance(model, TrainedModel):
        rows = union(whole, batch)
        known = OwnedLabels(labels=rows.samples.labels, owners=rows.owners, clients=rows.clients)
        return PartScores.of(known, predict(model, rows.samples.features))
    # The last bits of a float product depend on its number of rows, so each site has its own.
    each: list[Samples] = [getattr(sites[place], part) for place in batch.tolist()]
    labels = Labels.joined([samples.labels for samples in each])
    owners = np.repeat(np.arange(len(batch)), whole.counts[batch])
    predicted = np.concatenate([predict(model, samples.features) for samples in each])
    return PartScores.of(OwnedLabels(labels=labels, owners=owners, clients=len(batch)), predicted)


def _type_of_counts(part: OwnedLabels, chosen: Array) -> Array:
    """Return the place of the integer type of each client's numbers of chosen samples by class."""
    most = part.count(chosen)
    large = np.flatnonzero(most > _LIMITS[0])  # only these may need more than the first type
    if len(large):
        classes = len(part.labels.classes)
        place = np.full(part.clients, -1)
        place[large] = np.arange(len(large))
        rows = chosen & (place[part.owners] >= 0)
        keys = place[part.owners[rows]] * classes + part.labels.codes[rows]
        by_class = np.bincount(keys, minlength=len(large) * classes)
        most[large] = by_class.reshape(len(large), classes).max(axis=1)
    return np.searchsorted(_LIMITS, most).astype(np.int8)
