"""The record of one run, whether it has just ended or is read from its folder."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, TypeVar

from fedgram.errors import ConfigError
from fedgram.experiments.partition_summary import PartitionSummary
from fedgram.federation.protocol import Exchange
from fedgram.runtime.lazy_sequence import LazySequence

Plain = Mapping[str, Any]
DataFrame = Any  # of pandas, which need not be installed
MEMBERS, HOLDOUT = "members", "holdout"
_MOST = 1e30  # of a count or number in a record
Read = TypeVar("Read")
_ERRORS = ("r2", "rmse", "mae")
_FRAME_TABLES = ("data", "grid", "engine", "metrics", "scoring")


def whole(value: Any) -> int:
    """Return a recorded count; raise TypeError for another value."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value < _MOST:
        raise TypeError(f"expected a count, got {str(value)[:100]}")
    return value


def real(value: Any) -> float:
    """Return a recorded number; raise TypeError for another value."""
    if type(value) not in (int, float) or not abs(value) < _MOST:
        raise TypeError(f"expected a number, got {str(value)[:100]}")
    return float(value)


def table(value: Any) -> Plain:
    """Return a recorded table; raise TypeError for another value."""
    if not isinstance(value, Mapping):
        raise TypeError(f"expected a table, got {type(value).__name__}")
    return value


def _shares(value: Any) -> dict[str, float | None]:
    return {str(name): _optional(real, share) for name, share in table(value).items()}


