"""A site's side of the protocol. Each request is answered alone; all state is on the site's disk.

A transport may start a new process for every request. The site therefore stores the method's state,
its last answers (a repeated request gets the same answer, and is counted once), statistics, which
take time to compute, and personal models, which never leave the site.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedgram.core import codec
from fedgram.core.samples import NO_SPACE, Features, Labels, Samples
from fedgram.core.sound import require_sound
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
from fedgram.engines.remote.secure_site import Kept, masked_answer, nothing
from fedgram.engines.remote.site_store import SiteStore
from fedgram.engines.remote.validation import require_possible
from fedgram.errors import DataError, FedgramError, MismatchError, PrivacyError
from fedgram.federation.client import Client, Site
from fedgram.federation.method import names
from fedgram.federation.scoring import ScoreTask
from fedgram.federation.shared import Published
from fedgram.federation.step import named_step
from fedgram.runtime import files, flops


@dataclass(frozen=True, kw_only=True)
class SitePolicy:
    """The requests that a site accepts, from any server.

    Parameters
    ----------
    methods
        Methods whose steps may run here; empty for all methods that come with fedgram.
    secure
        Send contributions under masks only.
    samples
        Minimum number of training samples with which the site takes part.
    """

    methods: tuple[str, ...] = ()
    secure: bool = False
    samples: int = 1


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
    """

    def __init__(
        self,
        name: str,
        site: Callable[[], Site],
        *,
        grid: dict[str, Any],
        folder: Path,
        accept: SitePolicy,
    ) -> None:
        self._name = name
        self._site = site
        self._grid = grid
        self._folder = folder
        self._accept = accept

    def answer(self, content: bytes) -> bytes:
        """Return the answer to a request, or a refusal with its reason; nothing is raised."""
        to = request_digest(content)
        try:
            request = read_request(content)
            require_sound(request, "request")
            self._agree(request.terms)
            store = SiteStore(self._folder, request.terms.run)
            known = store.answer(request.serial, request.kind, to)
            return known or self._answered(request, to, store)
        except FedgramError as error:
            return self._refusal(to, error, str(error))
        except Exception as error:  # the server learns the reason instead of waiting
            return self._refusal(to, error, f"{type(error).__name__}: {error}")

    def _refusal(self, to: str, error: Exception, text: str) -> bytes:
        return codec.encode(
            Refusal(client=self._name, request_digest=to, error=type(error).__name__, text=text)
        )

    def _answered(self, request: Request, to: str, store: SiteStore) -> bytes:
        before = flops.total()
        value, keep = self._value(request, store)
        operations = flops.total() - before
        answer = codec.encode(
            Answer(client=self._name, request_digest=to, value=value, flops=operations)
        )
        keep()
        if request.kind != "greet":
            store.keep_answer(request.serial, request.kind, to, answer)
        return answer

    def _value(self, request: Request, store: SiteStore) -> Kept:
        """Return the value of the answer, and a function that stores what the site must keep."""
        terms = request.terms
        if request.kind == "greet":
            return self._greeting(terms), nothing
        if request.kind == "step":
            if terms.secure:
                raise PrivacyError(f"{request.step} was requested without masks, in a secure run")
            return self._step(request, self._ready(self._permitted(), request, store), store)
        if request.kind == "score" and not terms.secure:
            return self._evaluated(request, store), nothing
        if request.kind == "deliver":
            self._receive(request, store)
            return None, nothing
        if not terms.secure:
            raise MismatchError(
                f"{request.kind} is a round of a secure sum, and this run is not secure"
            )
        return masked_answer(
            request, store, name=self._name, step=lambda asked: self._masked(asked, store)
        )

    def _masked(self, request: Request, store: SiteStore) -> Kept:
        if isinstance(request.broadcast, ScoreRequest):
            return self._evaluated(request, store).sums, nothing
        return self._step(request, self._ready(self._permitted(), request, store), store)

    def _agree(self, terms: Terms) -> None:
        """Raise if the terms of a server differ from those of this site."""
        own = version("fedgram")
        if terms.version != own:
            raise MismatchError(
                f"the server runs fedgram {terms.version}, this site {own}; use one version"
            )
        if terms.method not in names():  # it becomes the name of files, and of a module
            shown = str(terms.method)[:100]
            raise DataError(f"method {shown!r} is not known; sites run the methods of fedgram only")
        if self._accept.methods and terms.method not in self._accept.methods:
            accepted = ", ".join(self._accept.methods)
            raise PrivacyError(f"method {terms.method} may not run here; accepted: {accepted}")
        if self._accept.secure and not terms.secure:
            raise PrivacyError("this site takes part in secure sums only; set engine.secure = true")
        if terms.grid != self._grid:
            raise MismatchError(
                f"the server's grid is {_shown(terms.grid)}, this site's {_shown(self._grid)}; "
                "use the same grid"
            )

    def _permitted(self) -> Site:
        """Return the samples, if there are enough of them; no request reads them in another way."""
        site = self._site()
        if len(site.train) + len(site.valid) < self._accept.samples:
            raise PrivacyError(f"this site has fewer than {self._accept.samples} samples")
        return site

    def _greeting(self, terms: Terms) -> Greeting:
        site = self._permitted()
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
        site = replace(
            site,
            id=self._name,
            train=relabel(site.train, terms.classes),
            valid=relabel(site.valid, terms.classes),
            test=relabel(site.test, terms.classes),
            reserve_valid=terms.reserve_valid,
        )
        return replace(site, state=store.state(before=request.serial))

    def _step(self, request: Request, site: Site, store: SiteStore) -> Kept:
        """Run a step of the method; its state is stored together with the answer."""
        terms = request.terms
        step = named_step(terms.make(), request.step)
        state, known = site.state, ""
        if request.broadcast is None and not state:
            samples = fingerprint(site, reserve_valid=terms.reserve_valid)
            store.use_samples(samples)
            known = _digest(request, samples)
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
                store.keep_state(request.serial, state)
            if known:
                store.keep_statistics(known, value, state)

        return value, keep

    def _evaluated(self, request: Request, store: SiteStore) -> Any:
        """Personalize and score; the model stays here, stored by the number of its round."""
        terms, scoring = request.terms, request.broadcast
        task = ScoreTask(
            method=terms.make(),
            metrics=terms.metrics,
            kept_valid=terms.kept_valid,
            keep=lambda _, model: store.keep_model(scoring.round, model, best=scoring.best),
        )
        site = self._ready(self._permitted(), request, store)
        return task(site, self._scoring_client(site, request), scoring.part)

    def _scoring_client(self, site: Site, request: Request) -> Client:
        """Return a client with read-only state, for scoring."""
        rng = client_rng(request.terms.seed, self._name, SCORING)
        return site.client(rng, frozen=True, totals=frozenset(request.totals))

    def _receive(self, request: Request, store: SiteStore) -> None:
        """Store the final model, its card and the shared result, and delete the rest of the run."""
        terms, delivery = request.terms, request.broadcast
        if not isinstance(delivery, Delivery):
            raise DataError("a delivery without content; install the same fedgram as the server")
        site, model = self._permitted(), store.model(delivery.round)
        ready = self._ready(site, request, store)
        store.use_samples(fingerprint(ready, reserve_valid=terms.reserve_valid))
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
    classes = tuple(sorted(site.train.labels.classes))
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
