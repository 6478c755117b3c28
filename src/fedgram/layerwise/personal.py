"""Personalization of solved networks: heads pulled towards a shared head, and client groups."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive, feature_field, require_shape, schema_field
from fedgram.core.samples import NO_SPACE, Array, Features, Floats, Labels, Space
from fedgram.core.shared import Shared
from fedgram.core.solve import least_squares
from fedgram.core.statistics import Statistics
from fedgram.errors import DataError
from fedgram.layerwise.solver import SolvedNetwork
from fedgram.models.linear import Linear
from fedgram.runtime.threads import single_threaded_blas

STRENGTHS = tuple(10.0**power for power in np.arange(12, -1, -1) / 2)  # the strongest first
FIXED_POINT_ONE = 2**32  # a class frequency of 1.0 in the fixed-point sums


@codec.register("Right/1", fields={"correct": "right"})
@dataclass(frozen=True, eq=False, kw_only=True)
class CorrectByStrength(Additive):
    """Number of samples that are classified correctly when left out, for each of `STRENGTHS`."""

    samples: int = 0
    correct: Array = field(default_factory=lambda: np.zeros(len(STRENGTHS), np.int64))

    def claimed_samples(self) -> int:
        return self.samples

    def validate(self, sites: int = 1) -> None:
        super().validate(sites)
        require_shape("CorrectByStrength.correct", self.correct, len(STRENGTHS))
        if (self.correct < 0).any() or (self.correct > self.samples).any():
            raise DataError("correct predictions: expected from 0 to the number of samples")


@codec.register("Profiles/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class ClassProfiles(Additive):
    """Number of members of each group, and the sum of their class frequencies in fixed point."""

    members: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    shares: Array = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    def lacks_schema(self) -> bool:
        return not self.members.size

    def validate(self, sites: int = 1) -> None:
        super().validate(sites)
        require_shape("ClassProfiles.shares", self.shares, len(self.members), self.shares.shape[1])
        most = self.members[:, None] * FIXED_POINT_ONE
        if (self.members < 0).any() or (self.shares < 0).any() or (self.shares > most).any():
            raise DataError("class frequencies: expected from 0 to the number of members")
        if self.members.sum() > 1:
            raise DataError("class frequencies: expected a site in one group, once")

    def centers(self, before: Floats) -> Floats:
        """Return the mean class frequencies of each group; those `before` if it has no members."""
        count = self.members[:, None]
        return np.where(count > 0, self.shares / FIXED_POINT_ONE / np.maximum(count, 1), before)


@codec.register("Slots/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class GroupStatistics(Additive):
    """The statistics of several groups; a client adds to those of its own group."""

    counts: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    grams: Array = feature_field(default_factory=lambda: np.zeros((0, 0), np.int64))
    moments: Array = feature_field(default_factory=lambda: np.zeros((0, 0, 0), np.int64))
    space: Space = schema_field(default=NO_SPACE)
    classes: tuple[str, ...] = schema_field(default=())

    def lacks_schema(self) -> bool:
        return self.space == NO_SPACE

    @classmethod
    def of(cls, own: Statistics, group: int, groups: int) -> GroupStatistics:
        """Return a client's statistics as those of its group, and zeros for the others.

        Parameters
        ----------
        own
            The client's statistics.
        group
            Index of the client's group.
        groups
            Number of groups.
        """

        def slotted(array: Array) -> Array:
            whole = np.zeros((groups, *array.shape), array.dtype)
            whole[group] = array
            return whole

        return cls(
            counts=slotted(np.asarray(own.count, np.int64)),
            grams=slotted(own.gram),
            moments=slotted(own.moment),
            space=own.space,
            classes=own.classes,
        )

    def claimed_samples(self) -> int:
        return int(self.counts.sum())

    def validate(self, sites: int = 1) -> None:
        super().validate(sites)
        if not len(self.counts) == len(self.grams) == len(self.moments):
            raise DataError("statistics of groups: expected one count, matrix and moment for each")
        for group in self.by_group():
            group.validate(sites)

    def by_group(self) -> list[Statistics]:
        """Return the statistics of each group."""
        return [
            Statistics(
                count=int(count),
                gram=gram,
                moment=moment,
                energy=int(count),
                space=self.space,
                classes=self.classes,
            )
            for count, gram, moment in zip(self.counts, self.grams, self.moments, strict=True)
        ]


@codec.register("Pull/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class PulledNetwork(Shared):
    """A shared network with the strength of the pull towards it, and the heads of groups.

    Parameters
    ----------
    model
        The shared network.
    ridge
        Weight of a head's squared norm, for features of unit size.
    strength
        Weight of the squared distance to the shared head.
    centers
        Mean class frequencies of each group; empty without groups.
    heads
        The head of each group.
    """

    model: SolvedNetwork
    ridge: float
    strength: float
    centers: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    heads: tuple[Linear, ...] = ()

    def head(self, labels: Labels) -> Linear:
        """Return the head that a client with these labels is pulled towards."""
        return self.heads[nearest(labels, self.centers)] if self.heads else self.model.head

    @property
    def space(self) -> Space:
        """The space of the shared network."""
        return self.model.space

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the scores."""
        return self.model.classes

    def predictor(self) -> SolvedNetwork:
        """Return the network that all clients share."""
        return self.model

    def provenance(self) -> str:
        """Digest of the totals of the network and of the groups, and of the strength."""
        groups = [head.origin for head in self.heads]
        return codec.digest([self.model.provenance(), self.strength, groups])


def shares(labels: Labels) -> Floats:
    """Return the class frequencies of some samples."""
    counts = np.bincount(labels.codes, minlength=len(labels.classes))
    found: Floats = counts / max(1, counts.sum())
    return found


def profile(labels: Labels, centers: Floats) -> ClassProfiles:
    """Return a client's term of the next group centers (k-means), in its nearest group."""
    group = nearest(labels, centers)
    own = np.rint(shares(labels) * FIXED_POINT_ONE).astype(np.int64)
    members, total = np.zeros(len(centers), np.int64), np.zeros(centers.shape, np.int64)
    members[group], total[group] = 1, own
    return ClassProfiles(members=members, shares=total)


def nearest(labels: Labels, centers: Floats) -> int:
    """Return the group whose center is nearest to a client's class frequencies."""
    return int(np.sum((centers - shares(labels)) ** 2, axis=1).argmin())


def blocks_of_classes(groups: int, classes: int) -> Floats:
    """Return the initial group centers, which are public: a block of neighboring classes each."""
    block = np.arange(classes) * groups // classes
    inside = (block == np.arange(groups)[:, None]).astype(np.float64)
    centers: Floats = inside / np.maximum(inside.sum(axis=1, keepdims=True), 1)
    return centers


def pulled_head(
    features: Features, labels: Labels, towards: Linear, *, ridge: float, strength: float
) -> Linear:
    """Return argmin_P ``|F P - Y|^2 + ridge |P|^2 + strength |P - W|^2`` for the shared head W.

    With fewer samples than features the dual form is solved.

    Parameters
    ----------
    features, labels
        The client's samples, after its layers.
    towards
        The shared head W.
    ridge
        Weight of the squared norm.
    strength
        Weight of the squared distance to W.
    """
    # P = W s / (r + s) + ridge regression of the residual, with ridge r + s
    rows, weight = features.real(), ridge + strength
    start = towards.weights * (strength / weight)
    with single_threaded_blas():
        residual = labels.onehot() - rows @ start
    own = least_squares(rows, residual, weight)
    return Linear(
        weights=start + own, space=features.space, classes=labels.classes, lift=towards.lift
    )
