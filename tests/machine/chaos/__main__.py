"""Operations from a seed, on this very machine: boot one for it, with `tests/machine/boot --with nomad`."""

import argparse
import os
import sys
import time
from contextlib import ExitStack
from random import SystemRandom

from tests.machine.chaos.run import NO_INTERNAL_ERROR, ChaosError, run
from tests.machine.conftest import Outside, cable, left_as_found
from tests.machine.nomad.agent import WATCHFUL, Agent


def main() -> int:
    """The exit status; after a failure everything stays as it is, to be looked at."""
    options = _options().parse_args()
    begun = time.monotonic()
    with left_as_found() as machine:
        machine.expect(NO_INTERNAL_ERROR)
        wires = ExitStack()
        wires.enter_context(cable(Outside()))
        agent = Agent()
        agent.install(WATCHFUL)
        try:
            run(options.seed, options.operations, agent, say=lambda line: print(line, flush=True), clear=False)
        except ChaosError as error:
            print(error, file=sys.stderr)
            os._exit(1)
        agent.remove()
        wires.close()
    print(f"seed {options.seed}: {options.operations} operations in {time.monotonic() - begun:.0f} s")
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m tests.machine.chaos", description=__doc__)
    parser.add_argument("--operations", type=int, default=100, metavar="N", help="how many (default: %(default)s)")
    seed = SystemRandom().randrange(1 << 32)
    parser.add_argument("--seed", type=int, default=seed, metavar="S", help="which ones (default: chosen, and printed)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
