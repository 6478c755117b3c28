"""The common part of the estimators: clients from groups, settings of methods, models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np

from fedgram.core.samples import Array, Floats, Integers
from fedgram.data.arrays import names
from fedgram.data.dataset import TRAIN, Dataset
from fedgram.data.frames import (
    frame_columns,
    require_numbers,
    require_one_order,
    require_unique,
)
from fedgram.data.plan import PartitionPlan
from fedgram.errors import ConfigError, FedgramError
from fedgram.experiments.result import Result
from fedgram.experiments.runner import run
from fedgram.federation.federated_dataset import federate
from fedgram.federation.method import create_method, find_method, parameters
from fedgram.federation.method import names as method_names
from fedgram.federation.scoring import Metrics
from fedgram.models.model import Model

try:
    from sklearn import base as base
    from sklearn import metrics as metrics
    from sklearn.utils import multiclass as multiclass
    from sklearn.utils import validation as validation
except ImportError as error:
    raise ConfigError("estimators need: pip install 'fedgram[sklearn]'") from error

GROUPS = "groups"
_PREFIX = "method__"


@contextmanager
def value_errors() -> Iterator[None]:
    """Turn errors of fedgram into ValueError, which scikit-learn expects."""
    try:
        yield
    except FedgramError as error:
        raise ValueError(str(error)) from error


def require_fitting(X: Any, y: Any, groups: Any) -> None:  # noqa: N803  # as in scikit-learn
    """Raise ValueError for frames whose columns or rows would be taken wrongly.

    Parameters
    ----------
    X
        Samples by features.
    y
        The truth.
    groups
        The client of each sample.
    """
    with value_errors():
        if columns := frame_columns(X):
            require_unique(columns, "X: columns")
            require_numbers(X, columns, "X")
        require_one_order(X, y, "y")
        require_one_order(X, groups, "groups")


class FederatedEstimator(base.BaseEstimator):  # type: ignore[misc]  # without the extra it is Any
    """Base of the estimators; their parameters are documented there."""

    def __init__(
        self,
        method: str = "auto",
        *,
        settings: dict[str, Any] | None = None,
        clients: str | int = GROUPS,
        standardize: bool = True,
        random_state: int = 0,
    ) -> None:
        self.method = method
        self.settings = settings
        self.clients = clients
        self.standardize = standardize
        self.random_state = random_state

    # Settings of the method are parameters: method__balance

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters; with `deep` also the method's settings, as ``method__NAME``.

        Parameters
        ----------
        deep
            Whether to return the method's settings too.
        """
        found: dict[str, Any] = super().get_params(deep=False)
        if deep and isinstance(self.method, str) and self.method in method_names():
            known = {p.name: p.default for p in parameters(find_method(self.method))}
            chosen = {**known, **(self.settings or {})}
            found |= {_PREFIX + name: value for name, value in chosen.items()}
        return found

    def set_params(self, **params: Any) -> Self:
        """Set parameters, and settings of the method as ``method__NAME``."""
        inner = {key: params.pop(key) for key in list(params) if key.startswith(_PREFIX)}
        # The method first: the settings are its own.
        for key, value in params.items():
            if key not in super().get_params(deep=False):
                raise ValueError(
                    f"{key}: expected one of {', '.join(super().get_params(deep=False))}, or a "
                    f"setting of the method such as {_PREFIX}ridge"
                )
            setattr(self, key, value)
        if inner:
            known = {p.name for p in parameters(find_method(self.method))}
            settings = dict(self.settings or {})
            for key, value in inner.items():
                name = key.removeprefix(_PREFIX)
                if name not in known:
                    raise ValueError(
                        f"{key}: expected a setting of {self.method} ({', '.join(sorted(known))})"
                    )
                settings[name] = value
            self.settings = settings
        return self

    def _data(self, x: Array, y: Array, groups: Any, **more: Any) -> Dataset:
        """Return a data set whose samples are all for training."""
        return Dataset(
            x,
            y,
            client=None if groups is None else names(groups, "groups", len(x)),
            split=np.full(len(x), TRAIN),
            standardize=bool(self.standardize),
            **more,
        )

    def _fit(self, data: Dataset) -> Result:
        """Fit the method on a data set whose samples are all for training."""
        plan = PartitionPlan(partition="given", seed=int(self.random_state))
        if data.client is None:
            if self.clients == GROUPS:
                raise ValueError(
                    "groups: expected the client of each sample, got none; use fit(X, y, "
                    "groups=client_ids), with metadata routing set_fit_request(groups=True), or "
                    f"{type(self).__name__}(clients=5) to draw 5 clients at random"
                )
            plan = PartitionPlan(
                partition="iid", clients=self._drawn(len(data)), seed=int(self.random_state)
            )
        method = create_method(self.method, self.settings)
        federated = federate(data, plan)
        return run(
            method,
            federated,
            name=self.method,
            seed=int(self.random_state),
            metrics=Metrics(global_test=False),
            progress=False,
        )

    def _drawn(self, samples: int) -> int:
        if isinstance(self.clients, bool) or not isinstance(self.clients, int | np.integer):
            raise ValueError(
                f"clients: expected 'groups' or a number of clients, got {self.clients!r}"
            )
        return max(1, min(int(self.clients), samples))

    def _keep(self, result: Result, *, calibrate: bool) -> None:
        """Keep the models, which must not refer to the training samples."""
        models = {name: result.models[name] for name in result.models}
        shared = result.shared_model
        if calibrate:
            models = {name: model.calibrated() for name, model in models.items()}
            shared = shared and shared.calibrated()
        self.models_ = {name: model.alone() for name, model in models.items()}
        self.shared_model_ = shared and shared.alone()
        self.clients_ = np.array(sorted(self.models_))

    def _validated(self, X: Any) -> Array:  # noqa: N803  # as everywhere in scikit-learn
        validation.check_is_fitted(self, "models_")
        x: Array = validation.validate_data(self, X, reset=False)
        return x

    def _by_client(self, x: Array, groups: Any) -> Iterator[tuple[Model, Integers]]:
        """Yield each model with the rows that it predicts; unknown clients get the shared one."""
        with value_errors():
            wanted = np.full(len(x), "") if groups is None else names(groups, "groups", len(x))
        owners = np.array([str(name) for name in wanted.tolist()])
        known = np.isin(owners, self.clients_) if groups is not None else np.zeros(len(x), bool)
        if not known.all():
            if self.shared_model_ is None:
                raise ValueError(
                    f"groups: {self.method} has no shared model for unknown clients; expected "
                    "clients of the training samples, or another method"
                )
            yield self.shared_model_, np.flatnonzero(~known)
        for name in np.unique(owners[known]):
            yield self.models_[name], np.flatnonzero(known & (owners == name))

    def _scores(self, X: Any, groups: Any, width: int, what: str) -> Floats:  # noqa: N803
        x = self._validated(X)
        found = np.zeros((len(x), width))
        for model, rows in self._by_client(x, groups):
            found[rows] = getattr(model, what)(x[rows])
        return found
