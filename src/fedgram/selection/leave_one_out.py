"""Exact leave-one-out predictions of personal models, without refitting.

All models are least squares: the leave-one-out error of a sample is its residual divided by one
minus its leverage. A client's samples are part of the shared sums too; a held-out sample is removed
from both the shared head and the client's own fit. The formulas are exact; tests compare them with
refitted models.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.linalg
from scipy.linalg import lapack

from fedgram.core.exact import gram_matrix
from fedgram.core.samples import Array, Features, Floats, Integers, Labels, Samples
from fedgram.errors import SolveError
from fedgram.features.lift import Lift
from fedgram.models.linear import Linear
from fedgram.runtime import flops
from fedgram.runtime.threads import single_threaded_blas
from fedgram.selection.normal_equations import NormalEquations

# Candidate settings, the least personal first: of equally good settings the first is selected.
ALPHAS = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
STRENGTHS = (30_000.0, 10_000.0, 3000.0, 1000.0, 300.0, 100.0, 30.0, 10.0)
BALANCES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
# From this number of features on, with this number of samples for each, rows are whitened in single
# precision, unless a sample has at least this leverage.
_WIDE, _MANY, _INFLUENTIAL = 1024, 4, 0.9
_SCORES_AT_ONCE = 2**16  # of several settings
_DETERMINED = 1e-10  # if 1 - leverage is below this, the sample alone determines its fitted value


Setting = float | Floats  # one value, or several at once: scores then have a first axis for them
Curve = Callable[[Setting], Floats]


@dataclass(frozen=True, eq=False)
class HatMatrix:
    """The hat matrix of ridge regression on the same rows, for every ridge, by one decomposition.

    The fitted values of targets t are ``basis diag(1 / (spread + ridge)) basis' t``.

    Examples
    --------
    >>> rows = np.array([[3.0, 4.0]])
    >>> hat = HatMatrix.of(rows)
    >>> hat.leverage(25.0), hat.fitting(np.array([[2.0]]))(25.0)
    (array([0.5]), array([[1.]]))
    """

    basis: Floats  # (samples, rank), after an axis for clients if there are several
    spread: Floats  # (rank,)

    @classmethod
    def of(cls, rows: Array) -> HatMatrix:
        """Decompose the smaller of ``rows rows'`` and ``rows' rows``; int8 rows are the fastest."""
        if rows.ndim == 3:
            return cls.stacked([cls.of(each) for each in rows])
        count, width = rows.shape
        flops.add(2 * count * width * min(count, width))
        if count <= width:
            return cls.from_gram(gram_matrix(rows.T))
        spread, right = _eigen(gram_matrix(rows))
        with single_threaded_blas():
            return cls(rows.astype(np.float64, copy=False) @ right, spread)

    @classmethod
    def from_gram(cls, products: Floats) -> HatMatrix:
        """Decompose ``rows rows'``, of one client or of several."""
        if products.ndim == 3:
            return cls.stacked([cls.from_gram(each) for each in products])
        spread, left = _eigen(products)
        return cls(left * np.sqrt(spread), spread)

    @classmethod
    def stacked(cls, each: Sequence[HatMatrix]) -> HatMatrix:
        """Return the hat matrices of several clients, each in the memory order of its own."""
        spread = np.stack([one.spread for one in each])
        if all(one.basis.flags.f_contiguous for one in each):
            return cls(np.stack([one.basis.T for one in each]).swapaxes(1, 2), spread)
        return cls(np.stack([one.basis for one in each]), spread)

    def leverage(self, ridge: Setting) -> Floats:
        """Return the leverage of each sample: its weight in its own fitted value."""
        return self._squares_with(1 / (self.spread + each(ridge)))

    def fitting(self, targets: Floats) -> Curve:
        """Return the fitted values of these targets as a function of the ridge."""
        with single_threaded_blas():
            inner = self.basis.swapaxes(-1, -2) @ targets

        def fitted(ridge: Setting) -> Floats:
            flops.add(2 * self.basis.size * targets.shape[-1] * np.size(ridge))
            with single_threaded_blas():
                values: Floats = self.basis @ (inner / (self.spread + each(ridge))[..., None])
            return values

        return fitted

    def _squares_with(self, weights: Floats) -> Floats:
        with single_threaded_blas():
            return products(self._squares, weights)

    @cached_property
    def _squares(self) -> Floats:
        squares: Floats = self.basis**2
        return squares


