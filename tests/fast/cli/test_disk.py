"""`solo5ctl disk`."""

import asyncio
import errno
import hashlib
import io
import json
import os
import re
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fast.cli.conftest import Solo5ctl, Stream
from tests.fast.storage.conftest import disk_of
from tests.support.fakes.kernel import failing
from tests.support.fakes.tasks import running

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.file_copies import copy_data
from solo5_systemd.base.names import DeviceName, TaskName
from solo5_systemd.cli.terminal import Screen
from solo5_systemd.cli.verbs import disk as disk_module
from solo5_systemd.storage import named_disks, snapshots
from solo5_systemd.storage.locks import lock
from solo5_systemd.storage.model import Backing
from solo5_systemd.storage.named_disks import NamedDisks
from solo5_systemd.storage.snapshots import Snapshots


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    disks = NamedDisks(tmp_path / "disks")
    monkeypatch.setattr(disk_module, "_disks", lambda: disks)
    taken = Snapshots(disks)
    monkeypatch.setattr(disk_module, "_snapshots", lambda: taken)
    return tmp_path / "disks"


def test_create_prints_the_name_and_ls_the_disks(solo5ctl: Solo5ctl, directory: Path, tmp_path: Path) -> None:
    assert solo5ctl("disk", "ls").out == "NAME  SIZE  ALLOCATED  TASK  LAST USED\n"
    assert solo5ctl("disk", "create", "data", "64M").out == "data\n"
    made = json.loads(solo5ctl("disk", "create", "full", "1M", "--preallocate", "--json").out)
    assert (made["name"], made["size"], made["in_use"], "task" in made) == ("full", 1 << 20, False, False)
    assert solo5ctl("disk", "ls", "-q").out == "data\nfull\n"
    held = lock([disk_of(directory / "data")], task="web")
    _, data, full = solo5ctl("disk", "ls").out.splitlines()
    assert data.split() == ["data", "64M", "0", "web", "now"]
    assert full.split()[:4] == ["full", "1M", "1M", "-"]
    assert json.loads(solo5ctl("disk", "ls", "--json").out)[0]["task"] == "web"
    assert "     Task: web\n" in solo5ctl("disk", "inspect", "data", "full").out
    assert json.loads(solo5ctl("disk", "inspect", "data", "--json").out)[0]["path"] == str(directory / "data")
    result = solo5ctl("disk", "rm", "data")
    assert (result.status, "in use by task web" in result.err) == (125, True)
    os.close(held)
    assert solo5ctl("disk", "rm", "data").out == "data\n"
    result = solo5ctl("disk", "rm", "data", "full", "--json")
    assert (result.status, json.loads(result.out), "no disk is named 'data'" in result.err) == (127, ["full"], True)


def test_resize(solo5ctl: Solo5ctl, directory: Path) -> None:
    solo5ctl("disk", "create", "data", "1M")
    assert solo5ctl("disk", "resize", "data", "2M").out == "data\n"
    assert solo5ctl("disk", "resize", "data", "1M").status == 125
    assert solo5ctl("disk", "resize", "data", "1M", "--shrink").status == 0
    assert (directory / "data").stat().st_size == 1 << 20


def test_import_and_export_of_files(solo5ctl: Solo5ctl, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * 1024)
    digest = hashlib.sha256(b"x" * 1024).hexdigest()
    assert solo5ctl("disk", "import", "data", str(tmp_path / "in")).out == f"{digest}  data\n"
    assert json.loads(solo5ctl("disk", "import", "other", str(tmp_path / "in"), "--json").out)["sha256"] == digest
    assert solo5ctl("disk", "export", "data", str(tmp_path / "out")).out == f"{digest}  data\n"
    assert (tmp_path / "out").read_bytes() == b"x" * 1024
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600
    again = solo5ctl("disk", "export", "data", str(tmp_path / "out"), "--json")
    assert (again.status, "exists: expected the path of a new file" in again.err) == (125, True)
    assert json.loads(solo5ctl("disk", "export", "data", str(tmp_path / "two"), "--json").out)["sha256"] == digest
    assert solo5ctl("disk", "export", "none", str(tmp_path / "none")).status == 127
    assert not (tmp_path / "none").exists()
    assert "does not exist" in solo5ctl("disk", "import", "new", str(tmp_path / "none")).err
    assert "cannot be used" in solo5ctl("disk", "export", "data", str(tmp_path / "in" / "file")).err


