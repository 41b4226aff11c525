"""The process that becomes a scope's tender: started by the driver, in a scope of its own from its first deed on.

The driver's settings and the workload come on stdin. The descriptor whose number is the one argument tells the driver:
what is written there is an error, and its closing by the kernel, when the tender is executed, is success.
"""

import asyncio
import json
import os
import pickle
import sys

from solo5_systemd.errors import HostError, NotFoundError, Solo5Error
from solo5_systemd.settings import Settings
from solo5_systemd.wiring import connect
from solo5_systemd.workload import Workload


def main() -> None:
    """Execute the tender, or tell why not."""
    report = int(sys.argv[1])
    os.set_inheritable(report, False)
    settings, workload = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the driver itself
    try:
        line = asyncio.run(_enter(settings, workload))
        _become(line)
    except Exception as error:  # noqa: BLE001 - whatever it is, the driver is told
        os.write(report, _words(error))
        sys.exit(Solo5Error.exit_status)


def _words(error: Exception) -> bytes:
    told = error if isinstance(error, Solo5Error) else HostError(f"the task's tender was not reached: {error!r}.")
    return json.dumps({"name": told.dbus_name, "sentence": told.sentence, "hint": told.hint}).encode()


async def _enter(settings: Settings, workload: Workload) -> tuple[str, ...]:
    async with connect(lambda: settings) as engine:
        return await engine.start_scope(workload, os.getpid())


def _become(line: tuple[str, ...]) -> None:
    try:
        os.execv(line[0], line)  # noqa: S606 - no shell is meant
    except OSError as error:
        raise NotFoundError(f"{line[0]} cannot be executed: {error.strerror}.") from error


if __name__ == "__main__":
    main()
