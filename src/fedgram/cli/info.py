"""Show what this installation has: versions, processor, ways of exact products, threads."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from threadpoolctl import threadpool_info

from fedgram.cli.root import main, say
from fedgram.core.kernels.choice import VARIABLE, WAYS, chosen, tried
from fedgram.runtime.threads import product_threads

PACKAGES = ("fedgram", "numpy", "scipy", "torch", "onnxruntime", "flwr")


@main.command()
def info() -> None:
    """Show versions, the processor and the ways of exact products.

    Every way is tried, which imports torch and onnxruntime where they are installed. All ways give
    the same bytes. The environment variable FEDGRAM_KERNEL forces one: vnni, torch, onnxruntime or
    blas.

    Example: fedgram info
    """
    for line in _lines():
        say(line)


def _lines() -> Iterator[str]:
    yield f"python       {platform.python_version()}, {platform.platform()}"
    for name in PACKAGES:
        yield f"{name:12} {installed_version(name)}"
    yield f"processor    {processor()}"
    yield f"threads      {product_threads()} for exact products"
    best = chosen(10**18).name  # before the others are tried: of a large problem
    for library in threadpool_info():
        if library["user_api"] == "blas":
            kernels = library.get("architecture", "unknown")
            yield (
                f"BLAS         {library['internal_api']} {library['version']}, kernels {kernels}, "
                f"threads {library['num_threads']}"
            )
    for name in WAYS:
        verdict = tried(name)
        use = "exact" if verdict.way else verdict.reason
        yield f"products     {name}: {use}{', in use' if name == best else ''}"
    yield f"             {VARIABLE} forces one of them"


def installed_version(name: str) -> str:
    """Return the version of a package, or that it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def processor() -> str:
    """Return the name of the processor, as the system gives it."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()
