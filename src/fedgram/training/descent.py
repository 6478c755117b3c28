"""Mini-batch descent at clients, by whichever of two ways to the same numbers is shorter.

A step of a linear head adds a combination of the batch's samples to the parameters. So after any
number of steps they are the start plus a combination ``X' A`` of all the client's samples, and the
scores of a batch are those at the start plus ``K A``, where ``K = X X'`` is computed once and kept
for all rounds. A client with fewer samples than features then works with short rows instead of
long ones, and meets the features only twice: before its first step and after its last.

Several clients of one process take such steps beside each other: what is not a product is done for
all of them in one call, so that Python's overhead is that of one client.
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

_CALLS = 10  # of one client's descents that are expected to share its products
_kept = ArrayCache(most=2**30)


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Mini-batch gradient descent at one client.

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
        """Return what a call would do, to be done `run_batched` with others."""
        return LocalDescent(descent=self, shape=shape, theta=theta, rows=rows, rng=rng, **options)


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalDescent:
    """One client's descent, still to be done.

    Each step is ``theta -= rate * (gradient + strength * (theta - towards) + drift)``, only in the
    entries that `mask` selects.
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
        """What a step leaves of the parameters."""
        return 1.0 - self.descent.rate * self.strength

    @cached_property
    def constant(self) -> Array | None:
        """The part of a step that does not change from one to the next."""
        rate = self.descent.rate
        pull = None
        if self.towards is not None and self.strength:
            pull = -rate * self.strength * self.towards
        if self.drift is None:
            return pull
        return rate * self.drift if pull is None else pull + rate * self.drift

    @cached_property
    def parts(self) -> list[slice]:
        """The mini-batches of an epoch, as places in its order."""
        return self.rows.batch_slices(self.descent.batch)

    def orders(self) -> Iterator[Integers]:
        """Yield the order of the samples in each epoch."""
        return self.rows.epoch_orders(self.descent.batch, self.descent.epochs, self.rng)

    def kind(self) -> Hashable:
        """Return what tasks must have in common to be done in one span; None if this is not."""
        if self.mask is not None or not isinstance(self.shape, MLP):
            return None
        if not spans(self.shape, self.rows, self.descent.epochs, self.constant):
            return None
        steady = self.constant is not None
        return self.descent, self.shape, self.strength, steady, self.theta.dtype

    def alone(self) -> None:
        """Change the parameters step by step."""
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
        """Change the selected entries; `step` is where to work."""
        self.shape.backward(self.theta, batch, into=step, scale=self.descent.rate)
        step += (1.0 - self.keep) * self.theta
        if self.constant is not None:
            step += self.constant
        step *= self.mask
        self.theta[...] -= step


def run_batched(tasks: Iterable[LocalDescent]) -> None:
    """Change the parameters of each task.

    Tasks share nothing: every bit is what it would be if they were done one by one.
    """
    alike: defaultdict[Hashable, list[LocalDescent]] = defaultdict(list)
    with ignore_overflow():
        for task in tasks:
            kind = task.kind()
            if kind is None:
                task.alone()
            else:
                alike[kind].append(task)
        for some in alike.values():
            _DualDescent(some)()


class _DualDescent:
    """Descents in the span of each client's samples, a step of all of them at a time.

    Scores and combinations of the clients stand one under the other. Whoever takes most steps in
    an epoch is at the top, so that those who take part in a step are the first ones.
    """

    def __init__(self, tasks: Sequence[LocalDescent]) -> None:
        self._tasks = sorted(tasks, key=lambda task: -len(task.parts))
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
        # How much of the start and of the constant is in each client's parameters by now.
        self._of_start = [1.0] * len(tasks)
        self._of_constant = [0.0] * len(tasks)

    def __call__(self) -> None:
        """Find the combinations of samples that the steps add to the parameters, and add them."""
        numbers = range(len(self._tasks[0].parts))
        steps = [_Step.of(self._tasks, number, self._start.dtype) for number in numbers]
        for epoch, orders in enumerate(zip(*(task.orders() for task in self._tasks), strict=True)):
            below = [order + begin for order, begin in zip(orders, self._begins, strict=True)]
            for number, step in enumerate(steps):
                places = np.concatenate(step.chosen(below))
                scores = self._now(step, places)
                if epoch or number:
                    scores += self._added(step.chosen(orders), len(places))
                residual = cross_entropy_grad(scores, self._codes.take(places), step.share)
                self._forget(len(step.parts))
                if epoch:
                    residual += self._combination.take(places, axis=0)
                self._combination[places] = residual
        self._add()

    def _now(self, step: _Step, places: Integers) -> Array:
        """Return scores as far as they come from the start and the constant."""
        scores: Array = self._start.take(places, axis=0)
        if self._tasks[0].keep != 1.0:
            scores *= step.per_row(self._of_start, scores.dtype)
        if self._away is not None:
            share = step.per_row(self._of_constant, scores.dtype)
            scores -= share * self._away.take(places, axis=0)
        return scores

    def _added(self, chosen: Sequence[Integers], count: int) -> Array:
        """Return what the combinations so far add to the scores of the chosen samples."""
        more = np.empty((count, self._start.shape[1]), self._start.dtype)
        begin = 0
        for kernel, combination, some in zip(
            self._kernels, self._combinations, chosen, strict=False
        ):
            end = begin + len(some)
            matmul(kernel.take(some, axis=0), combination, 1.0, out=more[begin:end])
            begin = end
        return more

    def _forget(self, present: int) -> None:
        """Scale what the first clients have by now, as their step does before it adds."""
        keep = self._tasks[0].keep
        if keep != 1.0:
            self._combination[: self._ends[present - 1]] *= keep
        for at in range(present):
            self._of_start[at] *= keep
            self._of_constant[at] = keep * self._of_constant[at] + 1.0

    def _add(self) -> None:
        """Change the parameters."""
        for at, (task, head) in enumerate(zip(self._tasks, self._heads, strict=True)):
            if task.keep != 1.0:
                head *= self._of_start[at]
            if self._steady:
                head -= self._of_constant[at] * self._steady[at]
            combination = self._combinations[at]
            combination *= task.rows.unit
            head += matmul(task.rows.values.T, combination, 1.0)

    def _scores(self, heads: Sequence[Array]) -> Array:
        """Return the scores of all samples, each under its client's head."""
        scores = np.empty((self._ends[-1], heads[0].shape[1]), heads[0].dtype)
        for task, head, own in zip(self._tasks, heads, self._own(scores), strict=True):
            matmul(task.rows.values, head, task.rows.unit, out=own)
        return scores

    def _own(self, stacked: Array) -> list[Array]:
        """Return each client's part."""
        return [stacked[b:e] for b, e in zip(self._begins, self._ends, strict=True)]


