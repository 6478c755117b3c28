"""What a client makes its own: a pull towards what is shared, its strength, and groups."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive, schema_field
from fedgram.core.samples import NO_SPACE, Array, Features, Floats, Labels, Space
from fedgram.core.shared import Shared
from fedgram.core.solve import least_squares
from fedgram.core.statistics import Statistics
from fedgram.layerwise.solver import SolvedNetwork
from fedgram.models.linear import Linear
from fedgram.runtime.threads import single_threaded_blas

STRENGTHS = tuple(10.0**power for power in np.arange(12, -1, -1) / 2)  # the strongest first
_ONE = 2**32  # a class's share of a client's samples is summed as a number of these parts


@codec.register("Right/1", fields={"correct": "right"})
@dataclass(frozen=True, eq=False, kw_only=True)
class CorrectByStrength(Additive):
    """Number of samples that are classified correctly when left out, for each of `STRENGTHS`."""

    samples: int = 0
    correct: Array = field(default_factory=lambda: np.zeros(len(STRENGTHS), np.int64))


@codec.register("Profiles/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class ClassProfiles(Additive):
    """Members of each group, and the sum of the shares that classes have among their samples."""

    members: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    shares: Array = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    def lacks_schema(self) -> bool:
        return not self.members.size

    def centers(self, before: Floats) -> Floats:
        """Return the mean shares of each group; a group without members stays where it was."""
        count = self.members[:, None]
        return np.where(count > 0, self.shares / _ONE / np.maximum(count, 1), before)


@codec.register("Slots/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class GroupStatistics(Additive):
    """The statistics of several groups side by side; a client fills the slot of its own."""

    counts: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    grams: Array = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    moments: Array = field(default_factory=lambda: np.zeros((0, 0, 0), np.int64))
    space: Space = schema_field(default=NO_SPACE)
    classes: tuple[str, ...] = schema_field(default=())

    def lacks_schema(self) -> bool:
        return self.space == NO_SPACE

    @classmethod
    def of(cls, own: Statistics, group: int, groups: int) -> GroupStatistics:
        """Put a client's statistics into the slot of its group."""

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

    def parts(self) -> list[Statistics]:
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
        The network that all share.
    ridge
        Weight of a head's squared norm, for features of unit size.
    strength
        Weight of the squared distance to the shared head.
    centers
        Shares of classes in each group's middle; empty without groups.
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
        """Digest of the totals that everything was solved from."""
        groups = [head.origin for head in self.heads]
        return codec.digest([self.model.provenance(), self.strength, groups])


def shares(labels: Labels) -> Floats:
    """Return the share of each class among some samples."""
    counts = np.bincount(labels.codes, minlength=len(labels.classes))
    found: Floats = counts / max(1, counts.sum())
    return found


def profile(labels: Labels, centers: Floats) -> ClassProfiles:
    """Return a client's part in the next centers: it counts in the group nearest to it."""
    group, own = nearest(labels, centers), np.rint(shares(labels) * _ONE).astype(np.int64)
    members, total = np.zeros(len(centers), np.int64), np.zeros(centers.shape, np.int64)
    members[group], total[group] = 1, own
    return ClassProfiles(members=members, shares=total)


def nearest(labels: Labels, centers: Floats) -> int:
    """Return the group whose middle is nearest to a client's shares of classes."""
    return int(np.sum((centers - shares(labels)) ** 2, axis=1).argmin())


def blocks_of_classes(groups: int, classes: int) -> Floats:
    """Return public first centers: each has a block of neighboring classes."""
    block = np.arange(classes) * groups // classes
    inside = (block == np.arange(groups)[:, None]).astype(np.float64)
    centers: Floats = inside / np.maximum(inside.sum(axis=1, keepdims=True), 1)
    return centers


def pulled_head(
    features: Features, labels: Labels, towards: Linear, *, ridge: float, strength: float
) -> Linear:
    """Return argmin_P ``|F P - Y|^2 + ridge |P|^2 + strength |P - W|^2`` for the shared head W.

    With fewer samples than features it is solved in the dual form.
    """
    rows, weight = features.real(), ridge + strength
    start = towards.weights * (strength / weight)
    with single_threaded_blas():
        residual = labels.onehot() - rows @ start
    own = least_squares(rows, residual, weight)
    return Linear(
        weights=start + own, space=features.space, classes=labels.classes, lift=towards.lift
    )
