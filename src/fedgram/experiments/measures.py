"""The metrics and costs of a run: their names, their order and their number formats.

The command line, the report and studies all take names and formats from here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedgram.errors import ConfigError
from fedgram.experiments.run_record import RoundRecord, RunRecord
from fedgram.runtime.settings import propose
from fedgram.runtime.text import compact, percent, quantity, seconds, size, thousands

Text = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """Names and format of one metric or cost.

    Parameters
    ----------
    short
        Column header.
    meaning
        Explanation of the column.
    label
        Full name, for a table of results.
    text
        Formats one number.
    abbreviated
        For a terminal of 80 columns, where `short` is too long.
    """

    short: str
    meaning: str
    label: str
    text: Text = percent
    abbreviated: str | None = None

    @property
    def header(self) -> str:
        r"""Header of a narrow column, in two lines.

        Examples
        --------
        >>> ACCURACIES["global_test"].header, ACCURACIES["balanced"].header
        ('global\ntest', 'bal.\nacc.')
        """
        return (self.abbreviated or self.short).replace(" ", "\n", 1)


@dataclass(frozen=True, kw_only=True)
class CostAxis:
    """Names and format of an axis against which accuracy is plotted, round by round."""

    short: str
    label: str
    text: Text


ACCURACIES: Mapping[str, Quantity] = {
    "client_mean": Quantity(
        short="client mean",
        meaning="mean over clients of the accuracy on their own test samples",
        label="client-mean accuracy",
    ),
    "sample_mean": Quantity(
        short="sample mean",
        meaning="the same, clients weighted by their number of test samples",
        label="sample-mean accuracy",
    ),
    "worst_decile": Quantity(
        short="worst 10 %",
        meaning="mean of the lowest tenth of the clients",
        label="accuracy of the worst 10 % of clients",
    ),
    "global_test": Quantity(
        short="global test",
        meaning="each client's model on the test samples of all clients",
        label="accuracy on the test samples of all clients",
    ),
    "balanced": Quantity(
        short="balanced",
        meaning="mean over classes",
        label="class-balanced accuracy",
        abbreviated="bal. acc.",
    ),
}
R2S: Mapping[str, Quantity] = {  # in place of accuracies, for the numbers of a regression
    "client_mean": Quantity(
        short="client mean",
        meaning="mean over clients of the R2 on their own test samples",
        label="client-mean R2",
    ),
    "sample_mean": Quantity(
        short="sample mean",
        meaning="the test samples of all clients together, each with its client's own model",
        label="R2 over the test samples of all clients together",
    ),
    "worst_decile": Quantity(
        short="worst 10 %",
        meaning="mean of the lowest tenth of the clients",
        label="R2 of the worst 10 % of clients",
    ),
    "global_test": Quantity(
        short="global test",
        meaning="each client's model on the test samples of all clients",
        label="R2 on the test samples of all clients",
    ),
}
ERRORS: Mapping[str, Quantity] = {  # of a regression
    "rmse": Quantity(
        short="RMSE",
        meaning="root mean squared error over all test samples, in the units of the outputs",
        label="RMSE over all test samples",
        text="{:.4g}".format,
    ),
    "mae": Quantity(
        short="MAE",
        meaning="mean absolute error over all test samples, in the units of the outputs",
        label="MAE over all test samples",
        text="{:.4g}".format,
    ),
}


@dataclass(frozen=True, kw_only=True)
class ScoreWords:
    """What a score is called: one, several, and the difference of two.

    Examples
    --------
    >>> R2.Many, score_words(numbers=False).one
    ('R2 values', 'accuracy')
    """

    one: str
    many: str
    difference: str
    quantities: Mapping[str, Quantity]

    @property
    def One(self) -> str:  # noqa: N802  # as it begins a sentence
        """The word at the beginning of a sentence."""
        return self.one[0].upper() + self.one[1:]

    @property
    def Many(self) -> str:  # noqa: N802
        """The plural at the beginning of a sentence."""
        return self.many[0].upper() + self.many[1:]


ACCURACY = ScoreWords(
    one="accuracy", many="accuracies", difference="percentage points", quantities=ACCURACIES
)
R2 = ScoreWords(one="R2", many="R2 values", difference="points", quantities=R2S)


def score_words(*, numbers: bool) -> ScoreWords:
    """Return what the score of numbers, or of classes, is called."""
    return R2 if numbers else ACCURACY


AUROC = Quantity(
    short="macro AUROC", meaning="on each client's own test samples", label="macro AUROC"
)
SCORES: Mapping[str, Quantity] = {**ACCURACIES, "auroc": AUROC}
NEW_CLIENTS = "new_clients"
_STUDIED: Mapping[str, Quantity] = {  # the scores that a study may show
    **SCORES,
    NEW_CLIENTS: Quantity(
        short="new clients",
        meaning="mean over clients that took no part in training",
        label="client-mean accuracy of clients that came after the training",
    ),
}
_NEW_NUMBERS = Quantity(
    short="new clients",
    meaning="mean over clients that took no part in training",
    label="client-mean R2 of clients that came after the training",
)
COSTS: Mapping[str, Quantity] = {
    "bytes": Quantity(
        short="bytes",
        meaning="per client, training and delivery",
        label="bytes per client, up and down",
        text=size,
    ),
    "bytes_up": Quantity(
        short="bytes up",
        meaning="per client, training and delivery",
        label="bytes per client, up",
        text=size,
    ),
    "bytes_down": Quantity(
        short="bytes down",
        meaning="per client, training and delivery",
        label="bytes per client, down",
        text=size,
    ),
    "flops": Quantity(
        short="FLOPs",
        meaning="of fitting and personalizing",
        label="FLOPs of fitting and personalizing",
        text=quantity,
    ),
    "seconds": Quantity(
        short="time",
        meaning="of fitting and personalizing, without scoring",
        label="seconds of fitting and personalizing",
        text=seconds,
    ),
}
COST_AXES: Mapping[str, CostAxis] = {
    "rounds": CostAxis(short="rounds", label="rounds of communication", text=compact),
    "exchanges": CostAxis(short="exchanges", label="exchanges with clients", text=compact),
    "seconds": CostAxis(short="time", label="computation, seconds", text=compact),
    "flops": CostAxis(short="computation", label="computation, FLOPs", text=quantity),
    "bytes": CostAxis(short="communication", label="communication per client, bytes", text=size),
}
RENAMED = {"global": "global_test"}  # names of measures before record format 2


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One metric or cost of a run, as shown in a table of results.

    Parameters
    ----------
    name
        As in ``table.show``.
    base
        Name of the metric or cost itself, without the ``/METHOD`` of a ratio.
    over
        In a ratio: the row whose cost is 100 %.
    numbers
        Whether runs predict numbers, so that scores are R2.

    Examples
    --------
    >>> measure("client_mean").shown(80.7249, 0.4)
    '80.72 ± 0.40'
    >>> measure("bytes_up").shown(1_420_000, 3_000)
    '1.42 ± 0.00 MB'
    >>> measure("seconds/fedavg").label
    'seconds of fitting and personalizing, in % of fedavg'
    """

    name: str
    base: str
    over: str | None = None
    numbers: bool = False

    @property
    def label(self) -> str:
        if self.over is not None:
            return f"{COSTS[self.base].label}, in % of {self.over}"
        if self.base in _STUDIED:
            return f"{_studied(numbers=self.numbers)[self.base].label} in %"
        return {**ERRORS, **COSTS}[self.base].label

    @property
    def higher_is_better(self) -> bool:
        return self.base in _STUDIED

    def of(self, run: RunRecord, scored: RoundRecord) -> float | None:
        """Return the number of a run at a scored round: a cost, or a score in per cent."""
        if self.base in COSTS:
            cost = scored.summary.cost(self.base)
            return None if cost is None else float(cost)
        if self.base in ERRORS:
            return (scored.summary.errors or {}).get(self.base)
        if self.base == NEW_CLIENTS:  # with the models of the chosen round
            share = run.holdout.summary.score("client_mean") if run.holdout else None
        else:
            share = scored.summary.score(self.base)
        return None if share is None else 100 * share

    def shown(self, mean: float, deviation: float | None = None) -> str:
        """Return a mean as it is written, with its standard deviation where there is one."""
        if self.base in ERRORS:
            return f"{mean:.4g}" + ("" if deviation is None else f" ± {deviation:.2g}")
        scale, digits, unit = self._scale(mean)
        spread = "" if deviation is None else f" ± {deviation / scale:.{digits}f}"
        return f"{mean / scale:.{digits}f}{spread}{unit}"

    def _scale(self, mean: float) -> tuple[float, int, str]:
        if self.over is not None or self.base in _STUDIED:
            return 1, 2, ""
        if self.base == "seconds":
            return 1, 2 if mean < 100 else 0, ""
        scale, prefix = thousands(mean, largest="T")
        unit = "" if self.base == "flops" else "B"
        return scale, 2 if prefix else 0, f" {prefix}{unit}".rstrip()


def _studied(*, numbers: bool) -> Mapping[str, Quantity]:
    """Return the scores that a study of numbers, or of classes, may show."""
    return {**R2S, NEW_CLIENTS: _NEW_NUMBERS} if numbers else _STUDIED


def measure(name: str, *, numbers: bool = False) -> Measure:
    """Return the measure of this name; ``cost/method`` is a cost in % of that method's.

    Parameters
    ----------
    name
        As in ``table.show``.
    numbers
        Whether runs predict numbers.
    """
    if name in RENAMED:
        warnings.warn(
            f"the measure {name!r} is now called {RENAMED[name]!r}", FutureWarning, stacklevel=2
        )
        name = RENAMED[name]
    base, slash, over = name.partition("/")
    if slash and base in COSTS and over:
        return Measure(name=name, base=base, over=over)
    known = [*_studied(numbers=numbers), *(ERRORS if numbers else ()), *COSTS]
    if slash or base not in known:
        hint = propose(base, [*known, *(f"{cost}/METHOD" for cost in COSTS)])
        kind = " of a regression" if numbers else ""
        raise ConfigError(f"table.show: unknown measure{kind} {name!r}; {hint}")
    return Measure(name=name, base=base, numbers=numbers)
