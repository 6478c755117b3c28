"""Score many sites at once, with one model for all of them or one for each.

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
from fedgram.federation.client import Client, Site
from fedgram.federation.method import same_model
from fedgram.federation.scoring import ScoreSums, ScoreTask, SiteScore
from fedgram.federation.sites import Owners, SitePart, Sites, union
from fedgram.models.linear import Predictor, predict
from fedgram.models.mlp import TrainedModel
from fedgram.runtime import flops

_TYPES = (np.int8, np.int16, np.int32, np.int64)  # those that the codec narrows to
_LIMITS = np.array([np.iinfo(kind).max for kind in _TYPES[:-1]])
_SIZES: dict[tuple[Any, ...], int] = {}  # of the answers of each kind
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
class SiteModels:
    """The models of all sites.

    Parameters
    ----------
    same
        Whether all sites have one model, which is then listed once.
    models, digests
        The models and their digests.
    microseconds, flops
        Time and FLOPs of each personalization.
    """

    same: bool
    models: Sequence[Predictor]
    digests: Sequence[str]
    microseconds: Integers
    flops: Integers

    def place(self, site: int) -> int:
        """Return the place of the model of a site."""
        return 0 if self.same else site


@dataclass(frozen=True, eq=False, kw_only=True)
class UnionScores:
    """The scores of all sites, and their models.

    Iterated, these are the names and scores of single sites.

    Parameters
    ----------
    task, sites
        What was scored, and where.
    test, valid
        Scores on test samples, and on validation samples if training did not use them.
    made
        The models.
    """

    task: ScoreTask
    sites: Sites
    test: PartScores
    valid: PartScores
    made: SiteModels

    @property
    def names(self) -> Sequence[str]:
        """Names of the sites."""
        return self.sites.names

    def __iter__(self) -> Iterator[tuple[str, SiteScore]]:
        for site, name in enumerate(self.names):
            if self.task.keep:
                self.task.keep(name, self.made.models[self.made.place(site)])
            test = self.test.of_site(site, self.sites.test[site].labels)
            valid = self.valid.of_site(site, self.sites.valid[site].labels)
            yield name, self._score(site, test, valid)

    def sums(self) -> ScoreSums:
        """Return the sum of the sites' scores; a model for all of them was made once."""
        made, sites = self.made, len(self.names)
        return ScoreSums(
            tally=self.test.tally(),
            valid=self.valid.tally(),
            microseconds=int(made.microseconds.sum()),
            flops=int(made.flops.sum()) * (sites if made.same else 1),
        )

    def seconds(self, site: int) -> float:
        """Return the time of one site's personalization; of one model for all an equal part."""
        shared = len(self.names) if self.made.same else 1
        return int(self.made.microseconds[self.made.place(site)]) / 1e6 / shared

    def size(self) -> int:
        """Return the number of bytes of all sites' answers (`SiteScore`).

        Sites whose numbers have equally many digits, and counts of classes in equal integer types,
        have answers of equal length: one of each kind is measured.
        """
        numbers = self.test.numbers() + self.valid.numbers()
        if not self.made.same:
            numbers += [self.made.microseconds, self.made.flops]
        kinds = np.zeros(len(self.names), np.int64)
        for number in numbers:
            kinds += np.searchsorted(_DIGITS, number, side="right")
        for part in (self.test, self.valid):
            kinds = (kinds * len(_TYPES) + part.samples_type) * len(_TYPES) + part.correct_type
        found, first, number = np.unique(kinds, return_index=True, return_counts=True)
        made = self.made
        digits = len(str(made.flops[0])) if made.same else None  # else they are in the kinds
        same = digits, self.test.classes, self.valid.classes, len(made.digests[0])
        total = 0
        for kind, site, sites in zip(found.tolist(), first.tolist(), number.tolist(), strict=True):
            key = kind, *same
            if key not in _SIZES:
                _SIZES[key] = codec.counted(self._like(site))
            total += sites * _SIZES[key]
        return total

    def _like(self, site: int) -> SiteScore:
        return self._score(site, self.test.like(site), self.valid.like(site))

    def _score(self, site: int, test: Tally, valid: Tally) -> SiteScore:
        place = self.made.place(site)
        spent = 0 if self.made.same else int(self.made.microseconds[place])
        flops = int(self.made.flops[place])
        sums = ScoreSums(tally=test, valid=valid, microseconds=spent, flops=flops)
        return SiteScore(sums=sums, model_digest=self.made.digests[place])


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnScore:
    """A site's own model with its predictions.

    Parameters
    ----------
    model, digest
        The model and its digest.
    microseconds, flops
        Time and FLOPs of the personalization.
    test, valid
        Predicted class codes.
    """

    model: Predictor
    digest: str
    microseconds: int
    flops: int
    test: Integers
    valid: Integers

    @classmethod
    def of(cls, task: ScoreTask, site: Site, client: Client, shared: Any) -> OwnScore:
        """Personalize and predict at one site."""
        start, before = time.perf_counter(), flops.total()
        model = task.method.personalize(client, shared)
        seconds, operations = time.perf_counter() - start, flops.total() - before
        nothing = np.zeros(0, np.int64)
        scored = task.kept_valid and len(site.valid)
        return cls(
            model=model,
            digest=task.digests(model),
            microseconds=round(seconds * 1e6),
            flops=operations,
            test=predict(model, site.test.features),
            valid=predict(model, site.valid.features) if scored else nothing,
        )


