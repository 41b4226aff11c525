"""A file is opened below its roots without an access to another path; its resolved path decides."""

import asyncio
import errno
import os
import select
import socket
from pathlib import Path

import pytest
from tests.support.fakes.kernel import failing

from solo5_systemd.base import paths
from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError
from solo5_systemd.base.paths import ANYONE, exists, open_directory, open_in_thread, open_path, way_of, within


def found(path: Path | str, *roots: Path | str) -> str:
    descriptor, place = open_path("image 'x'", str(path), [str(root) for root in roots])
    os.close(descriptor)
    return place


def refusal(path: Path | str, *roots: Path | str) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        found(path, *roots)
    return caught.value.sentence


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "below").mkdir(parents=True)
    (root / "inside").write_text("x")
    (tmp_path / "outside").write_text("x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "inside").write_text("y")
    return root


@pytest.mark.parametrize("roots", [(), ("root",), ("elsewhere", "root"), ("link",), ("root/../root/.",)])
def test_a_file_below_a_root_may_be_used_however_the_root_is_written(root: Path, roots: tuple[str, ...]) -> None:
    (root.parent / "link").symlink_to("root")
    assert found(root / "inside", *(root.parent / each for each in roots)) == str(root / "inside")
    assert exists(str(root / "inside"), [str(root.parent / each) for each in roots])


def test_a_root_that_is_written_with_a_link_is_named_by_it_too(root: Path) -> None:
    (root.parent / "link").symlink_to("root")
    assert found(root.parent / "link" / "inside", root.parent / "link") == str(root / "inside")


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ("inside", "root/inside"),
        ("below/../inside", "root/inside"),
        ("{top}/root/inside", "root/inside"),
        ("{top}/named/inside", "root/inside"),
        ("../other/inside", "other/inside"),
        ("{top}/other/inside", "other/inside"),
        ("below/../../other/../root/inside", "root/inside"),
    ],
)
def test_a_link_is_followed_from_root_to_root(root: Path, target: str, place: str) -> None:
    top = root.parent
    (top / "named").symlink_to("root")
    (root / "link").symlink_to(target.format(top=top))
    assert found(root / "link", top / "named", top / "other") == str(top / place)


HOSTILE = [
    ("link", "../outside"),
    ("link", "{top}/outside"),
    ("link/outside", ".."),
    ("link", "../gone/../outside"),
    ("link", "../stranger"),
    ("link", "{top}/gone/inside"),
    ("link", "link"),
    ("../outside", None),
    ("../gone", None),
    ("gone", None),
    ("inside/below", None),
    ("../root-too/inside", None),
    ("x" * 300, None),
    ("/etc/shadow", None),
    ("/no/such/file", None),
    ("/", None),
]


@pytest.mark.parametrize(("path", "target"), HOSTILE)
def test_what_is_elsewhere_and_what_is_not_there_have_one_sentence(root: Path, path: str, target: str | None) -> None:
    """The error does not reveal whether a file outside of the roots exists."""
    top = root.parent
    (top / "stranger").symlink_to("root/inside")
    (top / "root-too").mkdir()
    (top / "root-too" / "inside").write_text("x")
    if target is not None:
        (root / "link").symlink_to(target.format(top=top))
    assert refusal(root / path, root, "/srv/none") == (
        f"image 'x' cannot be used: expected a file below {root} or /srv/none."
    )
    assert not exists(str(root / path), [str(root)])


