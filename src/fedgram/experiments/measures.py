"""What a table can show of a run, and how it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedgram.errors import ConfigError
from fedgram.runtime.settings import propose

ACCURACIES = {
    "client_mean": "client-mean accuracy",
    "sample_mean": "sample-mean accuracy",
    "worst_decile": "accuracy of the worst tenth of clients",
    "global": "accuracy on everybody's test samples",
    "balanced": "class-balanced accuracy",
    "auroc": "macro AUROC",
}
COSTS = {
    "seconds": "seconds of fitting and personalizing",
    "flops": "operations of fitting and personalizing",
    "bytes": "bytes per client, up and down",
    "bytes_up": "bytes per client, up",
    "bytes_down": "bytes per client, down",
}


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number of a run.

    Parameters
    ----------
    name
        As in ``table.show``.
    base
        The number itself, where `name` says of what it is a share.
    over
        The row whose number is 100 %, in shares.

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

    @property
    def label(self) -> str:
        if self.over is not None:
            return f"{COSTS[self.base]}, in % of {self.over}"
        return f"{ACCURACIES[self.base]} in %" if self.base in ACCURACIES else COSTS[self.base]

    @property
    def higher_is_better(self) -> bool:
        return self.base in ACCURACIES

    def of(self, summary: Mapping[str, Any]) -> float | None:
        """Return the number from the summary of a scored round."""
        if self.base in ("seconds", "flops"):
            cost = summary.get(self.base)
            return None if cost is None else float(cost)
        if self.base in COSTS:
            ways = {"bytes": ("up", "down"), "bytes_up": ("up",), "bytes_down": ("down",)}
            return float(sum(summary["bytes"][way] for way in ways[self.base]))
        share = summary["auroc"] if self.base == "auroc" else summary["accuracy"][self.base]
        return None if share is None else 100 * share

    def shown(self, mean: float, deviation: float | None = None) -> str:
        """Return a mean as it is written, with its standard deviation where there is one."""
        scale, digits, unit = self._scale(mean)
        spread = "" if deviation is None else f" ± {deviation / scale:.{digits}f}"
        return f"{mean / scale:.{digits}f}{spread}{unit}"

    def _scale(self, mean: float) -> tuple[float, int, str]:
        if self.over is not None or self.base in ACCURACIES:
            return 1, 2, ""
        if self.base == "seconds":
            return 1, 2 if mean < 100 else 0, ""
        unit = "" if self.base == "flops" else "B"
        for letter, size in (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9)):
            if mean < 999.5 * size:
                return size, 2 if letter else 0, f" {letter}{unit}".rstrip()
        return 1e12, 2, f" T{unit}"


def measure(name: str) -> Measure:
    """Return the measure of this name; ``cost/method`` is a cost in % of that method's."""
    base, slash, over = name.partition("/")
    if slash and base in COSTS and over:
        return Measure(name=name, base=base, over=over)
    if slash or base not in ACCURACIES | COSTS:
        hint = propose(base, [*ACCURACIES, *COSTS, *(f"{cost}/METHOD" for cost in COSTS)])
        raise ConfigError(f"table.show: {name!r} is not known; {hint}")
    return Measure(name=name, base=base)
