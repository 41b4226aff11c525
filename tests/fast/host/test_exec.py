"""execve(2) with default signal dispositions."""

import re
import resource
import subprocess
import sys

import pytest

from solo5_systemd.base.errors import NotFoundError
from solo5_systemd.host import exec as exec_module
from solo5_systemd.host.exec import IGNORED_SIGNALS, execute


def test_what_python_ignores_is_ignored_no_more() -> None:
    program = "from solo5_systemd.host.exec import execute; execute(['/bin/cat', '/proc/self/status'])"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    [ignored] = re.findall(r"SigIgn:\t([0-9a-f]{16})\n", done.stdout)
    assert not [
        number for number in IGNORED_SIGNALS if int(ignored, 16) & 1 << number - 1
    ]  # of others, whoever runs this may


def test_a_missing_program_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(exec_module, "IGNORED_SIGNALS", ())  # by this very process, too
    monkeypatch.setattr(resource, "setrlimit", lambda *limit: limits.append(limit))
    with pytest.raises(NotFoundError, match="/nothing cannot be executed: No such file or directory"):
        execute(["/nothing"])
    assert limits == [(resource.RLIMIT_CORE, (0, 0))], "a core file would contain the guest's memory"
