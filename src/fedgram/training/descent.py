"""Local mini-batch SGD, in the primal or the dual form, whichever is cheaper.

A step of a linear head adds a linear combination of the batch's samples to the parameters. So the
parameters are always the start plus a combination ``X' A`` of the client's samples, and the scores
of a batch are those at the start plus ``K A``. The kernel ``K = X X'`` is computed once and cached
for all rounds. With fewer samples than features the dual form works with short rows instead of long
ones, and uses the features only before the first step and after the last.

Several clients of one process take their steps together: all operations but the products are one
call for all clients, and small clients with equally many samples are one stack of a product. This
saves overhead of Python. `numpy.matmul` computes each slice of a stack as a product of its own,
whose shape depends on one client only, so no bit depends on who is in a stack.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from fedgram.core.array_cache import ArrayCache
from fedgram.core.samples import Array, Integers
from fedgram.federation.client import Randomness
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
_SMALL = 2**14  # entries of the samples, and of the parameters, of a client that is stacked
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
        rng: np.random.Generator | Randomness,
        **options: Any,
    ) -> None:
        """Change `theta` in place; the options are those of a `LocalDescent`."""
        run_batched([self.task(shape, theta, rows, rng, **options)])

    def task(
        self,
        shape: Architecture,
        theta: Array,
        rows: TrainingRows,
        rng: np.random.Generator | Randomness,
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
    rng: np.random.Generator | Randomness
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

    @property
    def generator(self) -> np.random.Generator:
        """The random generator; it is not needed where one batch contains all samples."""
        return self.rng.generator if isinstance(self.rng, Randomness) else self.rng

    def epoch_orders(self) -> Iterator[Integers]:
        """Yield the order of the samples in each epoch, where an epoch has several batches."""
        return self.rows.epoch_orders(self.descent.batch, self.descent.epochs, self.generator)

    @property
    def is_small(self) -> bool:
        """Whether the client is stacked with others: its own sizes decide, and no bit does."""
        return is_small(self.theta, self.rows)

    @cached_property
    def dual(self) -> bool:
        """Whether a linear head is trained in the dual form."""
        shape, epochs = self.shape, self.descent.epochs
        return isinstance(shape, MLP) and dual_is_cheaper(shape, self.rows, epochs, self.constant)

    def kind(self) -> Hashable:
        """Return the key of descents that run together; None for those that run one by one."""
        if self.mask is not None or not isinstance(self.shape, MLP) or self.shape.hidden:
            return None
        if not self.dual and not self.is_small:
            return None  # its parameters stay in the processor's cache from step to step
        has_constant = self.constant is not None
        return self.dual, self.descent, self.shape, self.strength, has_constant, self.theta.dtype

    def run_one(self) -> None:
        """Run the descent in the primal form, step by step."""
        descent, theta = self.descent, self.theta
        step = None if self.mask is None else np.empty_like(theta)
        for batch in self.rows.batches(descent.batch, descent.epochs, self.generator):
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


def is_small(theta: Array, rows: TrainingRows) -> bool:
    """Whether a client's parameters and samples are so small that it is stacked with others."""
    return max(rows.values.size, theta.size) <= _SMALL


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
            (_DualDescent if group[0].dual else _PrimalDescent)(group).run()


