"""What runs end with: scores, models, frames and figures."""

from __future__ import annotations

import html
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any, overload

import numpy as np

from fedgram.core.targets import Output
from fedgram.errors import ConfigError, DataError
from fedgram.experiments.figure import Figure, scores_of_clients, write_page
from fedgram.experiments.measures import R2, ScoreWords, score_words
from fedgram.experiments.run_record import DataFrame, RunRecord, flat
from fedgram.experiments.scores import Scored, Scores
from fedgram.features.inputs import Inputs
from fedgram.models.linear import Predictor
from fedgram.models.model import Calibration, Model
from fedgram.runtime.settings import propose
from fedgram.runtime.text import MISSING, percent

SHOWN = {  # accuracies in the text of a result, with their words
    "client_mean": "client mean",
    "worst_decile": "worst 10 %",
    "global_test": "global test",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelInputs:
    """What the models of a run have in common.

    Parameters
    ----------
    inputs
        What turns arrays into features.
    labels
        The class labels.
    calibrate
        Computes the calibration of the scores, at the first call.
    outputs
        The outputs of a regression.
    """

    inputs: Inputs
    labels: tuple[Any, ...]
    calibrate: Callable[[], Calibration]
    outputs: tuple[Output, ...] = ()


class Models(Mapping[str, Model]):
    """The models of all clients, by client.

    Parameters
    ----------
    method
        Name of the method.
    predictors
        The predictor of each client.
    common
        What the models have in common.
    """

    def __init__(
        self, method: str, predictors: Mapping[str, Predictor], common: ModelInputs
    ) -> None:
        self._method = method
        self._predictors = predictors
        self._common = common

    def __getitem__(self, client: str) -> Model:
        client = str(client)  # also of clients that were given as numbers
        if client not in self._predictors:
            raise KeyError(f"no client {client!r}; {propose(client, self._predictors)}")
        return self.of(self._predictors[client], client)

    def of(self, predictor: Predictor, client: str) -> Model:
        """Return a predictor as a model.

        Parameters
        ----------
        predictor
            The predictor.
        client
            The name of its client.
        """
        return Model(
            predictor=predictor,
            inputs=self._common.inputs,
            labels=self._common.labels,
            client=client,
            method=self._method,
            outputs=self._common.outputs,
            calibrate=self._common.calibrate,
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._predictors)

    def __len__(self) -> int:
        return len(self._predictors)

    def __repr__(self) -> str:
        names = list(self._predictors)
        shown = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
        return f"Models({self._method}: {len(names)} clients: {shown})"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Result:
    """What a run ends with.

    Parameters
    ----------
    method
        Its name.
    chosen, last
        The round whose models are the result, and the last one.
    predictors
        The result: every client's model, as a function from features to scores.
    holdout
        Scores of clients that took no part in training, if there are any.
    record
        The run as it is recorded.
    seed
        Seed of the partition and of the method's random numbers.
    common
        What the models have in common.
    shared_predictor
        Returns the predictor of a client without samples, or None.

    Examples
    --------
    >>> import fedgram as fg
    >>> result = fg.run("afl", fg.federate(fg.load_dataset("digits")))
    >>> result
    Result(afl: 20 clients, client mean 93.7 %, worst 10 % 80.1 %, global test 93.6 %)
    >>> result.method, result.rounds, len(result.models), round(result.accuracy["sample_mean"], 2)
    ('afl', 1, 20, 0.94)
    """

    method: str
    chosen: Scored
    last: Scored
    predictors: Mapping[str, Predictor]
    holdout: Scores | None
    record: RunRecord
    seed: int = 0
    common: ModelInputs | None = None
    shared_predictor: Callable[[], Any] = lambda: None

    @property
    def rounds(self) -> int:
        """Number of rounds that were run."""
        return self.last.round

    @property
    def scores(self) -> Scores:
        """Scores of the chosen round."""
        return self.chosen.scores

    @property
    def shared(self) -> Any:
        """What was shared after the chosen round."""
        return self.chosen.shared

    @property
    def models(self) -> Mapping[str, Any]:
        """The model of each client (`Model`), by the client's name."""
        if self.common is None:  # sites of other origin: only their features are known
            return self.predictors
        return Models(self.method, self.predictors, self.common)

    @property
    def shared_model(self) -> Model | None:
        """The model for clients without samples of their own; None if the method has none."""
        predictor = self.shared_predictor()
        if predictor is None or self.common is None:
            return None
        return Models(self.method, self.predictors, self.common).of(predictor, "")

    @property
    def accuracy(self) -> dict[str, float]:
        """The five accuracies of the table, as fractions."""
        return self.scores.accuracy

    @property
    def shared_digest(self) -> str | None:
        """Digest of the totals behind the shared model; on the grid the same on every machine."""
        return self.scores.shared_digest

    @property
    def model_digest(self) -> str | None:
        """Digest of the set of models; None if the server must not see single models."""
        return self.scores.model_digest

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain numbers and texts, for JSON."""
        return self.record.to_dict()

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame with one row per client: its accuracy and its samples."""
        frame = self.record.clients_frame()
        return frame.drop(columns="run", errors="ignore").assign(seed=self.seed)

    def summary_frame(self) -> DataFrame:
        """Return a pandas DataFrame with one row: settings, accuracies and costs."""
        return self.record.to_frame().assign(seed=self.seed)

    def plot(self) -> Figure:
        """Return a figure of the clients' accuracies, from the worst to the best."""
        return Results([self]).plot()

    def report(self, path: str | Path, *, title: str | None = None) -> Path:
        """Write the report of this run, one HTML file; see `Results.report`."""
        return Results([self]).report(path, title=title)

    def __repr__(self) -> str:
        return f"Result({self.method}: {self._text()})"

    def _text(self) -> str:
        words = [
            f"{word} {percent(value)} %"
            for key, word in SHOWN.items()
            if not isnan(value := self.accuracy[key])
        ]
        errors = self.scores.errors
        if errors is not None:
            words = [f"R2 {word}" for word in words]
            words += [] if isnan(errors.rmse) else [f"RMSE {errors.rmse:.4g}"]
        return ", ".join([f"{self.scores.tally.clients} clients", *words])

    def _repr_html_(self) -> str:
        return Results([self])._repr_html_()


class Results(Sequence[Result]):
    """The results of several runs: of some methods, of some seeds, or both.

    Examples
    --------
    >>> import fedgram as fg
    >>> digits = fg.federate(fg.load_dataset("digits"), clients=5, partition="iid")
    >>> results = fg.run(["local", "afl"], digits, seeds=[0, 1])
    >>> results
    Results(4 runs:
        local, 2 seeds: client mean 92.6 % ± 0.5
        afl, 2 seeds: client mean 94.1 % ± 0.8)
    >>> len(results.of("afl")), results.of("afl").accuracy["client_mean"] > 0.9
    (2, True)
    """

    def __init__(self, results: Sequence[Result]) -> None:
        self._results = tuple(results)

    @overload
    def __getitem__(self, place: int) -> Result: ...
    @overload
    def __getitem__(self, place: slice) -> Results: ...
    def __getitem__(self, place: int | slice) -> Result | Results:
        if isinstance(place, slice):
            return Results(self._results[place])
        if isinstance(place, str):
            raise TypeError(f"results are listed by place; expected results.of({place!r})")
        return self._results[place]

    def __len__(self) -> int:
        return len(self._results)

    @property
    def methods(self) -> list[str]:
        """The names of the methods, each once."""
        return list(dict.fromkeys(result.method for result in self._results))

    def of(self, method: str) -> Results:
        """Return the results of one method."""
        if method not in self.methods:
            raise ConfigError(f"method = {method!r}: no result; {propose(method, self.methods)}")
        return Results([result for result in self._results if result.method == method])

    @property
    def accuracy(self) -> dict[str, float]:
        """The five accuracies, as means over the seeds of one method."""
        return self._over_seeds(np.mean)

    @property
    def deviation(self) -> dict[str, float]:
        """Standard deviations over the seeds of one method."""
        return self._over_seeds(_deviation)

    def _over_seeds(self, over: Callable[[Any], Any]) -> dict[str, float]:
        if len(self.methods) != 1:
            raise DataError(
                f"expected results of one method, got {len(self.methods)}; use "
                f"results.of({self.methods[0]!r})"
                if self.methods
                else "expected results of one method, got none"
            )
        if len(groups := self._by_settings()) > 1:
            raise DataError(
                f"expected results of one method with the same settings, got {', '.join(groups)}; "
                "use results[0], results[1], ..."
            )
        found = [result.accuracy for result in self._results]
        return {key: float(over([each[key] for each in found])) for key in found[0]}

    def _by_settings(self) -> dict[str, Results]:
        """Return the results of each method; with other settings it is another one."""
        found: dict[str, list[Result]] = {}
        for name in self.methods:
            some = [result for result in self._results if result.method == name]
            given = [flat(result.record.parameters) for result in some]
            first = given[0]
            changed = [key for key in first if any(one.get(key) != first[key] for one in given)]
            for result, values in zip(some, given, strict=True):
                shown = ", ".join(f"{key}={values.get(key)}" for key in changed)
                found.setdefault(f"{name} ({shown})" if shown else name, []).append(result)
        return {label: Results(some) for label, some in found.items()}

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame with one row per client, method and seed."""
        return _concatenated([result.to_frame() for result in self._results])

    def summary_frame(self) -> DataFrame:
        """Return a pandas DataFrame with one row per run: settings, accuracies and costs."""
        return _concatenated([result.summary_frame() for result in self._results])

    def plot(self) -> Figure:
        """Return a figure of the clients' accuracies with each method, from the worst to the best.

        Clients of all seeds are drawn together.
        """
        accuracies: dict[str, list[float]] = {}
        for label, some in self._by_settings().items():
            accuracies[label] = [
                accuracy
                for result in some
                for accuracy in result.record.chosen.by_client().values()
            ]
        if not any(accuracies.values()):
            raise DataError("plot: expected scores of single clients, but only sums are known")
        return scores_of_clients(accuracies, self._score.one)

    def report(self, path: str | Path, *, title: str | None = None) -> Path:
        """Write the report of these runs, as ``fedgram report`` does: one HTML file.

        Parameters
        ----------
        path
            The file, whose name ends with ``.html``.
        title
            Title of the page; by default what the runs have in common.
        """
        return write_page([result.record for result in self], path, title)

    @property
    def _score(self) -> ScoreWords:
        return score_words(numbers=any(result.scores.errors is not None for result in self))

    def __repr__(self) -> str:
        groups = self._by_settings()
        lines = [f"\n    {label}{some._text()}" for label, some in groups.items()]
        return f"Results({len(self)} runs:{''.join(lines)})"

    def _text(self) -> str:
        mean, spread = self.accuracy["client_mean"], self.deviation["client_mean"]
        seeds = f", {len(self)} seeds" if len(self) > 1 else ""
        plus = f" ± {percent(spread)}" if len(self) > 1 else ""
        r2 = "R2 " if self._score is R2 else ""
        return f"{seeds}: {r2}client mean {percent(mean)} %{plus}"

    def _repr_html_(self) -> str:
        r2 = "R2 " if self._score is R2 else ""
        head = "".join(f"<th>{r2}{word}, %</th>" for word in SHOWN.values())
        rows = []
        for name, some in self._by_settings().items():
            mean, spread = some.accuracy, some.deviation
            cells = []
            for key in SHOWN:
                text = MISSING if isnan(mean[key]) else percent(mean[key])
                cells.append(text + (f" ± {percent(spread[key])}" if len(some) > 1 else ""))
            inner = "".join(f"<td>{cell}</td>" for cell in (html.escape(name), *cells))
            rows.append(f"<tr>{inner}</tr>")
        return f"<table><tr><th>method</th>{head}</tr>{''.join(rows)}</table>"


def _deviation(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _concatenated(frames: Sequence[DataFrame]) -> DataFrame:
    return importlib.import_module("pandas").concat(frames, ignore_index=True)
