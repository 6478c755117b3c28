"""Personal softmax heads: a correction of the shared head, in the primal or the dual form.

The correction V of the shared weights minimizes the loss of the client's samples plus
``strength / 2 |V|^2``. At the minimum ``strength V = F'(Y - P)``: V is a combination of the
client's rows, so the dual problem has one unknown per sample and class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgram.core.samples import Array
from fedgram.core.solve import Factor
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
        Samples by features, in double or single precision: that of all results.
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
        count, width = rows.shape
        flops.add(2 * count * width * min(count, width))
        with single_threaded_blas():
            return cls(rows=rows, products=rows @ rows.T if count < width else rows.T @ rows)

    @property
    def dual(self) -> bool:
        """Whether there are fewer samples than features."""
        return bool(len(self.rows) < self.rows.shape[1])

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
        count, width = self.rows.shape
        kind, strength = self.rows.dtype, float(strength)
        if not count:
            return np.zeros((width, targets.shape[1]), kind)
        logits, targets = logits.astype(kind, copy=False), targets.astype(kind, copy=False)
        narrow = kind == np.float32
        factor = Factor.of(_CURVATURE * self.products, strength, narrow=narrow)
        rounding = 1 + (1e-6 if narrow else 1e-12)
        found = np.zeros((count if self.dual else width, targets.shape[1]), kind)
        residual, least = targets - softmax(logits), _loss(logits, targets)
        length = 1.0
        with single_threaded_blas():
            for _ in range(STEPS):
                downhill = residual if self.dual else self.rows.T @ residual
                tried = found + length * factor.solve(downhill - strength * found)
                added_logits = (self.products if self.dual else self.rows) @ tried
                flops.add(4 * len(found) * count * targets.shape[1])
                squares = float(np.sum(tried * (added_logits if self.dual else tried)))  # |V|^2
                moved = logits + added_logits
                loss = _loss(moved, targets) + strength / 2 * squares
                if loss <= rounding * least:
                    found, least, residual = tried, loss, targets - softmax(moved)
                else:  # the curvature is larger than assumed
                    length /= 2
            added: Array = self.rows.T @ found if self.dual else found
        return added


def _loss(logits: Array, targets: Array) -> float:
    """Return the summed negative log-likelihood of the true classes."""
    top = logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(logits - top).sum(axis=1, keepdims=True)) + top
    return float(np.sum(targets * (total - logits), dtype=np.float64))
