from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

from fedgram.federation.method import Method
from fedgram.methods._residual_blocks import StackedMethod
from fedgram.methods._stacked import Top


@dataclass(frozen=True, kw_only=True)
class DeepAFLTop(StackedMethod):
    """Any method on the deep features of `deepafl`, given by its name.

    A classifier of several layers, each solved from a sum, under any personalization.

    Exchanges: the sums of `deepafl`, then those of the method on top.

    Parameters
    ----------
    top
        The method on the deep features (`method`) and its settings (`settings`). Where a ridge
        can be "auto" and none is given, it is.
    """

    top: Top = field(default_factory=lambda: Top(method="prior"))

    @property
    def inner(self) -> Method[Any]:
        return self.top.make()

    def shortened(self, *, search: bool = True) -> Self:
        """Return the method with at most one narrow block, and a shortened method on top."""
        return replace(super().shortened(), top=self.top.shortened(search=search))