@dataclass(frozen=True, eq=False, kw_only=True)
class LeaveOneOut:
    """Leave-one-out predictions for a client's samples, under a shared head.

    Those of several clients with equally many samples have a first axis for the clients (`stacks`);
    one client's do not depend on the others.

    Parameters
    ----------
    samples
        The client's samples; of several clients those of the first.
    truth
        One row per sample with a 1 in the column of its class, (samples, classes).
    codes
        The class codes of the samples.
    residual
        Residual of the shared head, (samples, classes).
    whitened
        Rows whose products are ``F S^-1 F'`` with the regularized Gram matrix S of the shared head;
        without columns if only the head is known.
    weight
        Weight of each sample in the shared sum: 0 if the sample is not in the sum.
    """

    samples: Samples
    truth: Floats
    codes: Integers
    residual: Floats
    whitened: Floats
    weight: Floats

    @classmethod
    def of(
        cls,
        samples: Samples,
        shared: NormalEquations | Linear,
        lift: Lift,
        *,
        in_total: bool | Floats,
    ) -> LeaveOneOut:
        """Return the leave-one-out predictions for a client's samples.

        Parameters
        ----------
        samples
            The client's samples.
        shared
            The normal equations of the shared head. With a `Linear` head the leverages are
            unknown, and a held-out sample is removed from the client's own fit only.
        lift
            The lift of the shared head.
        in_total
            Whether the samples are in the shared sum, or the weight of each sample in the sum.
        """
        if isinstance(shared, NormalEquations):
            ((_, own),) = cls.stacks([samples], shared, lift, in_total=[in_total])
            return own.clients()[0]
        truth = samples.labels.onehot()
        return cls(
            samples=samples,
            truth=truth,
            codes=samples.labels.codes,
            residual=truth - shared(samples.features),
            whitened=np.zeros((len(samples), 0)),
            weight=np.zeros(len(samples)),
        )

    @classmethod
    def stacks(
        cls,
        parts: Sequence[Samples],
        shared: NormalEquations,
        lift: Lift,
        *,
        in_total: Sequence[bool | Floats],
    ) -> Iterator[tuple[list[int], LeaveOneOut]]:
        """Yield the leave-one-out predictions of several clients, with their places in `parts`.

        Parameters
        ----------
        parts
            The samples of clients that have equally many.
        shared, lift, in_total
            As in `of`, `in_total` for each client.
        """
        rows = [shared.rows(part, lift) for part in parts]
        white = [_whitened(shared, each) for each in rows]
        for kind in dict.fromkeys(each.dtype for each in white):
            places = [place for place, each in enumerate(white) if each.dtype == kind]
            truth = np.stack([parts[place].labels.onehot() for place in places])
            with single_threaded_blas():
                residual = truth - np.stack([rows[place] for place in places]) @ shared.head
            weights = [np.asarray(in_total[place], np.float64) for place in places]
            yield (
                places,
                cls(
                    samples=parts[places[0]],
                    truth=truth,
                    codes=np.stack([parts[place].labels.codes for place in places]),
                    residual=residual,
                    whitened=np.stack([white[place] for place in places]),
                    weight=np.stack([np.broadcast_to(each, truth.shape[1]) for each in weights]),
                ),
            )

    def clients(self) -> list[LeaveOneOut]:
        """Return the predictions of each client of a stack, without an axis for clients."""
        if self.truth.ndim == 2:
            return [self]
        names = ("truth", "codes", "residual", "whitened", "weight")
        arrays = zip(*(getattr(self, name) for name in names), strict=True)
        return [replace(self, **dict(zip(names, each, strict=True))) for each in arrays]

    @cached_property
    def leverage(self) -> Floats:
        """The leverage of each sample in the shared head."""
        squares = np.einsum("...ij,...ij->...i", self.whitened, self.whitened).astype(np.float64)
        weights: Floats = self.weight * squares
        return weights

    @cached_property
    def error(self) -> Floats:
        """The leave-one-out error of the shared head at each sample."""
        # e_i / (1 - h_i)
        return self.residual / one_minus_leverage(self.leverage)[..., None]

    def shared(self) -> Floats:
        """Return the leave-one-out scores of the shared head."""
        return self.truth - self.error

    def normalized(self, shared: NormalEquations) -> Floats:
        """Return the leave-one-out scores of the head with columns of norm one, as in `fed3r`.

        Without sample i the head is ``P - w S^-1 f e' / (1 - h)``, which also gives the norms of
        its columns. As in `fed3r`, the norm excludes the constant.
        """
        others, unit = shared.total.space.without_constant, shared.total.space.unit
        solved = shared.factor.solve_whitened(self.whitened)[others] * self.weight
        head = shared.head[others]
        with single_threaded_blas():
            cross = solved.T @ head
        before = np.sum(head**2, axis=0)
        squares = before - 2 * cross * self.error
        squares += np.einsum("ij,ij->j", solved, solved)[:, None] * self.error**2
        # A class whose only sample is held out has a column of zeros, up to rounding.
        lengths = np.where(squares > _DETERMINED * before, np.sqrt(np.abs(squares)) / unit, 1.0)
        return self.shared() / lengths

    def with_extra_weight(self) -> Curve:
        """Return the leave-one-out scores with extra weight `alpha` on own samples (FedHiP).

        ``P = M + (S + alpha F'F)^-1 alpha F'(Y - F M)`` is a ridge regression of the shared head's
        residual on whitened rows, with ridge 1 / alpha. The total weight of a sample in the shared
        sum is 1 + alpha. Several weights at once are all greater than 0.
        """
        count, width = self.whitened.shape[-2:]
        hat = HatMatrix.from_gram(self.hat) if count <= width else HatMatrix.of(self.whitened)
        fitted = hat.fitting(self.residual)

        def scores(alpha: Setting) -> Floats:
            if np.ndim(alpha) == 0 and not alpha:
                return self.shared()
            residual = self.residual - fitted(1 / alpha)
            leverage = (self.weight + each(alpha)) / each(alpha) * hat.leverage(1 / alpha)
            return self.truth - residual / one_minus_leverage(leverage)[..., None]

        return scores

    def fit_residual(self, rows: Array) -> Curve:
        """Return leave-one-out predictions of a ridge regression of the residual on `rows` (APFL).

        Without sample i the residual of the shared head at sample j is
        ``e_j + H_ji e_i / (1 - H_ii)``: the target of the fit to the other samples.
        """
        return self.fit_residual_with(HatMatrix.of(rows))

    def alone(self, hat: HatMatrix) -> Curve:
        """Return leave-one-out predictions of a head of own samples alone (`local`)."""
        fitted = hat.fitting(self.truth)

        def scores(ridge: Setting) -> Floats:
            own = hat.leverage(ridge)[..., None]
            return (fitted(ridge) - own * self.truth) / one_minus_leverage(own)

        return scores

    def fit_residual_with(self, hat: HatMatrix) -> Curve:
        """Return `fit_residual` on the rows of this hat matrix."""
        fitted, shift = hat.fitting(self.residual), hat.basis * self._smoothed(hat.basis)

        def scores(ridge: Setting) -> Floats:
            own = hat.leverage(ridge)
            with single_threaded_blas():
                moved = products(shift, 1 / (hat.spread + each(ridge))) - own * self.leverage
            others = fitted(ridge) - own[..., None] * self.residual + moved[..., None] * self.error
            return others / one_minus_leverage(own)[..., None]

        return scores

    @cached_property
    def hat(self) -> Floats:
        """The hat matrix of the shared head, for samples of weight one."""
        flops.add(self.whitened.shape[-2] * self.whitened.size)
        with single_threaded_blas():
            found: Floats = self.whitened @ self.whitened.swapaxes(-1, -2)
        return found.astype(np.float64, copy=False)

    def _smoothed(self, basis: Floats) -> Floats:
        """Return weighted products of whitened rows times `basis`, in the cheaper order."""
        count, width = self.whitened.shape[-2:]
        flops.add(2 * basis.size * min(count, 2 * width))
        with single_threaded_blas():
            if count <= width:
                product: Floats = self.hat @ basis
            else:
                product = self.whitened @ (self.whitened.swapaxes(-1, -2) @ basis)
        return self.weight[..., None] * product


