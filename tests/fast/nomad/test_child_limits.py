"""The limits of the plugin, and of its children."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, subprocess
from pathlib import Path
NOFILE, CORE = resource.RLIMIT_NOFILE, resource.RLIMIT_CORE
resource.setrlimit(NOFILE, (64, 512))
resource.setrlimit(CORE, (4096, 8192))
Path("/proc/self/oom_score_adj").write_text("300")
from solo5_systemd.nomad import process
process.raise_nofile_limit()
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)

def limits():
    score = int(Path(f"/proc/{child.pid}/oom_score_adj").read_text())
    return resource.prlimit(child.pid, NOFILE), resource.prlimit(child.pid, CORE), score

print(resource.getrlimit(NOFILE), *limits())
process.restore_limits(child.pid)
print(*limits())
child.communicate()
try:
    process.restore_limits(child.pid)
except ProcessLookupError:
    print("ended")
"""


@pytest.mark.timeout(30)
def test_limits_of_a_child_are_not_those_of_the_plugin_and_its_agent() -> None:
    output = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=20
    ).stdout
    assert output.splitlines() == ["(512, 512) (512, 512) (4096, 8192) 300", "(64, 512) (0, 0) 0", "ended"]
