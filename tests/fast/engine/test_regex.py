"""Patterns of a job: grep's, and searched in a process that the kernel ends in time."""

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.fakes.background import Background, yields

from solo5_systemd.base.errors import DependencyError, InvalidRequestError
from solo5_systemd.engine import readiness

COSTLY = "(?:(?=.*+)){400}[^a]"
"""Possessive, hence without one step that libpcre2 counts: seconds for each line."""

COSTLY_LINE = b"a" * 4096


async def lines(*each: bytes) -> AsyncGenerator[Iterable[bytes], None]:
    yield each
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    "pattern, line",
    [
        ("ready", b"we are ready now"),
        ("^ready$", b"ready"),
        ("(?i)READY", b"Ready"),
        (r"\d+(?= ms)", b"after 12 ms"),
        (r"(?<!not )ready", b"is ready"),
        (r"(\w)\1", b"hello"),
        ("a++b", b"aab"),
        ("é", "café".encode()),
        ("x", b"\0\xff\xfex"),
        ("--help", b"see --help"),
        ("^one two$", b"one\ntwo"),
    ],
)
async def test_a_pattern_is_searched_in_bytes(pattern: str, line: bytes) -> None:
    await readiness.check_pattern(pattern)
    found = await readiness.first_match(pattern, lines(b"", b"other", b"not", line, line + b" again"))
    assert found == line.replace(b"\n", b" ") + b"\n"


async def test_a_line_that_comes_later_is_found() -> None:
    more = asyncio.Event()

    async def slowly() -> AsyncGenerator[Iterable[bytes], None]:
        yield (b"not ready",)
        await more.wait()
        yield (b"ready",)
        await asyncio.get_running_loop().create_future()

    async with Background(readiness.first_match("^ready$", slowly())) as finding:
        await yields()
        assert not finding.done()
        more.set()
        assert await finding == b"ready\n"


@pytest.mark.parametrize(
    "pattern, words",
    [
        ("(", "'\\(' cannot be searched for: missing closing parenthesis"),
        ("a**", "quantifier"),
        ("[z-a]", "range out of order"),
    ],
)
async def test_what_is_no_pattern_is_refused_in_greps_words(pattern: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        await readiness.check_pattern(pattern)


@pytest.mark.timeout(120)  # other processes may have the processors for long
async def test_a_search_without_end_is_ended_after_its_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "CPU_LIMIT_S", 1)
    monkeypatch.setattr(readiness, "LOWEST_PRIORITY", 0)
    with pytest.raises(InvalidRequestError, match="was ended after 1 s of processor time"):
        await readiness.first_match(COSTLY, lines(*[COSTLY_LINE] * 100))


async def test_a_search_that_exceeds_greps_own_limit_is_a_sentence() -> None:
    with pytest.raises(InvalidRequestError, match="exceeded PCRE's backtracking limit"):
        await readiness.first_match("(a+)+$", lines(COSTLY_LINE + b"!"))


def children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


async def test_a_search_under_way_has_no_privileges_and_is_killed_with_its_waiter() -> None:
    before = children()
    async with Background(readiness.first_match(COSTLY, lines(*[COSTLY_LINE] * 100))):
        while not (made := children() - before):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
        [pid] = made
        while b"grep" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "\t" in line
        )
        assert status["NoNewPrivs"] == "1"
        assert {status["CapEff"].strip("0"), status["CapPrm"].strip("0")} == {""}
        assert os.geteuid() != 0 or status["Uid"].split() == ["65534"] * 4
        assert os.getpriority(os.PRIO_PROCESS, pid) == readiness.LOWEST_PRIORITY
    assert children() == before


async def test_a_reader_that_fails_ends_the_search() -> None:
    async def broken() -> AsyncGenerator[Iterable[bytes], None]:
        yield (b"line",)
        raise OSError("journal")

    with pytest.raises(OSError, match="journal"):
        await readiness.first_match("never", broken())


@pytest.mark.parametrize("program", ["GREP", "NICE", "PRLIMIT", "SETPRIV"])
async def test_a_missing_program_of_the_host_is_named(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, program, "/nonexistent/program")
    with pytest.raises(DependencyError, match="a console cannot be searched: .*/nonexistent/program.*: No such file"):
        await readiness.check_pattern("a")
