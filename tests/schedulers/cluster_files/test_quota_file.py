"""Files of quotas: what they may contain, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from presage.errors import ConfigError
from presage.schedulers.cluster_files.quota_file import read_quotas
from presage.schedulers.core.users.quota import Quota
from presage.schedulers.simulator.sweep import compute_digest, read_sweep
from tests.support.in_process import presage


def test_the_example_can_be_read():
    quotas = read_quotas(Path("examples/quotas.yaml"))
    assert quotas.of_user == {"": Quota(16), "ana": Quota(8), "bob": Quota(weight=2)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "must have the keys default and users"),
        ("user: {}", "user is not known"),
        ("users: [ana]", "users: must be a mapping"),
        ("users: {7: {devices: 1}}", "7 is no text; quote it"),
        ("users: {'': {devices: 1}}", "the name must be 1 to 128 printable characters"),
        ("users: {ana: 4}", "user 'ana': must be a quota such as"),
        ("users: {ana: {gpus: 4}}", "user 'ana': gpus is not known"),
        ("users: {ana: {devices: many}}", "user 'ana': devices: 'many' is no number"),
        ("users: {ana: {devices: true}}", "devices: True is no number"),
        ("users: {ana: {devices: -1}}", "user 'ana': quota of -1 devices: must be within 0 and"),
        ("users: {ana: {devices: .nan}}", "quota of nan devices"),
        ("users: {ana: {devices: 1" + "0" * 400 + "}}", "user 'ana'"),
        ("default: {weight: 0}", "default: weight 0: must be within"),
        ("a: [", "is not YAML"),
    ],
)
def test_wrong_files_are_refused(tmp_path, text, message):
    path = tmp_path / "quotas.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_quotas(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_quotas(tmp_path / "missing.yaml")


def test_a_simulation_prints_the_waits_of_users(tmp_path):
    words = ("simulate", "--trace", "examples/users_trace.csv", "--cluster",
             "examples/cluster.yaml", "--policy", "fifo")  # fmt: skip
    assert "longest wait" not in presage(*words).stdout
    done = presage(*words, "--quotas", "examples/quotas.yaml", COLUMNS="100")
    assert done.returncode == 0, done.stderr
    assert "longest wait" in done.stdout
    assert "14 h 30 min" in done.stdout


def test_a_sweep_over_quotas_is_repeated_when_the_file_changes(tmp_path):
    for name in ("users_trace.csv", "cluster.yaml", "quotas.yaml"):
        (tmp_path / name).write_text((Path("examples") / name).read_text())
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text("trace: users_trace.csv\ncluster: cluster.yaml\nquotas: quotas.yaml\n")
    (scenario,) = read_sweep(sweep)
    before = compute_digest(scenario)
    (tmp_path / "quotas.yaml").write_text("users: {ana: {devices: 4}}")
    assert compute_digest(scenario) != before
