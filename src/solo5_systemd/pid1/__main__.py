"""What PID 1 executes for a moment: `python3 -m solo5_systemd.pid1 generator`, and `… prepare [--clear] NAME`.

A boot has one such process for each declared task, and a daemon-reload waits for one. Without collections of garbage
and without the interpreter's own end they take a quarter less of CPU.
"""

import gc
import os
import sys
from collections.abc import Sequence


def main(program: str, words: Sequence[str]) -> int:
    """Run a program; return its exit status."""
    gc.disable()
    if program == "generator":
        from solo5_systemd.pid1 import generator

        return generator.main()
    from solo5_systemd.pid1 import clear

    if words[:1] == ["--clear"]:
        return clear.main(words[1:])
    from solo5_systemd.pid1.prepare import prepare

    return clear.run(prepare, words[-1])


if __name__ == "__main__":
    status = main(sys.argv[1], sys.argv[2:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
