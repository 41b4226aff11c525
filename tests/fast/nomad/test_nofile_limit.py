"""The plugin may open many files; what it executes may open as many as the plugin was meant to."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, subprocess, sys
NOFILE = resource.RLIMIT_NOFILE
resource.setrlimit(NOFILE, (64, 512))
from solo5_systemd.nomad import process
process.raise_nofile_limit()
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
inherited = resource.prlimit(child.pid, NOFILE)
process.restore_nofile_limit(child.pid)
print([resource.getrlimit(NOFILE), inherited, resource.prlimit(child.pid, NOFILE)])
child.communicate()
try:
    process.restore_nofile_limit(child.pid)
except ProcessLookupError:
    print("ended")
"""


@pytest.mark.timeout(30)
def test_the_plugins_own_limit_is_raised_and_its_childs_is_not() -> None:
    output = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=20
    ).stdout
    assert output == "[(512, 512), (512, 512), (64, 512)]\nended\n"
