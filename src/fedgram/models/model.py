"""`Model`: a client's model as people use it, from arrays and frames to labels and probabilities.

Scores of squared-loss heads are not probabilities. A `Calibration` turns them into such, with two
numbers that maximize the likelihood of left-out samples. It keeps the order of the scores, so that
the likeliest class is the predicted one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedgram.core import codec
from fedgram.core.samples import Array, Features, Floats, Samples, Space
from fedgram.core.shared import Wrapper
from fedgram.core.targets import Output, real
from fedgram.errors import DataError
from fedgram.features.grid import Grid
from fedgram.features.inputs import Inputs
from fedgram.models import linear
from fedgram.models.mlp import softmax

_ROWS_AT_A_TIME = 8192  # bounds the memory of features and scores
_TINY = -30.0  # log(log(1 + e^z)) is z to the last digit from here on


@codec.register("Calibration/1")
@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Probabilities from scores, in the same order.

    Scores of squared-loss heads estimate the probabilities themselves, with errors that can make
    them negative. So the probability of a class is proportional to
    ``log(1 + exp(sharpness * score)) ** power``. A sharpness of 0 stands for the softmax of ``power
    * score``, the limit of a small one, for scores that are log-probabilities already.

    Parameters
    ----------
    power, sharpness
        The two numbers.
    samples
        Number of left-out samples that they were chosen on.
    log_loss
        Mean negative log-likelihood of these samples, in nats.

    Examples
    --------
    >>> Calibration(power=2.0).probabilities(np.array([[0.0, 0.5]])).round(3)
    array([[0.269, 0.731]])
    >>> Calibration(power=3.0, sharpness=16.0).probabilities(np.array([[0.2, 0.7]])).round(3)
    array([[0.024, 0.976]])
    """

    power: float = 1.0
    sharpness: float = 0.0
    samples: int = 0
    log_loss: float = 0.0

    def logits(self, scores: Floats) -> Floats:
        """Return the logarithms of the probabilities, up to a constant of each sample."""
        if self.sharpness:
            # The logarithm of log(1 + e^z) is z where e^z is tiny.
            z = self.sharpness * scores
            scores = np.where(z < _TINY, z, np.log(np.logaddexp(0.0, np.maximum(z, _TINY))))
        logits: Floats = self.power * scores
        return logits

    def probabilities(self, scores: Floats) -> Floats:
        """Return the probability of each class, (samples, classes)."""
        return softmax(self.logits(scores))


