"""What is executed in a process's place begins like any other program."""

import subprocess
import sys

import pytest

from solo5_systemd.errors import NotFoundError
from solo5_systemd.host.execution import execute


def test_what_python_ignores_is_ignored_no_more() -> None:
    program = "from solo5_systemd.host.execution import execute; execute(['/bin/cat', '/proc/self/status'])"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert "SigIgn:\t0000000000000000\n" in done.stdout


def test_what_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solo5_systemd.host.execution.IGNORED", ())  # by this very process, too
    with pytest.raises(NotFoundError, match="/nothing cannot be executed: No such file or directory"):
        execute(["/nothing"])
