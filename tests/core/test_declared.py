"""Every kind of value that is summed: honest ones are valid, and fields have declared types."""

import importlib
import pkgutil
import sys
from dataclasses import fields, replace

import numpy as np
import pytest

import fedgram
from fedgram import Grid
from fedgram.core.additive import Additive
from fedgram.core.census import Census, DataSchema
from fedgram.core.error_tally import ErrorTally
from fedgram.core.quadratic import Quadratic
from fedgram.core.samples import Labels, Samples, Space
from fedgram.core.sound import require_sound
from fedgram.core.statistics import Statistics, TargetStatistics
from fedgram.core.tally import Tally
from fedgram.core.targets import Output, Targets
from fedgram.core.weighted import Weighted
from fedgram.data.tabular.moments import Moments
from fedgram.errors import DataError, FedgramError
from fedgram.features.standardize import ColumnSums
from fedgram.federation.scoring import ErrorScoreSums, ScoreSums
from fedgram.layerwise.personal import (
    FIXED_POINT_ONE,
    STRENGTHS,
    ClassProfiles,
    CorrectByStrength,
    GroupStatistics,
)
from fedgram.methods._pooling import Judged
from fedgram.methods.scaffold import Corrected
from fedgram.models.linear import Linear
from fedgram.selection.class_prior import PriorEvidence, prior_evidence
from fedgram.selection.class_sums import ClassSums
from fedgram.selection.correct_counts import CorrectCounts
from fedgram.selection.pool import LikelihoodSums, PoolSums
from fedgram.selection.squared_errors import SquaredErrors
from fedgram.softmax.arithmetic import SoftmaxGrid
from fedgram.softmax.sums import IntegerHead, ResidualSums, SoftmaxQuery
from fedgram.training.pilots import Loss

CLASSES = ("a", "b", "c")
RNG = np.random.default_rng(0)
ROWS = Grid()(RNG.normal(size=(20, 4)))
LABELS = Labels(RNG.integers(3, size=20), CLASSES)
SPACE = ROWS.space
SUMS = Statistics.of(ROWS, LABELS)
TALLY = Tally.of(LABELS.codes, LABELS)
WEIGHTED = Weighted.of(np.array([0.5, -1.0]), 20)
TARGETS = Targets.of(RNG.random((20, 2)), [Output(name=n, low=0.0, high=1.0) for n in "ab"])
ERRORS = ErrorTally.of(TARGETS.onehot() + 0.1, TARGETS)
SCORES = RNG.normal(size=(2, 20, 3))
QUERY = SoftmaxQuery(
    values=np.zeros((1, SPACE.width, 3), np.int64), grid=SoftmaxGrid(), space=SPACE, classes=CLASSES
)

HONEST = {
    Statistics: SUMS,
    ClassSums: ClassSums.of(ROWS, LABELS),
    Tally: TALLY,
    Weighted: WEIGHTED,
    Quadratic: Quadratic.of(np.eye(5), np.ones((5, 3)), 20, SPACE, CLASSES),
    DataSchema: DataSchema(space=SPACE, classes=CLASSES),
    Census: Census(space=SPACE, classes=CLASSES, count=20),
    Moments: Moments(
        count=np.array([1]),
        total=np.array([2]),
        squares=np.array([4]),
        columns=("age",),
        levels=(2,),
        schema="of this test",
    ),
    ScoreSums: ScoreSums(tally=TALLY, valid=TALLY, microseconds=5, flops=7),
    CorrectByStrength: CorrectByStrength(samples=20, correct=np.full(len(STRENGTHS), 3)),
    ClassProfiles: ClassProfiles(
        members=np.array([1, 0]), shares=np.array([[FIXED_POINT_ONE, 0], [0, 0]])
    ),
    GroupStatistics: GroupStatistics.of(SUMS, 1, 2),
    Judged: Judged(squared=LikelihoodSums.of(SCORES, LABELS.codes)),
    Corrected: Corrected(theta=WEIGHTED, control=WEIGHTED),
    PriorEvidence: prior_evidence(np.array([3.0, 4.0]), np.array([30.0, 40.0])),
    CorrectCounts: CorrectCounts.of(RNG.random((20, 4)) < 0.5, LABELS),
    LikelihoodSums: LikelihoodSums.of(SCORES, LABELS.codes),
    PoolSums: PoolSums.of(SCORES, LABELS.codes, np.array([0.3, 0.7])),
    ResidualSums: QUERY.sums(Samples(ROWS, LABELS)),
    Loss: Loss.of(RNG.normal(size=(20, 3)), LABELS),
    TargetStatistics: Statistics.of(ROWS, TARGETS),
    SquaredErrors: SquaredErrors.of([TARGETS.onehot() + 0.1, 0 * TARGETS.onehot()], TARGETS),
    ErrorTally: ERRORS,
    ErrorScoreSums: ErrorScoreSums(tally=TALLY, valid=TALLY, errors=ERRORS, microseconds=5),
    ColumnSums: ColumnSums.of(RNG.random((20, 2)), np.zeros(2), np.ones(2)),
}
FIELDS = [
    pytest.param(kind, each.name, id=f"{kind.__name__}.{each.name}")
    for kind in HONEST
    for each in fields(kind)
]


