"""Mini-batch descent at one client, by whichever of two ways to the same numbers is shorter.

A step of a linear head adds a combination of the batch's samples to the parameters. So after any
number of steps they are the start plus a combination ``X' A`` of all the client's samples, and the
scores of a batch are those at the start plus ``K A``, where ``K = X X'`` is computed once and kept
for all rounds. A client with fewer samples than features then works with short rows instead of
long ones, and meets the features only twice: before its first step and after its last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgram import work
from fedgram.kept import Kept
from fedgram.network import Architecture, Rows, Shape, descending, errors, product
from fedgram.samples import Array

_CALLS = 10  # of one client's descents that are expected to share its products
_kept = Kept(most=2**30)


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Mini-batch gradient descent at one client.

    Examples
    --------
    >>> rows = Rows(values=np.array([[1.0], [-1.0]]), codes=np.array([0, 1]), unit=1.0)
    >>> shape = Shape(width=1, hidden=0, classes=2)
    >>> theta = np.zeros(2)
    >>> Descent(rate=1.0, epochs=1, batch=0)(shape, theta, rows, np.random.default_rng(0))
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
        rows: Rows,
        rng: np.random.Generator,
        *,
        towards: Array | None = None,
        strength: float = 0.0,
        drift: Array | None = None,
        mask: Array | None = None,
    ) -> None:
        """Change `theta` in place.

        Each step is ``theta -= rate * (gradient + strength * (theta - towards) + drift)``, only in
        the entries that `mask` selects.
        """
        with descending():
            constant = self._constant(towards, strength, drift)
            keep = 1.0 - self.rate * strength
            if mask is not None:
                self._masked(shape, theta, rows, rng, constant, keep, mask)
            elif isinstance(shape, Shape) and spans(shape, rows, self.epochs, constant):
                self._spanned(shape, theta, rows, rng, constant, keep)
            else:
                for batch in rows.batches(self.batch, self.epochs, rng):
                    shape.backward(theta, batch, into=theta, scale=-self.rate, keep=keep)
                    if constant is not None:
                        theta -= constant

    def _masked(
        self,
        shape: Architecture,
        theta: Array,
        rows: Rows,
        rng: np.random.Generator,
        constant: Array | None,
        keep: float,
        mask: Array,
    ) -> None:
        """Change the selected entries."""
        step = np.empty_like(theta)
        for batch in rows.batches(self.batch, self.epochs, rng):
            shape.backward(theta, batch, into=step, scale=self.rate)
            step += (1.0 - keep) * theta
            if constant is not None:
                step += constant
            step *= mask
            theta -= step

    def _spanned(
        self,
        shape: Shape,
        theta: Array,
        rows: Rows,
        rng: np.random.Generator,
        constant: Array | None,
        keep: float,
    ) -> None:
        """Find the combination of samples that the steps add to `theta`, and add it."""
        head = shape.layers(theta)[-1]
        start = product(rows.values, head, rows.unit)
        steady = None if constant is None else shape.layers(constant)[-1]
        away = None if steady is None else product(rows.values, steady, rows.unit)
        kernel, combination = products(rows), np.zeros_like(start)
        parts = rows.parts(self.batch)
        of_start, of_constant = 1.0, 0.0  # how much of them is in the parameters by now
        for epoch, order in enumerate(rows.orders(self.batch, self.epochs, rng)):
            first, codes = start.take(order, axis=0), rows.codes.take(order)
            for part in parts:
                some, scores = order[part], first[part]
                if of_start != 1.0:
                    scores *= of_start
                if away is not None:
                    scores -= of_constant * away.take(some, axis=0)
                if epoch or part.start:
                    scores += product(kernel.take(some, axis=0), combination, 1.0)
                residual = errors(scores, codes[part], -self.rate)
                if keep != 1.0:
                    combination *= keep
                    of_start *= keep
                of_constant = keep * of_constant + 1.0
                if epoch:
                    combination[some] += residual
                else:
                    combination[some] = residual
        if of_start != 1.0:
            head *= of_start
        if steady is not None:
            head -= of_constant * steady
        combination *= rows.unit
        head += product(rows.values.T, combination, 1.0)

    def _constant(
        self, towards: Array | None, strength: float, drift: Array | None
    ) -> Array | None:
        """Return the part of a step that does not change from one to the next."""
        pull = None if towards is None or not strength else -self.rate * strength * towards
        if drift is None:
            return pull
        return self.rate * drift if pull is None else pull + self.rate * drift


def spans(shape: Shape, rows: Rows, epochs: int, constant: Array | None) -> bool:
    """Say whether descent in the span of the samples takes fewer operations.

    It depends on what the rows are, never on what happens to be kept: the last bits of a result
    depend on it.

    Examples
    --------
    >>> shape = Shape(width=1281, hidden=0, classes=100)
    >>> def some(count):
    ...     return Rows(values=np.zeros((count, 1281)), codes=np.zeros(count, int), unit=1.0)
    >>> [spans(shape, some(n), epochs, None) for n, epochs in ((450, 3), (450, 1), (2000, 3))]
    [True, False, False]
    """
    if shape.hidden:
        return False
    passes = 2 if constant is None else 3
    per_sample = (epochs * len(rows) + passes * shape.width) * shape.classes
    making = len(rows) * shape.width / 2 / (_CALLS if rows.origin else 1)
    return per_sample + making < 2 * epochs * shape.width * shape.classes


def products(rows: Rows) -> Array:
    """Return the products of the rows with each other, in real units, kept while the rows are."""
    if rows.origin is None:
        return _products(rows)
    features, lift = rows.origin
    return _kept(features, (lift, rows.values.dtype), lambda: _products(rows))


def _products(rows: Rows) -> Array:
    work.count(len(rows) ** 2 * rows.values.shape[1])  # half of them: they are symmetric
    kernel: Array = rows.values @ rows.values.T
    kernel *= rows.unit**2
    return kernel
