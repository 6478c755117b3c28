"""Invariants of methods ("laws"): each law is a function that raises `LawError` if broken.

Some laws apply only to closed-form methods: those whose shared value has a provenance, the digest
of the totals.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from fedgram.checks.federations import (
    ReversedReplies,
    federated,
    partitioned,
    trainable,
    with_random_test_data,
)
from fedgram.core import codec
from fedgram.core.shared import provenance
from fedgram.engines.in_process import InProcess
from fedgram.errors import FedgramError, LawError
from fedgram.experiments.result import Result
from fedgram.experiments.runner import run
from fedgram.federation.client import Client, Site
from fedgram.federation.federated_dataset import FederatedDataset
from fedgram.federation.method import Method, same_model
from fedgram.federation.shared import tuned_settings
from fedgram.federation.step import declared_steps

REPARTITIONS = tuple((p, k) for p in ("iid", "dirichlet", "shards") for k in (1, 7, 40))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one law: "kept", "broken" or "does not apply"."""

    law: str
    outcome: str
    detail: str = ""


def check(method: Method[Any]) -> Iterator[Finding]:
    """Check every law on a method.

    Examples
    --------
    >>> from fedgram.methods.afl import AFL
    >>> {finding.outcome for finding in check(AFL())}
    {'kept'}
    """
    solved: bool | None = None
    whole, method = method, method.shortened(search=False)
    for law in LAWS:
        name = law.__name__.replace("_", " ")
        try:
            if law in SOLVED_LAWS and solved is None:
                solved = stands_on_totals(method)
            if law in SOLVED_LAWS and not solved:
                yield Finding(law=name, outcome="does not apply")
                continue
            # The search for a rate takes most of the time, and could use test data by mistake.
            law(whole.shortened() if law is test_data_do_not_matter else method)
        except Exception as error:
            first = str(error).split("\n", 1)[0]
            kind = "" if isinstance(error, FedgramError) else f"{type(error).__name__}: "
            yield Finding(law=name, outcome="broken", detail=kind + first)
        else:
            yield Finding(law=name, outcome="kept")


def stands_on_totals(method: Method[Any]) -> bool:
    """Whether the shared value has a provenance: its digest is independent of the partition.

    This is not so if settings are selected by leave-one-out, which depends on the partition.
    """
    shared = run(method.shortened(search=False), partitioned(clients=3)).shared
    has_provenance = shared is not None and provenance(shared) != codec.digest(shared)
    tuned = tuned_settings(shared)
    return has_provenance and (tuned is None or tuned.invariant)


def same_seed_same_bytes(method: Method[Any]) -> None:
    """Two runs of the same method in one process give the same bytes."""
    _demand(
        _outcome(method, partitioned()) == _outcome(method, partitioned()), "a second run differs"
    )


def order_of_clients_and_number_of_workers_do_not_matter(method: Method[Any]) -> None:
    """The order of the sites and the number of workers change no bit."""
    expected, reordered = _outcome(method, partitioned()), partitioned()
    reordered = replace(reordered, members=[*reordered.members[3:], *reordered.members[2::-1]])
    for workers in (1, 2, 3):
        same = _outcome(method, reordered, workers=workers) == expected
        _demand(same, f"another order with {workers} workers differs")


def personalizing_changes_nothing(method: Method[Any]) -> None:
    """Personalizing changes neither state nor shared value, and is repeatable."""
    federation = partitioned()
    engine = InProcess(federation.members)
    *_, shared = method.fit(engine)

    def state_digest() -> str:
        return codec.digest([shared, [dict(site.state) for site in federation.members]])

    before = state_digest()
    first, again = _personal(method, engine, shared), _personal(method, engine, shared)
    unchanged = state_digest() == before
    _demand(unchanged, "personalize changed the client's state or the shared value")
    _demand(first == again, "personalizing again gives another model")
    if same_model(method):
        alike = len(set(first.values())) == 1
        _demand(alike, "the models of clients differ, though declared with @for_all_clients")


def test_data_do_not_matter(method: Method[Any]) -> None:
    """Other test samples change neither the shared value nor any model."""
    original = partitioned(holdout_clients=2)
    same = _outcome(method, with_random_test_data(original)) == _outcome(method, original)
    _demand(same, "other test data give other models: the method uses test data")


def tiny_and_one_sided_clients_work(method: Method[Any]) -> None:
    """A client of one sample, of one class, or without some class gets a usable model."""
    everything, codes = trainable(), trainable().labels.codes
    parts = {
        "one-sample": everything.take([0]),
        "one-class": everything.take(np.flatnonzero(codes == 3)[:9]),
        "no-nine": everything.take(np.flatnonzero(codes != 9)[10:]),
    }
    result = run(method, federated(parts))
    for client in parts:
        _demand(_usable(result, client), f"client {client} has no usable model")