@dataclass(frozen=True, eq=False, kw_only=True)
class PulledLeaveOneOut:
    """Exact leave-one-out predictions of a head that is pulled towards a shared head.

    A held-out sample is removed from both the client's own regression and the shared head: without
    the sample the shared head is ``W - S^-1 f e' / (1 - f' S^-1 f)``, for the regularized Gram
    matrix S of all samples and the residual e. One decomposition serves all strengths. Hidden
    layers are not refitted.
    """

    spread: Floats  # samples in the eigenbasis of the client's Gram matrix
    values: Floats  # eigenvalues of this Gram matrix
    across: Floats  # S^-1 f in the same basis
    shared: Floats  # scores of the shared head
    change: Floats  # e / (1 - f' S^-1 f)
    targets: Floats
    ridge: float

    @classmethod
    def of(
        cls,
        own: Features,
        common: Features,
        labels: Labels,
        equations: NormalEquations,
        head: Floats,
    ) -> PulledLeaveOneOut:
        """Return the leave-one-out predictions for a client's samples.

        Parameters
        ----------
        own
            Output of the client's own layers.
        common
            Output of the shared layers for the same samples.
        labels
            The labels.
        equations
            The normal equations of the shared head.
        head
            Weights of the shared head, in real units.
        """
        rows, theirs, targets = own.real(), common.real(), labels.onehot()
        flops.add(4 * rows.size * rows.shape[1])
        stored = common.values.astype(np.float64)
        solved = equations.factor.solve(stored.T).T  # in stored units on both sides
        with single_threaded_blas():
            leverage = np.einsum("ij,ij->i", stored, solved)
            values, basis = _basis(rows)
            spread, across = rows @ basis, (solved / equations.total.space.unit) @ basis
            residual = targets - theirs @ head
            shared = rows @ head
        return cls(
            spread=spread,
            values=values,
            across=across,
            shared=shared,
            change=residual / (1 - leverage)[:, None],
            targets=targets,
            ridge=equations.ridge,
        )

    def predictions(self, strength: float) -> Floats:
        """Return the leave-one-out scores of every sample."""
        weight = self.ridge + strength
        start = self.shared * (strength / weight)
        inverse = 1 / (self.values + weight)
        with single_threaded_blas():
            fitted = start + self.spread @ (
                inverse[:, None] * (self.spread.T @ (self.targets - start))
            )
        own = (self.spread**2) @ inverse
        cross = (self.spread * self.across) @ inverse
        influence = own[:, None] * self.targets + strength * cross[:, None] * self.change
        scores: Floats = (fitted - influence) / (1 - own)[:, None]
        return scores

    def correct_counts(self, strengths: Sequence[float]) -> Iterator[int]:
        """Yield the number of correctly classified samples for each strength."""
        truth = self.targets.argmax(axis=1)
        for strength in strengths:
            yield int((self.predictions(strength).argmax(axis=1) == truth).sum())


