"""Models a client can have for the same sums, and how each would do on samples it never saw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from fedgram.features.lift import Lift
from fedgram.heads import Blend, Linear, Predictor, Shifted
from fedgram.loo import Own, right
from fedgram.priors import class_counts, counts_of, left_out_log_odds, log_odds, repeats
from fedgram.samples import Array, Floats, Samples
from fedgram.whole import Whole

Setting = dict[str, float]

# From the least personal to the most: of equal ones the first is taken.
_CORES: tuple[Setting, ...] = (
    {},
    *({"intercept": strength} for strength in (30.0, 3.0)),
    *({"alpha": alpha} for alpha in (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)),
    *(
        {"refinement_ridge": ridge, "balance": balance}
        for ridge, balance in product(
            (10_000.0, 3000.0, 1000.0, 300.0, 100.0, 30.0), (0.25, 0.5, 0.75, 1.0)
        )
    ),
)
_TEMPERATURES = (None, 160.0, 80.0, 40.0, 20.0, 10.0, 5.0)
CANDIDATES: tuple[Setting, ...] = tuple(
    core if temperature is None else {**core, "temperature": temperature}
    for core in _CORES
    for temperature in _TEMPERATURES
)


# What else is tried where classes are to count alike: these change the shared head itself.
NORMALIZED: Setting = {"normalized": 1.0}
REPEATED: Setting = {"repeated": 1.0}


def family(setting: Setting) -> str:
    """Return the name of the kind of model that a setting makes.

    Examples
    --------
    >>> family({}), family({"refinement_ridge": 300.0, "balance": 0.5, "temperature": 40.0})
    ('shared head', 'two streams x prior')
    """
    name = "shared head"
    if "alpha" in setting:
        name = "own samples weigh more"
    elif "balance" in setting:
        name = "two streams"
    elif "intercept" in setting:
        name = "own intercept"
    elif "normalized" in setting:
        name = "columns of one length"
    elif "repeated" in setting:
        name = "rare classes repeated"
    return f"{name} x prior" if "temperature" in setting else name


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """How models are made from sums and a client's samples.

    Parameters
    ----------
    lift
        Of the shared head.
    refinement
        Lift of the client's own stream.
    smoothing
        So many samples with everybody's class frequencies are added to a client's.
    """

    lift: Lift
    refinement: Lift
    smoothing: float

    def left_out(self, samples: Samples, whole: Whole, *, counted: bool) -> Array:
        """Return which samples each candidate gets right without them, (samples, candidates)."""
        own = Own.of(samples, whole, self.lift, counted=counted)
        odds = left_out_log_odds(
            own.codes,
            counts_of(samples.labels),
            class_counts(whole.total)[0],
            self.smoothing,
            counted=counted,
        )
        hits = np.empty((len(samples), len(CANDIDATES)), bool)
        place = 0
        for scores in self._scores(own, samples):
            for temperature in _TEMPERATURES:
                shifted = scores if temperature is None else scores + odds / temperature
                hits[:, place] = right(shifted, own.codes)
                place += 1
        return hits

    def left_out_alike(
        self, samples: Samples, whole: Whole, repeated: Whole, *, counted: bool
    ) -> Array:
        """Return the same for heads in which classes count alike, (samples, 2).

        How often a class is repeated is public and stays as it is.
        """
        own = Own.of(samples, whole, self.lift, counted=counted)
        times = repeats(class_counts(whole.total)[0])[samples.labels.codes]
        often = Own.of(samples, repeated, self.lift, counted=counted * times.astype(np.float64))
        scores = own.normalized(whole, self.lift), often.shared()
        return np.stack([right(each, own.codes) for each in scores], axis=1)

    def model(
        self, setting: Setting, samples: Samples, shared: Whole | Linear, counts: Floats
    ) -> Predictor:
        """Return a client's model; one that weighs own samples more needs the `Whole` total."""
        head = shared.linear(self.lift) if isinstance(shared, Whole) else shared
        if "alpha" in setting and isinstance(shared, Whole):
            head = shared.reweighed(samples, self.lift, setting["alpha"])
        model: Any = head
        shift = np.zeros(len(head.classes))
        if "balance" in setting:
            own = head.refined(samples, ridge=setting["refinement_ridge"], lift=self.refinement)
            model = Blend(first=head, second=own, balance=setting["balance"])
        if "intercept" in setting:
            left_over = samples.labels.onehot() - head(samples.features)
            shift += left_over.sum(axis=0) / (len(samples) + setting["intercept"])
        if "temperature" in setting:
            odds = log_odds(counts_of(samples.labels), counts, self.smoothing)
            shift += odds / setting["temperature"]
        personal: Predictor = Shifted(model=model, shift=shift) if shift.any() else model
        return personal

    def _scores(self, own: Own, samples: Samples) -> Iterator[Floats]:
        """Yield the scores of each core without the sample, in order."""
        shared = own.shared()
        features = self.refinement(samples.features)
        unit = features.space.unit
        constant = own.refined(np.ones((len(samples), 1)))
        refined = own.refined(features.values.astype(np.float64))
        reweighed = own.reweighed()
        last: tuple[float, Floats] | None = None
        for core in _CORES:
            if "intercept" in core:
                yield shared + constant(core["intercept"])
            elif "alpha" in core:
                yield reweighed(core["alpha"])
            elif "balance" in core:
                ridge = core["refinement_ridge"]
                if last is None or last[0] != ridge:
                    last = ridge, refined(ridge / unit**2)
                yield shared + core["balance"] * last[1]
            else:
                yield shared
