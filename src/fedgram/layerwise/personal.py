"""What a client makes its own: a pull towards what is shared, its strength, and groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy.linalg

from fedgram.core import codec
from fedgram.core.additive import Additive, schema_field
from fedgram.core.samples import NO_SPACE, Array, Features, Floats, Labels, Space
from fedgram.core.shared import Shared
from fedgram.core.solve import least_squares, single_threaded_blas
from fedgram.core.statistics import Statistics
from fedgram.layerwise.solver import SolvedNetwork
from fedgram.models.linear import Linear
from fedgram.runtime import flops
from fedgram.selection.normal_equations import NormalEquations

STRENGTHS = tuple(10.0**power for power in np.arange(12, -1, -1) / 2)  # the strongest first
_ONE = 2**32  # a class's share of a client's samples is summed as a number of these parts


@codec.register("Right/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Right(Additive):
    """How many samples would be told right by models that have not seen them, by strength."""

    samples: int = 0
    right: Array = field(default_factory=lambda: np.zeros(len(STRENGTHS), np.int64))


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


@dataclass(frozen=True, eq=False, kw_only=True)
class PulledLeaveOneOut:
    """Predictions for each sample of a client by models that have not seen it, exactly.

    A sample leaves both the client's own regression and the shared head that it is pulled to: the
    shared one without it is ``W - S^-1 f e' / (1 - f' S^-1 f)``, for the regularized Gram matrix S
    of all samples and the residual e. One factorization serves all strengths. Hidden layers stay
    as they are.
    """

    spread: Floats  # samples in the basis of the own Gram matrix
    values: Floats  # eigenvalues of that matrix
    across: Floats  # S^-1 f in the same basis
    shared: Floats  # what the shared head says
    change: Floats  # e / (1 - f' S^-1 f)
    targets: Floats
    ridge: float

    @classmethod
    def of(
        cls, own: Features, common: Features, labels: Labels, whole: NormalEquations, head: Floats
    ) -> PulledLeaveOneOut:
        """Prepare a client's samples: as its own layers and as the shared ones see them."""
        rows, theirs, targets = own.real(), common.real(), labels.onehot()
        flops.add(4 * rows.size * rows.shape[1])
        stored = common.values.astype(np.float64)
        solved = whole.factor.solve(stored.T).T  # in stored units on both sides
        with single_threaded_blas():
            leverage = np.einsum("ij,ij->i", stored, solved)
            values, basis = _basis(rows)
            spread, across = rows @ basis, (solved / whole.total.space.unit) @ basis
            residual = targets - theirs @ head
            shared = rows @ head
        return cls(
            spread=spread,
            values=values,
            across=across,
            shared=shared,
            change=residual / (1 - leverage)[:, None],
            targets=targets,
            ridge=whole.ridge,
        )

    def predictions(self, strength: float) -> Floats:
        """Return the scores of every sample by the model that has not seen it."""
        weight = self.ridge + strength
        start = self.shared * (strength / weight)
        inverse = 1 / (self.values + weight)
        with single_threaded_blas():
            fitted = start + self.spread @ (
                inverse[:, None] * (self.spread.T @ (self.targets - start))
            )
        own = (self.spread**2) @ inverse
        cross = (self.spread * self.across) @ inverse
        seen = own[:, None] * self.targets + strength * cross[:, None] * self.change
        unseen: Floats = (fitted - seen) / (1 - own)[:, None]
        return unseen

    def right(self, strengths: Sequence[float]) -> Iterator[int]:
        """Yield, for each strength, how many samples are told right."""
        truth = self.targets.argmax(axis=1)
        for strength in strengths:
            yield int((self.predictions(strength).argmax(axis=1) == truth).sum())


def _basis(rows: Floats) -> tuple[Floats, Floats]:
    """Return eigenvalues and eigenvectors of rows' rows, without those that are zero."""
    count, width = rows.shape
    if count >= width:
        values, vectors = scipy.linalg.eigh(rows.T @ rows, check_finite=False)
        return np.maximum(values, 0), vectors
    values, inner = scipy.linalg.eigh(rows @ rows.T, check_finite=False)
    kept = values > values[-1] * count * np.finfo(float).eps
    values, inner = values[kept], inner[:, kept]
    return values, rows.T @ inner / np.sqrt(values)