@codec.register("PersonalModel/1")
@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Model(Wrapper):
    """A client's model: predicts labels and probabilities of arrays, frames or features.

    Called with `Features`, it returns the scores of the predictor.

    Parameters
    ----------
    predictor
        Scores from features.
    inputs
        What turns arrays into features.
    labels
        The class labels, in the order of the scores.
    calibration
        Turns scores into probabilities; None if it is not known yet, or not needed.
    client
        Name of the client; empty for the shared model.
    method
        Name of the method.
    outputs
        The outputs of a regression; empty for classes.
    calibrate
        Computes the calibration.

    Examples
    --------
    >>> import fedgram as fg
    >>> digits = fg.load_dataset("digits")
    >>> model = fg.run("apfl", fg.federate(digits)).models["c03"]
    >>> model
    Model(apfl of c03: 64 features, 10 classes)
    >>> model.predict(digits.x[:3]), model.predict_proba(digits.x[:3]).shape
    (array(['0', '1', '2'], dtype='<U1'), (3, 10))
    """

    predictor: Any
    inputs: Inputs
    labels: tuple[Any, ...]
    calibration: Calibration | None = None
    client: str = ""
    method: str = ""
    outputs: tuple[Output, ...] = ()
    calibrate: Callable[[], Calibration] | None = codec.local_field(default=None)

    @property
    def wrapped(self) -> Any:
        """The predictor."""
        return self.predictor

    @property
    def space(self) -> Space:
        """The feature space, before any lift."""
        return self.inputs.space

    @property
    def classes_(self) -> Array:
        """The class labels, in the order of scores and probabilities."""
        return np.array(self.labels)

    def __call__(self, features: Features) -> Floats:
        scores: Floats = self.predictor(features)
        return scores

    def __repr__(self) -> str:
        whose = self.client or "all clients"
        return (
            f"Model({self.method + ' of ' if self.method else ''}{whose}: "
            f"{self.inputs.space.inputs} features, {self._words()})"
        )

    def _words(self) -> str:
        if not self.outputs:
            return f"{len(self.labels)} classes"
        return f"{len(self.outputs)} output{'s' * (len(self.outputs) > 1)}"

    def predict(self, X: Any) -> Array:  # noqa: N803  # as everywhere in Python
        """Return the label of the largest score for each sample; of equal scores the first.

        Of a regression: a number for each sample, or a row of them if there are several outputs.

        Parameters
        ----------
        X
            An array, a list, a frame, a tensor, a data set or features. If the features of the
            model were made by a backbone, also images, texts, or a path: see `Inputs.features`.
        """
        if self.outputs:
            values = real(self.outputs, self.decision_function(X))
            return values[:, 0] if len(self.outputs) == 1 else values
        labels: Array = self.classes_[self.decision_function(X).argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> Floats:  # noqa: N803
        """Return the probability of each class, (samples, classes), calibrated on left-out samples.

        The likeliest class is the one of `predict`.
        """
        return self.probabilities(self.inputs.features(X))

    def decision_function(self, X: Any) -> Floats:  # noqa: N803
        """Return the score of each class, (samples, classes)."""
        features = self.inputs.features(X)
        starts = range(0, max(1, len(features)), _ROWS_AT_A_TIME)
        parts = [self(features.take(slice(s, s + _ROWS_AT_A_TIME))) for s in starts]
        return np.concatenate(parts)

    def probabilities(self, features: Features) -> Floats:
        """Return the probability of each class from features."""
        if self.outputs:
            raise DataError("probabilities: expected a model of classes, got one of numbers")
        if hasattr(self.predictor, "probabilities"):
            own: Floats = self.predictor.probabilities(features)
            return own
        return self.calibrated().calibration.probabilities(self.decision_function(features))  # type: ignore[union-attr]

    def alone(self) -> Model:
        """Return the model without a way to compute its calibration, and so without samples."""
        return replace(self, calibrate=None)

    def calibrated(self) -> Model:
        """Return the model with its calibration, which may have to be computed first."""
        known = self.calibration is not None or hasattr(self.predictor, "probabilities")
        if known or self.outputs:
            return self
        if self.calibrate is None:
            raise DataError(
                "this model has no calibration, so that its scores are not probabilities; expected "
                "one of a result of run(), or use decision_function"
            )
        return replace(self, calibration=self.calibrate(), calibrate=None)


def predict(model: Any, X: Any) -> Array:  # noqa: N803  # as everywhere in Python
    """Return the predicted label of each sample.

    Parameters
    ----------
    model
        A `Model`. Of another predictor, the labels are class codes for `Features`, else class
        names.
    X
        An array, a list, a frame, a tensor, a data set, or features.

    Examples
    --------
    >>> import fedgram as fg
    >>> digits = fg.load_dataset("digits")
    >>> models = fg.run("afl", fg.federate(digits)).models
    >>> predict(models["c03"], digits.x[:3])
    array(['0', '1', '2'], dtype='<U1')
    """
    if isinstance(X, Samples):
        X = X.features  # noqa: N806
    if isinstance(model, Model):
        return model.predict(X)
    if isinstance(X, Features):
        return linear.predict(model, X)
    if not (hasattr(model, "space") and hasattr(model, "classes")):
        raise DataError(
            f"model: expected a model of a result, such as result.models['north'], got "
            f"{type(model).__name__}"
        )
    grid, space = Grid.of(model.space), model.space
    inputs = Inputs(space=grid.space(space.inputs, space.backbone))
    return np.array(model.classes)[linear.predict(model, inputs.features(X))]
