"""Local mini-batch SGD, in the primal or the dual form, whichever is cheaper.

A step of a linear head adds a linear combination of the batch's samples to the parameters. So the
parameters are always the start plus a combination ``X' A`` of the client's samples, and the scores
of a batch are those at the start plus ``K A``. The kernel ``K = X X'`` is computed once and cached
for all rounds. With fewer samples than features the dual form works with short rows instead of long
ones, and uses the features only before the first step and after the last.

Several clients of one process run their dual steps in one batch: all operations but the products
are one call for all clients, which saves overhead of Python.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from fedgram.core.array_cache import ArrayCache
from fedgram.core.samples import Array, Integers
from fedgram.models.mlp import (
    MLP,
    Architecture,
    TrainingRows,
    cross_entropy_grad,
    ignore_overflow,
    matmul,
)
from fedgram.runtime import flops

_CALLS = 10  # expected number of descents that share the kernel of a client
_kernels = ArrayCache(most=2**30)


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Mini-batch gradient descent at one client.

    Parameters
    ----------
    rate
        Learning rate.
    epochs
        Number of passes over the samples.
    batch
        Samples per step; 0 for all.

    Examples
    --------
    >>> rows = TrainingRows(values=np.array([[1.0], [-1.0]]), codes=np.array([0, 1]), unit=1.0)
    >>> shape = MLP(width=1, hidden=0, classes=2)
    >>> theta = np.zeros(2)
    >>> SGD(rate=1.0, epochs=1, batch=0)(shape, theta, rows, np.random.default_rng(0))
    >>> theta
    array([ 0.5, -0.5])
    """

    rate: float
    epochs: int
    batch: int

    def __call__(
        self,
        shape: Architecture,
        theta: Array,
        rows: TrainingRows,
        rng: np.random.Generator,
        **options: Any,
    ) -> None:
        """Change `theta` in place; the options are those of a `LocalDescent`."""
        run_batched([self.task(shape, theta, rows, rng, **options)])

    def task(
        self,
        shape: Architecture,
        theta: Array,
        rows: TrainingRows,
        rng: np.random.Generator,
        **options: Any,
    ) -> LocalDescent:
        """Return the descent of a call, to be run by `run_batched` together with others.

        Parameters
        ----------
        shape
            The layers.
        theta
            All parameters, changed in place.
        rows
            The samples.
        rng
            Draws the order of the samples.
        **options
            Further fields of a `LocalDescent`.
        """
        return LocalDescent(descent=self, shape=shape, theta=theta, rows=rows, rng=rng, **options)


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalDescent:
    """One client's local descent, before it is run.

    Each step is ``theta -= rate * (gradient + strength * (theta - towards) + drift)``, only in the
    entries selected by `mask`.
    """

    descent: SGD
    shape: Architecture
    theta: Array
    rows: TrainingRows
    rng: np.random.Generator
    towards: Array | None = None
    strength: float = 0.0
    drift: Array | None = None
    mask: Array | None = None

    @property
    def keep(self) -> float:
        """Factor of the parameters in a step: ``1 - rate * strength``."""
        return 1.0 - self.descent.rate * self.strength

    @cached_property
    def constant(self) -> Array | None:
        """The constant term of all steps: ``rate * (drift - strength * towards)``."""
        rate = self.descent.rate
        pull = None
        if self.towards is not None and self.strength:
            pull = -rate * self.strength * self.towards
        if self.drift is None:
            return pull
        return rate * self.drift if pull is None else pull + rate * self.drift

    @cached_property
    def batch_slices(self) -> list[slice]:
        """The mini-batches of an epoch, as slices of its order."""
        return self.rows.batch_slices(self.descent.batch)

    def epoch_orders(self) -> Iterator[Integers]:
        """Yield the order of the samples in each epoch."""
        return self.rows.epoch_orders(self.descent.batch, self.descent.epochs, self.rng)

    def kind(self) -> Hashable:
        """Return the key of descents that run in one dual batch; None for the primal form."""
        if self.mask is not None or not isinstance(self.shape, MLP):
            return None
        if not dual_is_cheaper(self.shape, self.rows, self.descent.epochs, self.constant):
            return None
        has_constant = self.constant is not None
        return self.descent, self.shape, self.strength, has_constant, self.theta.dtype

    def run_one(self) -> None:
        """Run the descent in the primal form, step by step."""
        descent, theta = self.descent, self.theta
        step = None if self.mask is None else np.empty_like(theta)
        for batch in self.rows.batches(descent.batch, descent.epochs, self.rng):
            if step is not None:
                self._masked(batch, step)
                continue
            self.shape.backward(theta, batch, into=theta, scale=-descent.rate, keep=self.keep)
            if self.constant is not None:
                theta -= self.constant

    def _masked(self, batch: TrainingRows, step: Array) -> None:
        """Run one step of the selected entries; `step` is a work array."""
        self.shape.backward(self.theta, batch, into=step, scale=self.descent.rate)
        step += (1.0 - self.keep) * self.theta
        if self.constant is not None:
            step += self.constant
        step *= self.mask
        self.theta[...] -= step


def run_batched(tasks: Iterable[LocalDescent]) -> None:
    """Run all descents; the parameters are equal, to the bit, to those of separate runs."""
    alike: defaultdict[Hashable, list[LocalDescent]] = defaultdict(list)
    with ignore_overflow():
        for task in tasks:
            kind = task.kind()
            if kind is None:
                task.run_one()
            else:
                alike[kind].append(task)
        for group in alike.values():
            _DualDescent(group)()


class _DualDescent:
    """SGD in the dual form for several clients, one step of all clients at a time.

    Scores and coefficients of the clients are stacked, the clients with the largest number of
    steps per epoch first. So the clients that take part in a step are the first rows.
    """

    def __init__(self, tasks: Sequence[LocalDescent]) -> None:
        self._tasks = sorted(tasks, key=lambda task: -len(task.batch_slices))
        self._ends = list(accumulate(len(task.rows) for task in self._tasks))
        self._begins = [0, *self._ends[:-1]]
        self._heads = [_head(task, task.theta) for task in self._tasks]
        self._start = self._scores(self._heads)
        self._steady = [
            _head(task, task.constant) for task in self._tasks if task.constant is not None
        ]
        self._away = self._scores(self._steady) if self._steady else None
        self._kernels = [products(task.rows) for task in self._tasks]
        self._codes = np.concatenate([task.rows.codes for task in self._tasks])
        self._combination = np.zeros_like(self._start)
        self._combinations = self._own(self._combination)
        # Current factors of the start and of the constant term in each client's parameters.
        self._of_start = [1.0] * len(tasks)
        self._of_constant = [0.0] * len(tasks)

    def __call__(self) -> None:
        """Compute the coefficients of the samples, then add their combination to the parameters."""
        numbers = range(len(self._tasks[0].batch_slices))
        steps = [_Step.of(self._tasks, number, self._start.dtype) for number in numbers]
        for epoch, orders in enumerate(
            zip(*(task.epoch_orders() for task in self._tasks), strict=True)
        ):
            below = [order + begin for order, begin in zip(orders, self._begins, strict=True)]
            for number, step in enumerate(steps):
                places = np.concatenate(step.chosen(below))
                scores = self._now(step, places)
                if epoch or number:
                    scores += self._added(step.chosen(orders), len(places))
                residual = cross_entropy_grad(scores, self._codes.take(places), step.share)
                self._forget(len(step.slices))
                if epoch:
                    residual += self._combination.take(places, axis=0)
                self._combination[places] = residual
        self._add()

    def _now(self, step: _Step, places: Integers) -> Array:
        """Return the contribution of the start and of the constant term to the scores."""
        scores: Array = self._start.take(places, axis=0)
        if self._tasks[0].keep != 1.0:
            scores *= step.per_row(self._of_start, scores.dtype)
        if self._away is not None:
            share = step.per_row(self._of_constant, scores.dtype)
            scores -= share * self._away.take(places, axis=0)
        return scores

    def _added(self, chosen: Sequence[Integers], count: int) -> Array:
        """Return the contribution of the samples' coefficients to the scores: ``K A``."""
        more = np.empty((count, self._start.shape[1]), self._start.dtype)
        begin = 0
        for kernel, combination, rows in zip(
            self._kernels, self._combinations, chosen, strict=False
        ):
            end = begin + len(rows)
            matmul(kernel.take(rows, axis=0), combination, 1.0, out=more[begin:end])
            begin = end
        return more

    def _forget(self, present: int) -> None:
        """Multiply all terms of the first `present` clients by ``keep``, as a step does."""
        keep = self._tasks[0].keep
        if keep != 1.0:
            self._combination[: self._ends[present - 1]] *= keep
        for at in range(present):
            self._of_start[at] *= keep
            self._of_constant[at] = keep * self._of_constant[at] + 1.0

    def _add(self) -> None:
        """Add the combination of samples to the parameters of each client."""
        for at, (task, head) in enumerate(zip(self._tasks, self._heads, strict=True)):
            if task.keep != 1.0:
                head *= self._of_start[at]
            if self._steady:
                head -= self._of_constant[at] * self._steady[at]
            combination = self._combinations[at]
            combination *= task.rows.unit
            head += matmul(task.rows.values.T, combination, 1.0)

    def _scores(self, heads: Sequence[Array]) -> Array:
        """Return the scores of all samples, each with its client's head."""
        scores = np.empty((self._ends[-1], heads[0].shape[1]), heads[0].dtype)
        for task, head, own in zip(self._tasks, heads, self._own(scores), strict=True):
            matmul(task.rows.values, head, task.rows.unit, out=own)
        return scores

    def _own(self, stacked: Array) -> list[Array]:
        """Return the rows of each client."""
        return [stacked[b:e] for b, e in zip(self._begins, self._ends, strict=True)]


