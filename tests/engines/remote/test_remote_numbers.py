"""A regression at real sites: the same sums, so the same models and scores, to the bit."""

from dataclasses import replace

import numpy as np
import pytest
from remote_support import (
    StandIn,
    done,
    federation,
    in_process,
    members,
    notes,
    office_of,
    require_same,
    served,
)

from fedgram.core.targets import Output, Targets
from fedgram.deploy.server import run_federation
from fedgram.deploy.settings import read_site
from fedgram.deploy.site import site_of
from fedgram.errors import ConfigError
from fedgram.federation.method import find_method, names
from fedgram.runtime.toml import written

ABLE = [name for name in names() if find_method(name).predicts_numbers and name != "central"]


@pytest.fixture
def doses(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 9))
    y = 10 * x[:, 0] + 50 + rng.normal(size=240)
    path = tmp_path / "doses.npz"
    np.savez(path, x=x, y=np.clip(y, 0, 100))
    return {
        "source": str(path),
        "task": "regression",
        "output_range": [0.0, 100.0],
        "partition": "iid",
        "clients": 4,
        "standardize": False,
    }


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("method", ABLE)
def test_numbers_at_sites_are_those_of_one_process(tmp_path, doses, method, secure):
    out, config, _, _ = served(tmp_path, method, data=doses, engine={"secure": secure})
    if method != "local":
        require_same(out, config, method, personal=not secure)
    assert done(out, method)["accuracy"]["client_mean"] > 0.7


def test_a_site_of_another_range_is_left_out_with_the_reason(tmp_path, doses):
    folder, config = federation(tmp_path, "afl", data=doses, rules={"minimum": 3})
    sites = members(config)
    wide = replace(sites[1], train=_wider(sites[1].train), valid=_wider(sites[1].valid))
    sites[1] = replace(wide, test=_wider(wide.test))
    offices = {100 + k: office_of(s, config, tmp_path / s.id) for k, s in enumerate(sites)}
    out = run_federation(StandIn(offices), folder, lambda _: None)
    reasons = {client: text for client, text in notes(out, "afl") if "left out" in text}
    assert list(reasons) == [sites[1].id]
    assert "outputs differ: y in [0.0, 100.0] and y in [0.0, 200.0]" in reasons[sites[1].id]
    assert "use the same task, outputs and output_range everywhere" in reasons[sites[1].id]
    others = [site for k, site in enumerate(sites) if k != 1]
    expected = in_process(config, "afl", others).to_dict()
    assert done(out, "afl")["shared_digest"] == expected["shared_digest"]


def _wider(samples):
    labels = samples.labels
    outputs = [Output(name="y", low=0.0, high=200.0)]
    return replace(samples, labels=Targets.of(labels.real(), outputs))


def test_a_site_reads_its_numbers(tmp_path, doses):
    path = tmp_path / "site.toml"
    settings = {"name": "north", "data": {**doses, "split": "within-client"}}
    path.write_text(written(settings), "utf-8")
    site = site_of(read_site(path))
    (output,) = site.train.labels.outputs
    assert (output.low, output.high, len(site.train) > 100) == (0.0, 100.0, True)


def test_a_site_declares_the_range(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text('name = "north"\n[data]\ntask = "regression"\n', "utf-8")
    with pytest.raises(ConfigError, match="expected the range that all sites agreed on"):
        read_site(path)
    path.write_text(path.read_text("utf-8") + "output_range = [0, 100]\n", "utf-8")
    assert read_site(path).data.output_range == (0, 100)
