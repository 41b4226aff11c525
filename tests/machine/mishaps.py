"""What happens to a host and to its processes, brought about by hand."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.machine.conftest import ok

DROP_IN = Path("/run/systemd/system/shutdown.target.d/by-hand.conf")


@contextmanager
def going_down() -> Iterator[None]:
    """PID 1 says that it shuts the host down, and stops nothing for it; a start would make it change its mind."""
    DROP_IN.parent.mkdir()
    DROP_IN.write_text("[Unit]\nRefuseManualStart=no\n")
    ok("systemctl", "daemon-reload")
    ok("systemctl", "start", "--job-mode=ignore-dependencies", "shutdown.target")
    try:
        yield
    finally:
        ok("systemctl", "stop", "--job-mode=ignore-dependencies", "shutdown.target")
        DROP_IN.unlink()
        DROP_IN.parent.rmdir()
        ok("systemctl", "daemon-reload")


def end_main_thread(pid: str) -> None:
    """Have the main thread alone call exit(2), as seccomp's KILL_THREAD does to it."""
    ok("python3", "-I", str(Path(__file__).parent / "end_main_thread.py"), pid)


@contextmanager
def held_still(pid: str) -> Iterator[None]:
    """A process that no signal but SIGKILL ends, for as long as the block lasts."""
    script = str(Path(__file__).parent / "hold_still.py")
    with subprocess.Popen(["python3", "-I", script, pid], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout
            assert holder.stdout.readline() == "held\n"
            yield
        finally:
            holder.terminate()
