"""After a reboot no stale unit is recovered, and Nomad's jobs run again.

The machine stays up: to the agent's plugin it has booted anew once the kernel's boot id is another, and what /run and
PID 1 had is lost.
"""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.machine.conftest import Machine, eventually, ok, sh
from tests.machine.nomad.agent import Agent
from tests.machine.nomad.jobs import COUNTER, NEVER_AGAIN, SLEEPER, Jobs, allocations, hcl, running

BOOT_ID = "/proc/sys/kernel/random/boot_id"


@contextmanager
def another_boot(tmp_path: Path) -> Iterator[None]:
    """Replace the kernel's boot ID while the block runs."""
    own, other = tmp_path / "own", tmp_path / "other"
    own.write_text(Path(BOOT_ID).read_text())
    other.write_text(f"{uuid.uuid4()}\n")
    sh("umount", BOOT_ID)  # a container has one of its own already
    ok("mount", "--bind", str(other), BOOT_ID)
    try:
        yield
    finally:
        ok("umount", BOOT_ID)
        ok("mount", "--bind", str(own), BOOT_ID)


def gone(unit_name: str) -> None:
    """Remove what a reboot removes: state in PID 1, /run and the kernel."""
    ok("solo5ctl", "rm", "--force", unit_name.removeprefix("solo5-task-").removesuffix(".service"))
    sh("systemctl", "stop", "solo5-relay", "solo5-networkd")
    for folder in ("/run/solo5/relay", "/run/solo5/network"):
        shutil.rmtree(folder, ignore_errors=True)


def test_jobs_run_again_after_a_reboot_and_their_logs_go_on(
    agent: Agent, jobs: Jobs, machine: Machine, tmp_path: Path
) -> None:
    """A unit of the same name that is still there is ended."""
    machine.expect("recover|ended with the previous boot of the host|reattach|restore")
    [alloc] = jobs.run(hcl("again", COUNTER, group=NEVER_AGAIN))
    [other] = jobs.run(hcl("stale", SLEEPER))
    alloc.says("count 3")
    other.says("sleeping")
    before, stale, lines = alloc.unit(), other.unit(), alloc.logs()
    agent.kill_with_plugin()
    gone(before)
    with another_boot(tmp_path):
        agent.start()
        running("again")
        eventually(lambda: alloc.logs().count("count 1\n") == 2, "it counts from one again")
        eventually(lambda: other.logs().count("sleeping") == 2, "the other sleeps once more")
        assert alloc.logs().startswith(lines)
        assert alloc.unit() != before
        assert [each["ID"] for each in allocations("again")] == [alloc]
        eventually(lambda: sh("systemctl", "is-active", "--quiet", stale).returncode, "what is stale is ended")
        assert other.unit() != stale
        agent.stop()
    agent.start()
