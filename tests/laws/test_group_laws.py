"""Whatever clients send to be summed is a commutative group, to the last bit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedgram import Grid, Lift, Space, Statistics, Tally
from fedgram.core.error_tally import ErrorTally
from fedgram.core.statistics import TargetStatistics
from fedgram.core.targets import Output
from fedgram.selection.class_prior import PSEUDO_COUNTS, PriorEvidence
from fedgram.selection.pool import LikelihoodSums, PoolSums
from fedgram.selection.squared_errors import SquaredErrors
from fedgram.softmax.arithmetic import SoftmaxGrid
from fedgram.softmax.sums import ResidualSums

from . import planted
from .law import GROUP, refuses

SPACE = Space(width=2, unit=0.5, bound=127, steps=("input(2 features)", "grid(8 bits)"))
CLASSES = ("yes", "no", "perhaps")
DOSE, STAY = (Output(name=name, low=0.0, high=9.0) for name in ("dose", "stay"))
COUNTS = st.integers(-(2**40), 2**40)


def arrays(*shape):
    """Draw any 64-bit integers at all: addition wraps, and the laws hold all the same."""
    return hnp.arrays(np.int64, shape, elements=st.integers(-(2**63), 2**63 - 1))


def statistics(kind=Statistics):
    return st.builds(
        kind,
        count=COUNTS,
        gram=arrays(3),
        moment=arrays(2, 3),
        energy=COUNTS,
        space=st.just(SPACE),
        classes=st.just(CLASSES),
    )


def tallies(kind=Tally):
    numbers = (
        "clients",
        "clients_without_test",
        "samples",
        "correct",
        "accuracies",
        "global_accuracy_sum",
    )
    return st.builds(
        kind,
        **dict.fromkeys(numbers, COUNTS),
        histogram=arrays(101),
        class_samples=arrays(3),
        class_correct=arrays(3),
    )


def residual_sums():
    of_folds = ("count", "loss", "base_loss", "out_count", "out_loss", "out_correct")
    return st.builds(
        ResidualSums,
        **{name: arrays(5) for name in of_folds},
        products=arrays(5, 2, 3),
        fingerprint=arrays(1),
        space=st.just(SPACE),
        classes=st.just(CLASSES),
        grid=st.just(SoftmaxGrid()),
        at=st.just("some weights"),
    )


SUMMED = {
    ResidualSums: residual_sums(),
    LikelihoodSums: st.builds(LikelihoodSums, weight=COUNTS, loss=arrays(4), correct=arrays(4)),
    PoolSums: st.builds(
        PoolSums,
        weight=COUNTS,
        loss=COUNTS,
        correct=COUNTS,
        slope=arrays(3),
        curvature=arrays(3, 3),
    ),
    SquaredErrors: st.builds(
        SquaredErrors, samples=COUNTS, errors=arrays(2, 3), totals=arrays(2), energies=arrays(2)
    ),
    ErrorTally: st.builds(
        ErrorTally,
        **dict.fromkeys(("samples", "r2_clients", "r2s"), COUNTS),
        **dict.fromkeys(("squares", "absolutes", "totals", "energies"), arrays(2)),
        outputs=st.just((DOSE, STAY)),
    ),
    TargetStatistics: statistics(TargetStatistics),
    PriorEvidence: st.builds(PriorEvidence, clients=COUNTS, likelihood=arrays(len(PSEUDO_COUNTS))),
}


def triples(values):
    return st.tuples(values, values, values)


@pytest.mark.parametrize("law", GROUP.values(), ids=GROUP)
def test_statistics_are_a_commutative_group(law):
    law(triples(statistics()), Statistics.zero())


@pytest.mark.parametrize("law", GROUP.values(), ids=GROUP)
def test_tallies_are_a_commutative_group(law):
    law(triples(tallies()), Tally.zero())


@pytest.mark.parametrize("law", GROUP.values(), ids=GROUP)
@pytest.mark.parametrize("kind", SUMMED, ids=lambda kind: kind.__name__)
def test_sums_over_samples_and_clients_are_a_commutative_group(law, kind):
    law(triples(SUMMED[kind]), kind.zero())


@pytest.mark.parametrize(
    ("law", "broken"),
    [
        ("commutative", planted.FirstComes),
        ("associative", planted.Averaging),
        ("associative", planted.Single),
        ("neutral", planted.Swallowing),
        ("invertible", planted.Averaging),
        ("invertible", planted.Magnitude),
        ("invertible", planted.Saturating),
        ("invertible", planted.Single),
        ("summable", planted.Restarting),
        ("pure", planted.InPlace),
    ],
)
def test_the_law_fails_on_broken_statistics(law, broken):
    with pytest.raises(AssertionError):
        GROUP[law](triples(statistics(broken)), broken.zero())


@pytest.mark.parametrize("law", ["associative", "invertible"])
def test_the_law_fails_on_a_broken_tally(law):
    with pytest.raises(AssertionError):
        GROUP[law](triples(tallies(planted.Pairwise)), planted.Pairwise.zero())


def one(kind=Statistics, *, space=SPACE, classes=CLASSES):
    return kind(
        count=1,
        gram=np.arange(space.width * (space.width + 1) // 2),
        moment=np.zeros((space.width, len(classes)), np.int64),
        space=space,
        classes=classes,
    )


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (replace(SPACE, steps=("input(2 features)", "grid(4 bits)")), ["8 bits", "4 bits"]),
        (replace(SPACE, steps=(*SPACE.steps, "lift(seed 1)")), ["lift(seed 1)", "one side only"]),
        (replace(SPACE, unit=0.25), ["0.25", "0.5"]),
        (replace(SPACE, bound=7), ["bound=7", "bound=127"]),
        (Grid(bits=8).space(2), ["input(2 features)"]),
    ],
)
def test_statistics_of_other_spaces_are_refused_with_the_difference(other, words):
    refuses(one(), one(space=other), "Statistics", "space differs", *words[1:])


@pytest.mark.parametrize("other", [("yes", "no"), ("yes", "perhaps", "no"), ("y", "n", "p")])
def test_statistics_of_other_class_lists_are_refused_with_both(other):
    refuses(one(), one(classes=other), "classes differs", repr(CLASSES), repr(other))


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (Grid(bits=8).space(4), Grid(bits=9).space(4), ["grid(8 bits", "grid(9 bits"]),
        (Grid().space(4), Grid(clip=3.0).space(4), ["clip 6", "clip 3"]),
        (Grid().space(4), Grid(bits="off").space(4), ["grid(off"]),
        (Lift(width=4).space(Grid().space(4)), Grid().space(4), ["lift(width 4", "one side"]),
        *(
            (Lift(width=4).space(Grid().space(4)), lift.space(Grid().space(4)), [word])
            for lift, word in [
                (Lift(width=5), "width 5"),
                (Lift(width=4, activation="gelu"), "gelu"),
                (Lift(width=4, seed=9), "seed 9"),
            ]
        ),
    ],
)
def test_other_grids_and_lifts_are_refused_by_name(ours, theirs, words):
    refuses(one(space=ours), one(space=theirs), *words)


def test_other_kinds_of_values_are_refused_by_name():
    refuses(one(), Tally(clients=1, class_samples=np.ones(3, np.int64)), "Statistics", "Tally")


def test_refusal_fails_on_statistics_that_add_anything():
    other = replace(SPACE, unit=0.25)
    with pytest.raises(AssertionError):
        refuses(one(planted.Careless), one(planted.Careless, space=other))


def test_refusal_fails_where_the_error_does_not_say_why():
    with pytest.raises(AssertionError):
        refuses(one(), one(classes=("a",)), "the moon")


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_tallies_of_other_class_lists_are_refused(classes):
    ours, theirs = (
        Tally(clients=1, class_samples=np.ones(n, np.int64), class_correct=np.ones(n, np.int64))
        for n in (3, classes)
    )
    refuses(ours, theirs, "Tally")


def test_every_summed_field_has_a_neutral_default():
    for kind in (Statistics, Tally, *SUMMED):
        for name in kind.summed_fields():
            assert not np.any(getattr(kind.zero(), name))