def test_an_export_that_fails_leaves_no_file(
    solo5ctl: Solo5ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solo5ctl("disk", "create", "data", "1M")
    monkeypatch.setattr(named_disks, "copy_data", failing(errno.EIO))
    result = solo5ctl("disk", "export", "data", str(tmp_path / "out"))
    assert (result.status, "Input/output error" in result.err) == (125, True)
    assert not (tmp_path / "out").exists()


def test_standard_input_and_output(solo5ctl: Solo5ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.sha256(b"x" * 512).hexdigest()
    (tmp_path / "in").write_bytes(b"x" * 512)
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("wb") as target:
        monkeypatch.setattr(sys, "stdin", source)
        assert solo5ctl("disk", "import", "data", "-").out == f"{digest}  data\n"
        monkeypatch.setattr(sys, "stdout", target)
        result = solo5ctl("disk", "export", "data", "-")
        assert (result.out, result.err) == ("", f"solo5ctl: {digest}  data\n")
        assert "mutually exclusive" in solo5ctl("disk", "export", "data", "-", "--json").err
    with Path("/dev/full").open("wb") as full:
        monkeypatch.setattr(sys, "stdout", full)
        failed = "solo5ctl: disk 'data' cannot be exported: No space left on device.\n"
        assert solo5ctl("disk", "export", "data", "-").err == failed
    assert (tmp_path / "out").read_bytes() == b"x" * 512


def test_progress_is_for_terminals(solo5ctl: Solo5ctl, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * (2 << 20))
    assert solo5ctl("disk", "import", "quiet", str(tmp_path / "in")).err == ""
    seen = solo5ctl("disk", "import", "shown", str(tmp_path / "in"), terminal=True).err
    assert "\r\x1b[K1M of 2M (50 %)" in seen
    assert seen.endswith("\r\x1b[K")


def test_progress_of_a_pipe_has_no_total_and_is_removed_before_an_error() -> None:
    err = Stream(terminal=True)
    with suppress(HostError), Screen(io.BytesIO(), err, {}).progress(0) as show:
        show(1 << 20)
        raise HostError("the copy failed.")
    assert err.getvalue() == b"\r\x1b[K1M\r\x1b[K"


@pytest.mark.parametrize(
    "words, error",
    [
        (("create", "data", "0"), "disk size '0' is not a size"),
        (("create", "data", "1IB"), "disk size '1IB' is not a size"),
        (("create", "data", "1000"), "expected one or more whole sectors of 512"),
        (("create", "../x", "1M"), "disk name '../x' is not usable"),
        (("create", "taken", "1M"), "disk name 'taken' is taken."),
        (("resize", "taken", "512"), "disk 'taken' has 1048576 bytes: expected as many or more"),
        (("rm", "none"), "no disk is named 'none'"),
        (("import", "data", __file__), "expected one or more whole sectors of 512"),
        (("import", "data", "/nowhere"), "'/nowhere' does not exist"),
        (("import", "data", "/etc"), "cannot be"),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(
    solo5ctl: Solo5ctl, directory: Path, words: tuple[str, ...], error: str
) -> None:
    solo5ctl("disk", "create", "taken", "1M")
    result = solo5ctl("disk", *words)
    assert result.status in (125, 127)
    assert error in result.err
    assert [path.name for path in directory.iterdir()] == ["taken"]


# --- snapshots ----------------------------------------------------------------------------------------------------


@pytest.fixture
def reflinks(monkeypatch: pytest.MonkeyPatch) -> None:
    def share(source: int, target: int) -> bool:
        copy_data(source, target, os.fstat(source).st_size)
        return True

    monkeypatch.setattr(snapshots, "share", share)
    monkeypatch.setattr(snapshots, "can_share", share)


def of_web(directory: Path, locks: Path, *others: tuple[str, Backing]) -> int:
    """Lock the disk `data` as the task `web` does, and files of other kinds in `/srv`."""
    named = disk_of(directory / "data", backing=Backing.NAMED)
    disks = [
        replace(named, disk=DeviceName(name), path=f"/srv/{name}.img", identity=(1, number), backing=backing)
        for number, (name, backing) in enumerate(others)
    ]
    return lock([named, *disks], task="web")


def test_snapshots_of_a_free_disk(solo5ctl: Solo5ctl, directory: Path, reflinks: None) -> None:
    solo5ctl("disk", "create", "data", "1M")
    (directory / "data").write_bytes(b"first".ljust(1 << 20, b"\0"))
    assert solo5ctl("disk", "snapshot", "data", "--as", "one").out == "data@one\n"
    made = json.loads(solo5ctl("disk", "snapshot", "data", "--json").out)["snapshots"][0]
    assert re.fullmatch(r"\d{8}T\d{6}\.\d{6}Z", made["name"])
    assert (made["disk"], made["size"]) == ("data", 1 << 20)
    assert solo5ctl("disk", "ls", "--snapshots", "-q").out == f"data@one\ndata@{made['name']}\n"
    header, one, _ = solo5ctl("disk", "ls", "--snapshots").out.splitlines()
    assert (header.split(), one.split()[:2]) == (["SNAPSHOT", "SIZE", "ALLOCATED", "MADE"], ["data@one", "1M"])
    assert json.loads(solo5ctl("disk", "ls", "--snapshots", "--json").out)[0]["name"] == "one"
    assert " Snapshot: one, 1M, 20" in solo5ctl("disk", "inspect", "data").out
    assert len(json.loads(solo5ctl("disk", "inspect", "data", "--json").out)[0]["snapshots"]) == 2
    (directory / "data").write_bytes(b"later".ljust(1 << 20, b"\0"))
    assert solo5ctl("disk", "restore", "data", "one").out == "data\n"
    assert (directory / "data").read_bytes()[:5] == b"first"
    assert "has snapshots (2)" in solo5ctl("disk", "rm", "data").err
    assert solo5ctl("disk", "rm", "data@one").out == "data@one\n"
    assert json.loads(solo5ctl("disk", "rm", "--snapshots", "--json", "data").out) == ["data"]


def test_a_snapshot_of_a_disk_in_use_is_of_its_task(
    solo5ctl: Solo5ctl, directory: Path, tmp_path: Path, reflinks: None
) -> None:
    solo5ctl.engine.known = {TaskName("web"): running("web")}
    solo5ctl("disk", "create", "data", "1M")
    descriptor = of_web(directory, tmp_path / "locks")
    result = solo5ctl("disk", "snapshot", "data", "--as", "one")
    assert (result.out, result.err) == ("data@one\n", "solo5ctl: task web was frozen for 12.5 ms.\n")
    assert solo5ctl.engine.calls == [("while frozen", "web")]
    solo5ctl.engine.pause_s = 0.0
    assert solo5ctl("disk", "snapshot", "data", "--as", "zero").err == "solo5ctl: task web was frozen already.\n"
    solo5ctl.engine.pause_s = 0.0125
    made = json.loads(solo5ctl("disk", "snapshot", "data", "--as", "two", "--json").out)
    assert (made["task"], made["pause_ms"], made["snapshots"][0]["name"]) == ("web", 12.5, "two")
    digest = hashlib.sha256(bytes(1 << 20)).hexdigest()
    assert solo5ctl("disk", "export", "data@one", str(tmp_path / "out")).out == f"{digest}  data@one\n"
    exported = json.loads(solo5ctl("disk", "export", "data@two", str(tmp_path / "out2"), "--json").out)
    assert (exported["disk"], exported["name"], exported["sha256"]) == ("data", "two", digest)
    assert (tmp_path / "out").stat().st_size == 1 << 20
    assert "is in use by task web" in solo5ctl("disk", "export", "data", str(tmp_path / "out3")).err
    missing = solo5ctl("disk", "export", "data@three", str(tmp_path / "out4"))
    assert (missing.status, "disk 'data' has no snapshot 'three'" in missing.err) == (127, True)
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out", "out2"]
    result = solo5ctl("disk", "snapshot", "data", "--copy")
    assert (result.status, "--copy: task web has disk 'data', and would be frozen" in result.err) == (
        125,
        True,
    )
    os.close(descriptor)


def test_the_disks_that_a_snapshot_leaves_out_are_named(
    solo5ctl: Solo5ctl, directory: Path, tmp_path: Path, reflinks: None
) -> None:
    solo5ctl.engine.known = {TaskName("web"): running("web")}
    solo5ctl("disk", "create", "data", "1M")
    others = (("log", Backing.FILE), ("vg", Backing.DEVICE), ("copy", Backing.COPY), ("conf", Backing.ARCHIVE))
    descriptor = of_web(directory, tmp_path / "locks", *others)
    result = solo5ctl("disk", "snapshot", "data", "--as", "one")
    assert (result.status, result.out, result.err.splitlines()) == (0, "data@one\n", [
        "solo5ctl: task web was frozen for 12.5 ms.",
        "solo5ctl: disk log (/srv/log.img) of task web has no snapshot: expected a named disk.",
        "solo5ctl: disk vg (/srv/vg.img) of task web has no snapshot: expected a named disk.",
    ])  # fmt: skip
    made = json.loads(solo5ctl("disk", "snapshot", "data", "--json").out)
    assert made["left_out"] == [{"disk": "log", "path": "/srv/log.img"}, {"disk": "vg", "path": "/srv/vg.img"}]
    os.close(descriptor)


def test_an_interrupted_snapshot_is_none(
    solo5ctl: Solo5ctl, directory: Path, tmp_path: Path, reflinks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    solo5ctl("disk", "create", "data", "1M")
    descriptor = of_web(directory, tmp_path / "locks")

    async def end(*_: object) -> float:
        raise asyncio.CancelledError

    monkeypatch.setattr(solo5ctl.engine, "while_frozen", end)
    assert solo5ctl("disk", "snapshot", "data", "--as", "one").status == 143
    assert solo5ctl("disk", "ls", "--snapshots", "-q").out == ""
    os.close(descriptor)


def test_inspect_of_a_path(solo5ctl: Solo5ctl, tmp_path: Path) -> None:
    path = tmp_path / "web.img"
    path.write_bytes(bytes(1024))
    solo5ctl("disk", "create", "data", "1M")
    named, plain = solo5ctl("disk", "inspect", "data", str(path)).out.split("\n\n")
    assert "Name: data\n" in named
    assert f"Path: {path}\n" in plain
    assert "Backing: file\n" in plain
    assert "Size: 1K (1024 bytes)\n" in plain
    [shown] = json.loads(solo5ctl("disk", "inspect", "--json", str(path)).out)
    assert shown == {"path": str(path), "backing": "file", "size": 1024, "in_use": False}
    assert "does not exist" in solo5ctl("disk", "inspect", str(tmp_path / "none")).err


@pytest.mark.parametrize(
    ("words", "tool"),
    [
        (("resize", "/dev/vg/web", "1G"), "lvresize --size SIZE VG/LV"),
        (("snapshot", "/dev/vg/web"), "lvcreate -s"),
        (("restore", "/dev/vg/web", "one"), "lvconvert --merge"),
    ],
)
def test_a_disk_by_path_has_its_own_tools(solo5ctl: Solo5ctl, words: tuple[str, ...], tool: str) -> None:
    refused = solo5ctl("disk", *words)
    assert refused.status == 125
    assert "'/dev/vg/web' is a path: expected the name of a named disk" in refused.err
    assert tool in refused.err
    assert "is not usable" in solo5ctl("disk", "create", "/dev/vg/web", "1G").err


@pytest.mark.parametrize(
    "word", ["data@", "@one", "data@../x", "data@.x", "data@a b", "data@one@two", "data@" + "x" * 65]
)
def test_a_bad_name_of_a_snapshot_is_one_sentence(solo5ctl: Solo5ctl, word: str) -> None:
    result = solo5ctl("disk", "rm", word)
    assert (result.status, "is not usable: expected 1 to 64 letters" in result.err) == (125, True)