@dataclass(frozen=True, eq=False)
class _Stack:
    """Clients with equally many samples; their rows follow each other in joint arrays."""

    tasks: Sequence[LocalDescent]
    begin: int  # first row in joint arrays of all samples

    @cached_property
    def samples(self) -> int:
        """Number of samples of each client."""
        return len(self.tasks[0].rows)

    @cached_property
    def slices(self) -> list[slice]:
        """The batches of an epoch."""
        return self.tasks[0].batch_slices

    @cached_property
    def sizes(self) -> list[int]:
        """Number of samples in each of these batches."""
        return [len(range(self.samples)[batch]) for batch in self.slices]

    @cached_property
    def values(self) -> Array:
        """The samples, (clients, samples, features)."""
        return _stacked([task.rows.values for task in self.tasks])

    @cached_property
    def unit(self) -> Any:
        """The unit of the samples: a number, or one for each client."""
        return self.per_client([task.rows.unit for task in self.tasks])

    def per_client(self, numbers: Sequence[float]) -> Any:
        """Return a number, if all are equal, or an array with one for each client."""
        if len(set(numbers)) == 1:
            return numbers[0]
        return np.array(numbers, self.values.dtype)[:, None, None]

    @cached_property
    def heads(self) -> Array:
        """The parameters, (clients, features, classes); a copy, if there are several clients."""
        return _stacked([_head(task, task.theta) for task in self.tasks])

    @cached_property
    def constants(self) -> Array | None:
        """The constant terms of steps, in the shape of `heads`."""
        terms = [_head(task, task.constant) for task in self.tasks if task.constant is not None]
        return _stacked(terms) if terms else None

    def write(self) -> None:
        """Set the parameters of each client to its `heads`."""
        if len(self.tasks) > 1:
            for task, head in zip(self.tasks, self.heads, strict=True):
                _head(task, task.theta)[...] = head

    def of(self, joint: Array, begin: int | None = None, rows: int | None = None) -> Array:
        """Return a view of this stack's part of a joint array, (clients, rows, columns)."""
        begin, rows = self.begin if begin is None else begin, rows or self.samples
        part = joint[begin : begin + len(self.tasks) * rows]
        view: Array = part.reshape(len(self.tasks), rows, joint.shape[1])
        return view

    def epoch_orders(self) -> Iterator[_Order]:
        """Yield the orders of the clients' samples in each epoch."""
        count = len(self.tasks)
        rows = self.begin + np.arange(count * self.samples)
        if len(self.slices) == 1:
            yield from [_Order(None, rows)] * self.tasks[0].descent.epochs
            return
        firsts = rows[:: self.samples, None]
        for orders in zip(*(task.epoch_orders() for task in self.tasks), strict=True):
            own = orders[0][None] if count == 1 else np.stack(orders)
            yield _Order(own, own + firsts)

    def places(self, order: _Order, number: int) -> Integers:
        """Return the rows of a batch in joint arrays, client after client."""
        if order.own is None:
            return order.joint
        return order.joint[:, self.slices[number]].reshape(-1)

    def batch(self, array: Array, order: _Order, number: int) -> Array:
        """Return the rows of a batch of an array (clients, samples, columns)."""
        if order.own is None:
            return array
        chosen = order.own[:, self.slices[number]]
        rows: Array = (
            array[0].take(chosen[0], axis=0)[None]
            if len(array) == 1  # one index is faster than two
            else array[np.arange(len(array))[:, None], chosen]
        )
        return rows


class _Order(NamedTuple):
    """The order of the samples of a stack's clients in an epoch."""

    own: Integers | None  # (clients, samples); None for samples in their own order
    joint: Integers  # the same as rows of joint arrays


