"""The base class of methods, and how a method is found by the name of its file."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

from fedgram.core import codec
from fedgram.core.shared import Shared, provenance
from fedgram.core.statistics import Statistics
from fedgram.errors import ConfigError
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.federation.step import Step
from fedgram.models.linear import Predictor
from fedgram.runtime.settings import build, propose

PACKAGE = "fedgram.methods"


SharedResult = TypeVar("SharedResult")


class Method(Generic[SharedResult]):
    """Base of all methods: a frozen, keyword-only dataclass whose fields are its settings.

    A subclass defines `fit` and `personalize`, and declares its steps with `@step`. The other
    members have defaults for a closed-form method in one round; a subclass overrides those that
    differ. The type parameter is the type of what `fit` yields.
    """

    keeps_valid: ClassVar[bool] = False  # whether training does not use the validation samples
    predicts_numbers: ClassVar[bool] = False  # whether the method can do a regression too

    def fit(self, federation: Federation) -> Iterator[SharedResult]:
        """Yield the shared result after each round."""
        raise NotImplementedError

    def personalize(self, client: Client, shared: SharedResult) -> Predictor:
        """Return the client's model from its part of the shared result; runs at the client."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """Return all settings as plain values; those of `added_field` unless they are unused."""
        settings: dict[str, Any] = dataclasses.asdict(self)  # type: ignore[call-overload]
        _remove_unused(self, settings)
        return settings

    def number_of_rounds(self) -> int:
        """Return the number of rounds that `fit` yields a result for."""
        return 1

    def statistics_step(self) -> Step[Statistics] | None:
        """Return the step without broadcast whose total a ledger may store, or None."""
        return None

    def most_weight(self, samples: int) -> int | None:
        """Return the largest weight of a site in the sums of this method; None for no limit.

        Parameters
        ----------
        samples
            Number of samples of the site.
        """
        return samples

    def shortened(self, *, search: bool = True) -> Self:
        """Return the method with few rounds or blocks, or narrow lifts, for quick checks.

        Without `search`, a fixed learning rate replaces a search.
        """
        del search
        return self

    def shared_predictor(self, shared: Any) -> Any:
        """Return the model of a client without samples; None if there is no such model."""
        return shared.predictor() if isinstance(shared, Shared) else None


def _remove_unused(value: Any, settings: dict[str, Any]) -> None:
    """Remove the defaults of added fields, also from nested settings."""
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        if codec.is_unused(field, inner):
            del settings[field.name]
        elif dataclasses.is_dataclass(inner):
            _remove_unused(inner, settings[field.name])


_UNLESS = "same_for_all_clients_unless"
Function = TypeVar("Function")


def for_all_clients(
    personalize: Function, *, unless: Callable[[Any], bool] = lambda _: False
) -> Function:
    """Declare that a `personalize` gives every client the same model.

    Then the model is made once for many clients. A method that overrides `personalize` declares it
    again, or not.

    Parameters
    ----------
    personalize
        The function.
    unless
        Whether this does not hold for a method, because of its settings.

    Examples
    --------
    >>> class Mine(Method):
    ...     @for_all_clients
    ...     def personalize(self, client, shared):
    ...         return shared
    >>> class Other(Mine):
    ...     def personalize(self, client, shared):
    ...         return client.state.get("model", shared)
    >>> same_model(Mine()), same_model(Other())
    (True, False)
    """
    setattr(personalize, _UNLESS, unless)
    return personalize


def same_model(method: Method[Any]) -> bool:
    """Whether the method declares that every client has the same model."""
    unless = getattr(type(method).personalize, _UNLESS, None)
    return unless is not None and not unless(method)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameter:
    """One hyper-parameter, with its default and its description."""

    name: str
    default: Any
    text: str


def names() -> list[str]:
    """Return the names of all methods that come with fedgram.

    Examples
    --------
    >>> {"afl", "apfl", "fedhip", "local"} <= set(names())
    True
    """
    return list(_names())


@functools.cache  # a site looks up the method of each request
def _names() -> tuple[str, ...]:
    package = importlib.import_module(PACKAGE)
    found = (module.name for module in pkgutil.iter_modules(package.__path__))
    return tuple(sorted(name.replace("_", "-") for name in found if not name.startswith("_")))


