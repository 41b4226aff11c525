"""Counted HTTP requests, one after the other."""

import http.client
import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

Target = tuple[str, int]
PACE = 0.01


@dataclass
class Tally:
    """The counts of responses and failures.

    Attributes:
        answered: by target, how many requests were answered with 200.
        failed: by target, why each other request failed, with its seconds since the first one.
    """

    answered: Counter[Target] = field(default_factory=Counter)
    failed: defaultdict[Target, list[str]] = field(default_factory=lambda: defaultdict(list))
    began: float = field(default_factory=time.monotonic)

    def seconds(self) -> float:
        """Return the time since the first request."""
        return time.monotonic() - self.began

    def __str__(self) -> str:
        return (
            f"{self.answered.total()} answered, {sum(map(len, self.failed.values()))} failed in {self.seconds():.1f} s"
        )


def get(target: Target, seconds: float) -> str:
    """Return the body of a response with status 200; each request uses a new connection."""
    connection = http.client.HTTPConnection(*target, timeout=seconds)
    try:
        connection.request("GET", "/")
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status != http.HTTPStatus.OK:
            raise http.client.HTTPException(f"status {answer.status}")
        return text
    finally:
        connection.close()


class Requests:
    """Requests to all targets in turn, in a thread; the targets are looked up before each request."""

    def __init__(self, targets: Callable[[], list[Target]], seconds: float) -> None:
        self.tally = Tally()
        self._targets = targets
        self._seconds = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        for turn in itertools.count():
            if self._over.wait(PACE):
                return
            if targets := self._targets():
                self._one(targets[turn % len(targets)])

    def _one(self, target: Target) -> None:
        sent = self.tally.seconds()
        try:
            get(target, self._seconds)
        except (OSError, http.client.HTTPException) as error:
            self.tally.failed[target].append(f"{sent:.2f} s: {error!r}")
        else:
            self.tally.answered[target] += 1

    def __enter__(self) -> "Requests":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
