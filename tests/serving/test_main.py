"""Options of ``presage serve``, and errors of invalid ones."""

from __future__ import annotations

import socket

import pytest

from presage.serving.main import main
from tests.serving.support.processes import free_port, serving


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("leave", "where"), [((), "127.0.0.1"), (("--allow-remote",), "127.0.0.2")]
)
def test_metrics_leave_loopback_only_with_leave(release, tmp_path, workers, leave, where):
    """127.0.0.2 stands for the network: it is the host that calls are taken on."""
    port = free_port()
    options = ("--release", release.folder, "--no-outcomes", "--drain-s", 0, "--workers", workers)
    where_to = ("--host", "127.0.0.2", "--metrics-port", port, *leave)
    with serving(*options, *where_to, cwd=tmp_path) as server:
        assert server.target.startswith("127.0.0.2:")
        answers = []
        for host in ("127.0.0.1", "127.0.0.2"):
            with socket.socket() as probe:
                if probe.connect_ex((host, port)) == 0:
                    answers.append(host)
        assert answers == [where]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_metrics_on_an_unknown_port_are_rejected(capsys, workers):
    with pytest.raises(SystemExit, match="1"):
        main(["--metrics-port", "0", "--workers", workers])
    assert capsys.readouterr().err == "error: --metrics-port 0: give a number above 0\n"


@pytest.mark.parametrize(
    ("option", "value", "least"),
    [
        ("--drain-s", "-1", "0 or more"),
        ("--grace-s", "-0.5", "0 or more"),
        ("--grace-s", "nan", "0 or more"),
        ("--max-change", "0.5", "1 or more"),
        ("--max-change", "nan", "1 or more"),
        ("--poll-s", "0", "a number above 0"),
        ("--queue-rows", "-1", "a number above 0"),
        ("--workers", "0", "1 or more"),
    ],
)
def test_a_number_out_of_range_is_rejected_with_the_name_of_its_option(
    capsys, option, value, least
):
    with pytest.raises(SystemExit, match="1"):
        main([option, value])
    assert capsys.readouterr().err == f"error: {option} {value}: give {least}\n"
