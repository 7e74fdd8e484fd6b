"""Gangs that share switches with in-network computing: the simulator and ``--inc`` (I2, I10)."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from presage.cli.app import app
from presage.errors import ConfigError, PresageError
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.job_status import Phase
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
from presage.schedulers.simulator.results.switch_effect import switch_effect
from presage.schedulers.simulator.simulation import Simulation
from tests.schedulers.clusters import GIB, job
from tests.schedulers.simulator.test_traffic import SENDS


class HalfWhileAlone:
    """Sharing that halves the step of a gang while no other gang runs on several nodes."""

    def __init__(self):
        self.seen = []

    def factors(self, gangs):
        self.seen.append(gangs)
        return {gangs[0].job_id: 0.5} if len(gangs) == 1 else {}


def run(jobs, durations, sharing=None):
    cluster = Cluster(tuple(Node(f"n{i}", 1, "v100", 16 * GIB) for i in range(4)))
    simulation = Simulation(
        cluster, Fifo(), NoForecasts(), TraceDurations(durations), jobs, switch_sharing=sharing
    )
    simulation.run()
    return simulation


def ends_s(simulation):
    return {result.job.job_id: result.end_s for result in simulation.results}


def test_i2_a_gang_is_retimed_when_another_one_starts_or_ends_at_its_switch():
    jobs = [
        job("a", 0.0, gpus=2, iterations=100, features=SENDS),
        job("b", 10.0, gpus=2, iterations=100, features=SENDS),
    ]
    sharing = HalfWhileAlone()
    done = run(jobs, {"a": 100.0, "b": 30.0}, sharing)

    # a does 20 s of its work by 10 s, 30 s more by 40 s, and the last 50 s of it in 25 s.
    assert ends_s(done) == {"b": pytest.approx(40.0), "a": pytest.approx(65.0)}
    assert done.jobs_on_switches == {"a"}
    first = sharing.seen[0][0]
    assert (first.nodes, first.step_s) == (("n0", "n1"), 1.0)
    assert first.gradient_bytes == SENDS.memory.gradient_bytes


def test_jobs_of_one_node_and_a_cluster_without_switches_are_not_changed():
    jobs = [job("a", 0.0), job("b", 0.0, gpus=2, iterations=10, features=SENDS)]
    durations = {"a": 20.0, "b": 30.0}
    sharing = HalfWhileAlone()

    assert ends_s(run(jobs, durations)) == {"a": 20.0, "b": 30.0}
    assert ends_s(run(jobs, durations, sharing)) == {"a": 20.0, "b": 15.0}
    assert [[gang.job_id for gang in gangs] for gangs in sharing.seen if gangs] == [["b"]]


def test_steps_are_unknown_without_iterations():
    sharing = HalfWhileAlone()
    run([job("a", 0.0, gpus=2)], {"a": 20.0}, sharing)

    assert sharing.seen[0][0][2:] == (0.0, 0)


def test_the_effect_names_the_worst_job():
    jobs = [
        job("a", 0.0, gpus=2, iterations=100, features=SENDS),
        job("b", 0.0),
    ]
    durations = {"a": 100.0, "b": 30.0}
    effect = switch_effect(run(jobs, durations), run(jobs, durations, HalfWhileAlone()))

    assert (effect.jobs, effect.ring_jct_s, effect.switch_jct_s) == (1, 65.0, 40.0)
    assert (effect.worst_job, effect.worst_ratio) == ("b", 1.0)
    assert all(result.phase is Phase.FINISHED for result in run(jobs, durations).results)


CLUSTER = """
nodes: [{name: "n[0-7]", devices: 1, kind: cpu-2}]
topology:
  groups: {rack: 8}
"""


@pytest.fixture
def simulate(tmp_path):
    """Run it on three gangs of four nodes at a switch with one slot."""
    model = "mobilenet_v3/small-w100-s64/b2/sgd"  # 10 MB of gradients, a step of 76 ms
    rows = [f"a,0,4,600,{model}", f"b,10,4,600,{model}", f"c,20,4,300,{model}"]
    (tmp_path / "trace.csv").write_text("\n".join(["job_id,submit,gpus,duration,model", *rows]))
    (tmp_path / "cluster.yaml").write_text(CLUSTER + "  inc: {rack: 1}\n")
    (tmp_path / "plain.yaml").write_text(CLUSTER)

    def invoke(*more, cluster="cluster.yaml"):
        paths = ["--trace", tmp_path / "trace.csv", "--cluster", tmp_path / cluster]
        words = ["simulate", *map(str, paths), "--measured", "data/profiles/cpu-2-zoo"]
        result = CliRunner().invoke(app, [*words, "--policy", "fifo", *more])
        if isinstance(result.exception, PresageError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


def test_i10_simulate_prints_what_switches_change(simulate):
    shown = simulate("--inc", "--inc-gbit", "2")
    assert "AllReduce by switches, compared with ring only" in shown
    assert "worst job" in shown

    found = json.loads(simulate("--inc", "--inc-gbit", "2", "--json"))
    effect = found["inc"]["fifo"]
    assert effect["jobs"] == 3
    assert effect["switch_jct_s"] < effect["ring_jct_s"]
    assert effect["worst_ratio"] <= 1.001
    assert found["policies"]["fifo"]["average_jct_s"] == effect["switch_jct_s"]


def test_without_inc_nothing_changes(simulate):
    here = json.loads(simulate("--json"))
    plain = json.loads(simulate("--json", cluster="plain.yaml"))
    assert "inc" not in here
    assert here.pop("settings") != plain.pop("settings")  # the name of the file
    assert here == plain


@pytest.mark.parametrize("rule", ["first-come", "first-for-life", "own-switch"])
def test_i10_other_rules(simulate, rule):
    effect = json.loads(simulate("--inc", "--inc-rule", rule, "--inc-gbit", "2", "--json"))["inc"]

    assert effect["fifo"]["switch_jct_s"] < effect["fifo"]["ring_jct_s"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--inc-rule", "first-com"), "did you mean 'first-come'"),
        (("--inc-gbit", "0"), "must be a finite number > 0"),
        (("--inc-gbit", "nan"), "must be a finite number > 0"),
    ],
)
def test_wrong_options_are_named(simulate, words, message):
    with pytest.raises(ConfigError, match=message):
        simulate("--inc", *words)


def test_inc_needs_a_switch_with_slots(simulate):
    with pytest.raises(ConfigError, match=r"inc: \{rack: 1\}"):
        simulate("--inc", cluster="plain.yaml")
