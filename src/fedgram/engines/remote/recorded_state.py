"""The state of a client that records how a step uses it."""

from __future__ import annotations

from typing import Any


class RecordedState(dict[str, Any]):
    """The state of a client, with the facts whether a step has read it, and changed it.

    Examples
    --------
    >>> state = RecordedState(seen=3)
    >>> state.read, state.get("seen"), state.read, state.written
    (False, 3, True, False)
    >>> state.update(seen=4)
    >>> state.written
    True
    """

    read = False
    written = False

    def get(self, key: str, default: Any = None) -> Any:
        self.read = True
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.read = True
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.read = True
        return super().__contains__(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self.written = True
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self.written = True
        super().__delitem__(key)

    def update(self, *args: Any, **values: Any) -> None:
        self.written = True
        super().update(*args, **values)

    def pop(self, *args: Any) -> Any:
        self.read = self.written = True
        return super().pop(*args)

    def setdefault(self, key: str, default: Any = None) -> Any:
        self.read = self.written = True
        return super().setdefault(key, default)
