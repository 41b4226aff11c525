"""The ladder's upper rungs: `outside` and `agent` for all tests here together, `jobs` for one.

The agent and its cable stand before a test begins and after it ends; what a test's jobs made must be gone, and the
driver must not have logged a warning that the test did not announce.
"""

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Machine, Outside, cable, eventually, ok, sh
from tests.machine.nomad.agent import SECOND_ADDRESS, SIX_ADDRESS, USUAL, Agent
from tests.machine.nomad.jobs import Jobs


@pytest.fixture(scope="package")
def outside(booted: None) -> Iterator[Outside]:
    """The host outside, kept as long as the agent, whose node has an address on that link and one on `lo`."""
    with cable(Outside()) as other:
        ok("ip", "address", "add", f"{SECOND_ADDRESS}/32", "dev", "lo")
        ok("ip", "address", "add", f"{SIX_ADDRESS}/128", "dev", "lo", "nodad")
        try:
            yield other
        finally:
            ok("ip", "address", "delete", f"{SECOND_ADDRESS}/32", "dev", "lo")
            ok("ip", "address", "delete", f"{SIX_ADDRESS}/128", "dev", "lo")


@pytest.fixture(scope="package")
def installed(outside: Outside) -> Iterator[Agent]:
    subject = Agent()
    try:
        subject.install()
        eventually(lambda: subject.driver().get("Healthy"), "the driver works")
        yield subject
    finally:
        subject.remove()


@pytest.fixture
def agent(installed: Agent, machine: Machine, request: pytest.FixtureRequest) -> Iterator[Agent]:
    """The agent with the test's plugin configuration, running with a healthy driver before and after the test."""
    marker = request.node.get_closest_marker("configured")
    installed.use(marker.args[0] if marker else USUAL)
    since = f"@{time.time():.6f}"
    yield installed
    installed.heal()
    eventually(lambda: installed.driver().get("Healthy"), "the driver works", 60)
    _no_surprise_in_log(installed.log(since), machine.expected)


@pytest.fixture
def jobs(agent: Agent) -> Iterator[Jobs]:
    subject = Jobs()
    yield subject
    agent.heal()
    subject.purge()


@pytest.fixture
def limits() -> Iterator[Path]:
    """The operator's limits, which are read at each start."""
    path = Path("/etc/solo5/limits.toml")
    yield path
    path.unlink(missing_ok=True)


@contextmanager
def serving(host: str, port: int) -> Iterator[str]:
    """Serve the guest images by HTTP; yield the URL."""
    url, command = f"http://{host}:{port}", ["python3", "-m", "http.server", "--directory", str(GUESTS), str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            eventually(lambda: sh("curl", "--silent", "--head", url).returncode == 0, "the server answers")
            yield url
        finally:
            server.terminate()


@pytest.fixture
def web() -> Iterator[str]:
    """The HTTP server of the guest images."""
    with serving("127.0.0.1", 8099) as url:
        yield url


HARMLESS = ["no handler registered for event", 'reattach config from state store.*"database not open"']
"""The driver's last event of a task that was purged meanwhile: Nomad listens no more; and Nomad 2 as it stops, of its
own database."""

OF_THE_DRIVER = re.compile(r"\[(WARN|ERROR)\] +(client\.driver_mgr|agent\.plugin_loader).*solo5")


def _no_surprise_in_log(log: str, expected: list[str]) -> None:
    """Return the agent's log lines of the driver at warning and above."""
    surprises = [
        line
        for line in log.splitlines()
        if OF_THE_DRIVER.search(line) and not any(re.search(pattern, line) for pattern in (*HARMLESS, *expected))
    ]
    assert not surprises, "in the agent's log, unannounced:\n" + "\n".join(surprises)