class _Step(NamedTuple):
    """The mini-batches of those who take part in a step."""

    parts: list[slice]  # of each one's order
    sizes: list[int]
    share: float | Array  # of each sample in its batch's mean, times the rate, against the slope

    @classmethod
    def of(cls, tasks: Sequence[LocalDescent], number: int, dtype: Any) -> _Step:
        """Return the step with this number in an epoch; whoever takes fewer is not in it."""
        present = [task for task in tasks if number < len(task.parts)]
        parts = [task.parts[number] for task in present]
        sizes = [len(range(len(t.rows))[part]) for t, part in zip(present, parts, strict=True)]
        shares = [-task.descent.rate / size for task, size in zip(present, sizes, strict=True)]
        return cls(parts, sizes, _per_row(shares, sizes, dtype))

    def chosen(self, orders: Iterable[Integers]) -> list[Integers]:
        """Return which samples are in the batches, given the order of each of the tasks."""
        return [order[part] for order, part in zip(orders, self.parts, strict=False)]

    def per_row(self, values: Sequence[float], dtype: Any) -> float | Array:
        """Spread a number of each of the tasks over the rows of its batch."""
        return _per_row(values[: len(self.sizes)], self.sizes, dtype)


def _per_row(values: Sequence[float], counts: Sequence[int], dtype: Any) -> float | Array:
    """Return each value as often as its count, as a column: one number if all are the same."""
    if len(set(values)) == 1:
        return values[0]
    return np.repeat(np.array(values, dtype), counts)[:, None]


def _head(task: LocalDescent, theta: Array) -> Array:
    return task.shape.layers(theta)[-1]


def spans(shape: MLP, rows: TrainingRows, epochs: int, constant: Array | None) -> bool:
    """Say whether descent in the span of the samples takes fewer operations.

    It depends on what the rows are, never on what happens to be kept: the last bits of a result
    depend on it.

    Examples
    --------
    >>> shape = MLP(width=1281, hidden=0, classes=100)
    >>> def some(count):
    ...     values, codes = np.zeros((count, 1281)), np.zeros(count, int)
    ...     return TrainingRows(values=values, codes=codes, unit=1.0)
    >>> [spans(shape, some(n), epochs, None) for n, epochs in ((450, 3), (450, 1), (2000, 3))]
    [True, False, False]
    """
    if shape.hidden:
        return False
    passes = 2 if constant is None else 3
    per_sample = (epochs * len(rows) + passes * shape.width) * shape.classes
    making = len(rows) * shape.width / 2 / (_CALLS if rows.origin else 1)
    return per_sample + making < 2 * epochs * shape.width * shape.classes


def products(rows: TrainingRows) -> Array:
    """Return the products of the rows with each other, in real units, kept while the rows are."""
    if rows.origin is None:
        return _products(rows)
    features, lift = rows.origin
    return _kept(features, (lift, rows.values.dtype), lambda: _products(rows))


def _products(rows: TrainingRows) -> Array:
    flops.add(len(rows) ** 2 * rows.values.shape[1])  # half of them: they are symmetric
    kernel: Array = rows.values @ rows.values.T
    kernel *= rows.unit**2
    return kernel
