"""Patterns of a job: Perl-compatible, and bounded in their work."""

import time
from contextlib import closing

import pytest

from solo5_systemd.errors import HostError, InvalidRequestError
from solo5_systemd.nomad import pcre
from solo5_systemd.nomad.pcre import Pattern


@pytest.mark.parametrize(
    "pattern, line, found",
    [
        ("ready", b"we are ready now\n", True),
        ("^ready$", b"ready\n", True),
        ("^ready$", b"not ready\n", False),
        ("(?i)READY", b"Ready", True),
        (r"\d+(?= ms)", b"after 12 ms", True),
        ("é", "café".encode(), True),
        ("x", b"\0\xff\xfex", True),
        ("x", b"", False),
    ],
)
def test_a_pattern_is_searched_in_bytes(pattern: str, line: bytes, found: bool) -> None:
    with closing(Pattern(pattern)) as wanted:
        assert wanted.found_in(line) is found


@pytest.mark.parametrize(
    "pattern, words",
    [
        ("(", "'\\(' is no regular expression: missing closing parenthesis at character 2"),
        ("a**", "quantifier"),
        ("[z-a]", "range out of order"),
    ],
)
def test_what_is_no_pattern_is_refused_with_the_place(pattern: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        Pattern(pattern)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", ".*.*.*.*b", "(a*)*b"])
def test_a_pattern_that_would_never_end_finds_nothing_soon(pattern: str) -> None:
    begun = time.monotonic()
    with closing(Pattern(pattern)) as wanted:
        assert not wanted.found_in(b"a" * 4000 + b"!")
    assert time.monotonic() - begun < 20  # without a limit, hours


def test_a_host_without_the_library_is_told_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pcre, "LIBRARY", "libnone.so.0")
    pcre._library.cache_clear()
    with pytest.raises(HostError, match="libnone.so.0"):
        Pattern("a")
    pcre._library.cache_clear()
