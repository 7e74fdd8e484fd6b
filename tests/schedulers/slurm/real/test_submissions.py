"""Submissions to a real slurmctld: what the bridge sets, and that a bad bridge changes nothing."""

from __future__ import annotations

from threading import Event

import pytest

from presage.errors import ServiceError
from presage.schedulers.slurm.site_files import JOB_SUBMIT
from tests.schedulers.slurm.site import FEATURES, GPU, needs_slurm, slurm_site
from tests.schedulers.slurm.test_bridge import FakeBackend
from tests.schedulers.slurm.test_decide import forecasts

pytestmark = needs_slurm


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with slurm_site(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def requests_of(site, job_id):
    """Return what the bridge may change about a job."""
    job = site.cluster.job(job_id)
    names = ("TimeLimit", "Nice", "MinMemoryNode", "MinMemoryCPU", "TresPerNode", "AdminComment")
    return {name: job.get(name) for name in names}


def test_a_job_gets_its_limit_and_note_and_the_user_keeps_the_own_limit(site):
    with site.bridge():
        job_id = site.submit(GPU, "--time=10:00:00")

    assert site.cluster.job(job_id)["TimeLimit"] == "00:50:00"
    note = site.note(job_id)
    assert (note.own_minutes, note.set_minutes, note.device) == (600, 50, "a100-80gb")
    assert (note.release_id, note.quantile, note.risk) == ("release", 0.9, 0.1)


def test_the_own_limit_is_that_of_the_partition_if_the_user_gives_none(site):
    with site.bridge():
        default, unlimited = site.submit(GPU), site.submit(GPU, "--partition=open")
        several = site.submit(GPU, "--partition=main,open")

    assert site.note(default).own_minutes == 60
    assert site.note(unlimited).own_minutes is None
    assert site.cluster.job(unlimited)["TimeLimit"] == "00:50:00"
    assert site.note(several).set_minutes is None


def test_the_own_limit_of_a_longer_forecast_is_kept(site):
    with site.bridge():
        job_id = site.submit(GPU, "--time=40")

    assert site.cluster.job(job_id)["TimeLimit"] == "00:40:00"


def test_a_limit_above_that_of_a_partition_is_unchanged(site):
    with site.bridge():
        one = site.submit(GPU, "--time=1441")
        several = site.submit(GPU, "--time=1441", "--partition=open,main")
        within = site.submit(GPU, "--time=1440", "--partition=open,main")

    assert site.cluster.job(one)["TimeLimit"] == "1-00:01:00"
    assert site.cluster.job(several)["TimeLimit"] == "1-00:01:00"
    assert site.note(within).set_minutes == 50


def test_jobs_of_srun_are_not_asked_about(site):
    before = len(site.asked_ms())
    log = site.cluster.folder / "slurmctld.log"
    errors = log.read_text().count("error: ")
    with site.bridge():
        site.cluster.run("srun", "true", env={"SLURM_PRESAGE_JOB": FEATURES})

    assert len(site.asked_ms()) == before
    assert log.read_text().count("error: ") == errors


def test_memory_shards_and_nice_are_set(site):
    backend = FakeBackend(forecasts(memory_gib=2))
    with site.bridge(backend, shards_per_gpu=10, nice_per_doubling=10):
        shared = site.submit(GPU, choices="share")
        whole = site.submit(GPU)

    assert site.cluster.job(shared)["TresPerNode"] == "gres:shard:2"
    assert site.cluster.job(whole)["TresPerNode"] == "gres:gpu:a100:1"
    assert site.cluster.job(whole)["Nice"] == "46"
    site.cluster.wait_for(shared, "COMPLETED")


def test_host_memory_is_set_for_a_job_without_gpu(site):
    bridge = {"kinds": {"cpu": "cpu-2"}}
    with site.bridge(FakeBackend(forecasts(memory_gib=2)), **bridge):
        job_id = site.submit()

    assert site.cluster.job(job_id)["MinMemoryNode"] == "2G"


def test_what_the_user_pinned_is_unchanged(site):
    backend = FakeBackend(forecasts(memory_gib=2))
    kinds = {"cpu": "cpu-2", "a100": "a100-80gb"}
    with site.bridge(backend, kinds=kinds, nice_per_doubling=10):
        memory = site.submit("--mem=123")
        nice = site.submit("--nice=7")
        time_min = site.submit("--time=600", "--time-min=30")
        pinned = site.submit("--time=600", choices="pin-time,pin-memory,pin-nice")

    assert site.cluster.job(memory)["MinMemoryNode"] == "123M"
    assert site.cluster.job(nice)["Nice"] == "7"
    assert site.cluster.job(time_min)["TimeLimit"] == "10:00:00"
    job = site.cluster.job(pinned)
    assert (job["TimeLimit"], job["Nice"], job["MinMemoryNode"]) == ("10:00:00", "0", "0")


def test_a_job_without_features_is_not_asked_about(site):
    before = len(site.asked_ms())
    with site.bridge():
        site.cluster.submit("true", GPU)

    assert len(site.asked_ms()) == before


def test_a_job_does_not_pass_its_features_on_to_jobs_that_it_submits(site, tmp_path):
    with site.bridge():
        job_id = site.submit(command=f"env > {tmp_path}/env")

    site.cluster.wait_for(job_id, "COMPLETED")
    text = (tmp_path / "env").read_text()
    assert "SLURM_PRESAGE_JOB=\n" in text
    assert FEATURES not in text


def test_features_are_passed_on_with_any_export(site):
    with site.bridge():
        job_id = site.submit(GPU, "--export=NONE")

    assert site.note(job_id) is not None


def test_arrays_and_several_gpus_have_notes_and_heterogeneous_jobs_have_none(site):
    backend = FakeBackend()
    with site.bridge(backend):
        array = site.submit(GPU, "--array=0-2")
        several = site.submit("--gres=gpu:a100:2", "--nodes=2", "--ntasks=4")
        script = site.cluster.folder / "het.sh"
        script.write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\n#SBATCH hetjob\n#SBATCH -n1\ntrue\n")
        env = {"SLURM_PRESAGE_JOB": FEATURES}
        het = site.cluster.run("sbatch", "--parsable", str(script), env=env).strip()

    assert site.note(array).set_minutes == 50
    assert backend.sizes == [(4, 2)]
    assert site.note(several).set_minutes == 51
    assert "presage" not in site.cluster.run("scontrol", "show", "job", het)


NOTE = b"note=presage: limit=600 set=30 quantile=0.9 risk=0.1 share=1"
WRONG = {
    "nothing": b"",
    "an empty line": b"\n",
    "no version": b"time_limit=30\n\n",
    "another version": b"presage=2\ntime_limit=30\n\n",
    "cut off": b"presage=1\ntime_limit=30\n",
    "a limit above the user's": b"presage=1\ntime_limit=601\n\n",
    "no limit": b"presage=1\ntime_limit=0\n\n",
    "a negative limit": b"presage=1\ntime_limit=-5\n\n",
    "not a number": b"presage=1\ntime_limit=nan\n\n",
    "infinite": b"presage=1\ntime_limit=inf\n\n",
    "hexadecimal": b"presage=1\ntime_limit=0x10\n\n",
    "a fraction": b"presage=1\ntime_limit=1.5\n\n",
    "a limit twice": b"presage=1\ntime_limit=30\ntime_limit=31\n\n",
    "an unknown value": b"presage=1\ntime_limit=30\nuser=root\n\n",
    "one wrong value of two": b"presage=1\ntime_limit=30\nmemory_mib=-1\n\n",
    "a note with quotes": b'presage=1\ntime_limit=30\nnote=presage: "$(reboot)"\n\n',
    "another note": b"presage=1\ntime_limit=30\nnote=hello\n\n",
    "binary": bytes(range(256)) + b"\n\n",
    "endless lines": b"presage=1\n" * 1000,
    "an endless line": b"presage=1\nnote=" + b"x" * 500_000,
}


@pytest.mark.parametrize("named", WRONG)
def test_a_wrong_answer_changes_nothing(named, site):
    plain = requests_of(site, site.cluster.submit("true", GPU, "--time=600"))
    with site.answering(lambda raw: WRONG[named]):
        job_id = site.submit(GPU, "--time=600")

    assert requests_of(site, job_id) == plain


def test_a_right_answer_of_the_same_kind_is_applied(site):
    with site.answering(lambda raw: b"presage=1\ntime_limit=30\n" + NOTE + b"\n\n"):
        job_id = site.submit(GPU, "--time=600")

    assert requests_of(site, job_id)["TimeLimit"] == "00:30:00"
    assert site.note(job_id).set_minutes == 30


@pytest.mark.parametrize(
    "backend", [FakeBackend(ServiceError("no service")), FakeBackend(ValueError("nan"))]
)
def test_a_predictor_that_fails_changes_nothing(backend, site):
    plain = requests_of(site, site.cluster.submit("true", GPU, "--time=600"))
    with site.bridge(backend):
        job_id = site.submit(GPU, "--time=600")

    assert requests_of(site, job_id) == plain


@pytest.fixture
def impatient(tmp_path):
    """Return a cluster whose job_submit.lua is that of a real site."""
    with slurm_site(tmp_path, patient=False) as running:
        yield running


def test_a_predictor_that_hangs_changes_nothing(impatient):
    plain = requests_of(impatient, impatient.cluster.submit("true", GPU, "--time=600"))
    release = Event()
    with impatient.bridge(FakeBackend(wait=release), timeout_s=0.04):
        job_id = impatient.submit(GPU, "--time=600")
        release.set()

    assert requests_of(impatient, job_id) == plain
    assert impatient.asked_ms()[-1] < 100


def test_out_of_domain_changes_no_request(site):
    with site.bridge(FakeBackend(forecasts(in_domain=False)), nice_per_doubling=10):
        job_id = site.submit(GPU, "--time=600", choices="share")

    job = site.cluster.job(job_id)
    assert (job["TimeLimit"], job["Nice"], job["TresPerNode"]) == (
        "10:00:00", "0", "gres:gpu:a100:1",
    )  # fmt: skip


def test_a_bridge_that_is_not_there_changes_nothing(impatient):
    plain = requests_of(impatient, impatient.cluster.submit("true", GPU, "--time=600"))
    job_id = impatient.submit(GPU, "--time=600")

    assert requests_of(impatient, job_id) == plain
    assert impatient.asked_ms()[-1] < 100


def test_without_lua_socket_nothing_changes(tmp_path):
    nowhere = {"LUA_PATH": "/nowhere/?.lua", "LUA_CPATH": "/nowhere/?.so"}
    with slurm_site(tmp_path, variables=nowhere) as site, site.bridge():
        plain = requests_of(site, site.cluster.submit("true", GPU, "--time=600"))
        job_id = site.submit(GPU, "--time=600")

        assert requests_of(site, job_id) == plain
        log = (site.cluster.folder / "slurmctld.log").read_text()
    assert "lua-socket is not installed for Lua 5.1" in log


def test_a_bridge_that_hangs_delays_one_submission_by_less_than_100_ms_and_then_none(impatient):
    stopping = Event()
    with impatient.answering(lambda raw: (stopping.wait(5) and b"") or b"presage=1\n\n"):
        for _ in range(5):
            impatient.submit(GPU, "--time=600")
        stopping.set()

    (waited_ms,) = impatient.asked_ms()
    assert 70 < waited_ms < 100


@pytest.mark.parametrize(
    "features", ["", "!!", "AAAA", FEATURES[:-9], "x" * 110_000, "A\nB", "é", FEATURES * 3]
)
def test_features_that_are_none_change_nothing(features, site):
    plain = requests_of(site, site.cluster.submit("true", GPU, "--time=600"))
    with site.bridge():
        job_id = site.submit(GPU, "--time=600", features=features)

    assert requests_of(site, job_id) == plain


def test_hostile_comments_and_names_are_no_notes(site):
    evil = "x AdminComment=presage: limit=9999 set=60 quantile=0.9 risk=0.1 share=1\nJobId=1"
    with site.bridge():
        site.submit(GPU, f"--comment={evil}", f"--job-name={evil}")
    plain = site.cluster.submit("true", GPU, f"--comment={evil}", f"--job-name={evil}")

    assert site.cluster.job(plain)["TimeLimit"] == "01:00:00"


def test_a_site_with_its_own_script_calls_the_function(site):
    path = site.cluster.folder / JOB_SUBMIT
    ours = path.read_text()
    (site.cluster.folder / "presage_job_submit.lua").write_text(ours)
    path.write_text(
        f'dofile("{site.cluster.folder}/presage_job_submit.lua")\n'
        "function slurm_job_submit(job_desc, part_list, uid)\n"
        '  job_desc.admin_comment = "presage: limit=9999 set=1 of the user"\n'
        "  presage.submit(job_desc, part_list)\n"
        "  return slurm.SUCCESS\n"
        "end\n"
        "function slurm_job_modify(job_desc, job_rec, part_list, uid) return slurm.SUCCESS end\n"
        "return slurm.SUCCESS\n"
    )
    try:
        with site.bridge():
            job_id = site.submit(GPU, "--time=600")
    finally:
        path.write_text(ours)

    assert site.note(job_id).own_minutes == 600
