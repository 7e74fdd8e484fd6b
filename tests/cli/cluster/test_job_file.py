"""The job file of `presage cluster submit`: YAML whose keys are the command's options."""

from __future__ import annotations

import pytest

from presage.schedulers.v1 import cluster_pb2 as pb
from tests.cli.help.test_help import Taking
from tests.support.in_process import presage

JOB = """
name: sweep
array: 0-2%1
gpus: 2
kind: [h100, h200]
share: 0.5
latency-sensitive: true
time-limit: 2h
after: prepare
retries: 3
command: [python, train.py, "--seed=1", 7]
"""


@pytest.fixture
def submit(tmp_path):
    """Return a function that submits a file, and returns the result and the jobs received."""

    def of(content, *words):
        file = tmp_path / "job.yaml"
        file.write_text(content)
        with Taking() as controller:
            before = ("cluster", "submit", "--controller", controller.target, "--file", file)
            return presage(*before, *words), controller.taken

    return of


def test_a_file_has_the_options_and_the_command_of_a_job(submit):
    done, jobs = submit(JOB)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["sweep-0", "sweep-1", "sweep-2"]
    expected = pb.Job(
        job_id="sweep-1", command=["python", "train.py", "--seed=1", "7"], gpus=2,
        kinds=["h100", "h200"], compute_milli=500, latency_sensitive=True, time_limit_s=7200.0,
        after=["prepare"], retries=3, grace_s=30.0, array="sweep", array_limit=1,
        environment={"PRESAGE_ARRAY_INDEX": "1"}, folder=jobs[1].folder,
    )  # fmt: skip
    assert jobs[1] == expected


def test_options_and_a_command_of_the_command_line_come_before_those_of_the_file(submit):
    done, (job,) = submit(
        "name: a\npriority: 1\ngpus: 2\ncommand: python 'my train.py'\n", "--priority", "-4"
    )
    assert done.returncode == 0, done.stderr
    assert (job.priority, job.gpus, job.command) == (-4, 2, ["python", "my train.py"])
    _, (job,) = submit("name: a\ncommand: [never]\n", "--", "yes")
    assert job.command == ["yes"]


def test_texts_and_numbers_reach_the_job_as_they_are_written(submit):
    _, (job,) = submit(
        "name: 007\ntime-limit: 0090\nlatency-sensitive: no\n"
        "command: [./a, 1.10, 1_000, 0x1F, 1:30, 2024-13-45, 1.0e-3, &a x, *a]\n"
    )
    assert (job.job_id, job.time_limit_s, job.latency_sensitive) == ("007", 90.0, False)
    words = ["./a", "1.10", "1_000", "0x1F", "1:30", "2024-13-45", "1.0e-3", "x", "x"]
    assert job.command == words


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("gpu: 2\ncommand: x\n", "'gpu' is no option of a job; did you mean 'gpus'?"),
        ("timelimit: 2h\ncommand: x\n", "did you mean 'time-limit'?"),
        ("controller: x\ncommand: x\n", "'controller' is no option of a job"),
        ("file: x\ncommand: x\n", "'file' is no option of a job"),
        ("gpus: two\ncommand: x\n", "'--gpus': Input should be a valid integer"),
        ("gpus: 0\ncommand: x\n", "'--gpus': Input should be greater than"),
        ("gpus: [1, 2]\ncommand: x\n", "'gpus' must be a text or a number"),
        ("latency-sensitive: maybe\ncommand: x\n", "'latency-sensitive' must be true or false"),
        ("gpus: 1\ngpus: 2\ncommand: x\n", "'gpus' is there twice"),
        ("command: {a: b}\n", "'command' must be a list of words"),
        ('command: "a \'b"\n', "'command': No closing quotation"),
        ("- gpus\n", "must have lines such as `gpus: 2`"),
        ("", "must have lines such as `gpus: 2`"),
        ("gpus: [\n", "cannot be read"),
        ("command: [!!python/name:os.system x]\n", "'command' must be a text or a number"),
        ("gpus: 1\n", "no command; write it after the options"),
        ("array: 0-\ncommand: x\n", "array '0-': must be indices"),
        ("array: ''\ncommand: x\n", "array '': must be indices"),
        ("time-limit: ''\ncommand: x\n", "'' is not a duration"),
        ("gpus: !!int x\ncommand: x\n", "'--gpus': Input should be a valid integer"),
        ("latency-sensitive: !!bool x\ncommand: x\n", "must be true or false"),
        ("name: null\ncommand: x\n", "'name' must be a text or a number"),
        ("[a, b]: 2\ncommand: x\n", "'sequence' is no option of a job"),
        ("command: &a [x, *a]\n", "'command' must be a text or a number"),
        ("a: &a [x, x]\nb: &b [*a, *a]\n? [*b, *b]\n: 1\n", "'a' is no option of a job"),
        ("<<: {gpus: 2}\ncommand: x\n", "'<<' is no option of a job"),
    ],
)
def test_other_files_are_refused_in_one_line(submit, content, message):
    done, jobs = submit(content)

    assert done.returncode != 0
    assert message in done.stderr
    assert not jobs
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_missing_file_is_refused(tmp_path):
    done = presage("cluster", "submit", "--file", tmp_path / "absent.yaml", "--", "true")
    assert done.returncode == 1
    assert "absent.yaml: cannot be read" in done.stderr
