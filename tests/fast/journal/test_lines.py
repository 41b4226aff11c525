import pytest

from solo5_systemd.journal.lines import original_bytes


@pytest.mark.parametrize(
    "line_break, ending", [(b"", b"\n"), (b"nul", b"\0"), (b"line-max", b""), (b"eof", b""), (b"pid-change", b"")]
)
def test_a_line_has_the_terminator_of_the_guest(line_break: bytes, ending: bytes) -> None:
    assert original_bytes(b"text", line_break) == b"text" + ending
