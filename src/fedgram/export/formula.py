"""A model as one formula: the scores are a sum of linear heads on (lifted) features plus a shift.

Every closed-form method ends in such a formula, whose parts any program can evaluate. Models that
have other parts are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedgram.core.samples import Array, Floats, Space
from fedgram.core.targets import LEVELS, Output, outputs_named
from fedgram.errors import ConfigError
from fedgram.features.grid import Grid
from fedgram.features.lift import Lift
from fedgram.models.adjusted import Blend, ClassMasked, Shifted
from fedgram.models.linear import Linear
from fedgram.models.model import Model
from fedgram.models.nearest_mean import NearestMean
from fedgram.models.saved import SavedModel, opened
from fedgram.selection.pool import LogLinear


@dataclass(frozen=True, eq=False, kw_only=True)
class Head:
    """One linear head: ``lift(features) weights``, in real units."""

    lift: Lift
    weights: Floats


@dataclass(frozen=True, eq=False, kw_only=True)
class Probabilities:
    """Probabilities from scores.

    With ``sharpness`` 0 they are the softmax of ``power * scores``, else proportional to
    ``log(1 + exp(sharpness * score)) ** power``.
    """

    power: float = 1.0
    sharpness: float = 0.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Standardized:
    """Columns that are standardized, clipped, and rescaled by rows, before they are rounded."""

    mean: Floats
    deviation: Floats
    anchor: float = 1.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Formula:
    """The parts of a model.

    Parameters
    ----------
    space
        The feature space before any lift.
    classes
        The class list, in the order of the scores.
    heads
        The heads, each with another lift; their scores are added.
    shift
        Added to the scores.
    allowed
        If given, other classes get a score below the smallest one of the allowed classes.
    probabilities
        How scores become probabilities; None if they do not.
    standardized
        How columns become features; None for features of unit size.
    outputs
        The outputs of a regression, whose names are the classes: the scores are their values, in
        real units.

    Examples
    --------
    >>> head = Linear(weights=np.array([[1.0, 3.0]]), space=Space(width=1, inputs=1), classes="ab")
    >>> pool = LogLinear(models=(Shifted(model=head, shift=np.ones(2)),), weights=(2.0,), shift=0)
    >>> formula = formula_of(pool)
    >>> formula.heads[0].weights, formula.shift, formula.probabilities
    (array([[2., 6.]]), array([2., 2.]), Probabilities(power=1.0, sharpness=0.0))
    """

    space: Space
    classes: tuple[str, ...]
    heads: Sequence[Head]
    shift: Floats
    allowed: Array | None = None
    probabilities: Probabilities | None = None
    standardized: Standardized | None = field(default=None)
    outputs: tuple[Output, ...] = ()

    def in_real_units(self) -> Formula:
        """Return the formula whose scores are the outputs of a regression; of classes, itself."""
        outputs = outputs_named(self.classes)
        if not outputs:
            return self
        scale = np.array([output.step * LEVELS for output in outputs])
        middle = np.array([output.middle for output in outputs])
        return replace(
            self,
            classes=tuple(output.name for output in outputs),
            heads=[replace(head, weights=head.weights * scale) for head in self.heads],
            shift=self.shift * scale + middle,
            outputs=outputs,
            probabilities=None,
        )

    def scaled(self, factor: float) -> Formula:
        """Return the formula of the scores times a factor."""
        self._require_unmasked("weighted")
        heads = [replace(head, weights=factor * head.weights) for head in self.heads]
        return replace(self, heads=heads, shift=factor * self.shift)

    def plus(self, other: Formula) -> Formula:
        """Return the formula of the sum of two models; heads with one lift become one."""
        self._require_unmasked("added")
        other._require_unmasked("added")
        if other.space != self.space or other.classes != self.classes:
            raise ConfigError(
                "this model cannot be exported: its parts have different features or classes"
            )
        merged = {head.lift: head for head in self.heads}
        for head in other.heads:
            known = merged.get(head.lift)
            weights = head.weights if known is None else known.weights + head.weights
            merged[head.lift] = Head(lift=head.lift, weights=weights)
        return replace(self, heads=list(merged.values()), shift=self.shift + other.shift)

    def shifted(self, shift: Floats) -> Formula:
        """Return the formula with a constant added to each score."""
        self._require_unmasked("shifted")
        return replace(self, shift=self.shift + shift)

    def _require_unmasked(self, how: str) -> None:
        if self.allowed is not None:
            raise ConfigError(
                f"this model cannot be exported: a model of some classes only is {how}"
            )


def formula_of(model: Any) -> Formula:
    """Return the formula of a model; raise ConfigError for a model that is more than one."""
    if isinstance(model, SavedModel | Model):
        return _complete(opened(model))
    for kind, made in _FORMULAS.items():
        if isinstance(model, kind):
            return made(model)
    raise ConfigError(
        f"a {type(model).__name__} cannot be exported: expected linear heads on frozen features "
        "(afl, apfl, auto, fedhip, logistic, prior, lda, local and the like); networks that are "
        "trained or solved layer by layer, and residual blocks, stay with fedgram"
    )


def _complete(held: SavedModel) -> Formula:
    formula, how, known = formula_of(held.model), held.standardization, held.calibration
    if known is not None:
        calibration = Probabilities(power=known.power, sharpness=known.sharpness)
        formula = replace(formula, probabilities=calibration)
    if how is not None:
        columns = Standardized(mean=how.mean, deviation=how.deviation)
        formula = replace(formula, standardized=columns)
    return formula


def _linear(model: Linear) -> Formula:
    return _of_weights(model, model.weights, np.zeros(len(model.classes)))


def _nearest_mean(model: NearestMean) -> Formula:
    weights = np.zeros((model.space.width, len(model.classes)))
    weights[model.space.without_constant] = model.means
    shift = -np.sum(model.means**2, axis=0) / 2
    if model.present.all():
        return _of_weights(model, weights, shift)
    # The mask lowers what is above it: an infinite score of an absent class gets the lowest one.
    shift[~model.present] = np.inf
    weights[:, ~model.present] = 0.0
    return replace(_of_weights(model, weights, shift), allowed=np.asarray(model.present))


def _of_weights(model: Any, weights: Floats, shift: Floats) -> Formula:
    lifted: Space = model.space
    if not lifted.traceable and lifted.steps:
        raise ConfigError(
            "this model cannot be exported: its features are made by further layers; expected "
            "features of the grid and a lift"
        )
    space = Grid.of(lifted).space(lifted.inputs, lifted.backbone) if lifted.steps else lifted
    if model.lift.space(space) != lifted:
        raise ConfigError(
            f"this model cannot be exported: {model.lift.space(space).difference(lifted)}"
        )
    if model.lift.width and not space.exact:
        raise ConfigError(
            "this model cannot be exported: its lift is evaluated off the grid; use grid.bits from "
            "2 to 16"
        )
    return Formula(
        space=space,
        classes=tuple(model.classes),
        heads=[Head(lift=model.lift, weights=weights)],
        shift=shift,
    )


def _blend(model: Blend) -> Formula:
    return formula_of(model.first).plus(formula_of(model.second).scaled(model.balance))


def _masked(model: ClassMasked) -> Formula:
    inner = formula_of(model.model)
    if not model.allowed.any():
        return inner
    inner._require_unmasked("masked")
    return replace(inner, allowed=np.asarray(model.allowed, bool))


def _shifted(model: Shifted) -> Formula:
    return formula_of(model.model).shifted(model.shift)


def _log_linear(model: LogLinear) -> Formula:
    pairs = zip(model.weights, model.models, strict=True)
    parts = [formula_of(part).scaled(weight) for weight, part in pairs]
    total = parts[0]
    for part in parts[1:]:
        total = total.plus(part)
    return replace(total.shifted(model.shift), probabilities=Probabilities())


_FORMULAS: dict[type, Callable[[Any], Formula]] = {
    Linear: _linear,
    NearestMean: _nearest_mean,
    Blend: _blend,
    ClassMasked: _masked,
    Shifted: _shifted,
    LogLinear: _log_linear,
}