def every_kind(kind=Additive):
    return {kind, *(each for below in kind.__subclasses__() for each in every_kind(below))}


def forged(value, **changed):
    """Return a value with other fields, as somebody else's program may send it."""
    bad = object.__new__(type(value))
    for each in fields(value):
        object.__setattr__(bad, each.name, changed.get(each.name, getattr(value, each.name)))
    return bad


def test_every_kind_is_here():
    for module in pkgutil.walk_packages(fedgram.__path__, "fedgram."):
        if not module.name.startswith("fedgram.deploy.flower") and "__main__" not in module.name:
            try:
                importlib.import_module(module.name)
            except ImportError:
                continue  # an extra is not installed
    # Examples in docstrings define classes in the module that they stand in.
    ours = {
        kind
        for kind in every_kind()
        if kind.__module__.startswith("fedgram.")
        and getattr(sys.modules[kind.__module__], kind.__name__, None) is kind
    }
    assert {kind.__name__ for kind in ours} - {kind.__name__ for kind in HONEST} == {"Additive"}


@pytest.mark.parametrize("kind", HONEST)
def test_honest_values_are_valid_and_so_is_zero(kind):
    HONEST[kind].validate()
    HONEST[kind].validate(sites=1000)
    if kind not in (Tally, ScoreSums, ErrorScoreSums):  # the scores of one client, which exists
        kind.zero().validate()


def repeated(value):
    """Return the sums of the same samples, each repeated a million times."""
    many = {
        name: repeated(part) if isinstance(part, Additive) else part * 10**6
        for name in value.summed_fields()
        for part in [getattr(value, name)]
    }
    return replace(value, **many)


# Without a number of samples, of test samples, and of one site.
UNCOUNTED = (DataSchema, Tally, ErrorTally, ClassProfiles)


@pytest.mark.parametrize("kind", [kind for kind in HONEST if kind not in UNCOUNTED])
def test_a_value_of_a_million_samples_claims_so(kind):
    honest, many = HONEST[kind], repeated(HONEST[kind])
    assert max(honest.claimed_samples(), honest.claimed_weight()) <= len(LABELS)
    assert max(many.claimed_samples(), many.claimed_weight()) > 1000 * len(LABELS)


def test_a_site_is_one_member_of_one_group_and_one_client_of_the_prior():
    for kind in (ClassProfiles, PriorEvidence, Tally):
        with pytest.raises(DataError):
            repeated(HONEST[kind]).validate()


def others(value):
    """Yield values of other types than this one."""
    if isinstance(value, np.ndarray):
        yield from (value.astype(np.int8), value.astype(np.float32), value.astype(str))
        yield from (value[None], value.tolist(), None)
        if value.size:
            yield np.full(value.shape, np.nan)
    elif isinstance(value, int):
        yield from (1.5, float(value), bool(value), str(value), np.array(value), None)
    elif isinstance(value, tuple):
        yield from (list(value), "abc", (*value, 5), (*value, *value))
    elif isinstance(value, Space):
        yield from ("here", replace(value, width=float(value.width)), replace(value, unit=np.inf))
        yield from (replace(value, bound=True), replace(value, steps=("a", 5)), None)
    else:
        yield from ("another", 5, None, [])


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_a_field_of_another_type_is_refused(kind, name):
    honest = HONEST[kind]
    for other in others(getattr(honest, name)):
        if type(other) is type(getattr(honest, name)) and isinstance(other, str):
            continue  # another name is not another type
        with pytest.raises((FedgramError, TypeError, ValueError)) as caught:
            forged(honest, **{name: other}).validate()
        if not isinstance(other, tuple):  # an error of our own, with the name of the field
            assert isinstance(caught.value, DataError), (other, caught.value)


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_a_number_that_leaves_no_room_for_others_is_refused(kind, name):
    honest = HONEST[kind]
    value = getattr(honest, name)
    if name not in kind.summed_fields() or isinstance(value, Additive) or name == "fingerprint":
        return
    if isinstance(value, np.ndarray) and not value.size:
        return
    for huge in (2**62, -(2**62)):
        new = np.full_like(value, huge) if isinstance(value, np.ndarray) else 4 * huge
        with pytest.raises(DataError):
            forged(honest, **{name: new}).validate(sites=3)