class _JointDescent:
    """SGD of several clients, one step of all clients at a time.

    Scores of the clients are joint arrays, the clients with the most samples first. So the clients
    that take part in a step, which have enough batches, are the first rows.
    """

    def __init__(self, tasks: Iterable[LocalDescent]) -> None:
        self.stacks: list[_Stack] = []
        begin = 0
        for (samples, small), group in groupby(
            sorted(tasks, key=_stack_key, reverse=True), _stack_key
        ):
            alike = list(group)
            for some in [alike] if small else [[task] for task in alike]:
                self.stacks.append(_Stack(some, begin))
                begin += samples * len(some)
        first = self.stacks[0].tasks[0]
        self.rate, self.keep = first.descent.rate, first.keep
        self.classes, self.dtype = _head(first, first.theta).shape[1], first.theta.dtype
        self._shares: dict[int, Any] = {}  # of each step of an epoch
        self.codes = np.concatenate([task.rows.codes for s in self.stacks for task in s.tasks])

    def run(self) -> None:
        """Take all steps, and change the parameters of the clients."""
        numbers = range(len(self.stacks[0].slices))
        present = [[s for s in self.stacks if number < len(s.slices)] for number in numbers]
        epochs = zip(*(stack.epoch_orders() for stack in self.stacks), strict=True)
        for epoch, orders in enumerate(epochs):
            for number, stacks in enumerate(present):
                self.step(epoch, number, stacks, orders)
        self.end()

    def step(
        self,
        epoch: int,
        number: int,
        stacks: Sequence[_Stack],
        orders: Sequence[_Order],
    ) -> None:
        """Take the step with this number in an epoch, at the clients of some stacks."""
        raise NotImplementedError

    def end(self) -> None:
        """Set the parameters of the clients."""
        for stack in self.stacks:
            stack.write()

    def places(
        self, stacks: Sequence[_Stack], orders: Sequence[_Order], number: int
    ) -> Integers | None:
        """Return the rows of a step's batches in joint arrays; None for all rows in their order."""
        if all(order.own is None for order in orders):
            return None
        found = zip(stacks, orders, strict=False)
        return np.concatenate([stack.places(order, number) for stack, order in found])

    def share(self, stacks: Sequence[_Stack], number: int, factor: float) -> Any:
        """Return the weight of each sample in a step: a factor over the size of its batch."""
        if number not in self._shares:
            shares = [factor / stack.sizes[number] for stack in stacks]
            self._shares[number] = self.per_row(stacks, number, shares)
        return self._shares[number]

    def per_row(self, stacks: Sequence[_Stack], number: int, values: Sequence[float]) -> Any:
        """Return a column with each stack's value for the rows of its batches.

        A number, if all values are equal.
        """
        if len(set(values)) == 1:
            return values[0]
        counts = [len(stack.tasks) * stack.sizes[number] for stack in stacks]
        return np.repeat(np.array(values, self.dtype), counts)[:, None]


def _stack_key(task: LocalDescent) -> tuple[int, bool]:
    return len(task.rows), task.is_small


class _PrimalDescent(_JointDescent):
    """The primal form: each step changes the parameters."""

    def step(
        self,
        epoch: int,  # noqa: ARG002
        number: int,
        stacks: Sequence[_Stack],
        orders: Sequence[_Order],
    ) -> None:
        batches, begin = [], 0
        rows = sum(len(stack.tasks) * stack.sizes[number] for stack in stacks)
        scores = np.empty((rows, self.classes), self.dtype)
        for stack, order in zip(stacks, orders, strict=False):
            batch = stack.batch(stack.values, order, number)
            stack_matmul(batch, stack.heads, stack.unit, stack.of(scores, begin, batch.shape[1]))
            batches.append((stack, batch, begin))
            begin += len(batch) * batch.shape[1]
        share = self.share(stacks, number, 1.0)
        places = self.places(stacks, orders, number)
        residual = cross_entropy_grad(scores, _chosen(self.codes, places), share)
        for stack, batch, begin in batches:
            scale = stack.per_client([-self.rate * task.rows.unit for task in stack.tasks])
            slope = scale * stack.of(residual, begin, batch.shape[1])
            heads = stack.heads
            if self.keep == 0.0:
                heads[...] = 0.0  # also if it contains NaN
            elif self.keep != 1.0:
                heads *= self.keep
            heads += stack_matmul(batch.transpose(0, 2, 1), slope)
            if stack.constants is not None:
                heads -= stack.constants


