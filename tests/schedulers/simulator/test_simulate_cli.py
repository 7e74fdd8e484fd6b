"""``presage simulate`` as a person and a program meet it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from presage.cli.app import app
from presage.errors import ConfigError, PresageError
from presage.schedulers.policies.policy_registry import POLICIES
from tests.serving.support.processes import serving


@pytest.fixture
def simulate(tmp_path, monkeypatch):
    """Run it on three jobs and two devices."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "trace.csv").write_text(
        "job_id,submit,gpus,duration,model\na,0,2,100,\nb,1,2,50,\nc,2,1,10,\nlarge,3,9,1,\n"
    )
    (tmp_path / "cluster.yaml").write_text("nodes: [{name: n0, devices: 2, kind: v100}]")

    def invoke(*more):
        words = ["simulate", "--trace", "trace.csv", "--cluster", "cluster.yaml", *more]
        result = CliRunner().invoke(app, words)
        if isinstance(result.exception, PresageError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


def test_json_output_is_only_json(simulate):
    result = json.loads(simulate("--policy", "sjf,fifo", "--json"))["policies"]

    assert list(result) == ["sjf", "fifo"]
    # Two devices; asked for are 2 until 1 s, 4 until 2, 5 until 100, 3 until 150, then 1.
    middle, last = 149 / 50 / ((2 + 245 + 75) / 149), 158 / 10 / ((245 + 75 + 10) / 158)
    assert result["fifo"]["p99_unfairness"] == pytest.approx(middle + 0.98 * (last - middle))
    assert result["fifo"] | {"p99_jct_s": 0, "p99_unfairness": 0} == {
        "jobs": 3, "failed": 0, "rejected": 1, "starved": 0,
        "average_jct_s": (100 + 149 + 158) / 3, "median_jct_s": 149.0, "p99_jct_s": 0,
        "makespan_s": 160.0, "average_queue_s": (0 + 99 + 148) / 3,
        "average_slowdown": 1.0, "p99_unfairness": 0, "unfair_fraction": 2 / 3,
        "device_utilization": (200 + 100 + 10) / 320,
        "preemptions": 0, "restarts": 0, "overflows": 0,
        "lost_gpu_hours": 0.0, "effective_training_time_ratio": 1.0,
        "memory_exceeded_rate": None, "slo_violation_rate": None,
        "best_effort_queue_s": (0 + 99 + 148) / 3,
        "bytes_by_level": None,
    }  # fmt: skip
    assert result["sjf"]["average_jct_s"] == (100 + 108 + 159) / 3
    assert (
        json.loads(simulate("--policy", "sjf", "--predictor", "none", "--json"))["policies"]["sjf"]
        == result["fifo"]
    )  # without forecasts jobs are served in order


def test_a_run_is_compared_with_an_earlier_one(simulate, tmp_path):
    (tmp_path / "earlier.json").write_text(simulate("--policy", "fifo,sjf", "--json"))
    more = ("--policy", "sjf,srtf", "--load", "2", "--baseline", "earlier.json")

    found = json.loads(simulate(*more, "--json"))
    assert found["settings"] == {
        "trace": "trace.csv", "cluster": "cluster.yaml", "predictor": "oracle", "seed": "0",
        "load": "2",
    }  # fmt: skip
    changes = found["comparison"]
    assert changes["settings"] == {"load": {"before": None, "after": "2"}}
    assert changes["left_out"] == ["fifo", "srtf"]
    makespan = changes["policies"]["sjf"]["makespan_s"]
    assert makespan["difference"] == makespan["after"] - makespan["before"]
    assert makespan["after"] == found["policies"]["sjf"]["makespan_s"]

    text = simulate(*more, "--report", "out.html")
    assert "setting load: default before, 2 now" in text
    assert "sjf, compared with the earlier run" in text
    assert "not compared, because only one run has them: fifo, srtf" in text
    assert "Compared with earlier.json" in (tmp_path / "out.html").read_text()

    same = simulate("--policy", "sjf", "--baseline", "earlier.json")
    assert "setting" not in same
    assert "better" not in same
    with pytest.raises(ConfigError, match=r"--baseline trace\.csv: is no output"):
        simulate("--baseline", "trace.csv")


def test_terminal_output_is_a_table_with_the_jobs_that_did_not_run(simulate):
    shown = simulate()
    for words in ("fifo", "sjf", "JCT mean (s)", "rejected"):
        assert words in shown


def test_the_reason_of_a_rejected_job_is_printed(simulate):
    simulate()  # which writes the files
    words = ["simulate", "--trace", "trace.csv", "--cluster", "cluster.yaml", "--policy", "fifo"]
    result = CliRunner().invoke(app, words)
    why = "the gang needs 9 devices, and the cluster has 2 for it"
    assert result.stderr == f"fifo: rejected jobs: 1, first 'large': {why}\n"


def test_jobs_that_never_started_are_printed(simulate, tmp_path):
    simulate()  # which writes the files
    (tmp_path / "faults.csv").write_text("at_s,node,event\n120,n0,fail\n")
    words = ["simulate", "--trace", "trace.csv", "--cluster", "cluster.yaml", "--policy", "fifo"]
    result = CliRunner().invoke(app, [*words, "--faults", "faults.csv"])
    assert result.exit_code == 0
    assert result.stderr.endswith(
        "\nfifo: jobs that never started, or never restarted: 2, first 'b'\n"
    )


def test_the_log_has_the_same_bytes_each_time(simulate, tmp_path):
    simulate("--log", "first")
    simulate("--log", "second")
    for name in ("fifo.jsonl", "sjf.jsonl"):
        first = (tmp_path / "first" / name).read_bytes()
        assert first == (tmp_path / "second" / name).read_bytes()
        entries = [json.loads(line) for line in first.splitlines()]
        assert {entry["event"] for entry in entries} == {
            "submit",
            "reject",
            "decide",
            "start",
            "finish",
        }
        submitted, rejected = [entry for entry in entries if entry.get("job_id") == "large"]
        assert submitted["details"] == {"gpus": 9}
        assert rejected["details"] == "the gang needs 9 devices, and the cluster has 2 for it"


def test_the_page_is_a_file_with_the_same_bytes_each_time(simulate, tmp_path):
    simulate("--report", "first.html")
    simulate("--report", "second.html")
    first = (tmp_path / "first.html").read_text()

    assert first == (tmp_path / "second.html").read_text()
    assert "<h1>trace on cluster</h1>" in first


def test_tables_have_a_row_a_policy_and_job_and_a_row_an_interval(simulate, tmp_path):
    simulate("--policy", "fifo,sjf", "--parquet", "tables")
    jobs = pq.read_table(tmp_path / "tables" / "jobs.parquet")
    intervals = pq.read_table(tmp_path / "tables" / "intervals.parquet")
    fifo = jobs.slice(0, 4).to_pylist()

    assert jobs["policy"].to_pylist() == ["fifo"] * 4 + ["sjf"] * 4
    assert fifo[1] == {
        "policy": "fifo", "job_id": "b", "model": "", "gpus": 2, "user": "", "submit_s": 1.0,
        "first_start_s": 100.0, "end_s": 150.0, "phase": "finished", "jct_s": 149.0,
        "waited_s": 99.0, "starts": 1, "overflows": 0, "attained_device_s": 100.0,
    }  # fmt: skip
    assert (fifo[3]["phase"], fifo[3]["first_start_s"], fifo[3]["jct_s"]) == (
        "rejected",
        None,
        None,
    )
    assert intervals.slice(2, 2).to_pylist() == [
        {"policy": "fifo", "job_id": "b", "device": f"n0/{i}", "start_s": 100.0, "end_s": 150.0,
         "compute_milli": 1000, "paused": False, "ended_by": "finish"}
        for i in range(2)
    ]  # fmt: skip
    page = (Path(__file__).parents[3] / "docs/schedulers/simulating.md").read_text()
    for table in (jobs, intervals):
        assert all(f"`{column}`" in page for column in table.column_names)


ZOO = Path(__file__).parents[3] / "data/profiles/cpu-2-zoo"
RELEASE = Path(__file__).parents[3] / "data/pretrained/release"


@pytest.fixture
def shared(simulate, tmp_path):
    """Return a cluster of the kind that this project measured, and twenty jobs without a model."""
    (tmp_path / "cluster.yaml").write_text("nodes: [{name: n0, devices: 2, kind: cpu-2}]\n")
    rows = "".join(f"{i},{i},1,100\n" for i in range(20))
    (tmp_path / "trace.csv").write_text("job_id,submit,gpus,duration\n" + rows)

    def run(*options):
        result = simulate("--measured", str(ZOO), "--json", *options)
        return json.loads(result)["policies"]

    return run


def test_forecasts_that_are_too_low_pack_too_much(shared):
    # Each of these jobs keeps both cores busy in a solo run: with that forecast none is co-located.
    known, low = (
        shared("--policy", "packing:most_slowdown=9", "--bias", bias).popitem()[1]
        for bias in ("1", "0.2")
    )

    assert known["average_slowdown"] == 1.0
    assert known["memory_exceeded_rate"] == 0.0
    assert low["average_slowdown"] > 1.2
    assert low["memory_exceeded_rate"] == 1.0
    assert low["average_queue_s"] < known["average_queue_s"]


@pytest.mark.parametrize("predictor", ["none", "table", str(RELEASE)])
def test_all_jobs_finish_with_every_predictor(shared, predictor):
    found = shared("--policy", "srtf,packing", "--predictor", predictor, "--restart-s", "5")
    assert all(one["jobs"] == 20 for one in found.values())


def test_a_service_predicts_as_its_release_does(shared):
    with serving("--release", RELEASE) as server:
        there = shared("--policy", "sjf", "--predictor", server.target)
    assert there == shared("--policy", "sjf", "--predictor", str(RELEASE))


def test_a_service_that_is_down_is_named_before_anything_is_simulated(shared):
    with pytest.raises(PresageError, match=r"127\.0\.0\.1:1"):
        shared("--policy", "sjf", "--predictor", "127.0.0.1:1")


def test_random_draws_depend_on_the_seed(shared):
    base = ("--policy", "packing:most_slowdown=3", "--noise", "0.5")
    assert shared(*base, "--seed", "1") == shared(*base, "--seed", "1")
    assert shared(*base, "--seed", "1") != shared(*base, "--seed", "2")


def test_a_kind_of_device_without_forecasts_is_reported(simulate, tmp_path):
    (tmp_path / "cluster.yaml").write_text(
        "nodes: [{name: n0, devices: 1, kind: mine, memory_gib: 8}]\n"
    )
    command = ["simulate", "--trace", "trace.csv", "--cluster", "cluster.yaml"]
    result = CliRunner().invoke(app, [*command, "--policy", "packing", "--predictor", str(RELEASE)])
    assert "packing: no forecast is available for 1 jobs on 'mine'" in result.stderr


def test_the_example_shows_the_value_of_forecasts(simulate):
    examples = Path(__file__).parents[3] / "examples"
    result = simulate(
        "--trace", str(examples / "trace.csv"), "--cluster", str(examples / "cluster.yaml"),
        "--measured", str(ZOO), "--predictor", str(RELEASE), "--policy", "fifo,sjf", "--json",
    )  # fmt: skip
    fifo, sjf = json.loads(result)["policies"].values()
    assert sjf["average_jct_s"] < 0.7 * fifo["average_jct_s"]


def test_failing_nodes_cost_unsaved_work(simulate):
    never, often = (
        json.loads(simulate("--policy", "fifo", "--faults", faults, "--json"))["policies"]["fifo"]
        for faults in ("1000,1", "0.0005,0.0001")
    )
    assert never["average_slowdown"] == 1.0
    assert often["average_slowdown"] > 1.0
    saved = json.loads(
        simulate("--policy", "fifo", "--faults", "0.0005,0.0001", "--json",
                 "--checkpoint-interval-s", "5")
    )["policies"]["fifo"]  # fmt: skip
    assert 1.0 < saved["average_slowdown"] < often["average_slowdown"]


def test_help_names_every_policy():
    shown = CliRunner().invoke(app, ["simulate", "--help"]).stdout
    for name in POLICIES:
        assert name in shown


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "absent.yaml: cannot be read"),
        (("--workers", "0"), "--workers 0: must be at least 1"),
        (("--workers", "-2"), "--workers -2: must be at least 1"),
    ],
)
def test_a_sweep_without_a_file_or_workers_is_rejected(more, words):
    result = CliRunner().invoke(app, ["sweep", "absent.yaml", "--json", *more])
    assert isinstance(result.exception, ConfigError)
    assert re.search(words, str(result.exception))


