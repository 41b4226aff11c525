"""Configuration is read only if nobody but root can change it, or the way to it."""

import os
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path

import pytest

from solo5_systemd.base import own_files
from solo5_systemd.base.errors import SettingsError
from solo5_systemd.base.own_files import check_own, is_mask, list_own, read_own
from solo5_systemd.base.paths import version_of

MOST = 100


class _Changed:
    """The status of a file, with other values."""

    def __init__(self, status: os.stat_result, values: Mapping[str, int]) -> None:
        self.__dict__.update(values)
        self._status = status

    def __getattr__(self, name: str) -> object:
        return getattr(self._status, name)


@pytest.fixture
def change(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have a file, directory or link other values in its status."""
    changed: dict[int, Mapping[str, int]] = {}
    fstat = os.fstat

    def status(descriptor: int) -> object:
        found = fstat(descriptor)
        return _Changed(found, changed[found.st_ino]) if found.st_ino in changed else found

    monkeypatch.setattr(os, "fstat", status)
    return lambda path, **values: changed.update({path.lstat().st_ino: values})


@pytest.fixture
def give(change: Callable[..., None]) -> Callable[[Path], None]:
    """Make a file, directory or link another user's."""
    return lambda path: change(path, st_uid=os.geteuid() + 1)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A file of root's: in `etc/own`, to which the link `etc/way` leads, from another one by `..`."""
    tmp_path.chmod(0o755)
    (tmp_path / "etc/own").mkdir(parents=True)
    (tmp_path / "etc/way").symlink_to("../etc/own")
    (tmp_path / "absolute").symlink_to(tmp_path / "etc/way")
    file = tmp_path / "absolute/file"
    file.write_text("text")
    return file


def test_links_of_roots_own_are_followed(own: Path) -> None:
    assert read_own(own, MOST) == (b"text", True)
    assert list_own(own.parent) == ["file"]
    check_own(own)


@pytest.mark.parametrize("place", [".", "etc", "etc/own", "etc/way", "absolute", "etc/own/file"])
def test_any_part_of_the_way_that_is_another_users_is_named(
    own: Path, place: str, give: Callable[[Path], None]
) -> None:
    entry = own.parents[1] / place
    give(entry)
    theirs = rf"{own} is refused: {entry} may be changed by user {os.geteuid() + 1}: expected it to be root's"
    for use in (lambda: read_own(own, MOST), lambda: check_own(own)):
        with pytest.raises(SettingsError, match=theirs) as caught:
            use()
        assert ("chown -h root: " in caught.value.hint) is entry.is_symlink()
    assert not is_mask(own)


@pytest.mark.parametrize(
    "mode, who", [(0o775, "group [0-9]+ or an ACL's users"), (0o757, "every user"), (0o1777, "every user")]
)
@pytest.mark.parametrize("place", [".", "etc", "etc/own", "etc/own/file"])
def test_a_way_that_others_may_write_is_refused_also_if_sticky(own: Path, place: str, mode: int, who: str) -> None:
    entry = own.parents[1] / place
    entry.chmod(mode)
    with pytest.raises(SettingsError, match=f"is refused: {entry} may be changed by {who}: ") as caught:
        read_own(own, MOST)
    assert f"chmod go-w {entry}" in caught.value.hint
    entry.chmod(0o755)
    assert read_own(own, MOST)[0] == b"text"


def test_a_directory_that_others_may_write_is_not_listed(own: Path) -> None:
    own.parent.chmod(0o777)
    with pytest.raises(SettingsError, match="may be changed by every user"):
        list_own(own.parent)
    assert list_own(own.parent / "none") == []


@pytest.mark.parametrize("is_hard", [True, False])
def test_a_link_in_another_users_directory_is_refused(own: Path, give: Callable[[Path], None], is_hard: bool) -> None:
    """Also where the file itself is root's: by another link of that user's, it could be any file of root's."""
    home = own.parents[1] / "home"
    home.mkdir()
    link = home / "link"
    if is_hard:
        link.hardlink_to(own)
    else:
        link.symlink_to(own)
        link = own.parent / "link"
        link.symlink_to(home / "link")
    assert read_own(link, MOST)[0] == b"text"
    give(home)
    with pytest.raises(SettingsError, match=f"{link} is refused: {home} may be changed by user"):
        read_own(link, MOST)


def test_a_directory_that_is_swapped_after_its_check_is_not_entered(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk is by descriptors: what is in the place of a directory meanwhile is not where the file is read."""
    evil = own.parents[1] / "evil"
    evil.mkdir()
    (evil / "file").write_text("evil")
    directory = own.parents[1] / "etc/own"
    check = own_files._check

    def swapping(path: Path, entry: str, status: os.stat_result, mounter: int) -> None:
        check(path, entry, status, mounter)
        if entry == str(directory) and evil.exists():
            directory.rename(own.parents[1] / "away")
            evil.rename(directory)

    monkeypatch.setattr(own_files, "_check", swapping)
    assert read_own(own, MOST)[0] == b"text"
    assert read_own(own, MOST)[0] == b"evil"


def test_a_file_system_whose_owners_another_user_makes_up_is_refused(
    own: Path, change: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As fusermount3(1) mounts it; `user_allow_other` lets root see it."""
    table = own.parents[1] / "mountinfo"
    mount = f"36 25 77:5 / {own.parent} rw,nosuid,nodev - %s rw,user_id=%d,group_id=0\n"
    change(own.parents[1] / "etc/own", st_dev=os.makedev(77, 5))
    monkeypatch.setattr(own_files, "MOUNTS", table)
    table.write_text(mount % ("fuse.sshfs me@host:", 4242))
    with pytest.raises(SettingsError, match=f"{own.parents[1]}/etc/own may be changed by user 4242"):
        read_own(own, MOST)
    for usual in (mount % ("fuse.sshfs me@host:", own_files.ROOT), mount % ("ext4 /dev/vda", 4242), ""):
        table.write_text(usual)
        assert read_own(own, MOST)[0] == b"text"


def test_a_mask_is_a_link_to_dev_null_of_roots_own(tmp_path: Path, give: Callable[[Path], None]) -> None:
    mask = tmp_path / "mask"
    mask.symlink_to("/dev/null")
    assert is_mask(mask)
    assert not is_mask(Path("/dev/null"))
    assert not is_mask(tmp_path / "none")
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert not is_mask(tmp_path / "zero")
    give(mask)
    assert not is_mask(mask)
    with pytest.raises(SettingsError, match=f"{mask} may be changed by user"):
        read_own(mask, MOST)


@pytest.mark.parametrize("place, mode", [("etc", 0o711), ("etc", 0o700), ("etc/own/file", 0o640)])
def test_a_file_is_public_if_every_user_may_read_it_by_this_way(own: Path, place: str, mode: int) -> None:
    (own.parents[1] / place).chmod(mode)
    assert read_own(own, MOST)[1] is (mode == 0o711)


@pytest.mark.parametrize(
    "make, sentence",
    [
        (os.mkfifo, "is not a regular file"),
        (Path.mkdir, "is not a regular file"),
        (lambda path: path.symlink_to("/nowhere"), "cannot be read: the link leads nowhere"),
        (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
        (lambda path: path.symlink_to(path.parent / "file/x"), "cannot be read: Not a directory"),
        (lambda path: path.symlink_to("/../../../dev/null"), "is not a regular file"),
        (lambda path: path.write_text("x" * 101), "has 101 bytes: expected at most 100"),
        (lambda _: None, "cannot be read: No such file or directory"),
    ],
)
def test_what_is_no_file_is_one_sentence(make: Callable[[Path], object], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    make(tmp_path / "it")
    with pytest.raises(SettingsError, match=f"^{tmp_path}/it {sentence}"):
        read_own(tmp_path / "it", MOST)


@pytest.mark.parametrize("times", [1, 10])
def test_a_file_that_is_written_meanwhile_is_read_again_a_few_times(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.touch()
    texts, stamp = iter("x" * size for size in range(1, times + 1)), version_of

    def written(status: os.stat_result) -> str:
        for text in islice(texts, 1):
            path.write_text(text)
        return stamp(status)

    monkeypatch.setattr(own_files, "version_of", written)
    if times == 1:
        assert read_own(path, MOST)[0] == b"x"
    else:
        with pytest.raises(SettingsError, match="changes while it is read"):
            read_own(path, MOST)
