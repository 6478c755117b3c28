"""What a site accepts from any server, and its private record of what it has answered."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from fedgram.errors import ConfigError, DataError, PrivacyError
from fedgram.runtime import files
from fedgram.secure.messages import ProtocolError

REFUSALS = "refusals.log"
_MOST_LOG = 1 << 20  # bytes of the log of refusals: a server may cause any number of them


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
    members
        Minimum number of members of a secure sum, this site included. Each must have a pinned key.
    compared
        Count only keys that people have compared; without, also those that were made together on
        one machine.
    peers
        Members that must be in every secure sum.
    difference
        "same": secure sums of a step over the same samples must have the same members every time.
        A number: they may also differ by at least this number of members; combinations of several
        sums may then show few members. 0: no rule.
    threshold
        More than this fraction of the members must stay to the end of a secure sum.
    questions, questions_per_run
        Maximum number of answers that depend on the samples, in all and in one run; 0 for no limit.
    """

    methods: tuple[str, ...] = ()
    secure: bool = False
    samples: int = 1
    members: int = 3
    compared: bool = True
    peers: tuple[str, ...] = ()
    difference: int | Literal["same"] = "same"
    threshold: float = 2 / 3
    questions: int = 0
    questions_per_run: int = 0

    def __post_init__(self) -> None:
        for name in ("samples", "members", "difference", "questions", "questions_per_run"):
            value = getattr(self, name)
            if value != "same" and value < 0:
                raise ConfigError(f"accept.{name} = {value}: use 0 or more")
        if not 0.5 <= self.threshold < 1:
            raise ConfigError(
                f"accept.threshold = {self.threshold}: use a fraction, 0.5 <= threshold < 1"
            )

    def require_terms(self, method: str, *, secure: bool) -> None:
        """Raise PrivacyError unless this method may run, with secure sums or without."""
        if self.methods and method not in self.methods:
            accepted = ", ".join(self.methods)
            raise PrivacyError(f"method {method} may not run here; accepted: {accepted}")
        if self.secure and not secure:
            raise PrivacyError("this site takes part in secure sums only; set engine.secure = true")

    def require_samples(self, count: int) -> None:
        """Raise PrivacyError for too few samples."""
        if count < self.samples:
            raise PrivacyError(f"this site has fewer than {self.samples} samples")

    def require_members(self, names: Collection[str]) -> None:
        """Raise ProtocolError for a secure sum of too few members, or of other ones."""
        if len(names) < self.members:
            raise ProtocolError(
                f"a secure sum of {len(names)} members; this site expects at least {self.members} "
                "(accept.members)"
            )
        if missing := sorted(set(self.peers) - set(names)):
            raise ProtocolError(
                f"a secure sum without {', '.join(missing)}; this site expects these members "
                "(accept.peers)"
            )


class AnswerRecord:
    """How often a site has answered, and for whom it has revealed secure sums; kept on its disk.

    All calls must be made under the lock of the site.

    Parameters
    ----------
    folder
        Folder of the site's state.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     record = AnswerRecord(Path(folder))
    ...     record.reveal("statistics", "12ab", ["north", "south", "west"])
    ...     record.require_apart("statistics", "12ab", ["north", "south"], least=3)
    Traceback (most recent call last):
    ...
    fedgram.secure.messages.ProtocolError: the members differ by 1 from those of a sum of \
statistics that this site has answered; expected the same members, or at least 3 others \
(accept.difference)
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "answers.json"

    def count(self, run: str, policy: SitePolicy) -> None:
        """Count one answer that depends on the samples; raise PrivacyError at the limit."""
        plain = self._read()
        for limit, found in (
            (policy.questions, plain["answers"]),
            (policy.questions_per_run, plain["runs"].get(run, 0)),
        ):
            if limit and found >= limit:
                raise PrivacyError(
                    f"this site has answered {found} requests, and its limit is {limit} "
                    "(accept.questions, accept.questions_per_run)"
                )
        plain["answers"] += 1
        plain["runs"][run] = plain["runs"].get(run, 0) + 1
        self._write(plain)

    def require_apart(
        self,
        step: str,
        samples: str,
        members: Collection[str],
        *,
        least: int | Literal["same"],
    ) -> None:
        """Raise ProtocolError if the difference of two sums would be the sums of few members.

        Parameters
        ----------
        step
            Name of the step.
        samples
            Digest of this site's samples.
        members
            The members of the new sum.
        least
            Least number of members by which two sums may differ, or "same".
        """
        for entry in self._read()["sums"]:
            differ = len(set(entry["members"]) ^ set(members))
            if (entry["step"], entry["samples"]) != (step, samples) or not differ:
                continue
            if least == "same" or differ < least:
                others = "" if least == "same" else f", or at least {least} others"
                raise ProtocolError(
                    f"the members differ by {differ} from those of a sum of {step} that this site "
                    f"has answered; expected the same members{others} (accept.difference)"
                )

    def reveal(self, step: str, samples: str, members: Collection[str]) -> None:
        """Record that this site helps to reveal a sum over these members.

        Parameters
        ----------
        step, samples, members
            As for `require_apart`.
        """
        plain = self._read()
        found = {"step": step, "samples": samples, "members": sorted(members)}
        for entry in plain["sums"]:
            if found.items() <= entry.items():
                break
        else:
            entry = {**found, "times": 0}
            plain["sums"].append(entry)
        entry["times"] += 1
        entry["last"] = datetime.now(UTC).isoformat(timespec="seconds")
        self._write(plain)

    def allow_others(self) -> None:
        """Forget with whom this site has revealed sums, so that other members are accepted."""
        plain = self._read()
        plain["sums"] = []
        self._write(plain)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers of answers, and the secure sums, as they are stored."""
        return self._read()

    def _read(self) -> dict[str, Any]:
        if not self._path.is_file():
            return {"answers": 0, "runs": {}, "sums": []}
        try:
            plain: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
            int(plain["answers"]), dict(plain["runs"]), list(plain["sums"])
        except (OSError, ValueError, KeyError, TypeError) as error:  # answering would be a guess
            raise DataError(
                f"{self._path}: not a record of answers ({error}); restore it from a copy"
            ) from error
        return plain

    def _write(self, plain: dict[str, Any]) -> None:
        # On the disk before the answer leaves: a power failure must not allow another answer.
        files.write(self._path, json.dumps(plain, indent=1) + "\n", private=True, durable=True)


def log_refusal(folder: Path, text: str) -> None:
    """Append a line to the site's own log of refusals, whose reasons the server does not see."""
    files.write_folder(folder)
    path = folder / REFUSALS
    if path.is_file() and path.stat().st_size > _MOST_LOG:
        path.replace(path.with_name("refusals.old.log"))
    line = text.encode("unicode_escape", "backslashreplace")
    when = datetime.now(UTC).isoformat(timespec="seconds").encode()
    with files.append(path) as file:
        file.write(when + b" " + line + b"\n")
