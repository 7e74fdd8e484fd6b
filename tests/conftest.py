"""What every test begins with."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from presage.pipelines.profiling.running.device_lock import FOLDER_VARIABLE
from tests.support import slow_tests

pytest_plugins = ["tests.support.chromium", "tests.support.state_counts"]

# How long an example takes says more of the machine than of what is tested.
settings.register_profile("all", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast tier", settings.get_profile("all"), max_examples=20)
settings.load_profile("all")


# Ctrl-C is tested. A shell starts commands in the background with SIGINT ignored, and processes
# that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Test laws with fewer examples in the fast tier."""
    if _skips_slow(config):
        settings.load_profile("fast tier")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass on to a worker of pytest-xdist whether it skips listed tests."""
    node.workerinput["skips_slow"] = _skips_slow(node.config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip listed tests in the fast tier, unless files or tests are named."""
    if not _skips_slow(config):
        return
    listed = slow_tests.listed()
    for item in items:
        if slow_tests.is_listed(item.nodeid, listed):
            item.add_marker(pytest.mark.skip(reason="slow; make test-all runs it"))


def _skips_slow(config: pytest.Config) -> bool:
    if hasattr(config, "workerinput"):
        return bool(config.workerinput["skips_slow"])
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return is_whole and not slow_tests.IS_ALL


@pytest.fixture(scope="session", autouse=True)
def own_device_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use separate device locks, so that tests can run while the machine is profiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(tmp_path_factory.mktemp("locks")))
        yield


@pytest.fixture(scope="session", autouse=True)
def own_local_tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a temporary folder for local tokens instead of the user's state folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield
