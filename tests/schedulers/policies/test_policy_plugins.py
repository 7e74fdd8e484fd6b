"""Policies from outside of the package: by module and class, by entry point, and as objects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal

import pytest

import presage
from presage import simulate
from presage.errors import ConfigError
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.policy import Policy
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.policies.packing.packing_policy import Packing
from presage.schedulers.policies.parameters import read_parameters
from presage.schedulers.policies.policy_registry import POLICIES, as_policy, policy_names, policy_of
from presage.schedulers.simulator.sweep import compute_digest, read_sweep
from presage.schedulers.traces.trace import Trace
from presage.testing import check_policy
from tests.schedulers.clusters import GIB, cluster, job, simulated
from tests.schedulers.plain_policy import CLUSTER, PLAIN, TRACE

NAME = "shortest_fitting:ShortestFitting"
SOURCE = str(Path(presage.__file__).parent.parent)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Change to a folder with a policy, a trace and a cluster; its modules are unloaded later."""
    (tmp_path / "shortest_fitting.py").write_text(PLAIN)
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


def run(folder, *words):
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    return subprocess.run(
        [sys.executable, "-m", "presage", *words],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_policy_of_the_current_folder_runs_with_latency_sensitive_jobs(folder):
    words = ("simulate", "--trace", "trace.csv", "--cluster", "cluster.yaml", "--json")
    done = run(folder, *words, "--policy", f"{NAME}:depth=50,fifo", "--log", "log")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["policies"]

    assert list(found) == [f"{NAME}:depth=50", "fifo"]
    assert found[f"{NAME}:depth=50"]["jobs"] == 6
    assert found[f"{NAME}:depth=50"]["starved"] == 0
    log = (folder / "log" / f"{NAME}:depth=50.jsonl").read_text()
    starts = [row["job_id"] for row in map(json.loads, log.splitlines()) if row["event"] == "start"]
    assert starts.index("urgent") < starts.index("e")
    assert '"refused"' not in log


def test_a_policy_of_the_current_folder_keeps_the_contract(folder):
    check_policy(NAME, examples=60)


def test_a_sweep_takes_a_class_and_simulates_again_when_its_file_changes(folder):
    (folder / "sweep.yaml").write_text(
        f"trace: trace.csv\ncluster: cluster.yaml\npolicy: [fifo, '{NAME}:depth=9']\n"
    )
    done = run(folder, "sweep", "sweep.yaml", "--workers", "2", "--json")
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)["outcomes"]
    assert [one["scenario"]["policy"] for one in outcomes] == ["fifo", f"{NAME}:depth=9"]

    fifo, own = read_sweep(folder / "sweep.yaml")
    before = [compute_digest(fifo), compute_digest(own)]
    (folder / "shortest_fitting.py").write_text(PLAIN + "# another line\n")
    os.utime(folder / "shortest_fitting.py", (0, 0))
    assert compute_digest(fifo) == before[0]
    assert compute_digest(own) != before[1]


def register(folder, *names, value=NAME, package="theirs"):
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    points = "".join(f"{name} = {value}\n" for name in names)
    (info / "entry_points.txt").write_text(f"[presage.policies]\n{points}")


def test_an_installed_package_registers_policies_by_an_entry_point(folder, monkeypatch):
    register(folder, "fitting", "fifo")
    monkeypatch.syspath_prepend(str(folder))
    assert "fitting" in {point.name for point in entry_points(group="presage.policies")}
    assert policy_names() == [*POLICIES, "fitting"]
    assert type(policy_of("fitting:depth=2")).__name__ == "ShortestFitting"
    assert type(policy_of("fifo")) is Fifo  # our own names are not replaced
    with pytest.raises(ConfigError, match=r"^policy fiting is not known; did you mean 'fitting'"):
        policy_of("fiting")
    with pytest.raises(
        ConfigError, match=r"policy 'fitting': dept is not known; did you mean 'dep"
    ):
        policy_of("fitting:dept=2")
    register(folder, "fitting", package="others")
    with pytest.raises(ConfigError, match=r"'fitting' is registered by 2 packages; uninstall all"):
        policy_of("fitting")


def test_help_lists_plug_ins(folder):
    register(folder, "fitting")
    for words in (("simulate",), ("cluster", "up"), ("cluster", "controller")):
        done = run(folder, *words, "--help")
        assert "fitting" in " ".join(done.stdout.split()), words


def test_a_plug_in_that_cannot_be_imported_is_an_error_of_one_line(folder, monkeypatch):
    register(folder, "gone", value="no_such_module:Policy")
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(ConfigError, match=r"policy 'gone' cannot be imported: ModuleNotFoundError"):
        policy_of("gone")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_like_this\n", "cannot be imported: ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)\n", "cannot be imported: SystemExit: 3 (.*own.py, line 1)"),
        ("class Own:\n    pass\n", "Own is not a policy; derive it from presage.schedulers.core.p"),
        ("class Own(\n", "cannot be imported: SyntaxError: .*own.py, line 1"),
        (
            "from presage.schedulers.core.policy import Policy\nclass Own(Policy):\n    pass\n",
            "cannot be made: TypeError: Can't instantiate abstract class Own .* decide",
        ),
        (
            "from presage.schedulers.policies.fifo import Fifo\nclass Own(Fifo):\n    needs = 3\n",
            "needs is of type int; declare PolicyNeeds",
        ),
        (
            "from presage.schedulers.policies.fifo import Fifo\nclass Own(Fifo):\n"
            "    def __init__(self, limit: int):\n        if limit < 1: raise ValueError('low')\n",
            "limit is missing; give limit=VALUE",
        ),
    ],
)
def test_errors_of_a_users_module_are_reported_in_one_line(folder, text, message):
    (folder / "own.py").write_text(text)
    with pytest.raises(ConfigError, match=f"^policy 'own:Own'.*{message}") as error:
        policy_of("own:Own")
    assert "\n" not in str(error.value)