def _whitened(shared: NormalEquations, rows: Floats) -> Floats:
    """Return whitened rows, in single precision if they are wide and no leverage is near one.

    Scores of left-out samples then change by a relative 1e-5 or so, since they depend on products
    of whitened rows only through leverages and through the residual of other samples.
    """
    total = shared.total
    if total.space.width >= _WIDE and total.count >= _MANY * total.space.width:
        narrow = shared.factor.narrowly_whitened(rows)
        if np.einsum("ij,ij->i", narrow, narrow).max(initial=0.0) < _INFLUENTIAL:
            return narrow
    return shared.factor.whitened(rows)


def correct(scores: Floats, codes: Integers) -> Array:
    """Return whether each sample is classified correctly; False if its score is NaN.

    The scores have a last axis for classes, those before the codes' axes are for settings.
    """
    own = np.take_along_axis(scores, np.broadcast_to(codes, scores.shape[:-1])[..., None], axis=-1)[
        ..., 0
    ]
    found: Array = (scores.argmax(axis=-1) == codes) & ~np.isnan(own)
    return found


def one_minus_leverage(leverage: Floats) -> Floats:
    """Return one minus the leverage; NaN if the sample alone determines its fitted value."""
    rest = 1 - leverage
    return np.where(rest > _DETERMINED, rest, np.nan)


