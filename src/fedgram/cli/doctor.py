"""Say what is usable in this installation, and how to get what is not."""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata, util
from typing import Any, Literal

import click
import psutil
from rich.console import Console
from rich.table import Table

from fedgram.cli.info import installed_version, processor
from fedgram.cli.root import main, say
from fedgram.cli.screen import cell
from fedgram.core.kernels.choice import WAYS, chosen, tried
from fedgram.features.backbones.registry import names as backbone_names
from fedgram.runtime.text import size
from fedgram.runtime.threads import product_threads

EXTRAS: Mapping[str, str] = {
    "vision": "features of images, with a backbone whose weights are included",
    "text": "features of texts, with a backbone whose weights are included",
    "hf": "backbones of the Hugging Face hub",
    "timm": "backbones of timm, by name",
    "datasets": "data sets of the Hugging Face hub",
    "tables": "Parquet and Arrow files",
    "export": "models as ONNX files",
    "torch": "training of deep networks, to compare with",
    "secure": "secure sums, signatures and certificates",
    "flower": "a federation of real sites",
    "simulation": "many sites on one machine, with Flower and Ray",
    "ray": "clients and studies on several machines",
    "figures": "figures of reports as PDF and PNG",
    "sklearn": "estimators with the interface of scikit-learn",
}
# The extra of each source of backbones; None where nothing has to be installed.
BACKBONES: Mapping[str, tuple[str | None, str]] = {
    "identity": (None, "vectors as they are"),
    "pixels": (None, "pixels of small images"),
    "onnx": ("vision", "a model in an ONNX file"),
    "efficientnet-lite0": ("vision", "images; weights included"),
    "wordllama": ("text", "texts; weights included"),
    "hf": ("hf", "models of the Hugging Face hub"),
    "timm": ("timm", "models of timm"),
}
# The extra of each way to run a federation.
ENGINES: Mapping[str, tuple[str | None, str]] = {
    "process": (None, "clients in this process (the default)"),
    "secure": ("secure", "the same with secure sums (engine.secure=true)"),
    "ray": ("ray", "clients in Ray workers (engine=ray)"),
    "federation": ("flower", "real sites (fedgram federation)"),
    "simulate": ("simulation", "sites on this machine (fedgram federation simulate)"),
}
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?\s*([^;]*)")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


@dataclass(frozen=True, kw_only=True)
class Usable:
    """Whether one thing can be used here: ``ready``, or what is in the way and what to do."""

    name: str
    about: str
    state: Literal["ready", "not tried", "missing"]
    reason: str = ""
    remedy: str = ""


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def doctor(as_json: bool) -> None:
    """Say what is usable here, and how to get what is not.

    Extras, backbones, ways of exact products and engines. Nothing is downloaded, and nothing that
    takes long is imported: ways of exact products that need torch or onnxruntime are tried by
    fedgram info.

    Example: fedgram doctor
    """
    found = findings()
    if as_json:
        lists = {name: [asdict(one) for one in some] for name, some in found.items()}
        click.echo(json.dumps({"installation": _installation(), **lists}, indent=2))
        return
    about = _installation()
    say(
        f"fedgram {about['fedgram']}, Python {about['python']}, {about['system']}\n"
        f"{about['processor']}, threads for exact products: {about['threads']}, "
        f"{size(about['memory'])} of memory"
    )
    console = Console()
    for name, some in found.items():
        console.print(f"\n[bold]{name}[/bold]")
        console.print(_drawn(some))
    missing = [one.name for one in found["extras"] if one.state == "missing"]
    if missing:
        say(f"\nto get an extra:  pip install 'fedgram[{missing[0]}]'")
        say("to get them all:  pip install 'fedgram[all]'")


def findings() -> dict[str, list[Usable]]:
    """Return what is usable, by kind."""
    lacking = {extra: list(lacks(extra)) for extra in EXTRAS}
    return {
        "extras": [_extra(name, lacking) for name in EXTRAS],
        "backbones": [_backbone(name, lacking) for name in backbone_names()],
        "exact products": [_way(name) for name in WAYS],
        "engines": [_engine(name, lacking) for name in ENGINES],
    }


