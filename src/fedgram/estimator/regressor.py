"""`FederatedRegressor`: a method of fedgram as a regressor of scikit-learn."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from fedgram.core.samples import Array
from fedgram.data.dataset import REGRESSION
from fedgram.data.ranges import rounded_outwards
from fedgram.estimator.federated import (
    GROUPS,
    FederatedEstimator,
    base,
    metrics,
    require_fitting,
    validation,
    value_errors,
)


class FederatedRegressor(base.RegressorMixin, FederatedEstimator):  # type: ignore[misc]
    """A federated regressor with the interface of scikit-learn, for one or several outputs.

    `fit` simulates the federation in this process: the samples of each client are only summed.

    Parameters
    ----------
    method
        Name of a method that predicts numbers: "auto", "afl", "fedhip", "apfl", "apfl-linear",
        "intercept" or "local".
    settings
        Settings of the method. They are parameters too, such as ``method__ridge``, for
        `GridSearchCV`.
    clients
        "groups": `fit` needs the client of each sample as `groups`. A number: without groups, the
        samples are distributed over this number of clients at random, for experiments.
    standardize
        Whether columns are standardized, by means and deviations of the training samples of all
        clients. They are summed at once, which equals the sum over clients to the bit.
    output_range
        Lowest and highest possible value of the outputs: a pair for all, or one for each. Sums of
        outputs are exact in this range. None takes the range of the training data, which a
        federation of real sites could not do; predictions depend on the range by its steps only.
    random_state
        Seed of the method's random numbers and of clients that are drawn.

    Attributes
    ----------
    models_
        The model of each client (`Model`), by the client's name.
    shared_model_
        The model for other clients; None if the method has none.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> wards = rng.choice(["north", "south"], size=200)
    >>> y = X @ [1.0, 2.0, 3.0] + 5.0 * (wards == "north")
    >>> model = FederatedRegressor("fedhip", output_range=(-20, 20)).fit(X, y, groups=wards)
    >>> model.score(X, y, groups=wards) > 0.95
    True
    >>> model.predict(X[:2], groups=["north", "a new ward"]).shape
    (2,)
    """

    def __init__(
        self,
        method: str = "auto",
        *,
        settings: dict[str, Any] | None = None,
        clients: str | int = GROUPS,
        standardize: bool = True,
        output_range: Any = None,
        random_state: int = 0,
    ) -> None:
        super().__init__(
            method,
            settings=settings,
            clients=clients,
            standardize=standardize,
            random_state=random_state,
        )
        self.output_range = output_range

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:  # noqa: N803
        """Fit the method to the samples of all clients.

        Parameters
        ----------
        X
            Samples by features.
        y
            A number for each sample, or a row of them.
        groups
            The client of each sample.
        """
        require_fitting(X, y, groups)
        X, y = validation.validate_data(self, X, y, multi_output=True, y_numeric=True)  # noqa: N806
        if y.dtype.kind not in "iufb":
            raise ValueError(
                "y: expected numbers for a regression, got texts; for classes use "
                "FederatedClassifier"
            )
        self._flat = y.ndim == 1
        with value_errors():
            given = _range(y) if self.output_range is None else self.output_range
            data = self._data(X, y, groups, task=REGRESSION, output_range=given)
            self._keep(self._fit(data), calibrate=False)
        self.outputs_ = data.targets.outputs if data.targets is not None else ()
        return self

    def predict(self, X: Any, groups: Any = None) -> Array:  # noqa: N803
        """Return a number for each sample, or a row of them if there are several outputs.

        Parameters
        ----------
        X
            Samples by features.
        groups
            The client of each sample. Unknown clients, and all samples without groups, get the
            shared model.
        """
        x = self._validated(X)
        found = np.zeros((len(x), len(self.outputs_)))
        for model, rows in self._by_client(x, groups):
            found[rows] = model.predict(x[rows]).reshape(len(rows), -1)
        return found[:, 0] if self._flat else found

    def score(
        self,
        X: Any,  # noqa: N803
        y: Any,
        groups: Any = None,
        sample_weight: Any = None,
    ) -> float:
        """Return R2, the coefficient of determination, as the mean over outputs.

        Parameters
        ----------
        X
            Samples by features.
        y
            The outputs.
        groups
            The client of each sample.
        sample_weight
            Weight of each sample.
        """
        return float(
            metrics.r2_score(y, self.predict(X, groups=groups), sample_weight=sample_weight)
        )


def _range(y: Array) -> list[tuple[float, float]]:
    """Return the range of each output in the training data, rounded outwards."""
    columns = y.reshape(len(y), -1)
    ends = zip(columns.min(axis=0), columns.max(axis=0), strict=True)
    return [rounded_outwards(float(low), float(high)) for low, high in ends]
