"""Who gets which sample: dealt once, purely, and alike for training and test."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.data import partition as partitions
from fedgram.data.dataset import TEST, TRAIN, VALID, Dataset
from fedgram.data.partition import fixed_split
from fedgram.data.partition import partition as partitioned
from fedgram.data.plan import PARTITIONS, PartitionPlan
from fedgram.data.sources import load_dataset
from fedgram.errors import ConfigError, DataError

BY_LABEL = ("iid", "dirichlet", "quantity", "shards")
PARTS = ("train", "valid", "test")


def dataset(y, **columns):
    y = np.asarray(y, np.int64)
    classes = tuple(str(code) for code in range(int(y.max()) + 1))
    return Dataset(x=np.zeros((len(y), 1)), y=y, classes=classes, **columns)


@st.composite
def labels(draw):
    """Labels of at least two classes, in no order, with every class large enough to train on."""
    sizes = draw(st.lists(st.integers(1, 30), min_size=2, max_size=5))
    y = np.repeat(np.arange(len(sizes)), sizes)
    return np.random.default_rng(draw(st.integers(0, 9))).permutation(y)


@st.composite
def plans(draw):
    return PartitionPlan(
        clients=draw(st.integers(1, 7)),
        partition=draw(st.sampled_from(BY_LABEL)),
        dirichlet=draw(st.floats(1e-3, 1e3)),
        equal_sizes=draw(st.booleans()),
        shards=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 99)),
        split=draw(st.sampled_from(["global", "within-client"])),
        test_fraction=draw(st.floats(0.05, 0.5)),
        valid_fraction=draw(st.sampled_from([0.0, 0.1, 0.4])),
    )


def dealt_or_refused(data, plan):
    """Return the shares, or none where there are fewer training samples than clients."""
    split = fixed_split(data, plan) if plan.split == "global" else np.full(len(data), TRAIN)
    if np.sum(split == TRAIN) < plan.clients:
        with pytest.raises(DataError, match="expected at least"):
            partitioned(data, plan)
        return []
    return partitioned(data, plan)


def everything(shares):
    return np.concatenate([part for s in shares for part in (s.train, s.valid, s.test)])


def union(shares, part):
    return sorted(np.concatenate([getattr(share, part) for share in shares]))


def class_counts(data, indices):
    return np.bincount(data.y[indices], minlength=len(data.classes))


@given(labels(), plans())
def test_every_sample_is_dealt_exactly_once(y, plan):
    if shares := dealt_or_refused(dataset(y), plan):
        assert sorted(everything(shares)) == list(range(len(y)))


@given(labels(), plans())
def test_every_client_has_a_training_sample_and_there_are_as_many_as_asked_for(y, plan):
    if shares := dealt_or_refused(dataset(y), plan):
        assert len(shares) == len({share.id for share in shares}) == plan.clients
        assert all(len(share.train) for share in shares)


@given(labels(), plans())
def test_shares_are_a_pure_function_of_data_and_plan(y, plan):
    first, again = (dealt_or_refused(dataset(y), plan) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        for part in ("train", "valid", "test"):
            np.testing.assert_array_equal(getattr(one, part), getattr(other, part))
        assert (one.id, one.holdout) == (other.id, other.holdout)


@given(labels(), plans(), plans())
def test_the_global_split_depends_on_neither_clients_nor_partition(y, plan, other):
    changed = PartitionPlan(
        clients=other.clients,
        partition=other.partition,
        shards=other.shards,
        dirichlet=other.dirichlet,
        equal_sizes=other.equal_sizes,
        seed=plan.seed,
        test_fraction=plan.test_fraction,
        valid_fraction=plan.valid_fraction,
    )
    data = dataset(y)
    plan = PartitionPlan(
        clients=1,
        seed=plan.seed,
        test_fraction=plan.test_fraction,
        valid_fraction=plan.valid_fraction,
    )
    one, two = dealt_or_refused(data, plan), dealt_or_refused(data, changed)
    if one and two:
        for part in PARTS:
            assert union(one, part) == union(two, part)


@given(labels(), plans())
def test_test_samples_of_a_class_follow_its_training_proportions(y, plan):
    data = dataset(y)
    plan = PartitionPlan(**{**vars(plan), "split": "global"})
    shares = dealt_or_refused(data, plan)
    if not shares:
        return
    train = np.array([class_counts(data, share.train) for share in shares])
    test = np.array([class_counts(data, share.test) for share in shares])
    trained = train.sum(axis=0) > 0
    wanted = train / np.maximum(train.sum(axis=0), 1) * test.sum(axis=0)
    assert np.abs(test - wanted)[:, trained].max(initial=0) <= 1 + 1e-9


def test_each_class_keeps_its_share_of_test_samples():
    data = load_dataset("digits")
    split = fixed_split(data, PartitionPlan(test_fraction=0.25))
    tested = np.bincount(data.y[split == TEST])
    np.testing.assert_array_equal(tested, [round(n * 0.25) for n in np.bincount(data.y)])


def test_another_seed_gives_another_split_and_another_partition():
    data = load_dataset("digits")
    one, two = (partitioned(data, PartitionPlan(clients=3, seed=seed)) for seed in (0, 1))
    assert union(one, "test") != union(two, "test")


def test_more_clients_than_training_samples_are_refused():
    data = dataset([0, 1] * 4)  # 6 for training
    assert len(partitioned(data, PartitionPlan(clients=6))) == 6
    with pytest.raises(DataError, match=r"at least 7 training samples, .* got 6; use fewer"):
        partitioned(data, PartitionPlan(clients=7))


def test_a_single_class_is_refused():
    with pytest.raises(DataError, match="at least 2 classes, got 1: all samples have one class"):
        partitioned(dataset(np.zeros(9, int)), PartitionPlan(clients=2))


def test_names_sort_in_the_order_of_clients():
    names = [share.id for share in partitioned(load_dataset("digits"), PartitionPlan(clients=101))]
    assert names == sorted(names)
    assert (names[0], names[100]) == ("c000", "c100")


# Shards


def shard_counts(data, shares, pieces):
    """Class counts of the shards, cut independently: sort by class, split evenly."""
    y = np.sort(data.y[np.array(union(shares, "train"))])
    parts = np.array_split(y, pieces)
    return [tuple(np.bincount(part, minlength=len(data.classes))) for part in parts]


@given(labels(), st.integers(1, 6), st.integers(0, 9))
def test_with_one_shard_each_clients_hold_the_contiguous_pieces(y, clients, seed):
    data = dataset(y)
    shares = dealt_or_refused(
        data, PartitionPlan(clients=clients, partition="shards", shards=1, seed=seed)
    )
    if shares:
        held = sorted(tuple(class_counts(data, share.train)) for share in shares)
        assert held == sorted(shard_counts(data, shares, clients))


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_client_holds_its_number_of_even_shards_and_few_classes(shards):
    data = load_dataset("digits")  # ten classes of about 135 training samples
    shares = partitioned(data, PartitionPlan(clients=20, partition="shards", shards=shards))
    samples, pieces = sum(len(share.train) for share in shares), 20 * shards
    for share in shares:
        assert shards * (samples // pieces) <= len(share.train) <= shards * -(-samples // pieces)
        assert np.count_nonzero(class_counts(data, share.train)) <= 2 * shards


def test_more_shards_than_samples_still_use_every_sample():
    data = dataset([0, 1, 2] * 8)
    shares = partitioned(data, PartitionPlan(clients=4, partition="shards", shards=50))
    assert sorted(everything(shares)) == list(range(24))


# Dirichlet


def skew(concentration):
    """Mean over clients of the share of their largest class."""
    data = load_dataset("digits")
    shares = partitioned(data, PartitionPlan(clients=10, dirichlet=concentration))
    counts = np.array([class_counts(data, share.train) for share in shares])
    return np.mean(counts.max(axis=1) / counts.sum(axis=1))


def test_a_small_concentration_skews_more_than_a_large_one():
    assert skew(0.01) > skew(1.0) > skew(100.0)


@pytest.mark.parametrize("equal_sizes", [False, True])
@pytest.mark.parametrize("concentration", [1e-300, 1e-8, 1e8])
def test_extreme_concentrations_lose_nothing(concentration, equal_sizes):
    plan = PartitionPlan(clients=10, dirichlet=concentration, equal_sizes=equal_sizes)
    assert sorted(everything(partitioned(load_dataset("digits"), plan))) == list(range(1797))


@pytest.mark.parametrize("concentration", [0.1, 1.0])
def test_clients_of_equal_sizes_are_skewed_in_classes_only(concentration):
    data = load_dataset("digits")
    plan = PartitionPlan(clients=10, dirichlet=concentration, equal_sizes=True)
    counts = np.array([class_counts(data, share.train) for share in partitioned(data, plan)])
    sizes = counts.sum(axis=1)
    assert np.abs(sizes - sizes.mean()).max() <= 0.05 * sizes.mean()
    assert np.mean(counts.max(axis=1) / sizes) > 1.5 / len(data.classes)


@pytest.mark.parametrize("concentration", [0, -1.0, float("nan"), float("inf")])
def test_a_concentration_that_is_no_positive_number_is_refused(concentration):
    with pytest.raises(ConfigError, match=r"data\.dirichlet"):
        PartitionPlan(dirichlet=concentration)


# Domains

DOMAINS = np.array(["sketch", "photo", "art"])


def domain_data(sizes=(30, 24, 18), **columns):
    domain = np.repeat(DOMAINS, sizes)
    return dataset(np.arange(len(domain)) % 3, domain=domain, **columns)


def test_without_a_number_there_is_one_client_per_domain_named_after_it():
    data = domain_data()
    shares = partitioned(data, PartitionPlan(partition="domain"))
    assert [share.id for share in shares] == sorted(DOMAINS)
    for share in shares:
        assert set(data.domain[share.train]) == set(data.domain[share.test]) == {share.id}


def test_more_clients_than_domains_share_each_domain_evenly():
    data = domain_data()
    shares = partitioned(data, PartitionPlan(partition="domain", clients=6))
    assert sorted(share.id for share in shares) == sorted(f"{d}-{k}" for d in DOMAINS for k in "01")
    for share in shares:
        assert set(data.domain[share.train]) == {share.id[:-2]}
    sizes = {share.id: len(share.train) for share in shares}
    assert all(abs(sizes[f"{d}-0"] - sizes[f"{d}-1"]) <= 1 for d in DOMAINS)


def test_fewer_clients_than_domains_are_refused():
    with pytest.raises(ConfigError, match="fewer than the 3 domains"):
        partitioned(domain_data(), PartitionPlan(partition="domain", clients=2))


def test_data_without_domains_are_refused():
    with pytest.raises(DataError, match="array 'domain' is missing"):
        partitioned(dataset([0, 1] * 9), PartitionPlan(partition="domain"))


def kept_apart(data, plan, domain):
    """Whether every client trains on its own domain alone, or the domain is refused by name."""
    try:
        shares = partitioned(data, plan)
    except DataError as error:
        return domain in str(error)
    return all(set(data.domain[share.train]) == {share.id.split("-")[0]} for share in shares)


@pytest.mark.parametrize("untrained", DOMAINS)
def test_a_domain_that_is_only_tested_is_never_given_another_domains_samples(untrained):
    split = np.where(domain_data().domain == untrained, TEST, TRAIN)
    assert kept_apart(domain_data(split=split), PartitionPlan(partition="domain"), untrained)


def test_a_domain_of_fewer_samples_than_clients_is_never_given_another_domains_samples():
    assert kept_apart(
        domain_data(sizes=(30, 24, 2)), PartitionPlan(partition="domain", clients=9), "art"
    )


# Sizes


def test_a_quantity_skew_changes_sizes_and_leaves_the_mix_of_classes():
    shares = partitioned(
        dataset(np.repeat([0, 1, 2, 3], 2000)),
        PartitionPlan(partition="quantity", clients=9, dirichlet=1.0),
    )
    sizes = np.array([len(share.train) for share in shares])
    assert sizes.max() > 5 * sizes.min()
    for share in shares:
        mix = np.bincount(share.train // 2000, minlength=4)
        assert np.ptp(mix) <= 2


# Given clients


def test_clients_named_by_the_data_keep_their_samples_and_names():
    client = np.array(["ann", "bob", "cy"])[np.arange(60) % 3]
    shares = partitioned(
        dataset(np.arange(60) % 2, client=client), PartitionPlan(partition="given")
    )
    assert [share.id for share in shares] == ["ann", "bob", "cy"]
    for share in shares:
        own = np.concatenate([share.train, share.test])
        assert sorted(own) == sorted(np.flatnonzero(client == share.id))


def test_numbers_may_name_clients():
    shares = partitioned(
        dataset([0, 1] * 9, client=np.repeat([7, 40], 9)), PartitionPlan(partition="given")
    )
    assert [share.id for share in shares] == ["7", "40"]


def test_data_that_name_no_clients_are_refused():
    with pytest.raises(DataError, match="array 'client' is missing"):
        partitioned(dataset([0, 1] * 9), PartitionPlan(partition="given"))


def test_a_number_that_is_not_the_datas_is_refused():
    data = dataset([0, 1] * 9, client=np.repeat([0, 1, 2], 6))
    assert len(partitioned(data, PartitionPlan(partition="given", clients=3))) == 3
    with pytest.raises(ConfigError, match=r"data\.clients = 2, but the data have 3"):
        partitioned(data, PartitionPlan(partition="given", clients=2))


def test_a_given_client_without_training_samples_is_refused_by_name():
    client = np.repeat(["ann", "bob"], 9)
    split = np.where(client == "bob", TEST, TRAIN)
    data = dataset([0, 1] * 9, client=client, split=split)
    with pytest.raises(DataError, match="client bob has no training samples"):
        partitioned(data, PartitionPlan(partition="given"))


# Splits


def stored_split():
    """60 samples of 3 classes; of each class 12 train, 4 validate, 4 test."""
    return np.repeat([TRAIN, VALID, TEST], [36, 12, 12])


@pytest.mark.parametrize("partition", BY_LABEL)
def test_a_stored_split_is_honoured_with_its_validation_samples(partition):
    split = stored_split()
    shares = partitioned(
        dataset(np.arange(60) % 3, split=split), PartitionPlan(clients=4, partition=partition)
    )
    for part, code in (("train", TRAIN), ("valid", VALID), ("test", TEST)):
        assert union(shares, part) == list(np.flatnonzero(split == code))


def test_a_stored_split_with_other_codes_is_refused():
    with pytest.raises(DataError, match="split: expected 0"):
        partitioned(dataset([0, 1, 0, 1], split=np.array([0, 1, 2, 3])), PartitionPlan(clients=1))


def test_a_class_that_is_only_tested_is_dealt_all_the_same():
    y = np.array([0, 1] * 10 + [2] * 6)
    data = dataset(y, split=np.where(y == 2, TEST, TRAIN))
    shares = partitioned(data, PartitionPlan(clients=3, partition="iid"))
    assert [len(share.test) for share in shares] == [2, 2, 2]


def test_within_client_ignores_a_stored_split_and_splits_every_client():
    data = dataset(np.arange(60) % 3, split=np.full(60, TRAIN))
    shares = partitioned(data, PartitionPlan(clients=4, partition="iid", split="within-client"))
    for share in shares:
        own = len(share.train) + len(share.test)
        assert not len(share.valid)
        assert len(share.test) == round(0.25 * own)


@pytest.mark.parametrize("partition", BY_LABEL)
def test_within_client_splits_about_three_to_one_in_each_client(partition):
    plan = PartitionPlan(clients=12, partition=partition, split="within-client")
    for share in partitioned(load_dataset("digits"), plan):
        assert abs(len(share.test) - 0.25 * (len(share.train) + len(share.test))) <= 1


def test_within_client_leaves_a_lone_sample_in_training():
    data = dataset([0, 1], client=np.array(["ann", "bob"]))
    shares = partitioned(
        data, PartitionPlan(partition="given", split="within-client", test_fraction=0.9)
    )
    assert [(len(share.train), len(share.test)) for share in shares] == [(1, 0), (1, 0)]


# Validation samples


def test_a_share_of_each_classs_training_samples_is_kept_for_choices():
    data = load_dataset("digits")
    plain, split = (fixed_split(data, PartitionPlan(valid_fraction=share)) for share in (0.0, 0.2))
    np.testing.assert_array_equal(split == TEST, plain == TEST)  # the test samples stay
    trained = np.bincount(data.y[plain == TRAIN])
    kept = np.bincount(data.y[split == VALID])
    np.testing.assert_array_equal(kept, [round(0.2 * n) for n in trained])
    assert not np.any(plain == VALID)


def test_validation_samples_of_a_class_follow_its_training_proportions():
    data = load_dataset("digits")
    shares = partitioned(data, PartitionPlan(clients=7, valid_fraction=0.3))
    train, valid = (
        np.array([class_counts(data, getattr(share, part)) for share in shares])
        for part in ("train", "valid")
    )
    wanted = train / train.sum(axis=0) * valid.sum(axis=0)
    assert np.abs(valid - wanted).max() <= 1 + 1e-9


def test_a_split_of_the_data_with_validation_samples_is_kept_as_it_is():
    data = dataset(np.arange(60) % 3, split=stored_split())
    np.testing.assert_array_equal(
        fixed_split(data, PartitionPlan(valid_fraction=0.5)), stored_split()
    )
    tested = np.where(stored_split() == TEST, TEST, TRAIN)
    split = fixed_split(
        dataset(np.arange(60) % 3, split=tested), PartitionPlan(valid_fraction=0.25)
    )
    np.testing.assert_array_equal(split == TEST, tested == TEST)
    assert np.bincount(split).tolist() == [36, 12, 12]


@pytest.mark.parametrize("partition", BY_LABEL)
def test_within_client_keeps_a_share_of_what_is_left_for_training(partition):
    settings = {"clients": 12, "partition": partition, "split": "within-client"}
    plain = partitioned(load_dataset("digits"), PartitionPlan(**settings))
    for one, other in zip(
        plain,
        partitioned(load_dataset("digits"), PartitionPlan(valid_fraction=0.2, **settings)),
        strict=True,
    ):
        np.testing.assert_array_equal(one.test, other.test)
        assert len(other.valid) == min(round(0.2 * len(one.train)), len(one.train) - 1)
        assert sorted([*other.train, *other.valid]) == sorted(one.train)


def test_a_lone_sample_is_trained_on_and_not_kept_for_choices():
    data = dataset([0, 1, 1], client=np.array(["ann", "bob", "bob"]))
    plan = PartitionPlan(
        partition="given", split="within-client", test_fraction=0.1, valid_fraction=0.9
    )
    sizes = [(len(s.train), len(s.valid), len(s.test)) for s in partitioned(data, plan)]
    assert sizes == [(1, 0, 0), (1, 1, 0)]


# A minimum of samples


@pytest.mark.parametrize("partition", BY_LABEL)
@pytest.mark.parametrize("minimum", [2, 17])
def test_every_client_has_the_minimum_of_training_samples(partition, minimum):
    settings = {"clients": 40, "partition": partition, "dirichlet": 0.02}
    data = load_dataset("digits")
    shares = partitioned(data, PartitionPlan(minimum=minimum, **settings))
    assert min(len(share.train) for share in shares) >= minimum
    assert sorted(everything(shares)) == list(range(1797))
    for one, other in zip(
        shares, partitioned(data, PartitionPlan(minimum=minimum, **settings)), strict=True
    ):
        np.testing.assert_array_equal(one.train, other.train)


def test_a_minimum_changes_nothing_where_everybody_has_it():
    one, other = (
        partitioned(load_dataset("digits"), PartitionPlan(partition="iid", minimum=n))
        for n in (1, 20)
    )
    assert fingerprint(one) == fingerprint(other)


def test_a_minimum_that_there_are_not_enough_samples_for_is_refused():
    with pytest.raises(ConfigError, match=r"data\.minimum = 40: .* not enough for 40 clients"):
        partitioned(load_dataset("digits"), PartitionPlan(clients=40, minimum=40))


def test_a_minimum_is_not_reached_with_another_domains_samples():
    data = domain_data(sizes=(30, 24, 6))
    with pytest.raises(DataError, match="the partition by domain allows"):
        partitioned(data, PartitionPlan(partition="domain", minimum=10))
    assert len(partitioned(data, PartitionPlan(partition="domain", minimum=4))) == 3


# So many classes each


@st.composite
def by_classes(draw):
    classes, clients = draw(st.integers(2, 6)), draw(st.integers(1, 9))
    least = -(-classes // clients)
    return classes, clients, draw(st.integers(least, classes)), draw(st.integers(0, 99))


@given(by_classes(), st.sampled_from(["global", "within-client"]))
def test_every_client_has_exactly_so_many_classes(chosen, split):
    classes, clients, wanted, seed = chosen
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), 5 + 3 * clients))
    data = dataset(y)
    plan = PartitionPlan(
        partition="classes", clients=clients, classes_per_client=wanted, seed=seed, split=split
    )
    shares = partitioned(data, plan)
    assert sorted(everything(shares)) == list(range(len(y)))
    for share in shares:
        own = np.concatenate([share.train, share.test])
        trained = share.train if split == "global" else own
        assert np.count_nonzero(class_counts(data, trained)) == wanted
        assert set(y[share.test]) <= set(y[trained])
    holders = np.array([class_counts(data, s.train) > 0 for s in shares]).sum(axis=0)
    if split == "global":
        assert np.ptp(holders) <= 1  # every class has as many holders, or one more


def test_a_class_is_dealt_evenly_among_its_holders():
    data = dataset(np.repeat(np.arange(4), 40))
    shares = partitioned(data, PartitionPlan(partition="classes", clients=6, classes_per_client=2))
    counts = np.array([class_counts(data, share.train) for share in shares])
    for held in counts.T:
        assert np.ptp(held[held > 0]) <= 1


@pytest.mark.parametrize(("clients", "wanted"), [(3, 3), (20, 11), (4, 2)])
def test_a_number_of_classes_that_cannot_be_is_refused(clients, wanted):
    plan = PartitionPlan(partition="classes", clients=clients, classes_per_client=wanted)
    least = -(-10 // clients)
    with pytest.raises(ConfigError, match=rf"classes_per_client = {wanted}: .* {least} to 10"):
        partitioned(load_dataset("digits"), plan)


def test_a_class_with_fewer_samples_than_holders_is_refused():
    y = np.r_[np.zeros(50, int), np.ones(4, int)]
    with pytest.raises(DataError, match="class 1 has fewer training samples than clients"):
        partitioned(dataset(y), PartitionPlan(partition="classes", clients=8, classes_per_client=2))


# What was dealt before is dealt the same


def fingerprint(shares):
    found = hashlib.sha256()
    for share in shares:
        for part in PARTS:
            found.update(share.id.encode())
            found.update(getattr(share, part).astype("<i8").tobytes())
    return found.hexdigest()[:16]


@pytest.mark.parametrize(
    ("partition", "split", "known"),
    [
        ("iid", "global", "deefcc9e4be68dae"),
        ("iid", "within-client", "0df82e5e1f26f61b"),
        ("dirichlet", "global", "8afe9e5d8bb78f18"),
        ("dirichlet", "within-client", "4d3d345e218b430f"),
        ("quantity", "global", "8710e93c4a776622"),
        ("quantity", "within-client", "6ea069af8e6f3ec9"),
        ("shards", "global", "75bfb54e9e1029d8"),
        ("shards", "within-client", "c0b10dceb6648373"),
    ],
)
def test_seeds_mean_what_they_meant(partition, split, known):
    plan = PartitionPlan(clients=30, partition=partition, dirichlet=0.05, split=split)
    assert fingerprint(partitioned(load_dataset("digits"), plan)) == known


def test_seeds_mean_what_they_meant_for_clients_of_equal_sizes_too():
    plan = PartitionPlan(equal_sizes=True, holdout_clients=2)
    assert fingerprint(partitioned(load_dataset("digits"), plan)) == "90b79b6fafbd66a0"


# Held-out clients


def test_as_many_clients_are_held_out_as_asked_for():
    shares = partitioned(load_dataset("digits"), PartitionPlan(clients=9, holdout_clients=3))
    assert sum(share.holdout for share in shares) == 3
    assert sorted(everything(shares)) == list(range(1797))


def test_holding_out_changes_nobodys_samples():
    plain = partitioned(load_dataset("digits"), PartitionPlan(clients=9))
    held = partitioned(load_dataset("digits"), PartitionPlan(clients=9, holdout_clients=3))
    for one, other in zip(plain, held, strict=True):
        np.testing.assert_array_equal(one.train, other.train)


def test_somebody_must_be_left_to_train():
    with pytest.raises(ConfigError, match="no client of 3 remains"):
        partitioned(load_dataset("digits"), PartitionPlan(clients=3, holdout_clients=3))


# Plans


def test_an_unknown_partition_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'dirichlet'"):
        PartitionPlan(partition="dirichlett")
    assert set(BY_LABEL) < set(PARTITIONS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"split": "random"},
        {"clients": 0},
        {"shards": 0},
        {"test_fraction": 0.0},
        {"test_fraction": 1.0},
        {"holdout_clients": -1},
        {"seed": -1},
        {"valid_fraction": -0.1},
        {"valid_fraction": 1.0},
        {"minimum": 0},
        {"classes_per_client": 0},
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused_by_name(wrong):
    with pytest.raises(ConfigError, match=rf"data\.{next(iter(wrong))} = "):
        PartitionPlan(**wrong)


# Slow references of what is done for all clients at once


def moved_one_by_one(owner, turn, clients, minimum):
    """Take the first sample of the largest client, again and again."""
    owner = owner.copy()
    sizes = np.bincount(owner, minlength=clients)
    for poor in np.flatnonzero(sizes < minimum):
        while sizes[poor] < minimum:
            rich = int(sizes.argmax())
            owner[turn[np.flatnonzero(owner[turn] == rich)[0]]] = poor
            sizes[rich] -= 1
            sizes[poor] += 1
    return owner


@given(
    owner=st.lists(st.integers(0, 5), min_size=18, max_size=40),
    minimum=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_samples_are_moved_as_one_by_one(owner, minimum, seed):
    plan = PartitionPlan(clients=6, minimum=minimum, seed=seed)
    found, train = np.array(owner), np.arange(len(owner))
    turn = train if minimum == 1 else partitions._rng(plan, "minimum").permutation(train)
    wanted = moved_one_by_one(found, turn, 6, minimum)
    partitions._ensure_minimum(found, train, 6, plan)
    assert found.tolist() == wanted.tolist()


@given(
    groups=st.lists(st.integers(0, 2), min_size=1, max_size=30),
    clients=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_samples_are_assigned_as_client_by_client(groups, clients, seed):
    codes = np.array(groups)
    shares = np.random.default_rng(seed).dirichlet(np.full(clients, 0.3), 3)
    found = partitions._assigned(codes, shares, *map(np.random.default_rng, (seed, seed + 1)))
    rng, order = map(np.random.default_rng, (seed, seed + 1))
    for group, row in enumerate(shares):
        turn = order.permutation(clients)
        members = rng.permutation(np.flatnonzero(codes == group))
        ends = np.rint(np.cumsum(row[turn]) * len(members)).astype(int)[:-1]
        for client, part in zip(turn, np.split(members, ends), strict=True):
            assert (found[part] == client).all()
