"""The choice of the library that encodes messages."""

from pathlib import Path

import pytest
from tests.support.interpreter import python

from solo5_systemd.dbus.messages import Message, decode, encode

TEXTS = ["", "plain", "é", "磁盘", "𝄞", "é" * 5000]

MESSAGE = """
class Message:
    def __init__(self, **fields): self.text = fields["body"][0]
    def _marshall(self, _): return bytes([{size}(self.text), 0, 0, 0]) + self.text.encode() + bytes(1)
"""


def test_text_that_is_not_ascii_is_encoded_by_its_bytes() -> None:
    body = [TEXTS, "end"]
    message = Message(path="/", interface="a.b", member="C", signature="ass", body=body, serial=1)
    for text in TEXTS:
        data = text.encode()
        assert len(data).to_bytes(4, "little") + data + b"\0" in encode(message)
    assert decode(encode(message)).body == body


@pytest.mark.parametrize(
    "size, library", [("len", "dbus_next"), ("(lambda text: len(text.encode()))", "dbus_fast")], ids=["old", "new"]
)
def test_a_dbus_fast_that_counts_characters_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str, library: str
) -> None:
    package = tmp_path / "dbus_fast"
    (package / "_private").mkdir(parents=True)
    (package / "_private/__init__.py").touch()
    (package / "_private/unmarshaller.py").write_text("Unmarshaller = object")
    message = MESSAGE.format(size=size)
    (package / "__init__.py").write_text(f"class MessageType: pass\nSignatureTree = Variant = object\n{message}")
    code = """
from solo5_systemd.dbus.messages import LIBRARY, Message, MessageType
print(LIBRARY, *(each.__module__.partition(".")[0] for each in (Message, MessageType)))
"""
    monkeypatch.syspath_prepend(str(tmp_path))
    assert python(code).stdout == f"{library} {library} {library}\n", "all parts of one library"
