"""Another interpreter, for what a process imports, how it ends, and what it leaves."""

import os
import subprocess
import sys


def python(code: str, *words: str, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code with arguments, this process's path of modules, and variables of the environment."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, check=check, env=environment)
