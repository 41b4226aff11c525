"""`solo5ctl convert`: a unikernel of albatross' dump, which is compressed there, runs as a declared task."""

import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Machine, console, eventually, inspect, ok, systemctl
from tests.machine.declared import ETC, Declarations, declarations
from tests.support import albatross as der

OUTPUT = Path("/srv/unikernels")


@pytest.fixture
def declare(machine: Machine) -> Iterator[Declarations]:
    try:
        with declarations() as made:
            yield made
    finally:
        shutil.rmtree(OUTPUT, ignore_errors=True)


def test_a_unikernel_of_a_dump_runs_with_its_disk(declare: Declarations, tmp_path: Path) -> None:
    image = zlib.compress((GUESTS / "disk.hvt").read_bytes())
    unikernel = der.config(6, image, compressed=True, blocks=[der.block("storage", "data")], arguments=["read", "stay"])
    state = tmp_path / "state"
    state.write_bytes(der.dump(6, [("foo:moved", unikernel)]))
    disk = tmp_path / "data"
    disk.write_bytes(b"of albatross".ljust(4096, b"\0"))
    ok("solo5ctl", "convert", "--output", str(OUTPUT), str(state))
    ok("solo5ctl", "disk", "import", "foo-data", str(disk))
    try:
        declare.names.append("foo-moved")
        shutil.move(OUTPUT / "foo-moved.unikernel", ETC)
        systemctl("daemon-reload")
        systemctl("start", "foo-moved")
        eventually(lambda: "sector 0: 'of albatross'" in console("foo-moved"), "it reads its disk")
        shown = inspect("foo-moved")
        assert shown["image"] == f"{OUTPUT}/foo-moved.hvt"
        assert [each["path"] for each in shown["disks"]] == ["/var/lib/solo5/disks/foo-data"]
    finally:
        declare.remove()
        ok("solo5ctl", "disk", "rm", "foo-data")
