"""A site whose contribution the server holds is not asked for it again, and misses nothing."""

from collections import Counter

import pytest
from remote_support import StandIn, federation, kind, offices, require_same, served

from fedgram.core import codec
from fedgram.deploy.server import run_federation

FEW = {"clients": 4, "dirichlet": 0.3, "valid_fraction": 0.1, "test_fraction": 0.6}
CHOOSING = {
    "auto": {"exchanges": 1},
    "prior": {},
    "closed-ditto": {},
    "fedhip": {"alpha": "auto"},
    "apfl": {"refinement_ridge": "auto", "balance": "auto"},
}


def asked(carrier):
    return Counter(kind(request) for _, request in carrier.sent)


def test_choices_after_another_method_are_those_of_one_process(tmp_path):
    """Samples that are left out must leave the sum too, whoever asked for it before."""
    out, config, carrier, _ = served(tmp_path, "afl", *CHOOSING, method=CHOOSING, data=FEW)
    steps = Counter(codec.decode(sent).step for _, sent in carrier.sent if kind(sent) == "step")
    assert steps["statistics"] == 4  # once for all methods, then the choices
    assert steps["left_out"] == 4 * len(CHOOSING)
    for name in CHOOSING:
        require_same(out, config, name)


def test_choices_among_sites_of_which_some_were_asked_and_some_were_not(tmp_path):
    folder, config = federation(tmp_path, "prior", data=FEW, rules={"minimum": 2})
    everybody = offices(config, tmp_path / "sites")
    run_federation(StandIn({node: everybody[node] for node in (100, 102)}), folder, print)
    carrier = StandIn(everybody)
    out = run_federation(carrier, folder, print)
    assert asked(carrier)["step"] == 2 + 4
    require_same(out, config, "prior")


def test_a_restarted_server_asks_nobody_again_where_some_were_not_asked(tmp_path):
    folder, config = federation(tmp_path, "prior", data=FEW, rules={"minimum": 2})
    everybody = offices(config, tmp_path / "sites")
    run_federation(StandIn({node: everybody[node] for node in (100, 102)}), folder, print)

    def killed(node, request, answer):
        if kind(request) == "score":
            raise KeyboardInterrupt
        return answer(request)

    with pytest.raises(KeyboardInterrupt):
        run_federation(StandIn(everybody, killed), folder, print)
    carrier = StandIn(everybody)
    out = run_federation(carrier, folder, print)
    assert asked(carrier)["step"] == 0
    require_same(out, config, "prior")
