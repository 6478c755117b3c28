"""Personal softmax heads: a correction of the shared head, in the primal or the dual form.

The correction V of the shared weights minimizes the loss of the client's samples plus
``strength / 2 |V|^2``. At the minimum ``strength V = F'(Y - P)``: V is a combination of the
client's rows, so the dual problem has one unknown per sample and class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgram.core.samples import Array, Floats
from fedgram.core.solve import Factors
from fedgram.models.mlp import softmax
from fedgram.runtime import flops
from fedgram.runtime.threads import single_threaded_blas

STEPS = 8
_CURVATURE = 0.15  # assumed curvature of the loss, relative to the rows' products; at most 0.5


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnRows:
    """A client's rows in real units, with the smaller of their two Gram matrices.

    Parameters
    ----------
    rows
        Samples by features, in double or single precision: that of all results. Of several clients
        with equally many samples: (clients, samples, features).
    products
        ``rows rows'`` if there are fewer samples than features, otherwise ``rows' rows``.

    Examples
    --------
    >>> own = OwnRows.of(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    >>> onehot = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> own.weights(np.zeros((2, 2)), onehot, strength=1.0).round(2)
    array([[ 0.34, -0.34],
           [-0.34,  0.34],
           [ 0.  ,  0.  ]])
    """

    rows: Array
    products: Array

    @classmethod
    def of(cls, rows: Array) -> OwnRows:
        """Return a client's rows with their products."""
        count, width = rows.shape[-2:]
        flops.add(2 * rows.size * min(count, width))
        turned = rows.swapaxes(-1, -2)
        with single_threaded_blas():
            return cls(rows=rows, products=rows @ turned if count < width else turned @ rows)

    @property
    def dual(self) -> bool:
        """Whether there are fewer samples than features."""
        count, width = self.rows.shape[-2:]
        return bool(count < width)

    def weights(self, logits: Array, targets: Array, *, strength: float) -> Array:
        """Return the correction V of the shared weights, (features, classes).

        By steps in a fixed metric. A step that increases the loss is rejected, and all further
        steps are halved.

        Parameters
        ----------
        logits
            Logits of the shared head on the rows.
        targets
            One-hot labels.
        strength
            Weight of ``|V|^2 / 2``.
        """
        one = OwnRows(rows=self.rows[None], products=self.products[None])
        found: Array = one.corrections(logits[None], targets[None], [strength])[0, 0]
        return found

    def corrections(self, logits: Array, targets: Array, strengths: Sequence[float]) -> Array:
        """Return `weights` of several clients, (clients, strengths, features, classes).

        Those of a client do not depend on the other clients, nor on the other strengths.

        Parameters
        ----------
        logits, targets
            As in `weights`, (clients, samples, classes).
        strengths
            Weights of ``|V|^2 / 2``.
        """
        clients, count, width = self.rows.shape
        kind, classes = self.rows.dtype, targets.shape[2]
        if not count:
            return np.zeros((clients, len(strengths), width, classes), kind)
        # From here on the axes are clients, strengths, samples or features, and classes.
        rows, products = self.rows[:, None], self.products[:, None]
        turned = rows.swapaxes(-1, -2)
        logits = logits.astype(kind, copy=False)[:, None]
        targets = targets.astype(kind, copy=False)[:, None]
        factors = Factors.of(_CURVATURE * self.products, strengths)
        held = np.array(strengths, kind)[:, None, None]
        halves = np.array(strengths, np.float64) / 2
        rounding = 1 + (1e-6 if kind == np.float32 else 1e-12)
        found = np.zeros((clients, len(strengths), len(products[0, 0]), classes), kind)
        residual = np.broadcast_to(targets - _softmax(logits), (*found.shape[:2], count, classes))
        least = np.broadcast_to(_losses(logits, targets), found.shape[:2])
        length = np.ones(found.shape[:2], kind)
        with single_threaded_blas():
            for _ in range(STEPS):
                downhill = residual if self.dual else turned @ residual
                step = factors.solve(downhill - held * found)
                tried = found + length[..., None, None] * step
                added_logits = (products if self.dual else rows) @ tried
                flops.add(4 * found.size * count)
                squares = tried * (added_logits if self.dual else tried)  # of |V|^2
                moved = logits + added_logits
                loss = _losses(moved, targets) + halves * _flat(squares).sum(axis=-1)
                lower = loss <= rounding * least
                least = np.where(lower, loss, least)
                # Where it is not lower, the curvature is larger than assumed.
                length = np.where(lower, length, length / 2)
                lower = lower[..., None, None]
                found = np.where(lower, tried, found)
                residual = np.where(lower, targets - _softmax(moved), residual)
            added: Array = turned @ found if self.dual else found
        return added


def _softmax(logits: Array) -> Array:
    return softmax(logits.reshape(-1, logits.shape[-1])).reshape(logits.shape)


def _flat(values: Array) -> Array:
    """Return the last two axes as one."""
    return values.reshape(*values.shape[:-2], -1)


def _losses(logits: Array, targets: Array) -> Floats:
    """Return the summed negative log-likelihoods of the true classes."""
    top = logits.max(axis=-1, keepdims=True)
    total = np.log(np.exp(logits - top).sum(axis=-1, keepdims=True)) + top
    # Each array is widened before its sum: buffers of NumPy would cut a stack at any place.
    losses: Floats = _flat(targets * (total - logits)).astype(np.float64).sum(axis=-1)
    return losses
