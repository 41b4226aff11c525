"""A tender as a launcher meets it: words in; console, messages and status out.

TENDERS names the directory of solo5-hvt and solo5-spt, GUESTS that of the images: so the same tests run
under the stand-ins in a test machine and, by hand, under the real tenders.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TENDERS = Path(os.environ.get("TENDERS", "/usr/local/bin"))
GUESTS = Path(os.environ.get("GUESTS", "/srv/guests"))
PATIENCE = 20.0  # seconds; a KVM that emulates instructions is slow


@dataclass(frozen=True, kw_only=True)
class Ended:
    status: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()


@dataclass(kw_only=True)
class Running:
    process: subprocess.Popen[bytes]
    output: Path
    errors: Path

    def stdout(self) -> str:
        return self.output.read_text()

    def wait_for(self, text: str) -> str:
        """Wait until the console holds the text."""
        end = time.monotonic() + PATIENCE
        while text not in self.stdout():
            assert self.process.poll() is None, self.errors.read_text()
            assert time.monotonic() < end, f"no {text!r} in {self.stdout()!r}"
            time.sleep(0.01)
        assert text in self.stdout()
        return self.stdout()

    def stop(self, number: int = signal.SIGKILL) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@dataclass(frozen=True, kw_only=True)
class Tender:
    abi: str
    scratch: Path
    namespace: str | None = None

    @property
    def program(self) -> Path:
        return TENDERS / f"solo5-{self.abi}"

    def image(self, guest: str) -> Path:
        return GUESTS / f"{guest}.{self.abi}"

    def command(self, *words: str | Path) -> list[str]:
        inside = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        return [*inside, str(self.program), *map(str, words)]

    def call(self, *words: str | Path) -> Ended:
        """Run the tender with exactly these words, to its end."""
        done = subprocess.run(self.command(*words), capture_output=True, timeout=PATIENCE, check=False)
        return Ended(status=done.returncode, stdout=done.stdout.decode(), stderr=done.stderr.decode())

    def run(self, guest: str, *arguments: str, options: tuple[str, ...] = ()) -> Ended:
        return self.call("--mem=8", *options, "--", self.image(guest), *arguments)

    @contextmanager
    def running(self, guest: str, *arguments: str, options: tuple[str, ...] = ()) -> Iterator[Running]:
        output, errors = self.scratch / "stdout", self.scratch / "stderr"
        words = self.command("--mem=8", *options, "--", self.image(guest), *arguments)
        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(words, stdout=out, stderr=err)
        try:
            yield Running(process=process, output=output, errors=errors)
        finally:
            process.kill()
            process.wait(PATIENCE)
