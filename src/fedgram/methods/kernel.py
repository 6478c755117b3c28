from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from fedgram.core.samples import Space
from fedgram.core.statistics import Statistics
from fedgram.errors import ConfigError
from fedgram.features.chain import Chain, Map
from fedgram.features.landmarks import Landmarks
from fedgram.features.lift import FOURIER, Lift
from fedgram.federation.method import Method
from fedgram.federation.protocol import Federation
from fedgram.methods._held_out import HeldOut, tuned, with_map
from fedgram.methods._stacked import Top
from fedgram.selection.generated_points import generated_points

SCALES = (0.35, 0.5, 0.7, 1.0, 1.4)  # reciprocal bandwidths, the smoothest kernel first
WIDEST_SEARCH = 1024  # features of the maps that are compared


@dataclass(frozen=True, kw_only=True)
class Kernel(HeldOut):
    """Kernel ridge regression with the Gaussian kernel, and any method on the kernel's features.

    The kernel is ``exp(-scale^2 |x - z|^2 / 2 d)``, for d features of unit size. Its features are
    approximate: "fourier" are random Fourier features (Rahimi and Recht, NeurIPS 2007), pairs of
    cosine and sine of random projections. "landmarks" are kernel values at public points (the
    Nystroem method, Williams and Seeger, NIPS 2000). These points are generated from the summed
    statistics: class means plus noise of the within-class covariance, never a client's sample. The
    penalty is that of the weights of the features. Features are integers of a public grid.

    The bandwidth is chosen by the likelihood of held-out samples, with features of at most 1,024.

    Exchanges: for scale "auto" one sum of Gram matrices and class sums for each of five scales, and
    their log-losses on held-out samples; with landmarks the sum of `afl`; then those of the method
    on top.

    Parameters
    ----------
    features
        "fourier" or "landmarks".
    width
        Number of Fourier features, or of landmarks.
    scale
        The reciprocal of the bandwidth, > 0. "auto" selects it on held-out samples.
    seed
        Public seed of the random projections, or of the landmarks.
    top
        The method on the kernel's features (`method`) and its settings (`settings`). Where a ridge
        can be "auto" and none is given, it is.
    """

    features: Literal["fourier", "landmarks"] = "fourier"
    width: int = 2048
    scale: float | Literal["auto"] = "auto"
    seed: int = 0
    top: Top = field(default_factory=Top)

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ConfigError(f"width = {self.width}: use at least one feature")
        if self.scale != "auto" and not 0 < self.scale < float("inf"):
            raise ConfigError(f"scale = {self.scale}: use a number > 0, or 'auto'")
        Lift(width=self.width, seed=self.seed)

    def shortened(self, *, search: bool = True) -> Self:
        """Return the method with few features; without `search` with a fixed bandwidth."""
        scale = self.scale if search or self.scale != "auto" else 1.0
        top = self.top.shortened(search=search)
        return replace(self, width=min(32, self.width), scale=scale, top=top)

    @property
    def inner(self) -> Method[Any]:
        return self.top.make()

    def fit(self, federation: Federation) -> Iterator[Any]:
        inputs = federation.sum(self.opening).space
        scale, found = self.scale, None
        if scale == "auto":
            narrow = min(self.width, WIDEST_SEARCH)
            points = self._points(federation, inputs, narrow, kept=True)
            chains = [self._chain(inputs, each, points, narrow) for each in SCALES]
            found = self.judged(federation, chains)
            scale = SCALES[found.best]
        points = self._points(federation, inputs, self.width, kept=False)
        words = [f"scale {each:g}" for each in (SCALES if found else (scale,))]
        below = self._chain(inputs, scale, points, self.width)
        for shared in self.fit_inner(federation, below):
            yield with_map(shared, lambda each: tuned(each, {"scale": scale}, words, found))

    def _points(
        self, federation: Federation, inputs: Space, number: int, *, kept: bool
    ) -> Landmarks | None:
        """Return the landmarks, at any scale; None without landmarks."""
        if self.features == FOURIER:
            return None
        step = self.kept_statistics if kept else self.all_statistics
        total: Statistics = federation.sum(step, Chain(inputs=inputs))
        return Landmarks(points=generated_points(total, number, seed=self.seed), scale=1.0)

    def _chain(self, inputs: Space, scale: float, points: Landmarks | None, width: int) -> Chain:
        each: Map = (
            Lift(width=width, activation=FOURIER, seed=self.seed, scale=scale)
            if points is None
            else replace(points, scale=scale)
        )
        return Chain(inputs=inputs, maps=(each,))