def late_clients_get_a_model_and_change_no_other(method: Method[Any]) -> None:
    """A client without training and state gets a model, and changes no other model."""
    everything = trainable()
    parts = {name: everything.take(slice(k, None, 4)) for k, name in enumerate("abcd")}
    late = run(method, federated(parts, holdout="d"))
    without = run(method, federated({name: parts[name] for name in "abc"}))
    _demand(_usable(late, "d"), "the late client has no usable model")
    same = (late.shared_digest, late.model_digest) == (without.shared_digest, without.model_digest)
    _demand(same, "a client that took no part changed the others' models")


def parameters_are_frozen(method: Method[Any]) -> None:
    """A method is a frozen, keyword-only dataclass with a docstring."""
    kind = type(method)
    settings = getattr(kind, "__dataclass_params__", None)
    _demand(bool(settings and settings.frozen), "the method is not a frozen dataclass")
    keywords = all(field.kw_only for field in fields(kind))  # type: ignore[arg-type]
    _demand(keywords, "the method's parameters are not keyword-only")
    doc = inspect.getdoc(kind) or ""
    # The docstring of a dataclass without one is its signature.
    _demand(bool(doc) and not doc.startswith(f"{kind.__name__}("), "the method has no docstring")


def steps_are_declared(method: Method[Any]) -> None:
    """Every step that `fit` asks for is declared with `@step`: a site runs no other."""
    exchanges = run(method, partitioned(clients=3)).record.exchanges
    asked = {exchange.step for exchange in exchanges if exchange.phase == "train"}
    missing = asked - set(declared_steps(type(method)))
    _demand(not missing, f"without @step: {', '.join(sorted(missing))}")


def any_partition_gives_the_same_totals(method: Method[Any]) -> None:
    """The shared digest does not depend on the partition of the same samples."""
    found = {
        run(method, partitioned(partition=partition, clients=clients)).shared_digest
        for partition, clients in REPARTITIONS
    }
    _demand(len(found) == 1, f"{len(found)} different digests over {len(REPARTITIONS)} partitions")


def order_of_replies_does_not_matter(method: Method[Any]) -> None:
    """Replies in the opposite order change no bit."""
    outcomes = []
    for backwards in (False, True):
        engine = InProcess(partitioned().members)
        *_, shared = method.fit(ReversedReplies(engine) if backwards else engine)
        outcomes.append((provenance(shared), _personal(method, engine, shared)))
    _demand(outcomes[0] == outcomes[1], "the opposite order of replies differs")


def rest_may_be_spread_in_any_way(method: Method[Any]) -> None:
    """A client's own model depends on its own samples and on the sum of the others'."""
    everything = trainable()
    own, rest = everything.take(slice(0, 60)), np.arange(60, len(everything))
    by_class = rest[np.argsort(everything.labels.codes[rest], kind="stable")]
    found = set()
    for parts in ([rest], [rest[k::6] for k in range(6)], np.array_split(by_class, 4)):
        others = {f"other{k}": everything.take(part) for k, part in enumerate(parts)}
        # In the order of names the fixed client is sometimes the first, sometimes the last.
        me = "me" if len(parts) % 2 else "you"
        found.add(codec.digest(run(method, federated({**others, me: own})).predictors[me]))
    _demand(len(found) == 1, f"{len(found)} different models of a client whose own data are fixed")


SOLVED_LAWS: tuple[Callable[[Method[Any]], None], ...] = (
    any_partition_gives_the_same_totals,
    order_of_replies_does_not_matter,
    rest_may_be_spread_in_any_way,
)
LAWS: tuple[Callable[[Method[Any]], None], ...] = (
    parameters_are_frozen,
    steps_are_declared,
    same_seed_same_bytes,
    order_of_clients_and_number_of_workers_do_not_matter,
    personalizing_changes_nothing,
    test_data_do_not_matter,
    tiny_and_one_sided_clients_work,
    late_clients_get_a_model_and_change_no_other,
    *SOLVED_LAWS,
)


def _outcome(method: Method[Any], federation: FederatedDataset, **options: Any) -> Any:
    """Return the digests of the shared value and of all models after a run."""
    result = run(method, federation, **options)
    models = {client: codec.digest(model) for client, model in result.predictors.items()}
    return result.shared_digest, result.model_digest, models


def _personal(method: Method[Any], engine: InProcess, shared: Any) -> dict[str, str]:
    """Return the digest of every client's model."""

    def step(_: Site, client: Client, part: Any) -> str:
        return codec.digest(method.personalize(client, part))

    return dict(engine.evaluate(step, shared))


def _usable(result: Result, client: str) -> bool:
    scores = result.predictors[client](trainable().features)
    return scores.shape == (len(trainable()), 10) and bool(np.isfinite(scores).all())


def _demand(kept: bool, otherwise: str) -> None:
    if not kept:
        raise LawError(otherwise)
