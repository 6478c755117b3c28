"""`FederatedClassifier`: a method of fedgram as a classifier of scikit-learn."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from fedgram.core.samples import Array, Floats
from fedgram.estimator.federated import (
    GROUPS,
    FederatedEstimator,
    base,
    metrics,
    multiclass,
    require_fitting,
    validation,
    value_errors,
)


class FederatedClassifier(base.ClassifierMixin, FederatedEstimator):  # type: ignore[misc]
    """A federated classifier with the interface of scikit-learn.

    `fit` simulates the federation in this process: the samples of each client are only summed.

    Parameters
    ----------
    method
        Name of a method, such as "auto" or "apfl".
    settings
        Settings of the method. They are parameters too, such as ``method__balance``, for
        `GridSearchCV`.
    clients
        "groups": `fit` needs the client of each sample as `groups`. A number: without groups, the
        samples are distributed over this number of clients at random, for experiments.
    standardize
        Whether columns are standardized, by means and deviations of the training samples of all
        clients. They are summed at once, which equals the sum over clients to the bit.
        A `StandardScaler` before it in a pipeline sees all clients' samples in one place, which a
        federation cannot do.
    calibrate
        Whether probabilities are calibrated on left-out samples, which takes a few more fits unless
        the method computes probabilities itself. Needed for `predict_proba`.
    random_state
        Seed of the method's random numbers and of clients that are drawn.

    Attributes
    ----------
    classes_
        The class labels.
    models_
        The model of each client (`Model`), by the client's name.
    shared_model_
        The model for other clients; None if the method has none.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> y = np.where(X[:, 0] + X[:, 1] > 0, "well", "ill")
    >>> wards = rng.choice(["north", "south"], size=200)
    >>> model = FederatedClassifier("apfl-linear").fit(X, y, groups=wards)
    >>> model.score(X, y, groups=wards) > 0.85
    True
    >>> model.predict(X[:2], groups=["north", "a new ward"]).shape
    (2,)
    >>> FederatedClassifier("apfl").fit(X, y)
    Traceback (most recent call last):
    ...
    ValueError: groups: expected the client of each sample, got none; use fit(X, y,
    groups=client_ids), with metadata routing set_fit_request(groups=True), or
    FederatedClassifier(clients=5) to draw 5 clients at random
    """

    def __init__(
        self,
        method: str = "auto",
        *,
        settings: dict[str, Any] | None = None,
        clients: str | int = GROUPS,
        standardize: bool = True,
        calibrate: bool = True,
        random_state: int = 0,
    ) -> None:
        super().__init__(
            method,
            settings=settings,
            clients=clients,
            standardize=standardize,
            random_state=random_state,
        )
        self.calibrate = calibrate

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:  # noqa: N803
        """Fit the method to the samples of all clients.

        Parameters
        ----------
        X
            Samples by features.
        y
            Class labels.
        groups
            The client of each sample.
        """
        require_fitting(X, y, groups)
        X, y = validation.validate_data(self, X, y)  # noqa: N806
        multiclass.check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        with value_errors():
            data = self._data(
                X,
                codes.astype(np.int64),
                groups,
                classes=tuple(map(str, self.classes_)),
                labels=np.arange(len(self.classes_)),
            )
            self._keep(self._fit(data), calibrate=bool(self.calibrate))
        return self

    def predict(self, X: Any, groups: Any = None) -> Array:  # noqa: N803
        """Return the class label of each sample.

        Parameters
        ----------
        X
            Samples by features.
        groups
            The client of each sample. Unknown clients, and all samples without groups, get the
            shared model.
        """
        codes = self._class_scores(X, groups).argmax(axis=1)
        labels: Array = self.classes_[codes]
        return labels

    def decision_function(self, X: Any, groups: Any = None) -> Floats:  # noqa: N803
        """Return the score of each class; of two classes, that of the second minus the first.

        X and groups are those of `predict`.
        """
        scores = self._class_scores(X, groups)
        difference: Floats = scores[:, 1] - scores[:, 0]
        return difference if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any, groups: Any = None) -> Floats:  # noqa: N803
        """Return the probability of each class, (samples, classes).

        X and groups are those of `predict`.
        """
        with value_errors():
            return self._scores(X, groups, self._width(), "predict_proba")

    def score(
        self,
        X: Any,  # noqa: N803
        y: Any,
        groups: Any = None,
        sample_weight: Any = None,
    ) -> float:
        """Return the accuracy.

        Parameters
        ----------
        X
            Samples by features.
        y
            Class labels.
        groups
            The client of each sample.
        sample_weight
            Weight of each sample.
        """
        predicted = self.predict(X, groups=groups)
        return float(metrics.accuracy_score(y, predicted, sample_weight=sample_weight))

    def _class_scores(self, X: Any, groups: Any) -> Floats:  # noqa: N803
        return self._scores(X, groups, self._width(), "decision_function")

    def _width(self) -> int:
        return len(getattr(self, "classes_", ()))
