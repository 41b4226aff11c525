import re
from pathlib import Path

import pytest

from solo5_systemd.dbus import fdstore
from solo5_systemd.journal.lines import Stream
from solo5_systemd.relay import fifo_writer

UNIT = Path(__file__).parents[3] / "units/solo5-relay.service"
MAX_ARG_STRLEN = 128 << 10
"""execve(2): bytes of one environment variable, its name and the final zero among them."""


def test_the_names_of_all_stored_descriptors_fit_into_one_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr(fdstore, "notify", lambda text, *_: names.extend(re.findall("FDSTORE=1\nFDNAME=(.*)", text)))
    most = int(re.findall("(?m)^FileDescriptorStoreMax=([0-9]+)$", UNIT.read_text())[0])
    monkeypatch.setenv("NOTIFY_SOCKET", "/any")
    for number in range(1, most + 1):
        zeros = dict.fromkeys(Stream, 0)
        fifo_writer.ConsoleDescriptors(generation=1, fifos=zeros, staging=zeros).store(number)
    assert len(names) == len(set(names)) == most
    assert len(f"LISTEN_FDNAMES={':'.join(names)}\0") <= MAX_ARG_STRLEN