def test_nothing_outside_of_the_roots_is_looked_at(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than an open can mount an automount point."""
    touched: list[str] = []
    real = os.open

    def opened(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        touched.append(str(path) if dir_fd is None else f"{paths.path_of(dir_fd).rstrip('/')}/{path}")
        assert flags & os.O_PATH
        return real(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", opened)
    for target in ("../outside", "/dev/watchdog", "/net/host/export", "../../../../dev/watchdog"):
        (root / "link").symlink_to(target)
        refusal(root / "link", root)
        (root / "link").unlink()
    refusal("/dev/watchdog", root)
    below = [path for path in touched if Path(path).is_relative_to(root)]
    assert all(root.is_relative_to(path) for path in touched if path not in below), "on the way to the root"
    assert f"{root}/link" in below


@pytest.mark.parametrize("kind", ["fifo", "socket", "directory"])
def test_a_file_of_any_kind_is_found_and_not_opened(root: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    special = root / "special"
    monkeypatch.chdir(root)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as listener:
        if kind == "fifo":
            os.mkfifo(special)
        elif kind == "socket":
            listener.bind("special")
        else:
            special.mkdir()
        assert found(special, root) == str(special)


def test_where_there_are_no_roots_a_missing_file_is_reported(root: Path) -> None:
    with pytest.raises(NotFoundError, match="image 'x' does not exist"):
        found(root / "gone")


def test_a_file_system_that_fails_is_the_hosts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", failing(errno.EIO))
    with pytest.raises(HostError, match="cannot be opened: Input/output error"):
        found(root / "inside", root)


def test_a_file_that_is_moved_out_meanwhile_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = paths.path_of

    def moved(descriptor: int) -> str:
        (root / "inside").rename(root.parent / "taken")
        return real(descriptor)

    monkeypatch.setattr(paths, "path_of", moved)
    assert "cannot be used" in refusal(root / "inside", root)


async def test_descriptor_that_is_opened_after_a_cancellation_is_closed(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    opening = asyncio.ensure_future(open_in_thread(lambda: os.open(fifo, os.O_RDONLY)))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    writer = await asyncio.to_thread(os.open, fifo, os.O_WRONLY)  # now the thread's open(2) returns
    reader_closed = select.poll()
    reader_closed.register(writer, 0)
    while not reader_closed.poll(0):  # noqa: ASYNC110 - POLLERR, which is always reported
        await asyncio.sleep(0.01)
    os.close(writer)


async def test_failed_open_in_a_thread_is_the_callers_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await open_in_thread(lambda: os.open(tmp_path / "absent", os.O_RDONLY))


def test_the_mount_point_above_a_file_is_found(tmp_path: Path) -> None:
    assert paths.mount_point_of("/proc/version") == "/proc"
    assert paths.mount_point_of("/proc") == "/proc"
    assert paths.mount_point_of("/") == ""
    with pytest.raises(FileNotFoundError):
        paths.mount_point_of(str(tmp_path / "none"))
    assert paths.is_mount_point("/proc")
    assert not any(map(paths.is_mount_point, ("/proc/version", f"{tmp_path}/none")))


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of this test's files stands for root."""
    monkeypatch.setattr(paths, "_TRUSTED", {0, os.getuid()})


def of(path: Path) -> tuple[Path, set[int], set[int]] | None:
    way = way_of(str(path))
    return None if way is None else (way.place, set(way.changers), set(way.of_links))


def test_a_way_has_all_who_can_change_a_directory_or_a_link_on_it(tmp_path: Path, trusted: None) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    (tmp_path / "relative").symlink_to("a/../a/b")
    (tmp_path / "absolute").symlink_to(tmp_path / "relative")
    found = inner / "file"
    assert of(tmp_path / "absolute" / "file") == (found, set(), set())
    (tmp_path / "a").chmod(0o777)
    assert of(tmp_path / "absolute" / "file") == (found, {ANYONE}, set())
    (tmp_path / "a" / "theirs").symlink_to("b")
    assert of(tmp_path / "a" / "theirs" / "file") == (found, {ANYONE}, {ANYONE})
    (tmp_path / "to-theirs").symlink_to("a/theirs")
    assert of(tmp_path / "to-theirs" / "file") == (found, {ANYONE}, {ANYONE}), "a link of root's to another user's"
    (tmp_path / "loop").symlink_to("loop")
    assert of(tmp_path / "loop") is None
    assert of(tmp_path / "none") is None


def test_a_way_passes_a_directory_that_it_leaves_again(tmp_path: Path, trusted: None) -> None:
    """By a link in it, and by its parent: the path leads elsewhere, and the directory is on its way."""
    theirs = tmp_path / "theirs"
    (theirs / "own").mkdir(parents=True)
    (tmp_path / "file").touch()
    (theirs / "own" / "link").symlink_to(tmp_path / "file")
    theirs.chmod(0o777)
    assert of(theirs / "own" / "link") == (tmp_path / "file", {ANYONE}, set()), "the directory can be replaced"
    assert of(theirs / "own" / ".." / ".." / "file") == (tmp_path / "file", {ANYONE}, set())


def test_in_a_sticky_directory_an_entry_is_its_owners_and_a_link_is_anyones(tmp_path: Path, trusted: None) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").touch()
    tmp_path.chmod(0o1777)
    for name, changers, is_shared in (
        ("file", set[int](), True),
        ("link", {ANYONE}, True),
        ("inner/file", set(), False),
    ):
        way = way_of(str(tmp_path / name))
        assert way
        assert (set(way.changers), way.is_shared) == (changers, is_shared)


def test_what_is_written_stays_in_the_directory_that_was_opened(tmp_path: Path, trusted: None) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "victim").mkdir()
    directory = open_directory(tmp_path / "out")
    moved = (tmp_path / "out").rename(tmp_path / "moved")
    (tmp_path / "out").symlink_to("victim")
    within(directory, "file").write_text("x")
    os.close(directory)
    assert (moved / "file").read_text() == "x"
    assert not list((tmp_path / "victim").iterdir())


def test_a_link_that_another_user_can_change_is_not_followed(tmp_path: Path, trusted: None) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "victim").mkdir()
    (tmp_path / "theirs" / "out").symlink_to(tmp_path / "victim")
    os.close(open_directory(tmp_path / "theirs" / "out"))
    (tmp_path / "theirs").chmod(0o777)
    with pytest.raises(InvalidRequestError, match="is behind a symbolic link that another user can change"):
        open_directory(tmp_path / "theirs" / "out")
    assert not list((tmp_path / "victim").iterdir())


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, words in {"file": "Not a directory", "none": "No such file or directory"}.items():
        with pytest.raises(HostError, match=f"cannot be used: {words}"):
            open_directory(tmp_path / name)
