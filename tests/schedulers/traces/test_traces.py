"""Traces of every format: published counts, what a row means, what is refused, what comes back."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.errors import ConfigError, TableError
from presage.schedulers.cluster_files.cluster_file import read_cluster
from presage.schedulers.core.job import Checkpointing, Job
from presage.schedulers.faults.fault import Fault
from presage.schedulers.policies.shortest_remaining_first import ShortestRemainingFirst
from presage.schedulers.traces.assign import assign_models
from presage.schedulers.traces.csv_file import write_trace
from presage.schedulers.traces.formats import FORMATS, read_trace
from presage.schedulers.traces.selecting import scale_load, select_first, select_period, select_user
from presage.schedulers.traces.summary import summarize
from presage.schedulers.traces.trace import Trace
from tests.pipelines.public_files import real
from tests.schedulers.clusters import GIB, cluster, job, simulated

PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
ITP = "job_id,submission_time,duration,num_gpu\n"
OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,"
    "deletion_time,scheduled_time\n"
)
OWN = "job_id,submit,gpus,duration\n"


@pytest.fixture
def read(tmp_path):
    """Read a text as a file."""

    def read_text(text, name="trace.csv"):
        path = tmp_path / name
        path.write_text(text)
        return read_trace(path)

    return read_text


# The published files ------------------------------------------------------------------------


def test_philly_has_the_published_figures():
    found = read_trace(real("traces") / "philly/philly.csv.gz")
    summary = summarize(found)

    assert (summary.jobs, dict(summary.left_out)) == (82_247, {})
    assert summary.gangs == {
        1: 76_627, 2: 1_818, 4: 1_870, 8: 1_643, 12: 7, 16: 199, 24: 7, 32: 67, 64: 6, 128: 3
    }  # fmt: skip
    assert (len(summary.users), summary.users["0e4a51"]) == (15, 1_435)
    assert found.jobs[0].submit_s == 0.0
    assert summary.span_s == 9_408_690.0
    assert summary.devices_busy == pytest.approx(374.24, abs=0.01)


@pytest.mark.parametrize(
    ("number", "jobs"),
    [(1, 1_595), (2, 5_778), (3, 3_011), (4, 15_802), (5, 3_629), (6, 2_396), (7, 12_699)],
)
def test_itp_has_the_published_figures(number, jobs):
    found = read_trace(real("traces") / f"microsoft_itp/cluster0{number}.csv.gz")

    assert (len(found.jobs), dict(found.left_out)) == (jobs, {})
    assert found.jobs[0].submit_s == 0.0
    assert min(found.duration_s.values()) >= 600


@pytest.mark.parametrize(("name", "choosy"), [("default", 0), ("gpuspec33", 2_092)])
def test_openb_has_the_published_figures_without_jobs_that_requested_or_got_no_gpu(name, choosy):
    found = read_trace(real("traces") / f"alibaba_openb/v2023_openb_pod_list_{name}.csv.gz")
    summary = summarize(found)

    assert summary.left_out == {"without GPUs": 1_088, "never scheduled": 861}
    assert summary.gangs == {1: 6_129, 2: 15, 4: 15, 8: 44}
    assert sum(bool(one.kinds) for one in found.jobs) == choosy
    parts = [one for one in found.jobs if one.compute_milli < 1000]
    assert all(one.gpus == 1 and one.memory_bytes == 0 for one in parts)


def test_a_virtual_cluster_of_gavel_has_the_published_figures():
    found = read_trace(real("traces") / "gavel_philly/vc_0e4a51.csv")

    assert len(found.jobs) == 984
    assert len(summarize(found).models) == 26


@pytest.mark.parametrize("name", ["all_node", "gpu_node"])
def test_the_nodes_of_openb_are_a_cluster(name):
    found = read_cluster(real("traces") / f"alibaba_openb/v2023_openb_node_list_{name}.csv.gz")

    assert (len(found.nodes), found.devices) == (1_213, 6_212)
    assert found.kinds == {
        "p100": 265, "t4": 842, "v100-16gb": 195, "v100": 204, "a10": 2, "g2": 4_392, "g3": 312
    }  # fmt: skip
    assert {node.kind: node.memory_bytes // 2**20 for node in found.nodes}["g2"] == 20_000


# What a row means -----------------------------------------------------------------------------


def test_philly_counts_from_the_first_job_in_local_time(read):
    found = read(
        PHILLY + "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"
        "2017-10-09 07:00:00,2951.5,12,0,6214e9\n2017-10-09 08:00:00,5,0,0,6214e9\n\n"
    )

    assert found.jobs == (job("1", gpus=12, user="6214e9"), job("0", 115.0, user="11cb48"))
    assert found.duration_s == {"0": 66.0, "1": 2951.5}
    assert found.left_out == {"without GPUs": 1}


def test_itp_counts_from_the_first_job(read):
    found = read(ITP + "b,1010,5,8\na,1000,7,1\n")

    assert found == Trace((job("a"), job("b", 10.0, gpus=8)), {"a": 7.0, "b": 5.0})


def test_a_part_of_a_gpu_is_that_part_of_its_memory_too(read):
    found = read(
        OPENB
        + "a,1,1,1,250,,LS,Running,5,100,10\n"
        + "b,1,1,1,250,V100M32|V100M32|G3,BE,Failed,6,7,6\n"
        + "c,1,1,8,1000,V100M16,Guaranteed,Succeeded,7,9,8\n"
        + "d,1,1,1,500,,LS,Pending,7,9,\ne,1,1,0,0,,LS,Pending,7,9,\n"
    )

    a, b, c = found.jobs
    assert (a.compute_milli, a.memory_bytes, a.kinds) == (250, 0, ())
    assert (b.compute_milli, b.memory_bytes, b.kinds) == (250, 0, ("v100", "g3"))
    assert (c.compute_milli, c.memory_bytes, c.kinds) == (1000, 0, ("v100-16gb",))
    assert [one.latency_sensitive for one in (a, b, c)] == [True, False, False]
    assert (c.submit_s, found.duration_s) == (2.0, {"a": 90.0, "b": 1.0, "c": 1.0})
    assert found.left_out == {"never scheduled": 1, "without GPUs": 1}


def test_our_own_format_holds_every_field_of_a_job(read):
    columns = (
        "job_id,submit,gpus,duration,model,user,min_gpus,max_gpus,kinds,compute_milli,memory_gib,"
        "iterations,latency_sensitive,priority,checkpoint_interval_s,checkpoint_cost_s,restart_s\n"
    )
    rows = (
        "a,1.5,4,60,gpt,ann,2,8,v100 'my gpu',500,1.5,100,1,-3,600,2.5,30\nb,0,1,5,,,,,,,,,,,,,\n"
    )

    assert read(columns + rows) == Trace(
        (
            job("b"),
            job(
                "a", 1.5, gpus=4, model="gpt", user="ann", min_gpus=2, max_gpus=8,
                kinds=("v100", "my gpu"), compute_milli=500, memory_bytes=3 * GIB // 2,
                iterations=100,
                latency_sensitive=True, priority=-3, checkpointing=Checkpointing(600, 2.5, 30),
            ),
        ),
        {"a": 60.0, "b": 5.0},
    )  # fmt: skip


@pytest.mark.parametrize("text", [OWN + "a,3,1,5\n", PHILLY + "2017-10-09 07:01:55,6,1,6,x\n"])
def test_a_file_may_be_gzipped_and_begin_with_a_byte_order_mark(tmp_path, text):
    (tmp_path / "plain").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (tmp_path / "packed").write_bytes(gzip.compress(text.encode()))

    assert read_trace(tmp_path / "plain") == read_trace(tmp_path / "packed")


# What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            OWN[:-1] + ",prioritty\na,0,1,5,1\n",
            "unknown column 'prioritty'; did you mean 'priority'",
        ),
        (OWN.replace("submit", "submitt"), "no column 'submit'; did you mean 'submitt'"),
        (OWN[:-1] + ",gpus\n", "duplicate column 'gpus'"),
        ("a;b\n1;2\n", "no column 'job_id'; .* Philly: timestamp,"),
        ("\n", "has no header"),
        (OWN + "a,0,1,5,7\n", "line 2: 5 cells, and the header has 4"),
        (OWN + " ,0,1,5\n", "line 2: job_id=' ', must be text that is not blank"),
        (OWN[:-1] + ",min_gpus\na,0,1,5,2\n", "line 2: job 'a': min_gpus=2, must be within 0 and"),
        (
            OWN[:-1] + ",max_gpus\na,0,4,5,3\n",
            "line 2: job 'a': max_gpus=3, must be >= gpus=4",
        ),
        (OWN[:-1] + ",compute_milli\na,0,1,5,0\n", "line 2: .*compute_milli=0, must be within 1"),
        (OWN[:-1] + ",memory_gib\na,0,1,5,inf\n", "memory_gib='inf', must be a number >= 0"),
        (OWN[:-1] + ",memory_gib\na,0,1,5,1e308\n", "memory_gib='1e308', must be a number"),
        (OWN + "a,0,1e30,5\n", "gpus='1e30', must be an integer >= 1"),
        (OWN + f"a,0,{2**63},5\n", "gpus='9223372036854775808', must be an integer >= 1"),
        (OWN[:-1] + ",priority\na,0,1,5,high\n", "priority='high', must be an integer"),
        (OWN[:-1] + ",latency_sensitive\na,0,1,5,yes\n", "latency_sensitive='yes', must be 0 or 1"),
        (
            OWN[:-1] + ",checkpoint_interval_s\na,0,1,5,0\n",
            "s='0', must be a number of sec",
        ),
        (OWN[:-1] + ",kinds\na,0,1,5,'v100\n", 'kinds="\'v100", must be kinds of devices'),
        (PHILLY + "yesterday,6,1,6,x\n", "line 2: timestamp='yesterday', must be a local time"),
        (PHILLY + "2017-10-09T07:00:00+02:00,6,1,6,x\n", "timestamp=.*, must be a local time"),
        (PHILLY + "2017-10-09 07:01:55,-6,1,6,x\n", "line 2: duration='-6', must be a number >= 0"),
        (PHILLY + "2017-10-09 07:01:55,6,1.5,6,x\n", "num_gpus='1.5', must be an integer >= 0"),
        (PHILLY.replace("cluster", "clusters"), "no column 'cluster'; did you mean 'clusters'"),
        (ITP + "a,0,5,1\na,1,5,1\n", "line 3: duplicate job_id 'a'"),
        (ITP + "a,,5,1\n", "line 2: submission_time='', must be a number >= 0"),
        (OPENB + "a,1,1,1,250,K80,LS,Running,5,9,6\n", "gpu_spec='K80', must be some of P100|T4"),
        (
            OPENB + "a,1,1,1,250,,LS,Running,5,5,6\n",
            "deletion_time='5', must be a time after",
        ),
        (
            OPENB + "a,1,1,1,250,,LS,Running,5,inf,6\n",
            "deletion_time='inf', must be a time",
        ),
        (OPENB + "a,1,1,1,1250,,LS,Running,5,9,6\n", "line 2: job 'a': compute_milli=1250, must"),
        (
            '{"time_s": 0, "event": "submit", "job_id": "a"}\n',
            "line 1: a submission without the job's col",
        ),
        ('{"time_s": 0, "event": "start", "job_id": "a"}\n', "line 1: job 'a' was never submitted"),
        ('{"time_s": 0, "event"\n', "line 1: is not an event"),
        ('{"time_s": 0}\n', "line 1: is not an event"),
        ('{"time_s": 1' + 400 * "0" + ', "event": "start"}\n', "line 1: is not an event"),
        ('{"time_s": NaN, "event": "start", "job_id": "a"}\n', "line 1: is not an event"),
        (
            '{"time_s": 2e12, "event": "start", "job_id": "a"}\n',
            "is not an event; .* at most 1e12 seconds",
        ),
        ('{"time_s": 0, "event": ["start"], "job_id": {}}\n', "line 1: is not an event"),
        (
            '{"time_s": 0, "event": "submit", "job_id": "a", "details": {"gpus": 1.5}}\n',
            "line 1: gpus='1.5', must be an integer >= 1",
        ),
    ],
)
def test_invalid_values_are_reported_in_one_line_with_place_and_remedy(read, tmp_path, text, words):
    with pytest.raises(TableError, match=words.replace("|", r"\|")) as error:
        read(text)
    assert str(error.value).startswith(str(tmp_path / "trace.csv"))
    assert "\n" not in str(error.value)


def test_a_file_that_is_cut_short_is_named(tmp_path):
    whole = gzip.compress((OWN + "".join(f"{i},0,1,5\n" for i in range(1000))).encode())
    (tmp_path / "cut.gz").write_bytes(whole[:-20])
    with pytest.raises(TableError, match=r"cut.gz: is not a CSV file or log, plain or .gz"):
        read_trace(tmp_path / "cut.gz")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sn,gpu,model\na,1,K80\n", "line 2: model='K80', must be one of P100, T4"),
        ("sn,gpu,model\na,0,\n", "a cluster needs at least one node"),
        ("sn,gpu,model\na,1,T4\na,1,T4\n", "two nodes are called 'a'"),
        ("name,devices\n", "no column 'sn'; a CSV cluster file has openb's"),
    ],
)
def test_invalid_nodes_are_reported_in_one_line(tmp_path, text, words):
    path = tmp_path / "nodes.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as error:
        read_cluster(path)
    assert str(error.value).startswith(str(path))


# What comes back ------------------------------------------------------------------------------

seconds = st.floats(0, 1e9)
names = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=6)
checkpoints = st.builds(
    Checkpointing, st.one_of(st.just(math.inf), st.floats(1e-3, 1e9)), seconds, seconds
)


@st.composite
def jobs(draw):
    gpus = draw(st.integers(1, 512))
    return Job(
        draw(names.filter(str.strip)),
        draw(seconds),
        gpus=gpus,
        min_gpus=draw(st.integers(0, gpus)),
        max_gpus=draw(st.sampled_from((0, gpus, 2 * gpus))),
        model=draw(names),
        iterations=draw(st.integers(0, 10**9)),
        kinds=tuple(draw(st.lists(names, max_size=3))),
        compute_milli=draw(st.integers(1, 1000)),
        memory_bytes=draw(st.integers(0, 2**40)),
        latency_sensitive=draw(st.booleans()),
        priority=draw(st.integers(-9, 9)),
        user=draw(names),
        checkpointing=draw(checkpoints),
    )


@st.composite
def traces(draw, fewest=0):
    some = draw(st.lists(jobs(), min_size=fewest, max_size=6, unique_by=lambda one: one.job_id))
    by_time = tuple(sorted(some, key=lambda one: one.submit_s))
    return Trace(by_time, {one.job_id: draw(seconds) for one in by_time})


@settings(deadline=None)
@given(trace=traces())
def test_a_written_trace_is_read_back(tmp_path_factory, trace):
    path = tmp_path_factory.mktemp("written") / "trace.csv"
    write_trace(path, trace)

    assert read_trace(path) == trace


def test_only_columns_with_values_are_written(tmp_path):
    write_trace(tmp_path / "plain.csv", Trace((job("a"), job("b", 2.5)), {"a": 1.0, "b": 2.0}))
    write_trace(tmp_path / "more.csv", Trace((job("a"), job("b", priority=1)), {"a": 1, "b": 2}))

    assert (tmp_path / "plain.csv").read_text() == OWN + "a,0.0,1,1.0\nb,2.5,1,2.0\n"
    assert (tmp_path / "more.csv").read_text().splitlines()[0] == OWN[:-1] + ",priority"


@pytest.mark.parametrize(
    ("name", "words"), [("\ud800", "is not UTF-8"), ("a\rb", "a carriage return")]
)
def test_a_name_that_no_file_can_hold_is_rejected(tmp_path, name, words):
    with pytest.raises(TableError, match=words):
        write_trace(tmp_path / "a.csv", Trace((job(name),), {name: 1.0}))


def logged(tmp_path, done):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f"{line}\n" for line in done.log.lines()))
    return read_trace(path)


@settings(deadline=None)
@given(trace=traces(fewest=1))
def test_a_log_holds_the_jobs_of_its_simulation(tmp_path_factory, trace):
    plain = tuple(replace(one, kinds=(), checkpointing=Checkpointing()) for one in trace.jobs)
    devices = cluster(512, memory_bytes=2**40)  # no job requests more
    done = simulated(devices, ShortestRemainingFirst(), plain, trace.duration_s)
    found = logged(tmp_path_factory.mktemp("log"), done)

    assert found.jobs == plain
    assert found.duration_s == pytest.approx(trace.duration_s, abs=1e-3)


def test_a_log_yields_durations_without_unfinished_jobs(tmp_path):
    world = {"long": 100.0, "short": 10.0, "large": 1.0, "stuck": 5.0}
    submitted = [
        job("long", gpus=2, checkpointing=Checkpointing(restart_s=3.0)),
        job("short", 20.0, gpus=2),
        job("large", 21.0, gpus=9),
        job("stuck", 500.0, gpus=2),
    ]
    done = simulated(
        cluster(2), ShortestRemainingFirst(), submitted, world, faults=[Fault(400.0, 0, False)]
    )
    found = logged(tmp_path, done)

    assert found.duration_s == {"long": 103.0, "short": 10.0}  # 20 s, and after a restart 83 s
    assert found.jobs == tuple(submitted[:2])
    assert found.left_out == {"rejected": 1, "never finished": 1}


def test_time_in_which_a_job_was_paused_or_waited_is_not_its_duration(read):
    whole, half = [[0, 1000, 1], [1, 1000, 1]], [[0, 1000, 1]]
    events = [
        ("start", whole), ("pause", None), ("resume", None), ("resize", half), ("lost", None),
        ("start", whole), ("preempt", None), ("start", half), ("migrate", whole), ("finish", None),
    ]  # fmt: skip
    lines = [{"time_s": 0.0, "event": "submit", "job_id": "a", "details": {"gpus": 2}}]
    lines += [
        {"time_s": 2.0**i, "event": what, "job_id": "a", "details": more}
        for i, (what, more) in enumerate(events)
    ]
    found = read("".join(f"{json.dumps(line)}\n" for line in lines), "log.jsonl")

    ran = (2 - 1) + (8 - 4) + (16 - 8) / 2 + (64 - 32) + (256 - 128) / 2 + (512 - 256)
    assert found.duration_s == {"a": ran}


# Parts of a trace, and models for it --------------------------------------------------------------

FOUR = Trace(
    (job("a", user="ann"), job("b", 10.0, user="bob"), job("c", 20.0, user="ann"), job("d", 30.0)),
    {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0},
    {"without GPUs": 7},
)


def test_part_of_a_trace():
    def arrivals(trace):
        assert trace.duration_s.keys() == {one.job_id for one in trace.jobs}
        assert trace.left_out == FOUR.left_out
        return [(one.job_id, one.submit_s) for one in trace.jobs]

    assert arrivals(select_user(FOUR, "ann")) == [("a", 0.0), ("c", 20.0)]
    assert arrivals(select_period(FOUR, 10.0, 30.0)) == [("b", 0.0), ("c", 10.0)]
    assert arrivals(select_first(FOUR, 1)) == [("a", 0.0)]
    assert arrivals(scale_load(FOUR, 4.0)) == [("a", 0.0), ("b", 2.5), ("c", 5.0), ("d", 7.5)]
    with pytest.raises(ConfigError, match="no job of user 'anne' in the trace; did you mean 'ann'"):
        select_user(FOUR, "anne")


@given(trace=traces(), factor=st.sampled_from((0.25, 2.0, 1024.0)))
def test_a_trace_with_faster_arrivals_offers_a_multiple_of_the_load(trace, factor):
    before, after = summarize(trace), summarize(scale_load(trace, factor))
    if before.devices_busy is not None and after.devices_busy is not None:
        assert after.devices_busy == pytest.approx(before.devices_busy * factor)


def test_figures_of_a_trace():
    summary = summarize(
        Trace(
            (job("a", gpus=4, user="ann"), job("b", 7200.0, compute_milli=500, model="gpt")),
            {"a": 3600.0, "b": 7200.0},
        )
    )

    assert (summary.jobs, summary.span_s, summary.devices_busy) == (2, 7200.0, 2.5)
    assert summary.arrival_dispersion == 0.5  # one in the first hour, none in the second
    assert (summary.gangs, summary.users, summary.models) == ({1: 1, 4: 1}, {"ann": 1}, {"gpt": 1})
    assert (summary.duration_s["p50"], summary.duration_s["mean"]) == (5400.0, 5400.0)
    assert summarize(Trace((), {})).devices_busy is None


MODELS = ("bert", "gpt", "resnet")


@given(trace=traces(), seed=st.integers(0, 3), kept=st.integers(0, 5))
def test_an_assigned_model_does_not_depend_on_other_jobs(trace, seed, kept):
    assigned = assign_models(trace, MODELS, seed)

    assert assign_models(select_first(trace, kept), MODELS, seed).jobs == assigned.jobs[:kept]
    assert assign_models(assigned, MODELS, seed + 1) == assigned
    for one, was in zip(assigned.jobs, trace.jobs, strict=True):
        assert one == replace(was, model=one.model)
        assert one.model == was.model or (not was.model and one.model in MODELS)


def test_a_user_repeats_models_and_other_jobs_draw_evenly():
    again = [job(str(i), user="ann", gpus=4) for i in range(50)]
    others = [job(f"s{i}", 1.0) for i in range(3000)]
    assigned = assign_models(
        Trace((*again, *others), {one.job_id: 100.0 for one in (*again, *others)}), MODELS, 0
    )

    assert len({one.model for one in assigned.jobs[:50]}) == 1
    counts = summarize(Trace(assigned.jobs[50:], assigned.duration_s)).models
    assert all(counts[name] == pytest.approx(1000, abs=90) for name in MODELS)
    assert (
        assigned.jobs
        != assign_models(Trace(tuple(again + others), assigned.duration_s), MODELS, 1).jobs
    )


def test_every_format_is_recognized_by_distinctive_columns():
    for name, one in FORMATS.items():
        for other, two in FORMATS.items():
            assert name == other or not set(one.columns) <= set(two.columns)
