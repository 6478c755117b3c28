"""A model from ``config.json`` and ``model.safetensors``: needs NumPy and safetensors only.

This file is a part of an exported model and does not import fedgram. With scikit-learn installed
the model is an estimator of it, for pipelines and metrics.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
except ImportError:
    BaseEstimator = ClassifierMixin = RegressorMixin = None


FORMAT = "fedgram-arrays/1"
RMS_BITS, SQUARE_BITS = 15, 15
TINY = -30.0  # log(log(1 + e^z)) is z to the last digit from here on


CLASSIFIER = () if BaseEstimator is None else (ClassifierMixin, BaseEstimator)
REGRESSOR = () if BaseEstimator is None else (RegressorMixin, BaseEstimator)


class ExportedModel:
    """What classifiers and regressors share: from files to one number per class or output."""

    names = ""  # entry of config.json: "classes" or "outputs"
    folder: str
    stored: bool

    def _load(self) -> None:
        folder = Path(self.folder or Path(__file__).parent)
        config = json.loads((folder / "config.json").read_text("utf-8"))
        if config.get("format") != FORMAT:
            raise ValueError(f"{folder}: expected the format {FORMAT}, got {config.get('format')}")
        if self.names not in config:
            raise ValueError(f"{folder}: expected a model with {self.names}, got another one")
        self._config = config
        self._arrays = load_file(folder / "model.safetensors")
        self.n_features_in_ = config["features"]

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "stored": self.stored}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # the one of the kind of model

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: Any, y: Any = None) -> ExportedModel:  # noqa: ARG002, N803
        """Return the model: it is fitted already."""
        return self

    def _scores(self, x: Any) -> Any:
        rows = self._rows(x)
        scores = np.zeros((len(rows), len(self._config[self.names]))) + self._arrays["shift"]
        for head in self._config["heads"]:
            scores += (self._lifted(rows, head) * head["unit"]) @ self._arrays[
                f"{head['name']}.weights"
            ]
        if "allowed" in self._arrays:
            allowed = self._arrays["allowed"]
            least = scores[:, allowed].min(axis=1, keepdims=True) - 1
            scores[:, ~allowed] = np.minimum(scores[:, ~allowed], least)
        return scores

    def _rows(self, x: Any) -> Any:
        """Return the features on the grid, with the constant."""
        if x.ndim != 2 or x.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X: expected samples by {self.n_features_in_} features, got shape {x.shape}"
            )
        real, grid = x.astype(np.float64), self._config["grid"]
        if not self.stored:
            if not np.isfinite(real).all():
                raise ValueError("X: expected finite numbers")
            real = self._on_grid(real, grid)
        if grid["constant"] is None:
            return real
        return np.hstack([real, np.full((len(real), 1), float(grid["constant"]))])

    def _on_grid(self, real: Any, grid: Any) -> Any:
        if "mean" in self._arrays:
            return self._standardized(real, grid)
        if grid["raw"]:
            return real
        _, exponent = np.frexp(np.abs(real).max(axis=1, initial=0.0))
        scaled = np.ldexp(real, (RMS_BITS - exponent)[:, None])
        whole = np.rint(scaled).astype(np.int64)
        rms = np.sqrt((whole * whole).sum(axis=1) / max(1, real.shape[1]))
        return self._rounded(scaled / np.where(rms > 0, rms * grid["step"], 1.0)[:, None], grid)

    def _standardized(self, real: Any, grid: Any) -> Any:
        standard = (real - self._arrays["mean"]) / self._arrays["deviation"]
        if not grid["bound"]:
            return standard
        standard = np.clip(standard, -grid["clip"], grid["clip"])
        whole = np.rint(np.ldexp(standard, SQUARE_BITS)).astype(np.int64)
        square = np.ldexp((whole * whole).sum(axis=1) / real.shape[1], -2 * SQUARE_BITS)
        anchor = self._config["anchor"]
        size = np.sqrt((square + anchor**2) / (1 + anchor**2))
        rescaled = standard / np.where(size > 0, size, 1.0)[:, None]
        return self._rounded(rescaled / grid["step"], grid)

    def _rounded(self, steps: Any, grid: Any) -> Any:
        bound = grid["bound"]
        return np.clip(np.rint(steps), -bound, bound) if bound else steps

    def _lifted(self, rows: Any, head: Any) -> Any:
        if not head["parts"]:
            return rows
        found = []
        for part in range(head["parts"]):
            signs = self._arrays[f"{head['name']}.signs.{part}"]
            table = self._arrays[f"{head['name']}.table.{part}"]
            place = (rows @ signs.astype(np.float64)).astype(np.int64) + len(table) // 2
            found.append(table.take(place, mode="clip").astype(np.float64))
        if head["constant"] is not None:
            found.append(np.full((len(rows), 1), float(head["constant"])))
        return np.hstack(found)


class ExportedClassifier(ExportedModel, *CLASSIFIER):  # type: ignore[misc]
    """An exported model of classes: predicts, and is not fitted again.

    Parameters
    ----------
    folder
        Holds ``config.json`` and ``model.safetensors``; by default the folder of this file.
    stored
        Whether samples are the integers of a feature file instead of real features.
    """

    names = "classes"

    def __init__(self, folder: str = "", stored: bool = False) -> None:
        self.folder = folder
        self.stored = stored
        self._load()
        self.classes_ = np.array(self._config["classes"])

    def predict(self, X: Any) -> Any:  # noqa: N803  # as scikit-learn calls it
        """Return the class name of each sample; of equal scores the first."""
        return self.classes_[self.decision_function(X).argmax(axis=1)]

    def predict_proba(self, X: Any) -> Any:  # noqa: N803
        """Return the probability of each class, (samples, classes), if they are known."""
        how = self._config["probabilities"]
        if how is None:
            raise AttributeError("this model has scores only; use decision_function")
        scores = self.decision_function(X)
        if how["sharpness"]:
            z = how["sharpness"] * scores
            soft = np.log(np.logaddexp(0.0, np.maximum(z, TINY)))
            scores = np.where(z < TINY, z, soft)
        logits = how["power"] * scores
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        return shares / shares.sum(axis=1, keepdims=True)

    def decision_function(self, X: Any) -> Any:  # noqa: N803
        """Return the score of each class, (samples, classes)."""
        return self._scores(np.asarray(X))


class ExportedRegressor(ExportedModel, *REGRESSOR):  # type: ignore[misc]
    """An exported model of numbers: predicts, and is not fitted again.

    Parameters
    ----------
    folder
        Holds ``config.json`` and ``model.safetensors``; by default the folder of this file.
    stored
        Whether samples are the integers of a feature file instead of real features.
    """

    names = "outputs"

    def __init__(self, folder: str = "", stored: bool = False) -> None:
        self.folder = folder
        self.stored = stored
        self._load()
        self.outputs_ = tuple(self._config["outputs"])

    def predict(self, X: Any) -> Any:  # noqa: N803
        """Return the number of each sample; a row of numbers if there are several outputs."""
        values = self._scores(np.asarray(X))
        return values[:, 0] if values.shape[1] == 1 else values