def _optional(read: Callable[[Any], Read], value: Any) -> Read | None:
    return None if value is None else read(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientScore:
    """The scores of one client; only if the server may see individual clients."""

    client: str
    samples: int
    correct: int
    seconds: float = 0.0
    model_digest: str = ""
    valid_samples: int = 0
    valid_correct: int = 0
    r2: float | None = None
    rmse: float | None = None
    mae: float | None = None

    @property
    def accuracy(self) -> float | None:
        """Fraction of the test samples that is correct; None without test samples.

        Of a regression it is R2; None where that is not defined.
        """
        if self.rmse is not None:
            return self.r2
        return self.correct / self.samples if self.samples else None

    def to_dict(self) -> dict[str, Any]:
        """Return the score as plain values; errors of a regression only where there are any."""
        plain = asdict(self)
        if self.rmse is None:
            for name in _ERRORS:
                del plain[name]
        else:  # nothing is correct or wrong
            del plain["correct"], plain["valid_correct"]
        return plain

    @classmethod
    def from_dict(cls, plain: Plain) -> ClientScore:
        """Return the score of a recorded line."""
        return cls(
            client=str(plain["client"]),
            samples=whole(plain["samples"]),
            correct=whole(plain.get("correct", 0) if "rmse" in plain else plain["correct"]),
            seconds=real(plain.get("seconds", 0.0)),
            model_digest=str(plain.get("model_digest", "")),
            valid_samples=whole(plain.get("valid_samples", 0)),
            valid_correct=whole(plain.get("valid_correct", 0)),
            **{name: _optional(real, plain.get(name)) for name in _ERRORS},
        )


@dataclass(frozen=True, kw_only=True)
class TunedSettings:
    """Settings that a method chose for all clients.

    Parameters
    ----------
    settings
        The chosen settings, by name.
    description
        The same in words.
    left_out_accuracy
        Accuracy on left-out samples, of the chosen settings and of others.
    notes
        What else is recorded of the fit; nothing depends on it.
    """

    settings: Plain
    description: str
    left_out_accuracy: Mapping[str, float]
    notes: Plain

    @property
    def pool(self) -> Mapping[str, float]:
        """The models that were pooled, with their weights; empty where nothing was pooled.

        Records of earlier versions name the family of each model and its settings.
        """
        named = self.notes.get("pool")
        if isinstance(named, Mapping):
            return {str(name): float(w) for name, w in named.items() if _is_number(w)}
        parts = self.settings.get("parts")
        listed = parts if isinstance(parts, list) else []
        tables = [part for part in listed if isinstance(part, Mapping)]
        found = {_part_name(t): float(t["weight"]) for t in tables if _is_number(t.get("weight"))}
        if found and _is_number(self.settings.get("prior")):
            found["class prior"] = float(self.settings["prior"])
        return found

    @classmethod
    def from_dict(cls, plain: Plain) -> TunedSettings:
        """Return the settings that `Tuned.to_dict` gave."""
        return cls(
            settings=table(plain["settings"]),
            description=str(plain["description"]),
            left_out_accuracy={str(k): real(v) for k, v in plain["left_out_accuracy"].items()},
            notes=table(plain.get("notes") or {}),
        )


def _part_name(part: Plain) -> str:
    more = [f"{k} {v:g}" for k, v in part.items() if k != "weight" and _is_number(v)]
    family = str(part.get("family", "model"))
    return f"{family} ({', '.join(more)})" if more else family


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


@dataclass(frozen=True, kw_only=True)
class PilotRecord:
    """A short training at one learning rate."""

    rate: float
    outcome: str
    losses: tuple[float, ...] = ()
    error: float | None = None


@dataclass(frozen=True, kw_only=True)
class RateSearchRecord:
    """The learning rate that was found, the reason, and the pilots behind it."""

    rate: float
    reason: str
    pilots: tuple[PilotRecord, ...]

    @classmethod
    def from_dict(cls, plain: Plain) -> RateSearchRecord:
        """Return the search that `RateSearch.to_dict` gave."""
        pilots = [
            PilotRecord(
                rate=real(pilot["rate"]),
                outcome=str(pilot["outcome"]),
                losses=tuple(float(loss) for loss in pilot.get("losses", ())),
                error=None if pilot.get("error") is None else float(pilot["error"]),
            )
            for pilot in plain["pilots"]
        ]
        return cls(rate=real(plain["rate"]), reason=str(plain["reason"]), pilots=tuple(pilots))


@dataclass(frozen=True, kw_only=True)
class ScoreSummary:
    """Scores and costs of a set of clients in one round.

    Parameters
    ----------
    accuracy
        The five accuracies, as fractions; None if no client has test samples.
    valid, auroc
        Accuracy on validation samples, and macro AUROC, where they were computed.
    class_accuracy
        Accuracy within each class, where it was computed.
    clients, untested_clients
        Number of clients, and of those without test samples.
    seconds, flops
        Time and operations of fitting so far and of personalizing now.
    bytes
        "up" and "down" per client so far, with the delivery of what is shared.
    shared_digest, model_digest
        Of the totals behind the shared model, and of the set of models.
    tuned
        Settings that were chosen for all clients, if any were.
    rate_search
        The search for the learning rate, if there was one.
    errors
        RMSE and MAE over all test samples, of a regression, whose accuracies are R2.
    """

    accuracy: Mapping[str, float | None]
    clients: int
    untested_clients: int = 0
    valid: float | None = None
    auroc: float | None = None
    class_accuracy: Mapping[str, float | None] | None = None
    seconds: float | None = None
    flops: int | None = None
    bytes: Mapping[str, int] | None = None
    shared_digest: str | None = None
    model_digest: str | None = None
    tuned: TunedSettings | None = None
    rate_search: RateSearchRecord | None = None
    errors: Mapping[str, float | None] | None = None

    def score(self, name: str) -> float | None:
        """Return one of the accuracies, or the AUROC, as a fraction."""
        return self.auroc if name == "auroc" else self.accuracy.get(name)

    def cost(self, name: str) -> float | None:
        """Return seconds, flops, bytes, bytes_up or bytes_down; None if it is not recorded."""
        if name in ("seconds", "flops"):
            return self.seconds if name == "seconds" else self.flops
        if self.bytes is None:
            return None
        ways = {"bytes": ("up", "down"), "bytes_up": ("up",), "bytes_down": ("down",)}
        return sum(self.bytes[way] for way in ways[name])

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain numbers and texts, for JSON."""
        return {
            "accuracy": dict(self.accuracy),
            "valid": self.valid,
            "auroc": self.auroc,
            "class_accuracy": None if self.class_accuracy is None else dict(self.class_accuracy),
            "clients": self.clients,
            "untested_clients": self.untested_clients,
            "seconds": self.seconds,
            "flops": self.flops,
            "bytes": None if self.bytes is None else dict(self.bytes),
            "shared_digest": self.shared_digest,
            "model_digest": self.model_digest,
            "tuned": asdict(self.tuned) if self.tuned else None,
            "rate_search": _listed(self.rate_search) if self.rate_search else None,
            **({} if self.errors is None else {"errors": dict(self.errors)}),
        }

    @classmethod
    def from_dict(cls, plain: Plain) -> ScoreSummary:
        """Return the summary that `to_dict` gave; an earlier fedgram recorded less."""
        plain["accuracy"]["client_mean"]  # a summary of another program fails here
        bytes_, tuned, search = (plain.get(key) for key in ("bytes", "tuned", "rate_search"))
        return cls(
            accuracy=_shares(plain["accuracy"]),
            clients=whole(plain["clients"]),
            untested_clients=whole(plain.get("untested_clients", 0)),
            valid=_optional(real, plain.get("valid")),
            auroc=_optional(real, plain.get("auroc")),
            class_accuracy=_optional(_shares, plain.get("class_accuracy")),
            seconds=_optional(real, plain.get("seconds")),
            flops=_optional(whole, plain.get("flops")),
            bytes={way: whole(bytes_[way]) for way in ("up", "down")} if bytes_ else None,
            shared_digest=_optional(str, plain.get("shared_digest")),
            model_digest=_optional(str, plain.get("model_digest")),
            tuned=TunedSettings.from_dict(tuned) if tuned else None,
            rate_search=RateSearchRecord.from_dict(search) if search else None,
            errors=_optional(_shares, plain.get("errors")),
        )


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """One scored round of a set of clients.

    ``clients`` is empty where the server may not see single clients.
    """

    round: int
    summary: ScoreSummary
    clients: Sequence[ClientScore] = ()

    def cost(self, axis: str) -> float | None:
        """Return the cost of all rounds so far: the number of rounds, or a cost of the summary."""
        found = self.round if axis == "rounds" else self.summary.cost(axis)
        return None if found is None else float(found)

    def by_client(self) -> dict[str, float]:
        """Return the accuracy of every client that has test samples."""
        found = {row.client: row.accuracy for row in self.clients}
        return {client: score for client, score in found.items() if score is not None}


class RoundCollector:
    """Collects scores as they are written or read: the last one of a client or round counts."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, int], dict[str, ClientScore]] = {}
        self._tables: dict[tuple[str, int], Sequence[ClientScore]] = {}
        self._summaries: dict[tuple[str, int], ScoreSummary] = {}

    def add_client(self, who: str, round_: int, score: ClientScore) -> None:
        self._clients.setdefault((who, round_), {})[score.client] = score

    def add_clients(self, who: str, round_: int, scores: Sequence[ClientScore]) -> None:
        """Add the scores of all clients of a round; without scores, earlier ones stay."""
        if scores:
            lazy = isinstance(scores, LazySequence)
            self._tables[who, round_] = scores if lazy else tuple(scores)

    def add_summary(self, who: str, round_: int, summary: ScoreSummary) -> None:
        self._summaries[who, round_] = summary

    def rounds(self, who: str) -> tuple[RoundRecord, ...]:
        """Return the rounds of a set of clients that have a summary, in order."""
        numbers = sorted(round_ for some, round_ in self._summaries if some == who)
        return tuple(
            RoundRecord(
                round=number,
                summary=self._summaries[who, number],
                clients=self._tables.get((who, number))
                or tuple(self._clients.get((who, number), {}).values()),
            )
            for number in numbers
        )


@dataclass(frozen=True, kw_only=True)
class StepTotal:
    """All exchanges of one step of a run: their number and their total cost.

    ``clients`` is the largest number of clients that answered in one of them.
    """

    step: str
    phase: str
    exchanges: int
    clients: int
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The record of one run.

    Parameters
    ----------
    folder
        Where it is recorded; None if it is not.
    method, parameters, config, versions
        What was run, and with which versions.
    rounds
        The scored rounds of the members, at least one.
    holdout
        The scores of clients that took no part in training, if there are any.
    exchanges
        Every exchange with clients.
    partition
        Number of samples of each class at each client, if it is recorded.

    Examples
    --------
    >>> import fedgram
    >>> data = fedgram.federate(fedgram.load_dataset("digits"))
    >>> record = fedgram.run(fedgram.create_method("afl"), data).record
    >>> record.method, record.finished, len(record.rounds), record.summary.clients
    ('afl', True, 1, 20)
    """

    folder: str | None
    method: str
    parameters: Plain
    config: Plain
    versions: Plain
    rounds: tuple[RoundRecord, ...]
    holdout: RoundRecord | None = None
    exchanges: tuple[Exchange, ...] = ()
    partition: PartitionSummary | None = None

    @property
    def finished(self) -> bool:
        """Whether the run came to its end, which is the delivery of the result."""
        return any(exchange.phase == "deliver" for exchange in self.exchanges)

    @property
    def last(self) -> RoundRecord:
        """The last scored round."""
        return self.rounds[-1]

    @cached_property
    def chosen(self) -> RoundRecord:
        """The first of the rounds that are best on validation samples; without them the last."""
        best = max(self.rounds, key=lambda one: (one.summary.valid or 0.0, -one.round))
        return self.last if best.summary.valid is None else best

    @property
    def summary(self) -> ScoreSummary:
        """The summary of the chosen round."""
        return self.chosen.summary

    @cached_property
    def _exchanges_until(self) -> Mapping[int, int]:
        """Number of exchanges of training before each scored round; empty if it is not recorded.

        Scorings are recorded in the order of the rounds, each after the exchanges before it.
        """
        counts, trained, scoring = [], 0, False
        for exchange in self.exchanges:
            if exchange.phase == "score" and not scoring:
                counts.append(trained)
            scoring = exchange.phase == "score"
            trained += exchange.phase == "train"
        numbers = [one.round for one in self.rounds]
        known = len(counts) - len(numbers) in (0, 1)  # the last scoring may not have ended
        return dict(zip(numbers, counts, strict=False)) if known else {}

    def cost_at(self, one: RoundRecord, axis: str) -> float | None:
        """Return a cost up to one of the rounds; None if it is not recorded."""
        if axis == "exchanges":
            found = self._exchanges_until.get(one.round)
            return None if found is None else float(found)
        return one.cost(axis)

    def step_totals(self) -> list[StepTotal]:
        """Return the exchanges step by step, in the order of the first of each."""
        steps: dict[tuple[str, str], list[Exchange]] = {}
        for exchange in self.exchanges:
            steps.setdefault((exchange.step, exchange.phase), []).append(exchange)
        return [
            StepTotal(
                step=step,
                phase=phase,
                exchanges=len(found),
                clients=max(one.clients for one in found),
                bytes_up=sum(one.bytes_up for one in found),
                bytes_down=sum(one.bytes_down for one in found),
            )
            for (step, phase), found in steps.items()
        ]

    def table(self, name: str) -> Plain:
        """Return one of the tables of the configuration; an empty one where it has none."""
        found = self.config.get(name)
        return found if isinstance(found, Mapping) else {}

    def to_dict(self) -> dict[str, Any]:
        """Return the result of the run as plain numbers and texts, for JSON."""
        return {
            "run": self.folder,
            "method": self.method,
            "finished": self.finished,
            "rounds": self.last.round,
            "chosen": self.chosen.round,
            **self.summary.to_dict(),
            "last": self.last.summary.to_dict(),
            "curve": [_point(one) for one in self.rounds],
            "holdout": self.holdout.summary.to_dict() if self.holdout else None,
        }

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame of one row: settings, scores and costs of the chosen round.

        Rows of several runs go together with ``pandas.concat``.
        """
        summary = self.summary
        settings = {name: self.table(name) for name in _FRAME_TABLES}
        row = {
            "run": self.folder,
            "method": self.method,
            "finished": self.finished,
            "rounds": self.last.round,
            "chosen": self.chosen.round,
            **summary.accuracy,
            **{key: getattr(summary, key) for key in ("auroc", "valid")},
            **(summary.errors or {}),
            **{key: getattr(summary, key) for key in ("clients", "untested_clients")},
            **{key: summary.cost(key) for key in ("seconds", "flops", "bytes_up", "bytes_down")},
            **{key: getattr(summary, key) for key in ("shared_digest", "model_digest")},
            "tuned": summary.tuned.description if summary.tuned else None,
            "rate": summary.rate_search.rate if summary.rate_search else None,
            **flat(settings),
            **flat({"method": self.parameters}),
        }
        return _pandas().DataFrame([row])

    def clients_frame(self) -> DataFrame:
        """Return a pandas DataFrame of one row per client: its score in the chosen round.

        Held-out clients are among them. The frame is empty where the server may not see single
        clients. Sample counts are given where the partition is recorded.
        """
        return _pandas().DataFrame(list(self._client_rows()))

    def _client_rows(self) -> Iterator[dict[str, Any]]:
        counts = {one.client: one for one in self.partition.clients} if self.partition else {}
        measures: tuple[str, ...] = ("accuracy",)
        others = set(_ERRORS)
        if self.summary.errors is not None:  # nothing is correct or wrong
            measures, others = _ERRORS, {"correct", "valid_correct", "train_classes"}
        for who, scored in ((MEMBERS, self.chosen), (HOLDOUT, self.holdout)):
            for score in scored.clients if scored else ():
                known = counts.get(score.client)
                row = {
                    "client": score.client,
                    "method": self.method,
                    **{name: getattr(score, name) for name in measures},
                    "samples": score.samples,
                    "train_samples": sum(known.train) if known else None,
                    "train_classes": known.classes if known else None,
                    "set": who,
                    "round": scored.round if scored else None,
                    **asdict(score),
                    "run": self.folder,
                }
                yield {name: value for name, value in row.items() if name not in others}


def flat(table: Plain, prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one level with dotted names.

    Examples
    --------
    >>> flat({"data": {"clients": 5}, "methods": ["afl"]})
    {'data.clients': 5, 'methods': ['afl']}
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _point(one: RoundRecord) -> dict[str, Any]:
    """Return the numbers of a round that are plotted."""
    drawn = one.summary.to_dict()
    return {
        "round": one.round,
        "accuracy": one.summary.accuracy["client_mean"],
        **{key: drawn[key] for key in ("valid", "seconds", "flops", "bytes")},
    }


def _listed(search: RateSearchRecord) -> dict[str, Any]:
    pilots: Sequence[dict[str, Any]] = [asdict(pilot) for pilot in search.pilots]
    listed = [{**pilot, "losses": list(pilot["losses"])} for pilot in pilots]
    return {**asdict(search), "pilots": listed}


def _pandas() -> Any:
    try:
        return importlib.import_module("pandas")
    except ImportError as error:
        raise ConfigError("data frames need: pip install pandas") from error
