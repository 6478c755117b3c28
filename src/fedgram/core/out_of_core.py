"""Ridge regression on more features than memory holds: the Gram matrix is in a file.

The file has the same integers in the same order as `Statistics.gram`: the upper triangle, row by
row. It is computed and factorized in strips of rows. Two strips are in memory at a time, whatever
the number of features.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.linalg
from scipy.linalg import blas

from fedgram.core.kernels.choice import chosen
from fedgram.core.kernels.way import triangle_size
from fedgram.core.samples import Array, Features, Floats, Labels, Space
from fedgram.core.solve import require_ridge
from fedgram.core.targets import Targets
from fedgram.errors import ConfigError, DataError, MismatchError, SolveError
from fedgram.runtime import flops
from fedgram.runtime.threads import single_threaded_blas

Batches = Callable[[], Iterable[tuple[Features, Labels]]]
MOST_BYTES = 2**30  # of memory for strips
_MOST_BOUND = 127


@dataclass(frozen=True, eq=False, kw_only=True)
class DiskStatistics:
    """The sums of `Statistics`, with the Gram matrix in a file.

    Parameters
    ----------
    path
        The file of the Gram matrix: 64-bit integers, the upper triangle row by row.
    count
        Number of samples.
    moment
        Sum of f y', features by classes.
    space, classes
        The feature space and the class list.

    Examples
    --------
    >>> import tempfile
    >>> space = Space(width=2, bound=127)
    >>> rows = Features(np.array([[1, 2], [3, 4], [5, 6]], dtype=np.int8), space)
    >>> labels = Labels(np.array([0, 1, 1]), ("no", "yes"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     total = DiskStatistics.over(lambda: [(rows, labels)], Path(folder) / "gram")
    ...     np.fromfile(total.path, np.int64), total.solve(1.0).round(3).tolist()
    (array([35, 44, 56]), [[-0.267, 0.138], [0.241, 0.069]])
    """

    path: Path
    count: int
    moment: Array
    space: Space
    classes: tuple[str, ...]

    @classmethod
    def over(cls, batches: Batches, path: Path, *, most: int = MOST_BYTES) -> DiskStatistics:
        """Sum batches of samples; write the Gram matrix to a file.

        Parameters
        ----------
        batches
            Returns the batches. It is called once for each strip, and must return the same samples
            each time.
        path
            The file to write.
        most
            Bytes of memory for a strip, beside one batch.
        """
        first = next(iter(batches()), None)
        if first is None:
            raise DataError("no batches to sum; give at least one")
        space, classes = first[0].space, first[1].classes
        if not 0 < space.bound <= _MOST_BOUND:
            raise ConfigError(
                f"a Gram matrix in a file: expected features of at most 8 bits, got a bound of "
                f"{space.bound}; use grid.bits from 2 to 8"
            )
        if isinstance(first[1], Targets):
            raise ConfigError(
                "a Gram matrix in a file: expected classes, got numbers of a regression; use "
                "Statistics"
            )
        counts = []
        with path.open("wb") as file:
            for start, stop in _strips(space.width, most // 12):
                strip, count = _strip(batches(), space, classes, start, stop)
                counts.append(count)
                for row in range(stop - start):
                    strip[row, row:].tofile(file)
        if len(set(counts)) > 1:
            raise DataError(
                f"the batches changed while they were read: {min(counts)} and {max(counts)} samples"
            )
        moment = np.zeros((len(classes), space.width), np.int64)
        for features, labels in batches():
            way = chosen(features.values.size)
            way.class_sums(features.values.astype(np.int8, copy=False), labels.codes, moment)
        moment = np.ascontiguousarray(moment.T)
        return cls(path=path, count=counts[0], moment=moment, space=space, classes=classes)

    def solve(self, ridge: float, *, most: int = MOST_BYTES) -> Floats:
        """Return the weights of argmin_W ``|F W - Y|^2 + ridge |W|^2``, in real units.

        They are those of `Statistics.solve` up to rounding.

        Parameters
        ----------
        ridge
            Weight of the squared norm.
        most
            Bytes of memory for two strips.
        """
        require_ridge(ridge)
        if self.count <= 0:
            raise SolveError(f"nothing to solve: the total holds {self.count} samples")
        unit, width = self.space.unit, self.space.width
        with tempfile.TemporaryFile(dir=self.path.parent) as room, single_threaded_blas():
            size = triangle_size(width, width)
            gram = np.memmap(self.path, np.int64, "r", shape=(size,))
            factor = _Factor.of(gram, width, ridge / unit**2, room, most // 16)
            return factor.solve(self.moment.astype(np.float64)) / unit


def _strips(width: int, entries: int) -> list[tuple[int, int]]:
    """Return the first and last row of each strip; two strips have at most this many entries."""
    rows = max(1, min(width, entries // max(1, width)))
    return [(start, min(width, start + rows)) for start in range(0, width, rows)]


def _strip(
    batches: Iterable[tuple[Features, Labels]],
    space: Space,
    classes: tuple[str, ...],
    start: int,
    stop: int,
) -> tuple[Array, int]:
    """Return rows `start` to `stop` of the Gram matrix from the diagonal on, and the count."""
    strip, count = np.zeros((stop - start, space.width - start), np.int64), 0
    for features, labels in batches:
        if features.space != space or labels.classes != classes:
            raise MismatchError("batches differ in their feature space or class lists")
        values = features.values.astype(np.int8, copy=False)
        flops.add(2 * len(values) * strip.size)
        way = chosen(len(values) * strip.size)
        strip += way.product(values[:, start:stop].T, values[:, start:])
        count += len(values)
    return strip, count


@dataclass(frozen=True, eq=False)
class _Factor:
    """The Cholesky factor U of ``gram + ridge I = U'U`` in a file, strip after strip of rows."""

    strips: list[tuple[int, int]]
    held: list[Floats]  # strip k has the columns from its first row on; mapped from the file

    @classmethod
    def of(cls, gram: Array, width: int, ridge: float, room: object, entries: int) -> _Factor:
        strips = _strips(width, entries)
        held: list[Floats] = []
        flops.add(width**3 // 3)
        place = 0
        for start, stop in strips:
            strip = _unpacked(gram, width, start, stop)
            height = stop - start
            strip[np.arange(height), np.arange(height)] += ridge
            for (first, _), earlier in zip(strips, held, strict=False):
                part = np.ascontiguousarray(earlier[:, start - first :])
                # In Fortran order, transposed: strip' -= part' part[:, :height].
                strip = blas.dgemm(
                    -1.0, part.T, part[:, :height], beta=1.0, c=strip.T, overwrite_c=1
                ).T
            strip = _factorized(strip, height)
            shape, offset = strip.shape, place
            place += strip.nbytes
            mapped: Floats = np.memmap(room, np.float64, "r+", offset, shape)  # type: ignore[call-overload]
            mapped[...] = strip
            held.append(mapped)
        return cls(strips, held)

    def solve(self, rhs: Floats) -> Floats:
        """Return ``(gram + ridge I)^-1 rhs``."""
        flops.add(2 * len(rhs) ** 2 * rhs.shape[1])
        found = rhs.copy()
        for (start, stop), strip in zip(self.strips, self.held, strict=True):
            head, rest = strip[:, : stop - start], strip[:, stop - start :]
            found[start:stop] = scipy.linalg.solve_triangular(head, found[start:stop], trans=1)
            found[stop:] -= rest.T @ found[start:stop]
        for (start, stop), strip in reversed(list(zip(self.strips, self.held, strict=True))):
            head, rest = strip[:, : stop - start], strip[:, stop - start :]
            found[start:stop] -= rest @ found[stop:]
            found[start:stop] = scipy.linalg.solve_triangular(head, found[start:stop])
        return found


def _factorized(strip: Floats, height: int) -> Floats:
    """Return rows of U from the rest of the same rows, of which the first columns are square."""
    head, rest = np.asfortranarray(strip[:, :height]), strip[:, height:]
    factor, info = scipy.linalg.lapack.dpotrf(head, lower=0, clean=1)
    if info:
        raise SolveError("the Gram matrix is singular; use a larger ridge")
    strip[:, :height] = factor
    if rest.shape[1]:  # U_kk' X = rest, in Fortran order: X' U_kk = rest'
        strip[:, height:] = blas.dtrsm(1.0, factor, rest.T, side=1).T
    return strip


def _unpacked(gram: Array, width: int, start: int, stop: int) -> Floats:
    """Return rows of the upper triangle, from column `start` on, as float64 in C order."""
    strip = np.zeros((stop - start, width - start))
    for row, (begin, end) in enumerate(_rows(width, start, stop)):
        strip[row, row:] = gram[begin:end]
    return strip


def _rows(width: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    for row in range(start, stop):
        yield triangle_size(width, row), triangle_size(width, row + 1)