def method_name(name: str) -> str:
    """Return the short name of a method, also of one in a file, as settings use it.

    Examples
    --------
    >>> method_name("afl"), method_name("my/own_method.py")
    ('afl', 'own-method')
    """
    return Path(name).stem.replace("_", "-") if name.endswith(".py") else name


def find_method(name: str) -> type[Method[Any]]:
    """Return the method of this name, or the one in this ``.py`` file.

    Examples
    --------
    >>> find_method("afl").__name__
    'AFL'
    >>> find_method("alf")
    Traceback (most recent call last):
    ...
    fedgram.errors.ConfigError: method 'alf' is not known; did you mean 'afl'?
    """
    if name.endswith(".py"):
        return _only_method(_module_at(Path(name)))
    if name not in names():
        raise ConfigError(f"method {name!r} is not known; {propose(name, names())}")
    return _only_method(importlib.import_module(f"{PACKAGE}.{name.replace('-', '_')}"))


def create_method(name: str, settings: Mapping[str, Any] | None = None, **more: Any) -> Method[Any]:
    """Return a method with some of its parameters set; raise ConfigError for invalid ones.

    Parameters
    ----------
    name
        Name of the method, or the path of a ``.py`` file with one.
    settings
        Values by parameter, as a table of settings gives them.
    **more
        The same as keywords.

    Examples
    --------
    >>> create_method("apfl", balance=0.3).balance
    0.3
    >>> create_method("afl", {"ridge": 3, "lift": {"width": 16}})
    AFL(ridge=3.0, lift=Lift(width=16, activation='relu', seed=0, scale=1.0, copies=1))
    """
    built: Method[Any] = build(find_method(name), {**(settings or {}), **more}, f"method.{name}")
    return built


def shared_digest(method: Method[Any], shared: Any) -> str | None:
    """Return the digest of the totals behind a shared result and of the method's parameters.

    Equal totals give equal digests on every machine; None if nothing is shared.
    """
    if shared is None:
        return None
    return codec.digest({"shared": provenance(shared), "parameters": method.settings()})


def parameters(kind: type[Any]) -> list[Parameter]:
    """Return a method's parameters with their defaults and descriptions from the docstring."""
    texts: dict[str, str] = {}
    for ancestor in reversed(kind.__mro__):  # inherited parameters are described in the base class
        texts.update(_parameter_texts(inspect.cleandoc(ancestor.__doc__ or "")))
    found = []
    for field in dataclasses.fields(kind):
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        found.append(Parameter(name=field.name, default=default, text=texts.get(field.name, "")))
    return found


def summary(kind: type[Any]) -> str:
    """Return the first line of a method's docstring."""
    return (inspect.getdoc(kind) or "").split("\n", 1)[0]


def _only_method(module: ModuleType) -> type[Method[Any]]:
    kinds = [
        kind
        for name, kind in vars(module).items()
        if inspect.isclass(kind)
        and kind.__module__ == module.__name__
        and not name.startswith("_")
        and issubclass(kind, Method)
    ]
    if len(kinds) != 1 or not dataclasses.is_dataclass(kinds[0]):
        found = len(kinds) if len(kinds) != 1 else "one that is not a dataclass"
        raise ConfigError(
            f"{module.__file__}: expected one dataclass that derives from fedgram.Method, "
            f"found {found}"
        )
    return cast(type[Method[Any]], kinds[0])


def _module_at(path: Path) -> ModuleType:
    try:
        source = str(path.resolve(strict=True))
    except OSError as error:
        raise ConfigError(f"{path}: there is no such file ({error.strerror})") from error
    # A unique name in sys.modules, where dataclasses look up their module.
    name = f"fedgram_method_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, source)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(
            f"{path}: cannot be imported ({type(error).__name__}: {error})"
        ) from error
    return module


def _parameter_texts(doc: str) -> dict[str, str]:
    """Read the Parameters section of a numpydoc docstring."""
    section = re.search(r"Parameters\n-+\n(.*?)(\n\n\w+\n-+\n|\Z)", doc, re.DOTALL)
    texts: dict[str, str] = {}
    heads: list[str] = []
    for line in (section.group(1) if section else "").splitlines():
        if line and not line.startswith(" "):
            heads = [name.strip() for name in line.split(",")]
            texts.update(dict.fromkeys(heads, ""))
        else:
            for name in heads:
                texts[name] = f"{texts[name]} {line.strip()}".strip()
    return texts