def can_score_models(task: ScoreTask, client: Client) -> bool:
    """Whether only counts of correct predictions are needed, of a model for each site."""
    return not (task.metrics.auroc or isinstance(client.train.labels, Targets))


def joined_scores(task: ScoreTask, sites: Sites, found: Sequence[OwnScore]) -> UnionScores:
    """Return the scores of all sites, from the predictions of their own models."""
    tests, valids = [], []
    for batch in sites.batches(np.arange(len(sites))):
        some = found[batch[0] : batch[-1] + 1]
        predicted = [one.test for one in some]
        tests.append(PartScores.of(_labels(sites, batch, "test"), np.concatenate(predicted)))
        predicted = [one.valid for one in some]
        known = _labels(sites, batch, "valid") if task.kept_valid else _no_labels(sites, batch)
        valids.append(PartScores.of(known, np.concatenate(predicted)))
    made = SiteModels(
        same=False,
        models=[one.model for one in found],
        digests=[one.digest for one in found],
        microseconds=np.array([one.microseconds for one in found], np.int64),
        flops=np.array([one.flops for one in found], np.int64),
    )
    return UnionScores(
        task=task,
        sites=sites,
        test=PartScores.joined(tests),
        valid=PartScores.joined(valids),
        made=made,
    )


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
        made=SiteModels(
            same=True,
            models=[model],
            digests=[codec.digest(model)],
            microseconds=np.array([round(seconds * 1e6)]),
            flops=np.array([operations]),
        ),
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
        nothing = _no_labels(sites, batch)
        return PartScores.of(nothing, nothing.labels.codes)
    if not isinstance(model, TrainedModel):
        rows = union(whole, batch)
        known = OwnedLabels(labels=rows.samples.labels, owners=rows.owners, clients=rows.clients)
        return PartScores.of(known, predict(model, rows.samples.features))
    # The last bits of a float product depend on its number of rows, so each site has its own.
    each: list[Samples] = [getattr(sites[place], part) for place in batch.tolist()]
    predicted = model.of_each([samples.features for samples in each]).argmax(axis=1)
    return PartScores.of(_labels(sites, batch, part), predicted)


def _labels(sites: Sites, batch: Integers, part: Literal["test", "valid"]) -> OwnedLabels:
    """Return the labels of one part of a batch of sites; features are not copied."""
    whole: SitePart = getattr(sites, part)
    each: list[Samples] = [getattr(sites[place], part) for place in batch.tolist()]
    labels = Labels.joined([samples.labels for samples in each])
    owners = np.repeat(np.arange(len(batch)), whole.counts[batch])
    return OwnedLabels(labels=labels, owners=owners, clients=len(batch))


def _no_labels(sites: Sites, batch: Integers) -> OwnedLabels:
    labels = sites[int(batch[0])].valid.labels.take(slice(0))
    return OwnedLabels(labels=labels, owners=labels.codes, clients=len(batch))


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
