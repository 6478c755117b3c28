from __future__ import annotations

from dataclasses import dataclass

from fedgram.errors import ConfigError
from fedgram.methods._dual_stream import DualStream


@dataclass(frozen=True, kw_only=True)
class APFLLinear(DualStream):
    """APFL (`apfl`) without random projections: both streams are linear in the features.

    The ablation of the paper's projections and activations. Clients send the statistics of `afl`,
    so that the total of a ledger serves both, and the default settings are fixed, so that one sum
    is enough. With a balance of 1 it is `closed-ditto`. Earlier this method had the name `apfl`:
    what was recorded under that name without lifts is read as this method.

    Exchanges: the sum of `afl`; with "auto" settings also counts of correct leave-one-out
    predictions.

    Parameters
    ----------
    primary, refinement
        Of width 0: a stream with a lift is one of `apfl`.
    """

    def __post_init__(self) -> None:
        for name in ("primary", "refinement"):
            width = getattr(self, name).width
            if width:
                raise ConfigError(
                    f"apfl-linear has no lifts, got {name}.width = {width}; use the method apfl"
                )