def made_by(
    count: int = 1,
    share: float = 0.5,
    is_strict: bool = False,
    order: Literal["fifo", "lifo"] = "fifo",
    most: int | None = None,
    label: str = "",
    free=2,
) -> None:
    """Return a policy from a constructor with parameters of every type."""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("count=-3", -3), ("share=2", 2.0), ("share=1e-3", 0.001), ("is_strict=true", True),
        ("is_strict=false", False), ("order=lifo", "lifo"), ("most=4", 4), ("most=none", None),
        ("label=a=b", "a=b"), ("free=7", 7),
    ],
)  # fmt: skip
def test_a_parameter_is_read_by_its_annotation(text, value):
    (found,) = read_parameters("any", made_by, [text]).values()
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("count=2.5", "policy 'any': count=2.5, must be an int: a whole number"),
        ("count=" + "9" * 5000, "must be an int"),
        ("count=1_000", "must be an int"),
        ("share=nan", "share=nan, must be a finite number"),
        ("share=-inf", "share=-inf, must be a finite number"),
        ("share=half", "share=half, must be a float"),
        ("is_strict=1", "is_strict=1, must be a bool: true or false"),
        ("order=sifo", "order=sifo, must be one of fifo, lifo"),
        ("most=2.5", "most=2.5, must be an int"),
        ("cuont=2", "policy 'any': cuont is not known; did you mean 'count'"),
        ("count", "'count' is not PARAMETER=VALUE"),
    ],
)
def test_a_value_of_a_wrong_type_is_rejected_with_parameter_type_and_value(text, message):
    with pytest.raises(ConfigError) as error:
        read_parameters("any", made_by, [text])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_registered_name_is_never_a_module(folder):
    (folder / "packing.py").write_text(PLAIN)
    with pytest.raises(ConfigError, match="a class of module 'packing' cannot be named"):
        policy_of("packing:ShortestFitting")


class Wrapped(Policy):
    """Delegates all that the contract asks for."""

    def __init__(self, policy):
        self._policy = policy
        self.needs = policy.needs

    def key(self, job, status, forecasts):
        return self._policy.key(job, status, forecasts)

    def demand(self, job, kind, cluster, forecasts, *, overflows=0):
        return self._policy.demand(job, kind, cluster, forecasts, overflows=overflows)

    def decide(self, state, forecasts, rng):
        return self._policy.decide(state, forecasts, rng)


@pytest.mark.parametrize("name", POLICIES)
def test_a_wrapped_policy_is_the_policy(name):
    jobs = [job("0", gpus=2), job("1", model="a"), job("2", 1.0, model="a", latency_sensitive=True)]
    lengths = {"0": 5.0, "1": 30.0, "2": 7.0}

    class Predictor:
        def predictions(self, requests):
            return [RuntimePrediction(20.0, 300, 4 * GIB) for _ in requests]

        def slowdowns(self, requests):
            return [[1.1] * len(jobs) for _, jobs in requests]

    def log(policy):
        return [*simulated(cluster(2), policy, jobs, lengths, forecaster=Predictor()).log.lines()]

    assert log(Wrapped(policy_of(name))) == log(policy_of(name))


# The Python entry ---------------------------------------------------------------------------


def test_simulate_takes_files_and_names(folder):
    done = simulate("trace.csv", Path("cluster.yaml"), f"{NAME}:depth=50", seed=3)
    assert (done.metrics.jobs, done.policy) == (6, f"{NAME}:depth=50")
    jobs = done.jobs().to_pandas()
    assert jobs["job_id"].tolist() == ["a", "b", "c", "d", "urgent", "e"]
    assert jobs["jct_s"].mean() == pytest.approx(done.metrics.average_jct_s)
    assert set(done.intervals().column("device").to_pylist()) <= {
        f"n{node}/{device}" for node in (0, 1) for device in range(4)
    }
    assert json.loads(next(done.log()))["event"] == "submit"


def test_simulate_takes_objects():
    class Half:
        def predictions(self, requests):
            return [RuntimePrediction(50.0, 400, 4 * GIB) for _ in requests]

        def slowdowns(self, requests):
            return [[1.0] * len(jobs) for _, jobs in requests]

    devices = Cluster((Node("n0", 1, "v100", 16 * GIB),))
    trace = Trace((job("b", 1.0, model="m"), job("a", model="m")), {"a": 50.0, "b": 50.0})
    shared = simulate(trace, devices, Packing(), Half())
    assert shared.metrics.average_jct_s == 50.0
    assert shared.policy == "Packing"
    assert simulate(trace, devices, "packing", "none").metrics.average_jct_s == 74.5


def test_simulate_reports_errors(folder):
    trace, devices = Trace((job("a"),), {}), cluster(1)
    with pytest.raises(ConfigError, match="job 'a' has no duration"):
        simulate(trace, devices)
    with pytest.raises(ConfigError, match="Fifo is a class; make an object of it"):
        as_policy(Fifo)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="predictor 'oracel' is unknown"):
        simulate("trace.csv", "cluster.yaml", "fifo", "oracel")
    with pytest.raises(ConfigError, match="load=0, must be a finite number > 0"):
        simulate("trace.csv", "cluster.yaml", load=0)


def test_the_examples_of_simulate_are_true():
    import doctest

    module = sys.modules["presage.schedulers.simulator.simulate"]
    assert doctest.testmod(module) == (0, 9)


def test_importing_presage_imports_nothing_heavy():
    words = "import presage, sys; print({'numpy', 'presage.schedulers'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", words], capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )  # fmt: skip
    assert done.stdout == "set()\n"
