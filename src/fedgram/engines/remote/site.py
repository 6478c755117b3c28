"""A site's side of the protocol. Each request is answered alone; all state is on the site's disk.

A transport may start a new process for every request. The site therefore stores the method's state,
its last answers (a repeated request gets the same answer, and is counted once), statistics, which
take time to compute, and personal models, which never leave the site.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from fedgram.core import codec
from fedgram.core.compression import client_label, compress, expand
from fedgram.core.samples import NO_SPACE, Features, Labels, Samples
from fedgram.core.sound import require_sound
from fedgram.core.targets import outputs_named
from fedgram.engines.protocol import SCORING, client_rng
from fedgram.engines.remote.messages import (
    Answer,
    Delivery,
    Greeting,
    Refusal,
    Request,
    ScoreRequest,
    Terms,
    read_request,
    request_digest,
)
from fedgram.engines.remote.policy import REFUSALS, AnswerRecord, SitePolicy, log_refusal
from fedgram.engines.remote.recorded_state import RecordedState
from fedgram.engines.remote.secure_site import Kept, SecureRounds, nothing
from fedgram.engines.remote.site_store import SiteStore
from fedgram.engines.remote.validation import require_possible
from fedgram.errors import DataError, FedgramError, MismatchError, PrivacyError
from fedgram.federation.client import Client, Site
from fedgram.federation.method import names
from fedgram.federation.scoring import ScoreTask
from fedgram.federation.shared import Published
from fedgram.federation.step import named_step
from fedgram.runtime import files, flops
from fedgram.runtime.version import own_version
from fedgram.secure.messages import ProtocolError, Signer

SCORE = "score"  # name of the step that scores models
# Requests whose answers depend on the samples, and are counted; `SecureRounds` counts its own. The
# answer to a delivery has no value, but whether a model can be made may depend on the samples.
_COUNTED = ("step", "score", "deliver")
# Requests of a secure sum that follow another one, for which the samples were checked.
_LATER = ("shares", "confirm", "reveal")
_ONE_DAY = 86_400.0  # seconds after which the secrets of an unfinished secure sum are erased
# What a server reads of an error in a secure run; the reason stays in a log at the site.
_UNDISCLOSED: dict[type[FedgramError], str] = {
    PrivacyError: "the rules of this site do not allow it",
    MismatchError: "this site does not agree with the terms",
    DataError: "the request, or the samples or files of this site, cannot be used",
    FedgramError: "this site cannot compute the answer",
}


class SiteEndpoint:
    """Answers requests on behalf of one site.

    Parameters
    ----------
    name
        Name of the site.
    site
        Returns the site's samples on its grid; called when they are needed.
    grid
        Settings of that grid.
    folder
        Folder for the site's state.
    accept
        Requests that the site accepts.
    signer
        Signs for the site in secure sums, and knows the keys that are pinned; None in a simulation.
    federation
        Digest that names the federation; empty to accept any.
    """

    def __init__(
        self,
        name: str,
        site: Callable[[], Site],
        *,
        grid: dict[str, Any],
        folder: Path,
        accept: SitePolicy,
        signer: Signer | None = None,
        federation: str = "",
    ) -> None:
        self._name = name
        self._site = site
        self._grid = grid
        self._folder = folder
        self._accept = accept
        self._signer = signer
        self._federation = federation
        self._record = AnswerRecord(folder)

    def answer(self, content: bytes) -> bytes:
        """Return the answer to a request, or a refusal with its reason; nothing is raised."""
        to = request_digest(content)
        try:
            content = expand(content)
            to = request_digest(content)
            request = read_request(content)
            require_sound(request, "request")
            self._agree(request.terms)
            store = SiteStore(self._folder, request.terms.run)
        except Exception as error:  # about what the server has sent, not about samples
            return self._refusal(to, error, secure=False)
        answer = self._answer(request, to, store)
        terms = request.terms  # under masks, a length must not depend on the samples
        if terms.secure or not terms.compress or request.kind == "greet":
            return answer
        return compress(answer, label=client_label(self._name))

    def _answer(self, request: Request, to: str, store: SiteStore) -> bytes:
        try:
            site = cache(self._site)
            if request.kind == "greet":
                self._permit(request, site)
                return self._answered(request, to, store, site)
            with store.exclusive():
                store.end_sums(older_than=_ONE_DAY)
                self._permit(request, site)
                known = store.answer(request.serial, request.kind, to)
                if known is not None and self._is_current(request, store, site):
                    return known
                return self._answered(request, to, store, site)
        except Exception as error:  # the server learns the reason instead of waiting
            return self._refusal(to, error, secure=request.terms.secure)

    def _refusal(self, to: str, error: Exception, *, secure: bool) -> bytes:
        """Return a refusal; in a secure run with a text that does not depend on the samples."""
        own = isinstance(error, FedgramError)
        kind, text = type(error).__name__, str(error) if own else f"{type(error).__name__}: {error}"
        if secure and not isinstance(error, ProtocolError):
            with suppress(Exception):  # a full disk must not change the answer
                log_refusal(self._folder, f"{kind}: {text}")
            found = next((k for k in _UNDISCLOSED if isinstance(error, k)), FedgramError)
            kind = found.__name__
            text = f"{_UNDISCLOSED[found]}; the reason is in {REFUSALS} at the site"
        return codec.encode(Refusal(client=self._name, request_digest=to, error=kind, text=text))

    def _answered(
        self, request: Request, to: str, store: SiteStore, site: Callable[[], Site]
    ) -> bytes:
        before = flops.total()
        value, keep = self._value(request, store, site)
        # The number of operations tells the number of samples.
        operations = 0 if request.terms.secure else flops.total() - before
        answer = codec.encode(
            Answer(client=self._name, request_digest=to, value=value, flops=operations)
        )
        keep()
        if request.kind != "greet":
            store.keep_answer(request.serial, request.kind, to, answer)
        return answer

    def _is_current(self, request: Request, store: SiteStore, site: Callable[[], Site]) -> bool:
        """Whether a stored answer is about the samples that the site has now."""
        if request.kind in _LATER:  # without samples
            return True
        return store.has_samples(fingerprint(site(), reserve_valid=False))

    def _permit(self, request: Request, site: Callable[[], Site]) -> None:
        """Raise unless this site's policy allows a request. Every request passes this function.

        The members of a secure sum are known later: `SecureRounds` checks them.
        """
        terms, policy = request.terms, self._accept
        policy.require_terms(terms.method, secure=terms.secure)
        if terms.secure and request.kind in ("step", "score"):
            raise ProtocolError(f"a {request.kind} was requested without masks, in a secure run")
        if not terms.secure and request.kind in ("keys", "masked", *_LATER):
            raise MismatchError(
                f"{request.kind} is a round of a secure sum, and this run is not secure"
            )
        if request.kind not in _LATER:
            policy.require_samples(len(site().train) + len(site().valid))

    def _count(self, request: Request) -> None:
        """Count an answer that depends on the samples; raise at the limit of the policy."""
        self._record.count(request.terms.run, self._accept)

    def _value(self, request: Request, store: SiteStore, site: Callable[[], Site]) -> Kept:
        """Return the value of the answer, and a function that stores what the site must keep."""
        if request.kind == "greet":
            return self._greeting(request.terms, site()), nothing
        samples = cache(lambda: fingerprint(site(), reserve_valid=False))  # of all samples: slow
        if request.kind in ("keys", "masked", *_COUNTED):
            store.use_samples(samples())
        if request.kind in _COUNTED:
            self._count(request)
        if request.kind == "step":
            ready = self._ready(site(), request, store)
            return self._step(
                request, ready, store, lambda state: store.keep_state(request.serial, state)
            )
        if request.kind == "score":
            return self._evaluated(request, site(), store), nothing
        if request.kind == "deliver":
            self._receive(request, site(), store)
            return None, nothing
        rounds = SecureRounds(
            name=self._name,
            signer=self._signer,
            policy=self._accept,
            record=self._record,
            federation=self._federation,
            store=store,
            samples=samples,
            step=lambda asked, origin: self._masked(
                asked, site(), store, session=request.broadcast.session, origin=origin
            ),
            count=lambda: self._count(request),
        )
        return rounds.answer(request)

    def _masked(
        self, request: Request, site: Site, store: SiteStore, *, session: str, origin: str
    ) -> Kept:
        """Run a step of a secure sum, with the state that every member has from `origin`.

        The state after the step is used once this site has revealed the sum: the server cannot
        choose who has it.
        """
        if isinstance(request.broadcast, ScoreRequest):
            if request.step != SCORE:  # sums are recorded by the names of their steps
                raise ProtocolError(f"expected scores as the step {SCORE!r}")
            return self._evaluated(request, site, store).sums, nothing
        state = store.session_state(origin) if origin else {}
        if state is None:
            raise ProtocolError(
                "this site was not in the sum whose state this step uses; it is left out"
            )
        used = RecordedState(state)

        def keep(after: Mapping[str, Any]) -> None:
            if after is not used or used.written:
                store.keep_session_state(session, after)

        return self._step(
            request, replace(self._ready(site, request, store), state=used), store, keep
        )

    def _agree(self, terms: Terms) -> None:
        """Raise if the terms of a server differ from those of this site."""
        own = own_version()
        if terms.version != own:
            raise MismatchError(
                f"the server runs fedgram {terms.version}, this site {own}; use one version"
            )
        if terms.method not in names():  # it becomes the name of files, and of a module
            shown = str(terms.method)[:100]
            raise DataError(f"method {shown!r} is not known; sites run the methods of fedgram only")
        if terms.grid != self._grid:
            raise MismatchError(
                f"the server's grid is {_shown(terms.grid)}, this site's {_shown(self._grid)}; "
                "use the same grid"
            )

    def _greeting(self, terms: Terms, site: Site) -> Greeting:
        samples = len(site.train) + len(site.valid)
        space, classes = site.train.features.space, site.train.labels.classes
        if terms.secure:
            return Greeting(space=space, classes=classes)
        return Greeting(
            space=space,
            classes=classes,
            samples=samples,
            fingerprint=fingerprint(site, reserve_valid=terms.reserve_valid),
        )

    def _ready(self, site: Site, request: Request, store: SiteStore) -> Site:
        """Return the site with the agreed class list, and its state before this exchange."""
        own, terms = site.train.features.space, request.terms
        if own != terms.space:
            raise MismatchError(
                f"the features of this site differ from those of the federation: "
                f"{terms.space.difference(own) if terms.space != NO_SPACE else 'no space yet'}; "
                "use the same backbone, grid and lift"
            )
        # Whether or not there are samples of a class: else refusals would tell which there are.
        if terms.secure and not set(site.train.labels.classes) <= set(terms.classes):
            raise MismatchError(
                "the class list of the server lacks classes of this site's class list; start again"
            )
        site = replace(
            site,
            id=self._name,
            train=relabel(site.train, terms.classes),
            valid=relabel(site.valid, terms.classes),
            test=relabel(site.test, terms.classes),
            reserve_valid=terms.reserve_valid,
        )
        if terms.secure:
            return replace(site, state=store.session_state() or {})
        return replace(site, state=store.state(before=request.serial))

    def _step(
        self,
        request: Request,
        site: Site,
        store: SiteStore,
        keep_state: Callable[[Mapping[str, Any]], None],
    ) -> Kept:
        """Run a step of the method; its state is stored together with the answer."""
        terms = request.terms
        step = named_step(terms.make(), request.step)
        state, known = site.state, ""
        if request.broadcast is None and not state:
            known = _digest(request, fingerprint(site, reserve_valid=terms.reserve_valid))
        if known and (found := store.statistics(known)) is not None:
            value, state = found
            known = ""
        else:
            rng = client_rng(terms.seed, self._name, request.ask_number)
            client = site.client(rng, totals=frozenset(request.totals))
            value = step(client, request.broadcast)
        if _holds_samples(value):
            raise PrivacyError(f"{request.step} would send samples; samples never leave a site")
        require_possible(value)  # the server cannot check masked values

        def keep() -> None:
            if state:
                keep_state(state)
            if known:
                store.keep_statistics(known, value, state)

        return value, keep

    def _evaluated(self, request: Request, site: Site, store: SiteStore) -> Any:
        """Personalize and score; the model stays here, stored by the number of its round."""
        terms, scoring = request.terms, request.broadcast
        task = ScoreTask(
            method=terms.make(),
            metrics=terms.metrics,
            kept_valid=terms.kept_valid,
            keep=lambda _, model: store.keep_model(scoring.round, model, best=scoring.best),
        )
        site = self._ready(site, request, store)
        return task(site, self._scoring_client(site, request), scoring.part)

    def _scoring_client(self, site: Site, request: Request) -> Client:
        """Return a client with read-only state, for scoring."""
        rng = client_rng(request.terms.seed, self._name, SCORING)
        return site.client(rng, frozen=True, totals=frozenset(request.totals))

    def _receive(self, request: Request, site: Site, store: SiteStore) -> None:
        """Store the final model, its card and the shared result, and delete the rest of the run."""
        terms, delivery = request.terms, request.broadcast
        if not isinstance(delivery, Delivery):
            raise DataError("a delivery without content; install the same fedgram as the server")
        model = store.model(delivery.round)
        ready = self._ready(site, request, store)
        if model is None:  # this site was not connected when the round was scored
            client = self._scoring_client(ready, request)
            model = terms.make().personalize(client, delivery.part)
        folder = self._folder.parent / "models"
        published = Published(method=terms.method, settings=terms.settings, shared=delivery.part)
        card = {
            "client": self._name,
            "method": terms.method,
            "settings": terms.settings,
            "features": asdict(terms.space),
            "classes": list(terms.classes),
            "samples": len(site.train) + len(site.valid),
            "reserve_valid": terms.reserve_valid,
            "fingerprint": fingerprint(site, reserve_valid=terms.reserve_valid),
            "fedgram": terms.version,
            "run": terms.run,
            "model_digest": codec.digest(model),
        }
        store.keep_model(delivery.round, model, best=delivery.round)
        codec.save(folder / f"{terms.method}.safetensors", model, private=True)
        codec.save(folder / f"{terms.method}-shared.safetensors", published, private=True)
        card_text = json.dumps(card, indent=2) + "\n"
        files.write(folder / f"{terms.method}.json", card_text, private=True)
        store.clear(delivery.round)


def relabel(samples: Samples, classes: tuple[str, ...]) -> Samples:
    """Return samples whose labels have another class list."""
    if samples.labels.classes == classes:
        return samples
    return replace(samples, labels=samples.labels.relabel(classes))


def _holds_samples(value: Any) -> bool:
    """Whether a value contains samples, at any depth."""
    if isinstance(value, Samples | Features | Labels):
        return True
    if is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in fields(value)]
    if isinstance(value, Mapping):
        value = list(value.values())
    return isinstance(value, list | tuple) and any(map(_holds_samples, value))


def fingerprint(site: Site, *, reserve_valid: bool) -> str:
    """Return the digest of the samples that a step sees; it does not depend on class codes."""
    classes = site.train.labels.classes
    if not outputs_named(classes):  # outputs have one order everywhere
        classes = tuple(sorted(classes))
    return codec.digest([relabel(site.train, classes), relabel(site.valid, classes), reserve_valid])


def _digest(request: Request, fingerprint: str) -> str:
    """Return the digest of all that an answer without broadcast and state depends on."""
    terms = request.terms
    asked = [
        terms.version,
        terms.method,
        terms.settings,
        request.step,
        terms.seed,
        request.ask_number,
    ]
    return codec.digest([*asked, list(terms.classes), fingerprint])


def _shown(grid: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in grid.items() if value is not None)
