import struct
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solo5_systemd.journal import export
from solo5_systemd.journal.export import Entry, ExportError, ExportParser, Stream


def text(**fields: str) -> bytes:
    return b"".join(f"{name}={value}\n".encode() for name, value in fields.items())


def binary(name: str, value: bytes) -> bytes:
    return name.encode() + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"


HEAD = {"__CURSOR": "s=1;i=2", "__REALTIME_TIMESTAMP": "1700000000000000"}
CONSOLE = text(**HEAD, MESSAGE="hello=world", PRIORITY="6") + b"\n"
TENDER = text(__CURSOR="s=1;i=3", PRIORITY="4") + binary("MESSAGE", b"two\nlines \xff\0\n\n") + b"\n"


def entries(pieces: Iterable[bytes]) -> list[Entry]:
    parser = ExportParser()
    return [entry for piece in pieces for entry in parser.feed(piece)]


def read(data: bytes) -> list[Entry]:
    """Parse the input as a whole, byte by byte, and with an incomplete tail: the entries are the same."""
    whole = entries([data])
    assert entries(data[i : i + 1] for i in range(len(data))) == whole
    assert entries([data + CONSOLE[:-1]]) == whole
    assert entries([data + TENDER[:40]]) == whole
    return whole


def test_a_console_line_is_parsed_with_all_fields() -> None:
    (entry,) = read(CONSOLE)
    assert (entry.cursor, entry.realtime, entry.message) == ("s=1;i=2", 1700000000000000, b"hello=world")
    assert entry.stream is Stream.STDOUT
    assert entry.fields["PRIORITY"] == b"6"


def test_binary_fields_are_not_changed() -> None:
    (entry,) = read(TENDER)
    assert (entry.message, entry.stream, entry.realtime) == (b"two\nlines \xff\0\n\n", Stream.STDERR, 0)


def test_extra_empty_lines_between_entries_are_ignored() -> None:
    assert [entry.cursor for entry in read(b"\n\n" + CONSOLE + b"\n" + TENDER + CONSOLE)] == [
        "s=1;i=2",
        "s=1;i=3",
        "s=1;i=2",
    ]


@given(st.lists(st.binary(max_size=50), max_size=5), st.lists(st.integers(0, 400), max_size=8))
def test_any_messages_in_any_chunks_are_parsed(messages: list[bytes], cuts: list[int]) -> None:
    data = b"".join(text(**HEAD) + binary("MESSAGE", message) + b"\n" for message in messages)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in pairwise(edges)]
    assert [entry.message for entry in entries(pieces)] == messages


@pytest.mark.parametrize(
    "data, words",
    [
        (b"MESSAGE\n" + struct.pack("<Q", 101), "field of 101 bytes"),
        (b"MESSAGE\n\xff\xff\xff\xff\xff\xff\xff\xff", "field of 18446744073709551615 bytes"),
        (b"MESSAGE\n" + struct.pack("<Q", 1) + b"ab", "does not end with a newline"),
        (b"M" * 101, "more than 100 bytes"),
        (text(__REALTIME_TIMESTAMP="soon") + b"\n", "timestamp b'soon'"),
    ],
)
def test_invalid_input_is_refused_in_bounded_memory(monkeypatch: pytest.MonkeyPatch, data: bytes, words: str) -> None:
    monkeypatch.setattr(export, "FIELD_LIMIT", 100)
    with pytest.raises(ExportError, match=words):
        entries([data])