def test_the_sum_of_as_many_sites_as_stated_cannot_wrap():
    """The largest values that three sites may send are added; a fourth might wrap."""
    most = (2**63 - 1) // 3
    evidence = replace(
        HONEST[PriorEvidence], likelihood=np.full_like(HONEST[PriorEvidence].likelihood, -most)
    )
    evidence.validate_declared(sites=3)
    assert (sum([evidence] * 3).likelihood == -3 * most).all()
    with pytest.raises(DataError, match="may overflow"):
        evidence.validate_declared(sites=4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_sums_of_floats_are_finite(bad):
    rows = Grid(bits="off")(RNG.normal(size=(20, 4)))
    honest = Statistics.of(rows, LABELS)
    honest.validate()
    for name in ("gram", "moment"):
        changed = getattr(honest, name).copy()
        changed.flat[1] = bad
        with pytest.raises(DataError, match=f"Statistics.{name}: expected finite"):
            replace(honest, **{name: changed}).validate()


def impossible(kind, **changed):
    return pytest.param(replace(HONEST[kind], **changed), id=f"{kind.__name__}: {[*changed]}")


@pytest.mark.parametrize(
    "bad",
    [
        impossible(
            Tally,
            class_samples=np.append(TALLY.class_samples, 0),
            class_correct=np.append(TALLY.class_correct, 0),
        ),
        impossible(Tally, histogram=TALLY.histogram[1:]),
        impossible(Weighted, places=30),
        impossible(Weighted, weight=np.array([1, 2, 3])),
        impossible(Quadratic, classes=("a", "b")),
        impossible(Quadratic, terms=Weighted.of(np.full(30, -1.0), 20, places=54)),
        impossible(Census, count=-1),
        impossible(CorrectByStrength, samples=2),
        impossible(CorrectByStrength, correct=np.zeros(2, int)),
        impossible(ClassProfiles, members=np.array([0, 1])),
        impossible(GroupStatistics, counts=np.array([20, 0])),
        impossible(GroupStatistics, counts=np.array([20])),
        impossible(PriorEvidence, likelihood=np.zeros(2, int)),
        impossible(CorrectCounts, samples=np.zeros(3, int)),
        impossible(CorrectCounts, samples=np.full(2, 20)),
        impossible(LikelihoodSums, correct=np.zeros(3, int)),
        impossible(PoolSums, curvature=np.zeros((1, 2), int)),
        impossible(ResidualSums, loss=np.zeros(2, int)),
        impossible(ResidualSums, fingerprint=np.zeros(2, int)),
        impossible(ResidualSums, products=np.zeros((1, 2, 3), int)),
        impossible(Loss, samples=-1),
    ],
)
def test_each_kind_refuses_other_shapes_and_impossible_counts(bad):
    with pytest.raises(DataError):
        bad.validate()


HEAD = Linear.of(SUMS, ridge=1.0)
WHOLE = IntegerHead.of(HEAD.weights, SoftmaxGrid(), SPACE, CLASSES)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (replace(HEAD, weights=HEAD.weights * np.nan), "weights: expected finite"),
        (replace(HEAD, weights=HEAD.weights + np.inf), "weights: expected finite"),
        (replace(HEAD, weights=HEAD.weights[1:]), "of shape"),
        (replace(HEAD, weights=HEAD.weights.astype(np.int8)), "int8"),
        (replace(HEAD, space=replace(SPACE, unit=np.inf)), "space: expected finite"),
        (replace(WHOLE, values=WHOLE.values[:, 1:]), "of shape"),
        ({"heads": [HEAD, (replace(HEAD, weights=HEAD.weights * np.nan),)]}, "weights: expected"),
        ([forged(SUMS, count=1.5)], "Statistics.count: expected int, got float"),
        ([forged(WEIGHTED, total=WEIGHTED.total.astype(np.int8))], "Weighted.total: expected"),
    ],
)
def test_a_model_that_no_fedgram_has_written_is_refused(bad, reason):
    require_sound([HEAD, WHOLE, {"total": SUMS}, (WEIGHTED + WEIGHTED,)], "file")
    with pytest.raises(DataError, match=f"file: .*{reason}"):
        require_sound(bad, "file")
