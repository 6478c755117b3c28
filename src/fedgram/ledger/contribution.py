"""Contributions of sites, and sums of contributions with different class lists."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedgram.core import codec
from fedgram.core.statistics import Statistics
from fedgram.core.targets import outputs_named
from fedgram.errors import MismatchError
from fedgram.runtime.text import normalized

_RANDOM = 16  # bytes


@codec.register("Contribution/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Contribution:
    """The statistics of a site, with its name.

    Parameters
    ----------
    client
        Name of the site.
    statistics
        Sums over its samples; negative to remove samples.
    tag
        Distinguishes increments with the same content.

    Examples
    --------
    >>> one = Contribution(client="ward 3", statistics=Statistics.zero())
    >>> one.id == Contribution(client="ward 3", statistics=Statistics.zero()).id
    True
    """

    client: str
    statistics: Statistics
    tag: str = ""

    @property
    def id(self) -> str:
        """Digest of the content: the same contribution is not counted twice."""
        return codec.digest(self)

    @property
    def guessable(self) -> bool:
        """Whether somebody who guesses the statistics can compute the id."""
        return not re.search(f"[0-9a-f]{{{2 * _RANDOM}}}$", self.tag)


def random_tag(tag: str = "") -> str:
    """Return a tag with a random number, so that the id of a contribution cannot be guessed.

    Examples
    --------
    >>> one = Contribution(client="ward 3", statistics=Statistics.zero(), tag=random_tag("May"))
    >>> one.tag[:4], one.guessable
    ('May ', False)
    """
    return f"{tag} {secrets.token_hex(_RANDOM)}".strip()


def merged(parts: Iterable[Statistics], classes: Sequence[str] | None = None) -> Statistics:
    """Return the sum of statistics whose class lists may differ, matched by class name.

    A class that one of them lacks counts as a column of zeros there. The classes of the sum are in
    alphabetical order, so that the order of the parts does not matter. With a fixed list of
    `classes`, other classes are refused.

    Examples
    --------
    >>> import numpy as np
    >>> from fedgram.core.samples import Space
    >>> def of(*classes):
    ...     ones = np.ones((1, len(classes)), int)
    ...     return Statistics(count=2, moment=ones, gram=ones[0, :1], space=Space(width=1, bound=9),
    ...                       classes=classes)
    >>> merged([of("cat", "dog"), of("dog", "ant")]).classes
    ('ant', 'cat', 'dog')
    """
    total = Statistics.zero()
    for part in parts:
        if part.lacks_schema():
            continue
        names = merged_classes(total.classes, part.classes, classes)
        both = part.with_classes(names)
        total = both if total.lacks_schema() else total.with_classes(names) + both
    return total


def merged_classes(
    ours: Sequence[str], theirs: Sequence[str], fixed: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Return the union of two class lists; raise MismatchError for lists that do not match.

    Parameters
    ----------
    ours, theirs
        The lists.
    fixed
        The only classes that are allowed; None for any.
    """
    numbers = outputs_named(ours) or outputs_named(theirs)
    if ours and theirs and numbers and set(ours) != set(theirs):
        raise MismatchError(
            f"outputs differ: {', '.join(ours)} and {', '.join(theirs)}; use the same task, "
            "outputs and output_range everywhere"
        )
    names = set(checked_classes([*dict.fromkeys([*ours, *theirs])]))
    if fixed is not None:
        if names - set(fixed):
            extra = ", ".join(sorted(names - set(fixed)))
            raise MismatchError(f"classes {extra} are not in the fixed list of classes")
        return tuple(fixed)
    if ours and theirs and _numbered(ours) != _numbered(theirs):
        raise MismatchError(
            "one site has class names and the other only class numbers; give all sites the class "
            "names (an array 'classes')"
        )
    return tuple(sorted(names))


def checked_classes(classes: Sequence[str]) -> list[str]:
    """Return the list; raise MismatchError if two names are equal except for case or spaces."""
    if len(set(classes)) < len(classes):
        twice = Counter(classes).most_common(1)[0][0]
        raise MismatchError(f"class {twice!r} is listed twice; list every class once")
    folded: dict[str, str] = {}
    for name in classes:
        other = folded.setdefault(normalized(name).casefold(), name)
        if other != name:
            raise MismatchError(
                f"classes {other!r} and {name!r} differ only in case or spaces; agree on one name"
            )
    return list(classes)


def _numbered(classes: Sequence[str]) -> bool:
    return all(name.isdigit() for name in classes)
