"""Fuzz for a while: rounds of hostile images and of all property-based tests, each round with a seed of its own.

A fault ends it with exit status 1, and with the command that does the same round again.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.hostile.images import corpus, guests, hostile
from tests.hostile.judge import expense, judge

IMAGES = 10_000
PROPERTIES = (
    sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--quiet", "--timeout=0", "-m", "hypothesis",
    "--hypothesis-profile=fuzz",
)  # fmt: skip


def main(words: list[str]) -> int:
    """Run until the time is over; return the exit status."""
    wanted = _parse(words)
    if wanted.write:
        image = hostile(wanted.seed or 0, wanted.image, guests())
        print(image, "" if image.write(wanted.write) else "(its size is beyond this file system)")
        return 0
    end = time.monotonic() + wanted.duration
    seed = wanted.seed if wanted.seed is not None else random.SystemRandom().randrange(1 << 32)
    while True:
        print(f"──── seed {seed}; again: make fuzz DURATION=1 SEED={seed}", flush=True)
        if not (_images(seed, wanted.images) and _properties(seed, wanted.examples)):
            print(f"FAILED; again: make fuzz DURATION=1 SEED={seed}", flush=True)
            return 1
        if time.monotonic() > end:
            return 0
        seed = random.SystemRandom().randrange(1 << 32)


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.hostile", description=__doc__, allow_abbrev=False)
    parser.add_argument("--duration", type=float, default=3600, help="seconds; then no round begins (%(default)s)")
    parser.add_argument("--seed", type=int, help="of the first round (default: another each time)")
    parser.add_argument("--images", type=int, default=IMAGES, help="of each round (%(default)s)")
    parser.add_argument("--examples", type=int, default=1000, help="of each property and round (%(default)s)")
    parser.add_argument("--image", type=int, default=0, metavar="NUMBER", help="with --write: of the seed's corpus")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write one image, and do nothing else")
    return parser.parse_args(words)


def _images(seed: int, count: int) -> bool:
    outcomes: Counter[tuple[str, bool]] = Counter()
    faults = 0
    for image in corpus(seed, count):
        try:
            verdict = judge(image)
            fault = verdict.fault or expense(image)
        except Exception:
            print(f"{image}:", flush=True)
            raise
        outcomes[image.mutations[0], verdict.manifest is not None] += 1
        if fault:
            faults += 1
            print(f"{image}: {fault}", flush=True)
    for kind in sorted({kind for kind, _ in outcomes}):
        print(f"{kind:<18}{outcomes[kind, True]:>8} read{outcomes[kind, False]:>9} refused", flush=True)
    return not faults


def _properties(seed: int, examples: int) -> bool:
    environment = {**os.environ, "FUZZ_EXAMPLES": str(examples)}
    words = [*PROPERTIES, f"--hypothesis-seed={seed}", "tests/fast"]
    return subprocess.run(words, check=False, env=environment).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
