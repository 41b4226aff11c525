"""Answers of the kernel and of the journal, of any bytes: values, or the error that the reader's caller expects."""

import errno
import os
import struct
from itertools import islice

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from solo5_systemd.journal.reader import _count
from solo5_systemd.network.kernel_events import LinkWatch
from solo5_systemd.network.netlink import _errno, _messages, attribute, attributes

HEADER = struct.Struct("=IHHII")
LENGTHS = st.sampled_from([0, 1, 15, 16, 17, 20, 36, 1 << 16, (1 << 32) - 1])


def message(kind: int, body: bytes, length: int | None = None) -> bytes:
    return HEADER.pack(HEADER.size + len(body) if length is None else length, kind, 0, 1, 0) + body


MESSAGES = st.lists(st.builds(message, st.integers(0, 40), st.binary(max_size=40), st.none() | LENGTHS), max_size=4)


@given(MESSAGES.map(b"".join) | st.binary(max_size=100))
@example(message(17, b"", length=0))
def test_any_answer_of_the_kernel_is_a_bounded_number_of_messages(data: bytes) -> None:
    found = []
    try:
        for each in islice(_messages(data), len(data) + 1):
            found.append(each)  # noqa: PERF402 - what came before an error counts, too
    except OSError as error:
        assert error.errno == errno.EBADMSG  # noqa: PT017 - what passes is told from what refuses
    assert len(found) <= len(data) // HEADER.size


@given(st.binary(max_size=8))
def test_any_end_of_an_answer_is_an_error_or_none(body: bytes) -> None:
    try:
        found: int | None = _errno(body)
    except OSError as error:
        found = error.errno
    assert found == (-int.from_bytes(body[:4], "little", signed=True) if len(body) >= 4 else errno.EBADMSG)


@given(st.binary(max_size=100))
def test_any_attributes_are_read_and_none_twice(data: bytes) -> None:
    found = attributes(data)
    assert sum(4 + len(value) for value in found.values()) <= len(data)


@given(st.integers(0, 0x3FFF), st.binary(max_size=40))
def test_an_attribute_that_was_written_is_read(kind: int, value: bytes) -> None:
    assert attributes(attribute(kind, value)) == {kind: value}


class _Link(LinkWatch):
    """A watch to which the kernel says these bytes, and then nothing."""

    def __init__(self, *said: bytes) -> None:
        self._said = list(said)

    def recv(self, *_: object) -> bytes:
        if not self._said:
            raise BlockingIOError
        return self._said.pop(0)


@pytest.mark.parametrize(
    "body, names",
    [
        (bytes(16) + attribute(3, b"s5-abc\0"), frozenset({"s5-abc"})),
        (bytes(16) + attribute(3, b"\xff\xfe\0"), frozenset({os.fsdecode(b"\xff\xfe")})),
        (bytes(16), frozenset({""})),
        (b"", frozenset({""})),
    ],
)
def test_a_link_of_any_name_is_read_as_well_as_ours(body: bytes, names: frozenset[str]) -> None:
    ours = message(17, bytes(16) + attribute(3, b"s5-ours\0"))
    assert _Link(message(17, body) + ours).changed() == names | {"s5-ours"}


def test_an_announcement_that_is_none_counts_as_lost() -> None:
    assert _Link(message(17, b"", length=3)).changed() is None


@given(st.binary(max_size=30))
@example(b"9" * 5000)
@example("١".encode())
def test_any_count_of_lines_left_out_is_a_number(text: bytes) -> None:
    assert 0 <= _count(text) < 10**20
