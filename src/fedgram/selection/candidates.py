"""Candidate models of `auto` from one sum of statistics, and their leave-one-out scores.

Ridge head, Fed3R, LDA, own intercept, FedHiP, APFL and a head of the client's own samples, each
with several settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from fedgram.core import codec
from fedgram.core.samples import Array, Floats, Samples
from fedgram.features.lift import Lift
from fedgram.models.adjusted import Blend, Shifted
from fedgram.models.linear import Classifier, Linear
from fedgram.selection.gaussian import Discriminant
from fedgram.selection.leave_one_out import Curve, HatMatrix, LeaveOneOut, at_once
from fedgram.selection.normal_equations import NormalEquations
from fedgram.selection.own_ridge import around_mean, left_out_scores, own_head

Setting = dict[str, Any]

ALPHAS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
RIDGES = (10_000.0, 3000.0, 1000.0, 300.0, 100.0, 30.0)
BALANCES = (0.25, 0.5, 0.75, 1.0)
INTERCEPTS = (30.0, 3.0)
SHRINKAGES = (0.3, 0.03)
LOCAL_RIDGES = (1000.0, 100.0, 10.0)
# Factors that turn scores into log-likelihoods; scores of least squares are between 0 and 1.
SCALES = (2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
GAUSSIAN_SCALES = (0.03, 0.06, 0.12, 0.25, 0.5, 0.75, 1.0)

_WIDE = 256  # with fewer features than this the ridges are smaller, in proportion


def settings_for(width: int) -> tuple[Setting, ...]:
    """Return the settings of all candidates for features of this width, the least personal first.

    Of equally likely candidates the first is selected. The ridge of a client's own fit is
    proportional to the squared norm of a sample, which is the number of features.
    """
    share = min(1.0, width / _WIDE)
    return (
        {"family": "ridge"},
        {"family": "fed3r"},
        *({"family": "lda", "shrinkage": shrinkage} for shrinkage in SHRINKAGES),
        *({"family": "intercept", "strength": strength} for strength in INTERCEPTS),
        *({"family": "fedhip", "alpha": alpha} for alpha in ALPHAS),
        *(
            {"family": "apfl", "refinement_ridge": ridge * share, "balance": balance}
            for ridge, balance in product(RIDGES, BALANCES)
        ),
        *({"family": "local", "ridge": ridge * share} for ridge in LOCAL_RIDGES),
    )


# Candidates that predict numbers.
NUMBER_FAMILIES = ("ridge", "intercept", "fedhip", "apfl", "local")
# Candidates on lifted features.
LIFTED_FAMILIES = ("ridge", "apfl")
NAMES = {
    "ridge": "ridge head",
    "fed3r": "Fed3R",
    "lda": "LDA",
    "intercept": "own intercept",
    "fedhip": "FedHiP",
    "apfl": "APFL",
    "local": "own head",
}


def described(setting: Setting) -> str:
    """Return the name of a candidate with its settings, for people.

    Examples
    --------
    >>> described({"family": "apfl", "refinement_ridge": 300.0, "balance": 0.5, "width": 4096})
    'APFL (refinement ridge 300, balance 0.5, lift 4096)'
    """
    more = [
        f"{'lift' if name == 'width' else name.replace('_', ' ')} {value:.4g}"
        for name, value in setting.items()
        if name != "family"
    ]
    return NAMES[setting["family"]] + (f" ({', '.join(more)})" if more else "")


def scales(setting: Setting) -> Sequence[float]:
    """Return the candidate factors that turn the scores of a model into log-likelihoods."""
    return GAUSSIAN_SCALES if setting["family"] == "lda" else SCALES


@dataclass(frozen=True, eq=False, kw_only=True)
class Candidates:
    """All candidate models of one total, in the features of one lift.

    Parameters
    ----------
    equations
        The total with its ridge.
    lift
        The lift of the shared heads.
    settings
        The settings of the candidates.
    """

    equations: NormalEquations
    lift: Lift
    settings: tuple[Setting, ...]

    @classmethod
    def of(
        cls,
        equations: NormalEquations,
        lift: Lift,
        *,
        beside: bool = False,
        alone: bool = True,
        numbers: bool = False,
    ) -> Candidates:
        """Return the candidates for a total.

        Parameters
        ----------
        equations
            The total with its ridge.
        lift
            The lift that the total was made with.
        beside
            Whether these candidates, on lifted features, are added to those on plain features.
        alone
            Whether heads of a client's own samples alone are among the candidates.
        numbers
            Whether the targets are the numbers of a regression, which not all families predict.
        """
        space = equations.total.space
        settings = settings_for(space.inputs if space.traceable else space.width)
        if not alone:
            settings = tuple(each for each in settings if each["family"] != "local")
        if numbers:
            settings = tuple(each for each in settings if each["family"] in NUMBER_FAMILIES)
        if beside:
            settings = tuple(
                {**setting, "width": float(lift.width)}
                for setting in settings
                if setting["family"] in LIFTED_FAMILIES
            )
        return cls(equations=equations, lift=lift, settings=settings)

    def _gaussian(self, shrinkage: float) -> Discriminant:
        known = self.equations.derived
        if shrinkage not in known:
            known[shrinkage] = Discriminant(total=self.equations.total, shrinkage=shrinkage)
        found: Discriminant = known[shrinkage]
        return found

    def left_out(
        self, samples: Samples, *, in_total: bool, hat: HatMatrix | None = None
    ) -> Iterator[Floats]:
        """Yield the leave-one-out scores of each candidate; see `LeaveOneOut`.

        Parameters
        ----------
        samples
            A client's samples.
        in_total
            Whether the samples are in the total.
        hat
            The hat matrix of the samples without a lift; computed if not given.
        """
        own = LeaveOneOut.of(samples, self.equations, self.lift, in_total=in_total)
        hat = HatMatrix.of(samples.features.values) if hat is None else hat
        yield from self._left_out(own, hat, [samples], [in_total])

    def left_out_of_all(
        self, parts: Sequence[Samples], *, in_total: Sequence[bool], hats: Sequence[HatMatrix]
    ) -> Iterator[Array]:
        """Yield the leave-one-out scores of each candidate, (clients, samples, classes).

        In single precision. Those of a client do not depend on the other clients.

        Parameters
        ----------
        parts
            The samples of clients that have equally many.
        in_total, hats
            As in `left_out`, for each client.
        """
        shape = (len(parts), *parts[0].labels.onehot().shape)
        scored = []
        stacks = LeaveOneOut.stacks(parts, self.equations, self.lift, in_total=in_total)
        for places, own in stacks:
            hat = HatMatrix.stacked([hats[place] for place in places])
            some = [parts[place] for place in places]
            heard = [in_total[place] for place in places]
            scored.append((places, self._left_out(own, hat, some, heard)))
        for _ in self.settings:
            found = np.empty(shape, np.float32)
            for places, scores in scored:
                found[places] = next(scores)
            yield found

    def _left_out(
        self,
        own: LeaveOneOut,
        hat: HatMatrix,
        parts: Sequence[Samples],
        in_total: Sequence[bool],
    ) -> Iterator[Floats]:
        """Yield the scores of each candidate, for one client or a stack of clients."""
        shared, unit = own.shared(), own.samples.features.space.unit
        fits = self._personal_fits(own, hat)
        for setting in self.settings:
            match setting["family"]:
                case "ridge":
                    yield shared
                case "fed3r":
                    found = [one.normalized(self.equations) for one in own.clients()]
                    yield np.stack(found).reshape(shared.shape)
                case "lda":
                    known = self._gaussian(setting["shrinkage"])
                    rows = [self.lift(each.features).real() for each in parts]
                    found = [
                        known.left_out(each, part.labels.codes, in_total=heard)
                        for each, part, heard in zip(rows, parts, in_total, strict=True)
                    ]
                    yield np.stack(found).reshape(shared.shape)
                case "intercept":
                    yield shared + fits["intercept"](setting["strength"])
                case "fedhip":
                    yield fits["fedhip"](setting["alpha"])
                case "local":
                    yield fits["local"](setting["ridge"] / unit**2)
                case _:
                    fitted = fits["apfl"](setting["refinement_ridge"] / unit**2)
                    yield shared + setting["balance"] * fitted

    def _personal_fits(
        self, own: LeaveOneOut, hat: HatMatrix
    ) -> dict[str, Callable[[float], Floats]]:
        """Return leave-one-out predictions as functions of a setting, for the families in use."""
        made: dict[str, Callable[[], Curve]] = {
            "intercept": lambda: own.fit_residual(np.ones((own.truth.shape[-2], 1))),
            "fedhip": own.with_extra_weight,
            "apfl": lambda: own.fit_residual_with(hat),
            "local": lambda: (
                left_out_scores(hat, own.truth, centered=True)
                if around_mean(own.samples)
                else own.alone(hat)
            ),
        }
        unit = own.samples.features.space.unit
        found = {}
        for family, make in made.items():
            names = {"fedhip": "alpha", "intercept": "strength", "apfl": "refinement_ridge"}
            scale = 1 if family in ("fedhip", "intercept") else unit**2
            values = [
                setting[names.get(family, "ridge")] / scale
                for setting in self.settings
                if setting["family"] == family
            ]
            if values:
                found[family] = at_once(make(), values, own.truth)
        return found

    def shared(self, setting: Setting) -> Linear | NormalEquations:
        """Return the values that clients need for a model: a head, or for FedHiP the total."""
        match setting["family"]:
            case "fedhip":
                return self.equations
            case "fed3r":
                return self.equations.linear(self.lift).normalized()
            case "lda":
                total = self.equations.total
                known = {"total": total.digest(), "shrinkage": setting["shrinkage"]}
                return Linear(
                    weights=self._gaussian(setting["shrinkage"]).weights,
                    space=total.space,
                    classes=total.classes,
                    lift=self.lift,
                    origin=codec.digest(known),
                )
            case "local":
                head = self.equations.linear(self.lift)  # zeros: clients need its form only
                return replace(head, weights=np.zeros_like(head.weights))
            case _:
                return self.equations.linear(self.lift)


def personal(
    setting: Setting, samples: Samples, shared: Linear | NormalEquations, lift: Lift
) -> Classifier:
    """Return a client's personal model.

    Parameters
    ----------
    setting
        Family and settings of the model.
    samples
        The client's samples.
    shared
        The result of `Candidates.shared`.
    lift
        The lift of the shared model.
    """
    if isinstance(shared, NormalEquations):
        return shared.with_extra_weight(samples, lift, setting["alpha"])
    match setting["family"]:
        case "apfl":
            own = shared.fit_residual(samples, ridge=setting["refinement_ridge"], lift=Lift())
            return Blend(first=shared, second=own, balance=setting["balance"])
        case "local":
            return own_head(samples, ridge=setting["ridge"], lift=Lift())
        case "intercept":
            residual = samples.labels.onehot() - shared(samples.features)
            shift = residual.sum(axis=0) / (len(samples) + setting["strength"])
            return Shifted(model=shared, shift=shift)
        case _:
            return shared