def lacks(extra: str, package: str = "fedgram") -> Iterator[str]:
    """Yield the packages of an extra that are missing or too old here.

    Examples
    --------
    >>> list(lacks("no-such-extra"))
    []
    """
    try:
        lines = metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return
    for line in lines:
        requirement, _, marker = line.partition(";")
        named = _EXTRA.search(marker)
        matched = _REQUIREMENT.match(requirement.strip())
        if named is None or named[1] != extra or matched is None:
            continue
        name, more, versions = matched.groups()
        if name != package and not _installed(name, versions):
            yield f"{name} {_in_words(versions)}".strip()
        for other in filter(None, (one.strip() for one in (more or "").split(","))):
            yield from lacks(other, name)


def _installed(name: str, versions: str) -> bool:
    """Return whether a package is here, and is as new as its lower bound asks for."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    bounds = re.findall(r">=\s*([0-9.]+)", versions)
    return all(_numbers(version) >= _numbers(bound) for bound in bounds)


def _in_words(versions: str) -> str:
    """Return the bounds of a requirement as words, the lower one first.

    Examples
    --------
    >>> _in_words("<2,>=1.41"), _in_words(">=3"), _in_words("")
    ('1.41 or newer, below 2', '3 or newer', '')
    """
    words = {">=": "{} or newer", "<": "below {}"}
    bounds = re.findall(r"([<>=!~]+)\s*([^,\s]+)", versions)
    said = sorted(bounds, key=lambda bound: bound[0] != ">=")
    return ", ".join(words.get(sign, sign + "{}").format(bound) for sign, bound in said)


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3]]
    return (*numbers, *(0,) * (3 - len(numbers)))


def _extra(name: str, lacking: Mapping[str, list[str]]) -> Usable:
    about, missing = EXTRAS[name], list(dict.fromkeys(lacking[name]))
    if not missing:
        return Usable(name=name, about=about, state="ready")
    return Usable(
        name=name,
        about=about,
        state="missing",
        reason=f"no {', '.join(missing)}",
        remedy=f"pip install 'fedgram[{name}]'",
    )


def _needs(name: str, about: str, extra: str | None, lacking: Mapping[str, list[str]]) -> Usable:
    if extra is None or not lacking[extra]:
        return Usable(name=name, about=about, state="ready")
    return Usable(
        name=name,
        about=about,
        state="missing",
        reason=f"needs the extra {extra}",
        remedy=f"pip install 'fedgram[{extra}]'",
    )


def _backbone(name: str, lacking: Mapping[str, list[str]]) -> Usable:
    extra, about = BACKBONES[name]
    return _needs(name, about, extra, lacking)


def _engine(name: str, lacking: Mapping[str, list[str]]) -> Usable:
    extra, about = ENGINES[name]
    if sys.platform == "win32" and name in ("federation", "simulate"):
        return Usable(
            name=name,
            about=about,
            state="missing",
            reason="not on Windows",
            remedy="use Linux or macOS, or WSL",
        )
    return _needs(name, about, extra, lacking)


def _way(name: str) -> Usable:
    heavy = WAYS[name][1]
    if heavy and heavy not in sys.modules:
        if util.find_spec(heavy) is not None:
            about = "tried for large problems only; fedgram info tries it now"
            return Usable(name=name, about=about, state="not tried")
        extra = "vision" if heavy == "onnxruntime" else "torch"
        return Usable(
            name=name,
            about="",
            state="missing",
            reason=f"needs {heavy}, of the extra {extra}",
            remedy=f"pip install 'fedgram[{extra}]'",
        )
    verdict = tried(name)
    if verdict.way is not None:
        about = "exact, in use" if chosen().name == name else "exact"
        return Usable(name=name, about=about, state="ready")
    remedy = "not needed: another way gives the same bytes" if chosen().name != name else ""
    return Usable(name=name, about="", state="missing", reason=verdict.reason, remedy=remedy)


def _installation() -> dict[str, Any]:
    return {
        "fedgram": installed_version("fedgram"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "threads": product_threads(),
        "memory": psutil.virtual_memory().total,
    }


def _drawn(some: list[Usable]) -> Table:
    """Return a table that is readable in 60 columns: long texts are folded, names are not."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=12)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in some:
        # Every extra is installed in the same way, which is said once below.
        remedy = "" if one.remedy.startswith("pip ") else one.remedy
        text = "; ".join(filter(None, (one.about, one.reason, remedy)))
        state = f"[bold]{one.state}[/bold]" if one.state == "missing" else one.state
        table.add_row(cell(one.name), state, cell(text))
    return table
