"""A fixed number of BLAS and torch threads, so that the same input gives the same bytes."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from typing import Any

from threadpoolctl import ThreadpoolController

THREADS = 1
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

_lock = threading.Lock()
_inside = 0  # bodies of `single_threaded_blas` that are running, over all Python threads
_before: list[int] = []  # threads of each BLAS library before the first of these bodies
_inside_torch = 0
_before_torch = 0


def default_to_one_blas_thread() -> None:
    """Let BLAS use one thread in this process and its children, unless the user has set a number.

    Call it before numpy is imported. Most products of fedgram are small: with more threads they
    take up to twice the processor time and, on a busy machine, many times as long. To use several
    cores, compute several clients at once (``engine.workers``); for very wide features, set
    ``OPENBLAS_NUM_THREADS``.
    """
    if not any(name in os.environ for name in THREAD_VARIABLES):
        os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(THREADS)


@functools.cache
def product_threads() -> int:
    """Return the number of threads of exact products, decided once: the number set for BLAS, or 1.

    Exact products have the same bytes with any number of threads.
    """
    for name in THREAD_VARIABLES:
        with contextlib.suppress(KeyError, ValueError):
            return max(1, int(os.environ[name]))
    return THREADS


class _SingleThreadedBlas:
    """The context of `single_threaded_blas`, which is entered for every small solve."""

    def __enter__(self) -> None:
        global _inside, _before
        with _lock:
            _inside += 1
            if _inside == 1:
                _before = [library.get_num_threads() for library in _libraries()]
                if any(count != THREADS for count in _before):
                    _set_threads([THREADS] * len(_before))

    def __exit__(self, *_: object) -> None:
        global _inside
        with _lock:
            _inside -= 1
            if _inside == 0 and any(count != THREADS for count in _before):
                _set_threads(_before)


_single_threaded_blas = _SingleThreadedBlas()


def single_threaded_blas() -> _SingleThreadedBlas:
    """Run the body with `THREADS` BLAS threads.

    The limit holds for the whole process, so nested and concurrent uses are counted: the first one
    sets the limit, the last one restores the previous number of threads.
    """
    return _single_threaded_blas


@contextlib.contextmanager
def single_threaded_torch(torch: Any) -> Iterator[None]:
    """Run the body with `THREADS` torch threads.

    Torch has a number of threads per process and one per Python thread. So every use sets the
    limit, and the last one restores the number of threads that the first one found.
    """
    global _inside_torch, _before_torch
    with _lock:
        if not _inside_torch:
            _before_torch = torch.get_num_threads()
        _inside_torch += 1
        torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        with _lock:
            _inside_torch -= 1
            if not _inside_torch:
                torch.set_num_threads(_before_torch)


@functools.cache
def _libraries() -> list[Any]:
    return [c for c in ThreadpoolController().lib_controllers if c.user_api == "blas"]


def _set_threads(counts: list[int]) -> None:
    """Set the number of threads from any Python thread.

    Newer versions of threadpoolctl obey only the thread that set a limit first. Here the first and
    the last use may be in different threads, under the lock of this module.
    """
    for library, count in zip(_libraries(), counts, strict=True):
        release = getattr(library, "clear_controlling_thread", None)
        if release:
            release(force=True)
        library.set_num_threads(count)
        if release:
            release(force=True)