class _DualDescent(_JointDescent):
    """The dual form: steps change the coefficients of the samples, their combination is added."""

    def __init__(self, tasks: Iterable[LocalDescent]) -> None:
        super().__init__(tasks)
        self._start = self._scores([stack.heads for stack in self.stacks])
        constants = [stack.constants for stack in self.stacks]
        self._away = self._scores(constants) if constants[0] is not None else None
        self._kernels = [
            _stacked([products(task.rows) for task in stack.tasks]) for stack in self.stacks
        ]
        self._combination = np.zeros_like(self._start)
        self._combinations = [stack.of(self._combination) for stack in self.stacks]
        # Current factors of the start and of the constant term in each stack's parameters.
        self._of_start = [1.0] * len(self.stacks)
        self._of_constant = [0.0] * len(self.stacks)

    def step(
        self,
        epoch: int,
        number: int,
        stacks: Sequence[_Stack],
        orders: Sequence[_Order],
    ) -> None:
        places = self.places(stacks, orders, number)
        scores = self._now(stacks, number, places)
        if epoch or number:
            scores += self._added(stacks, orders, number, len(scores))
        share = self.share(stacks, number, -self.rate)
        residual = cross_entropy_grad(scores, _chosen(self.codes, places), share)
        self._forget(stacks)
        if epoch:
            residual += _chosen(self._combination, places)
        self._combination[slice(None) if places is None else places] = residual

    def _now(self, stacks: Sequence[_Stack], number: int, places: Integers | None) -> Array:
        """Return the contribution of the start and of the constant term to the scores."""
        scores = _chosen(self._start, places)
        if self.keep != 1.0:
            scores *= self.per_row(stacks, number, self._of_start[: len(stacks)])
        if self._away is not None:
            share = self.per_row(stacks, number, self._of_constant[: len(stacks)])
            scores -= share * _chosen(self._away, places)
        return scores

    def _added(
        self,
        stacks: Sequence[_Stack],
        orders: Sequence[_Order],
        number: int,
        count: int,
    ) -> Array:
        """Return the contribution of the samples' coefficients to the scores: ``K A``."""
        more, begin = np.empty((count, self.classes), self.dtype), 0
        parts = zip(stacks, orders, self._kernels, self._combinations, strict=False)
        for stack, order, kernel, combination in parts:
            end = begin + len(stack.tasks) * stack.sizes[number]
            rows = stack.batch(kernel, order, number)
            if len(rows) == 1:
                matmul(rows[0], combination[0], 1.0, out=more[begin:end])
            else:
                stack_matmul(rows, combination, out=stack.of(more, begin, rows.shape[1]))
            begin = end
        return more

    def _forget(self, stacks: Sequence[_Stack]) -> None:
        """Multiply all terms of the clients of these stacks by ``keep``, as a step does."""
        if self.keep != 1.0:
            last = stacks[-1]
            end = last.begin + len(last.tasks) * last.samples
            self._combination[:end] *= self.keep
        for at in range(len(stacks)):
            self._of_start[at] *= self.keep
            self._of_constant[at] = self.keep * self._of_constant[at] + 1.0

    def end(self) -> None:
        """Add the combination of samples to the parameters of each client."""
        for at, stack in enumerate(self.stacks):
            heads = stack.heads
            if self.keep != 1.0:
                heads *= self._of_start[at]
            if stack.constants is not None:
                heads -= self._of_constant[at] * stack.constants
            combination = self._combinations[at]
            combination *= stack.unit
            heads += stack_matmul(stack.values.transpose(0, 2, 1), combination)
        super().end()

    def _scores(self, heads: Sequence[Any]) -> Array:
        """Return the scores of all samples, each with its client's head."""
        scores = np.empty((len(self.codes), self.classes), self.dtype)
        for stack, head in zip(self.stacks, heads, strict=True):
            stack_matmul(stack.values, head, stack.unit, stack.of(scores))
        return scores


def _chosen(array: Array, places: Integers | None) -> Array:
    """Return a copy of some rows of an array; of all, without places."""
    return array.copy() if places is None else array.take(places, axis=0)


def _stacked(arrays: Sequence[Array]) -> Array:
    """Return arrays of equal shapes as a stack; a single one is not copied."""
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)


def stack_matmul(left: Array, right: Array, scale: Any = 1.0, out: Array | None = None) -> Array:
    """Return ``scale * left @ right`` of each slice of two stacks, each a product of its own.

    Parameters
    ----------
    left, right
        The stacks: matrices along the last two axes.
    scale
        Factor of the products: a number, or one for each slice.
    out
        Array for the result; a new one by default.
    """
    flops.add(2 * len(left) * left.shape[1] * left.shape[2] * right.shape[2])
    result: Array = np.matmul(left, right, out=out)
    if not isinstance(scale, float) or scale != 1.0:
        result *= scale
    return result


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
        return _kernel(rows)
    features, lift = rows.origin
    return _kernels(features, (lift, rows.values.dtype), lambda: _kernel(rows))


def _kernel(rows: TrainingRows) -> Array:
    flops.add(len(rows) ** 2 * rows.values.shape[1])  # half: the kernel is symmetric
    kernel: Array = rows.values @ rows.values.T
    kernel *= rows.unit**2
    return kernel