class _Step(NamedTuple):
    """The mini-batches of the clients that take part in a step."""

    slices: list[slice]  # of the epoch order of each client
    sizes: list[int]
    share: float | Array  # weight of each sample: -rate / batch size

    @classmethod
    def of(cls, tasks: Sequence[LocalDescent], number: int, dtype: Any) -> _Step:
        """Return the step with this number in an epoch, of the clients with enough batches."""
        present = [task for task in tasks if number < len(task.batch_slices)]
        parts = [task.batch_slices[number] for task in present]
        sizes = [len(range(len(t.rows))[part]) for t, part in zip(present, parts, strict=True)]
        shares = [-task.descent.rate / size for task, size in zip(present, sizes, strict=True)]
        return cls(parts, sizes, _per_row(shares, sizes, dtype))

    def chosen(self, orders: Iterable[Integers]) -> list[Integers]:
        """Return the samples in the batches, given the epoch order of each client."""
        return [order[part] for order, part in zip(orders, self.slices, strict=False)]

    def per_row(self, values: Sequence[float], dtype: Any) -> float | Array:
        """Repeat each client's value for the rows of its batch."""
        return _per_row(values[: len(self.sizes)], self.sizes, dtype)


def _per_row(values: Sequence[float], counts: Sequence[int], dtype: Any) -> float | Array:
    """Return a column of repeated values, or a single number if all values are equal."""
    if len(set(values)) == 1:
        return values[0]
    return np.repeat(np.array(values, dtype), counts)[:, None]


def _head(task: LocalDescent, theta: Array) -> Array:
    return task.shape.layers(theta)[-1]


def dual_is_cheaper(shape: MLP, rows: TrainingRows, epochs: int, constant: Array | None) -> bool:
    """Return whether the dual form takes fewer operations than the primal form.

    The last bits of a result depend on the form, so the answer must not depend on caches.

    Parameters
    ----------
    shape
        The layers.
    rows
        The samples.
    epochs
        Number of epochs.
    constant
        The constant term of the steps, if any.

    Examples
    --------
    >>> shape = MLP(width=1281, hidden=0, classes=100)
    >>> def some(count):
    ...     values, codes = np.zeros((count, 1281)), np.zeros(count, int)
    ...     return TrainingRows(values=values, codes=codes, unit=1.0)
    >>> sizes = ((450, 3), (450, 1), (2000, 3))
    >>> [dual_is_cheaper(shape, some(n), epochs, None) for n, epochs in sizes]
    [True, False, False]
    """
    if shape.hidden:
        return False
    passes = 2 if constant is None else 3
    per_sample = (epochs * len(rows) + passes * shape.width) * shape.classes
    making = len(rows) * shape.width / 2 / (_CALLS if rows.origin else 1)
    return per_sample + making < 2 * epochs * shape.width * shape.classes


def products(rows: TrainingRows) -> Array:
    """Return the kernel of the rows, ``X X'`` in real units, from the cache if possible."""
    if rows.origin is None:
        return _products(rows)
    features, lift = rows.origin
    return _kernels(features, (lift, rows.values.dtype), lambda: _products(rows))


def _products(rows: TrainingRows) -> Array:
    flops.add(len(rows) ** 2 * rows.values.shape[1])  # half: the kernel is symmetric
    kernel: Array = rows.values @ rows.values.T
    kernel *= rows.unit**2
    return kernel
