import json

import numpy as np
import pytest

from presage.features.cells import CELLS
from presage.features.schema import columns
from presage.models.domain import Domain, learn_domain, read_domain

NAMES = columns("full")
FORWARD, OTHER = "MatMul forward 0", "Relu forward"


def rows(*shares, **changed):
    """Rows that spend these shares of their step in FORWARD, the rest in OTHER."""
    out = np.ones((len(shares), len(NAMES)))
    out[:, [NAMES.index(f"time_share.{cell}") for cell in CELLS]] = 0
    out[:, NAMES.index("unknown_ops")] = 0
    out[:, NAMES.index(f"time_share.{FORWARD}")] = shares
    out[:, NAMES.index(f"time_share.{OTHER}")] = 1 - np.array(shares)
    for name, value in changed.items():
        out[:, NAMES.index(name)] = value
    return out


@pytest.fixture
def domain() -> Domain:
    shares = np.linspace(0.3, 0.5, 21)
    return learn_domain(rows(*shares), [f"net {s}" for s in shares], ["fp32"] * 21)


def reason(domain, features, precision="fp32"):
    (found,) = domain.reasons(features, [precision])
    return found


def test_a_job_like_those_measured_is_at_home(domain):
    assert reason(domain, rows(0.402)) == ""


def test_a_step_that_is_mixed_otherwise_is_strange_and_says_of_what(domain):
    assert reason(domain, rows(0.95)) == (
        "5 % of its step's time is in Relu forward, 50 % in that of the most similar job measured"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"precision": "fp16"}, "no job was measured in fp16"),
        ({"features": rows(0.4, unknown_ops=3)}, "3 operators are of no known kind"),
        (
            {"features": rows(0.4, batch_size=64)},
            "batch_size is 64, was 1 to 1 in training",
        ),
    ],
)
def test_what_else_makes_a_stranger(domain, changes, said):
    assert reason(domain, **{"features": rows(0.4)} | changes) == said


def test_it_is_the_same_once_written_and_read(domain):
    again = read_domain(json.loads(json.dumps(domain.as_json())))

    assert again == domain
    asked = rows(0.1, 0.35, 0.7)
    assert again.reasons(asked, ["fp32"] * 3) == domain.reasons(asked, ["fp32"] * 3)


def test_one_model_alone_vouches_for_its_own_mixture_only():
    domain = learn_domain(rows(0.4, 0.4), ["net", "net"], ["fp32"] * 2)

    assert domain.radius == 0
    assert reason(domain, rows(0.6)) != ""


def test_every_mixture_of_training_is_near_one_that_is_kept():
    rng = np.random.default_rng(0)
    shares = rng.uniform(0, 1, 600)
    domain = learn_domain(rows(*shares), [str(s) for s in shares], ["fp32"] * 600)

    assert len(domain.mixtures) == 256
    strangers = [why for why in domain.reasons(rows(*shares), ["fp32"] * 600) if why]
    assert len(strangers) < 60
