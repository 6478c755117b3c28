"""What one client's statistics show of its samples: the papers' privacy theorem does not hold.

That is why sums are masked (`engine.secure`). These tests fail if what they show becomes
impossible, and then the documentation has to say so.
"""

import numpy as np

from fedgram import Lift, Statistics
from fedgram.checks.federations import partitioned
from fedgram.core.solve import unpack_symmetric

SITES = partitioned(clients=12, dirichlet=0.1).members
LIFT = Lift(width=512)


def sent_by(site):
    rows = LIFT(site.train.features)
    return rows, Statistics.of(rows, site.train.labels)


def test_class_counts_are_read_from_the_sums_of_the_constant_feature():
    for site in SITES:
        _, sent = sent_by(site)
        sums = sent.moment[sent.space.constant]
        names = np.array(site.train.labels.classes)[site.train.labels.codes]
        counts = [int((names == name).sum()) for name in sent.classes]
        assert (sums * sent.count / sums.sum()).tolist() == counts


def test_a_sample_alone_in_its_class_is_the_class_sum_itself():
    found = 0
    for site in SITES:
        rows, sent = sent_by(site)
        names = np.array(site.train.labels.classes)[site.train.labels.codes]
        for place, name in enumerate(sent.classes):
            if (names == name).sum() == 1:
                assert np.array_equal(sent.moment[:, place], rows.values[names == name][0])
                found += 1
    assert found >= 3


def test_members_are_told_from_strangers_by_their_leverage():
    """With fewer samples than features members lie in the row space, and strangers do not."""
    site = min(SITES, key=lambda each: len(each.train))
    rows, sent = sent_by(site)
    strangers = LIFT(SITES[SITES.index(site) - 1].test.features)
    gram = unpack_symmetric(sent.gram, sent.space.width) * sent.space.unit**2
    inverse = np.linalg.inv(gram + 1e-3 * np.eye(len(gram)))

    def leverage(features):
        x = features.real()
        return np.einsum("ij,jk,ik->i", x, inverse, x)

    assert leverage(rows).max() < 1 < leverage(strangers).min()