@pytest.mark.parametrize("more", [("--policy", "fifo"), ("--report", "o.html"), ("--keep-going",)])
def test_a_sweep_takes_the_options_of_simulations_from_its_file(more):
    result = CliRunner().invoke(app, ["sweep", "absent.yaml", *more])
    assert result.exit_code == 2
    assert f"No such option: {more[0]}" in result.output


@pytest.mark.parametrize("more", [("--sweep", "f.yaml"), ("--out", "."), ("--workers", "2")])
def test_a_simulation_takes_no_option_of_sweeps(more):
    words = ["simulate", "--trace", "trace.csv", "--cluster", "cluster.yaml", *more]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert f"No such option: {more[0]}" in result.output


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--policy", "fifo,sfj"), "policy sfj is not known; did you mean 'sjf'"),
        (("--policy", ","), "policy  is not known; known are fifo, backfill, sjf"),
        (("--log", "trace.csv"), "--log trace.csv: File exists; name a folder"),
        (("--parquet", "trace.csv"), "--parquet trace.csv: File exists; name a folder"),
        (("--report", "absent/out.html"), "--report absent/out.html: folder absent does not exist"),
        (("--report", "."), "--report .: is a folder; give a file"),
        (("--predictor", "oracel"), "predictor 'oracel' is unknown; did you mean 'oracle'"),
        (("--predictor", "table"), "predictor 'table' needs tables; name their folder"),
        (
            ("--policy", "packing:most=2"),
            "policy 'packing': most is not known; known are most_slowdown, most_members",
        ),
        (("--policy", "packing:most_members=two"), "most_members=two, must be an int"),
        (("--policy", "packing:most_members=2.5"), "most_members=2.5, must be an int: a whole num"),
        (("--policy", "packing:most_members=2:most_members=3"), "most_members is given twice"),
        (("--policy", "packing:most_members"), "'most_members' is not PARAMETER=VALUE"),
        (("--policy", "gang:reduce=least"), "reduce=least, must be one of mean, max"),
        (("--policy", "no_such_module:Policy"), "No module named 'no_such_module'; give module:cl"),
        (("--policy", "json:Policy"), "module 'json' has no class 'Policy'"),
        (("--policy", "json:JSONDecoder"), "'json:JSONDecoder': JSONDecoder is not a policy; der"),
        (("--policy", f"las:threshold_s={'9' * 400}"), "threshold_s=9+, must be a finite number"),
        (
            ("--policy", f"packing:overcommit={'9' * 5000}"),
            "overcommit=9+, must be a finite number",
        ),
        (("--policy", "las:threshold_s=inf"), "threshold_s=inf, must be a finite number"),
        (("--policy", "packing:most_members=0"), "most_members=0, must be a finite number >= 1"),
        (("--policy", "fifo:depth=2"), "policy 'fifo' has no parameters, not 'depth=2'"),
        (
            ("--load", "1e-320"),
            "load=9.99989e-321: the last job would be submitted after more than 1e.12 s",
        ),
        (("--from-day", "3"), "--from-day 3 needs a file of failures; give --faults FILE"),
        (("--from-day", "3", "--faults", "30,0.5"), "--from-day 3 needs a file of failures"),
        (("--load", "0"), r"load=0\.0, must be a finite number > 0"),
        (("--noise", "-1"), r"noise=-1\.0, must be within 0 and 10"),
        (("--faults", "one,two"), "faults 'one,two' is neither a file nor two numbers of days"),
        (("--measured", "absent"), "absent/jobs.parquet: no such table"),
        (("--seed", "-1"), "seed=-1, must be an integer >= 0"),
        (("--risk", "0.6"), "risk=0.6, must be above 0 and at most 0.5"),
        (("--draw-models",), "draw_models needs measured tables; name their folder"),
        (("--shares", "caps"), "shares needs measured tables; name their folder"),
        (("--shares", "some"), "must be one of none, caps, weights"),
        (("--predictor", "foo:99999"), "port 99999 is out of range; name one of 1 to 65535"),
        (
            ("--faults", "30"),
            "'30' is neither a file nor .*; name a file, or give MTBF,MTTR",
        ),
        (("--faults", "1e-8,1e-8"), "about 1.5e.06 failures of 1 nodes in .* at most 1,000,000"),
        (("--faults", "1e-9,1e-9"), "failures of 1 nodes in .* at most 1,000,000 are drawn"),
    ],
)
def test_an_unknown_name_is_rejected(simulate, more, words):
    with pytest.raises(PresageError, match=words):
        simulate(*more)


def test_settings_have_all_options_that_are_no_defaults():
    from presage.cli.scheduling.simulation.runs import _settings
    from presage.schedulers.simulator.scenario import Scenario

    scenario = Scenario(Path("a.csv"), Path("b.yaml"), pass_interval_s=60.0, risk=0.2)
    expected = {"trace": "a.csv", "cluster": "b.yaml", "predictor": "oracle", "seed": "0"}
    assert _settings(scenario) == expected | {"pass_interval_s": "60.0", "risk": "0.2"}