def at_once(curve: Curve, values: Sequence[float], like: Floats) -> Callable[[float], Floats]:
    """Return the function of one setting whose scores are made for several settings at once.

    Parameters
    ----------
    curve
        The scores as a function of a setting.
    values
        The settings, in the order in which they are asked for.
    like
        An array of the scores' shape: of few scores more settings are made at once.
    """
    ordered = list(dict.fromkeys(values))
    number = max(1, _SCORES_AT_ONCE // max(1, like.size))
    made: dict[float, Floats] = {}

    def scores(value: float) -> Floats:
        if value not in made:
            start = ordered.index(value)
            some = ordered[start : start + number]
            made.clear()
            several = np.array(some).reshape(-1, *(1,) * (like.ndim - 2))  # before axes of clients
            made.update(zip(some, curve(several), strict=True))
        return made[value]

    return scores


def each(setting: Setting) -> Floats:
    """Return one or several values with a last axis for samples or eigenvalues."""
    return np.asarray(setting, np.float64)[..., None]


def products(matrix: Floats, vectors: Floats) -> Floats:
    """Return the matrix times each of the vectors along the last axis."""
    found: Floats = (matrix @ vectors[..., None])[..., 0]
    return found


def _eigen(symmetric: Floats) -> tuple[Floats, Floats]:
    count = len(symmetric)
    flops.add(9 * count**3)
    if not count:
        return np.zeros(0), np.zeros((0, 0))
    work, integers = _workspace(count)
    with single_threaded_blas():
        values, vectors, failed = lapack.dsyevd(symmetric, lower=1, lwork=work, liwork=integers)
    if failed:
        raise SolveError(
            f"the eigenvalues of {count} samples were not found: features that are not numbers, or "
            "too large; check the features"
        )
    return np.maximum(values, 0.0), vectors


@functools.lru_cache(maxsize=4096)
def _workspace(count: int) -> tuple[int, int]:
    """Return the sizes that LAPACK asks for: the sizes of its blocks depend on them."""
    work, integers, _ = lapack.dsyevd_lwork(count, lower=1)
    return int(work), int(integers)


def _basis(rows: Floats) -> tuple[Floats, Floats]:
    """Return the eigenvalues and eigenvectors of rows' rows; zero ones are dropped if n < d."""
    count, width = rows.shape
    if count >= width:
        values, vectors = scipy.linalg.eigh(rows.T @ rows, check_finite=False)
        return np.maximum(values, 0), vectors
    values, inner = scipy.linalg.eigh(rows @ rows.T, check_finite=False)
    positive = values > values[-1] * count * np.finfo(float).eps
    values, inner = values[positive], inner[:, positive]
    return values, rows.T @ inner / np.sqrt(values)
