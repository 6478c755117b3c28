"""A site's end of the wire: every request is a letter, and the desk is cleared after each.

A carrier may start a new process for every request, so all that a site remembers is on its disk:
the method's state, the last answers (a request that comes twice is answered alike and counted
once), statistics that cost time, and personal models, which never leave.
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
from fedgram.federation.scoring import ScoreTask
from fedgram.federation.shared import Published
from fedgram.federation.step import named_step
from fedgram.runtime import files, flops


@dataclass(frozen=True, kw_only=True)
class SitePolicy:
    """What a site agrees to, whoever asks.

    Parameters
    ----------
    methods
        Methods whose steps may run here; none given, all of fedgram's own.
    secure
        Send nothing of this site's samples but under masks.
    samples
        Take part only with at least so many training samples.
    """

    methods: tuple[str, ...] = ()
    secure: bool = False
    samples: int = 1


class SiteEndpoint:
    """Answers requests on behalf of one site.

    Parameters
    ----------
    name
        Of the site.
    site
        Gives the site's samples on its grid; called when they are needed.
    grid
        Settings of that grid.
    folder
        Where the site keeps what it must remember.
    accept
        What it agrees to.
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
        """Return the answer to a request, or why there is none: nothing is ever raised."""
        to = request_digest(content)
        try:
            request = read_request(content)
            self._agree(request.terms)
            cabinet = SiteStore(self._folder, request.terms.run)
            known = cabinet.answer(request.serial, request.kind, to)
            return known or self._answered(request, to, cabinet)
        except FedgramError as error:
            return self._refusal(to, error, str(error))
        except Exception as error:  # a site that falls silent helps nobody
            return self._refusal(to, error, f"{type(error).__name__}: {error}")

    def _refusal(self, to: str, error: Exception, text: str) -> bytes:
        return codec.encode(
            Refusal(client=self._name, about=to, error=type(error).__name__, text=text)
        )

    def _answered(self, request: Request, to: str, cabinet: SiteStore) -> bytes:
        before = flops.total()
        value, keep = self._value(request, cabinet)
        operations = flops.total() - before
        answer = codec.encode(Answer(client=self._name, about=to, value=value, flops=operations))
        keep()
        if request.kind != "greet":
            cabinet.keep_answer(request.serial, request.kind, to, answer)
        return answer

    def _value(self, request: Request, cabinet: SiteStore) -> Kept:
        """Return the value of the answer, and what to keep once it is certain."""
        terms = request.terms
        if request.kind == "greet":
            return self._greeting(terms), nothing
        if request.kind == "step":
            if terms.secure:
                raise PrivacyError(f"{request.step} was asked for in the open, in a secure run")
            return self._step(request, self._ready(self._site(), request, cabinet), cabinet)
        if request.kind == "score" and not terms.secure:
            return self._evaluated(request, cabinet), nothing
        if request.kind == "deliver":
            self._receive(request, cabinet)
            return None, nothing
        if not terms.secure:
            raise MismatchError(f"{request.kind} belongs to secure sums, and this run has none")
        return masked_answer(
            request, cabinet, name=self._name, step=lambda asked: self._masked(asked, cabinet)
        )

    def _masked(self, request: Request, cabinet: SiteStore) -> Kept:
        if isinstance(request.broadcast, ScoreRequest):
            return self._evaluated(request, cabinet).sums, nothing
        return self._step(request, self._ready(self._site(), request, cabinet), cabinet)

    def _agree(self, terms: Terms) -> None:
        """Refuse a server that means something else than this site, saying what."""
        own = version("fedgram")
        if terms.version != own:
            raise MismatchError(
                f"the server runs fedgram {terms.version}, this site {own}; install the same"
            )
        if self._accept.methods and terms.method not in self._accept.methods:
            accepted = ", ".join(self._accept.methods)
            raise PrivacyError(f"method {terms.method} may not run here; accepted: {accepted}")
        if self._accept.secure and not terms.secure:
            raise PrivacyError("this site takes part in secure sums only; set engine.secure = true")
        if terms.grid != self._grid:
            raise MismatchError(
                f"the server's grid is {_shown(terms.grid)}, this site's {_shown(self._grid)}; "
                "use the same"
            )

    def _greeting(self, terms: Terms) -> Greeting:
        site = self._site()
        samples = len(site.train) + len(site.valid)
        if samples < self._accept.samples:
            raise PrivacyError(f"this site has fewer than {self._accept.samples} samples")
        space, classes = site.train.features.space, site.train.labels.classes
        if terms.secure:
            return Greeting(space=space, classes=classes)
        return Greeting(
            space=space,
            classes=classes,
            samples=samples,
            fingerprint=fingerprint(site, reserve_valid=terms.reserve_valid),
        )

    def _ready(self, site: Site, request: Request, cabinet: SiteStore) -> Site:
        """Return the site under the agreed class list, with its state before this exchange."""
        own, terms = site.train.features.space, request.terms
        if own != terms.space:
            raise MismatchError(
                f"the federation's features are others than this site's: "
                f"{terms.space.difference(own) if terms.space != NO_SPACE else 'none agreed'}; "
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
        self._catch_up(request, site, cabinet)
        return replace(site, state=cabinet.state(before=request.serial))

    def _catch_up(self, request: Request, site: Site, cabinet: SiteStore) -> None:
        """Do the steps that the server holds the answers of: what they remember is missing here."""
        for held in request.held:
            if held.serial > cabinet.last_state(before=request.serial):
                missed = Request(
                    terms=request.terms,
                    kind="step",
                    serial=held.serial,
                    draw=held.draw,
                    step=held.step,
                )
                state = cabinet.state(before=held.serial)
                _, keep = self._step(missed, replace(site, state=state), cabinet)
                keep()

    def _step(self, request: Request, site: Site, cabinet: SiteStore) -> Kept:
        """Run a named step of the method; its state moves on with the answer, or not at all."""
        terms = request.terms
        step = named_step(terms.make(), request.step)
        state, known = site.state, ""
        if request.broadcast is None and not state:
            known = _digest(request, fingerprint(site, reserve_valid=terms.reserve_valid))
        if known and (found := cabinet.statistics(known)) is not None:
            value, state = found
            known = ""
        else:
            rng = client_rng(terms.seed, self._name, request.draw)
            value = step(site.client(rng), request.broadcast)
        if _holds_samples(value):
            raise PrivacyError(f"{request.step} would send samples, and they never leave a site")
        require_possible(value, value, classes=terms.classes)  # under masks nobody else can

        def keep() -> None:
            if state:
                cabinet.keep_state(request.serial, state)
            if known:
                cabinet.keep_statistics(known, value, state)

        return value, keep

    def _evaluated(self, request: Request, cabinet: SiteStore) -> Any:
        """Personalize and score; the model stays here, under the number of its round."""
        terms, scoring = request.terms, request.broadcast
        task = ScoreTask(
            method=terms.make(),
            metrics=terms.metrics,
            kept_valid=terms.kept_valid,
            keep=lambda _, model: cabinet.keep_model(scoring.round, model, best=scoring.best),
        )
        site = self._ready(self._site(), request, cabinet)
        return task(site, self._onlooker(site, terms), scoring.part)

    def _onlooker(self, site: Site, terms: Terms) -> Client:
        """Return the client that makes a model of its own, and changes nothing."""
        return site.client(client_rng(terms.seed, self._name, SCORING), frozen=True)

    def _receive(self, request: Request, cabinet: SiteStore) -> None:
        """Keep the final model with its card, and what was shared, and clear the rest."""
        terms, delivery = request.terms, request.broadcast
        if not isinstance(delivery, Delivery):
            raise DataError("a delivery without content")
        site, model = self._site(), cabinet.model(delivery.round)
        if model is None:  # this site was away when the round was scored
            client = self._onlooker(self._ready(site, request, cabinet), terms)
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
        cabinet.keep_model(delivery.round, model, best=delivery.round)
        codec.save(folder / f"{terms.method}.safetensors", model)
        codec.save(folder / f"{terms.method}-shared.safetensors", published)
        files.write(folder / f"{terms.method}.json", json.dumps(card, indent=2) + "\n")
        cabinet.clear(delivery.round)


def relabel(samples: Samples, classes: tuple[str, ...]) -> Samples:
    """Return samples with their labels under another class list."""
    if samples.labels.classes == classes:
        return samples
    return replace(samples, labels=samples.labels.relabel(classes))


def _holds_samples(value: Any) -> bool:
    """Whether a value has samples anywhere in it."""
    if isinstance(value, Samples | Features | Labels):
        return True
    if is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in fields(value)]
    if isinstance(value, Mapping):
        value = list(value.values())
    return isinstance(value, list | tuple) and any(map(_holds_samples, value))


def fingerprint(site: Site, *, reserve_valid: bool) -> str:
    """Return the digest of the samples that a step sees, whatever their class codes."""
    classes = tuple(sorted(site.train.labels.classes))
    return codec.digest([relabel(site.train, classes), relabel(site.valid, classes), reserve_valid])


def _digest(request: Request, fingerprint: str) -> str:
    """Return what decides the answer to a step without broadcast and without state."""
    terms = request.terms
    asked = [terms.version, terms.method, terms.settings, request.step, terms.seed, request.draw]
    return codec.digest([*asked, list(terms.classes), fingerprint])


def _shown(grid: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in grid.items() if value is not None)
