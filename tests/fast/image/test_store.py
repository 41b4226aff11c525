import asyncio
import errno
import fcntl
import hashlib
import os
import re
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BufferedRandom, FileIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.fast.image import elfbuilder as elf
from tests.support.fakes.kernel import failing

from solo5_systemd.base.errors import (
    HostError,
    ImageError,
    InvalidRequestError,
    NotFoundError,
    Solo5Error,
    StoreFullError,
    TakenError,
)
from solo5_systemd.base.paths import version_of
from solo5_systemd.image import elf as elf_module
from solo5_systemd.image import store as module
from solo5_systemd.image.manifest import StoredImage
from solo5_systemd.image.store import ImageStore

CONTENT = elf.Elf().build()
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return written(tmp_path / "unikernel.hvt", CONTENT)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageStore:
    monkeypatch.setattr(os, "uname", lambda: type("Uname", (), {"machine": "x86_64"}))
    monkeypatch.setattr(module, "_TIMES_SETTLE_S", -1.0)
    return ImageStore(tmp_path / "store")


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def files(tmp_path: Path) -> set[str]:
    """Return the names of stored images, and `memo` for any number of memos."""
    found = (file for file in (tmp_path / "store").rglob("*") if file.is_file() and file.parent.name != "locks")
    names = {str(file.relative_to(tmp_path / "store")) for file in found}
    return {"memo" if name.startswith("manifests/") else name for name in names}


async def test_an_image_is_stored_under_its_sha256_for_everyone_to_read_and_no_one_to_write(
    store: ImageStore, image: Path, tmp_path: Path
) -> None:
    image.chmod(0o600)
    stored = await store.take(str(image))
    assert (stored.sha256, stored.size, stored.path) == (SHA256, len(CONTENT), str(tmp_path / "store" / SHA256))
    assert Path(stored.path).read_bytes() == CONTENT
    assert Path(stored.path).stat().st_mode & 0o7777 == 0o444
    assert stored.manifest.min_memory > elf.BASE


def tree(directory: Path) -> dict[str, tuple[int, ...]]:
    """Return inode, size and times of everything in a directory."""
    found = {str(path): path.lstat() for path in directory.rglob("*")}
    return {name: (s.st_ino, s.st_mode, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in found.items()}


@pytest.mark.parametrize("before", ["no store", "stored", "stored, without a memo", "memo of a removed image"])
async def test_a_preview_returns_what_take_returns_and_writes_nothing(
    store: ImageStore, image: Path, tmp_path: Path, before: str
) -> None:
    if before != "no store":
        taken = await store.take(str(image))
        gone = {"stored, without a memo": (tmp_path / "store" / "manifests").iterdir(), "stored": ()}
        for path in gone.get(before, [Path(taken.path)]):
            path.unlink()
    seen = tree(tmp_path)
    preview = await store.preview(str(image))
    assert tree(tmp_path) == seen
    assert preview == await store.take(str(image))


async def test_an_image_lies_below_its_roots_links_followed(store: ImageStore, image: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(image)
    with pytest.raises(InvalidRequestError, match=f"image '{root}/link' cannot be used: expected a file below {root}"):
        await store.take(str(root / "link"), [str(root)])
    assert not files(tmp_path) - {"memo"}
    await store.take(str(root / "link"), [str(root), str(tmp_path)])


async def test_an_unchanged_image_is_not_read_again(
    store: ImageStore, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await store.take(str(image))
    monkeypatch.setattr(elf_module, "read_manifest", None)
    assert await store.take(str(image)) == first


async def test_what_is_known_of_a_read_only_file_system_is_of_this_boot(
    store: ImageStore, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update may have replaced all of it; times and inodes of its files are those of how it was built."""
    monkeypatch.setattr(module, "version_of", lambda _: "the same")
    monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    first = await store.take(str(image))
    written(image, CONTENT[:-1] + b"!")
    assert await store.take(str(image)) == await store.preview(str(image)) == first
    monkeypatch.setattr(module, "boot_id", lambda: "another")
    assert await store.take(str(image)) == await store.preview(str(image)) != first


async def test_the_same_content_is_the_same_image_and_a_changed_file_another_one(
    store: ImageStore, image: Path, tmp_path: Path
) -> None:
    first = await store.take(str(image))
    inode = Path(first.path).stat().st_ino
    assert await store.take(str(written(tmp_path / "copy", CONTENT))) == first
    assert Path(first.path).stat().st_ino == inode
    new = await store.take(str(written(image, elf.Elf(segments=(elf.load(), *elf.usual_notes(elf.SPT))).build())))
    assert new.sha256 != first.sha256
    assert files(tmp_path) == {first.sha256, new.sha256, "memo"}


async def test_a_file_that_changed_just_now_is_not_remembered(
    store: ImageStore, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TIMES_SETTLE_S", 3600.0)
    await store.take(str(image))
    assert files(tmp_path) == {SHA256}


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff"])
async def test_a_damaged_memo_is_made_anew(store: ImageStore, image: Path, tmp_path: Path, damage: bytes) -> None:
    first = await store.take(str(image))
    (memo,) = (tmp_path / "store" / "manifests").iterdir()
    memo.unlink()
    memo.write_bytes(damage)
    assert await store.take(str(image)) == first
    assert memo.read_bytes() != damage


async def test_memos_of_many_files_stay_few(store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one image: such as the artifact that each allocation of a job has anew."""
    monkeypatch.setattr(module, "MEMOS_MAX", 8)
    memos = tmp_path / "store" / "manifests"
    memos.mkdir(parents=True)
    (memos / ".of-another-process.new").touch()
    numbers = []
    for number in range(20):
        path = written(tmp_path / f"artifact-{number}", CONTENT)
        await store.take(str(path))
        assert (memos / version_of(path.stat())).exists()
        numbers.append(len(list(memos.iterdir())))
    assert max(numbers) == 8 + 1
    assert (memos / ".of-another-process.new").exists()


async def test_a_stored_image_that_is_cut_short_or_gone_is_stored_anew(store: ImageStore, image: Path) -> None:
    stored = Path((await store.take(str(image))).path)
    for left in (CONTENT[:100], None):
        stored.unlink()
        if left is not None:
            stored.write_bytes(left)
        await store.take(str(image))
        assert stored.read_bytes() == CONTENT


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, module.MAX_SIZE + 1)


@pytest.mark.parametrize(
    "make, error, words",
    [
        (Path, NotFoundError, "does not exist"),
        (Path.mkdir, ImageError, "is a directory: expected a regular file"),
        (os.mkfifo, ImageError, "is a FIFO"),
        (lambda path: os.mknod(path, stat.S_IFSOCK), ImageError, "is a socket: expected a regular file"),
        (lambda path: path.symlink_to("/dev/null"), ImageError, "is a device"),
        (lambda path: path.symlink_to(path), HostError, "cannot be opened: Too many levels of symbolic links"),
        (huge, ImageError, "has 4294967297 bytes: expected at most 4294967296"),
        (lambda path: path.write_bytes(b"hello"), ImageError, "cannot run: it is not an ELF file."),
    ],
)
async def test_what_is_no_image_is_refused_and_leaves_nothing(
    store: ImageStore, tmp_path: Path, make: Callable[[Path], object], error: type[Solo5Error], words: str
) -> None:
    make(tmp_path / "image")
    with pytest.raises(error, match=re.escape(words)) as caught:
        await store.take(str(tmp_path / "image"))
    assert (type(caught.value), files(tmp_path)) == (error, set())


async def test_a_path_that_cannot_be_opened_is_refused(store: ImageStore, image: Path) -> None:
    with pytest.raises(InvalidRequestError, match="NUL"):
        await store.take("image\0")
    with pytest.raises(NotFoundError):
        await store.take(str(image / "below"))
    with pytest.raises(HostError, match=r"cannot be opened: File name too long\."):
        await store.take(str(image.with_name("n" * 256)))


@pytest.mark.parametrize(
    "call, number, error, words",
    [
        ("sendfile", errno.ENOSPC, StoreFullError, "No space left on device. Free some space"),
        ("sendfile", errno.EIO, HostError, "Input/output error."),
        ("fsync", errno.EDQUOT, StoreFullError, "Disk quota exceeded. Free some space"),
        ("link", errno.EROFS, HostError, "Read-only file system."),
        ("mkdir", errno.EROFS, HostError, "Read-only file system."),
    ],
)
async def test_a_store_that_cannot_be_written_is_the_hosts_fault_and_leaves_nothing(
    store: ImageStore,
    image: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    number: int,
    error: type[HostError],
    words: str,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "ioctl", failing(errno.EOPNOTSUPP))
        patch.setattr(os, call, failing(number))
        with pytest.raises(HostError, match=re.escape(words)) as caught:
            await store.take(str(image))
    assert type(caught.value) is error
    assert files(tmp_path) == set()


async def test_an_image_that_is_removed_meanwhile_and_a_memo_without_room_fail_no_start(
    store: ImageStore, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ImageStore._images
    monkeypatch.setattr(ImageStore, "_images", lambda self: (*found(self), Path("/removed")))
    monkeypatch.setattr(module, "replace_file", failing(errno.ENOSPC))
    assert Path((await store.take(str(image))).path).read_bytes() == CONTENT


QUOTA = 6144


@pytest.fixture
def small(store: ImageStore, tmp_path: Path) -> ImageStore:
    """A store with room for one image."""
    return ImageStore(tmp_path / "store", quota=lambda: QUOTA)


async def test_many_images_at_once_keep_to_the_quota(small: ImageStore, tmp_path: Path) -> None:
    """Room is reserved for each image before the next copy starts."""
    images = [
        written(tmp_path / f"{n}", elf.Elf(segments=(elf.load(content=bytes([n]) * 16), *elf.usual_notes())).build())
        for n in range(8)
    ]
    results = await asyncio.gather(*(small.take(str(image)) for image in images), return_exceptions=True)
    assert [type(result) for result in results].count(StoredImage) == 1
    assert sum(isinstance(result, StoreFullError) for result in results) == 7


async def test_large_images_on_their_way_hold_up_neither_another_image_nor_a_collection(
    store: ImageStore, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more large image than asyncio's thread pool has threads."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(3, "asyncio"))
    monkeypatch.setattr(module, "LARGE", len(CONTENT), raising=False)
    begun, goes_on, copy = threading.Event(), threading.Event(), module._copy

    def held(source: FileIO, target: BufferedRandom, size: int) -> None:
        if size > len(CONTENT):
            begun.set()
            assert goes_on.wait(120)
        copy(source, target, size)

    monkeypatch.setattr(module, "_copy", held)
    limited = ImageStore(tmp_path / "store", quota=lambda: 1 << 20)
    large = [written(tmp_path / f"large-{n}", CONTENT + bytes(n + 1)) for n in range(4)]
    taking = [asyncio.ensure_future(limited.take(str(each))) for each in large]
    try:
        await asyncio.to_thread(begun.wait, 60)
        other = await asyncio.wait_for(limited.take(str(image)), 60)
        await asyncio.wait_for(limited.collect(set()), 60)
        assert (other.sha256, [each.done() for each in taking]) == (SHA256, [False] * 4)
    finally:
        goes_on.set()
        stored = await asyncio.gather(*taking)
    assert [each.size for each in stored] == [len(CONTENT) + n + 1 for n in range(4)]


async def test_an_image_that_is_larger_than_the_caller_allows_is_not_opened(
    store: ImageStore, image: Path, tmp_path: Path
) -> None:
    with pytest.raises(ImageError, match=f"has {len(CONTENT)} bytes: expected at most {len(CONTENT) - 1}") as refused:
        await store.take(str(image), (), len(CONTENT) - 1)
    assert "ceilings.image_mb" in refused.value.hint
    assert not (tmp_path / "store").exists()
    await store.take(str(image), (), len(CONTENT))


async def test_an_image_that_changes_while_it_is_copied_is_refused(
    store: ImageStore, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = module._copy

    def change_behind(source: FileIO, target: BufferedRandom, size: int) -> None:
        image.write_bytes(CONTENT + b"more")
        copy(source, target, size)

    monkeypatch.setattr(module, "_copy", change_behind)
    with pytest.raises(ImageError, match="changed while it was copied"):
        await store.take(str(image))
    assert files(tmp_path) == set()


def aged(image: StoredImage) -> StoredImage:
    os.utime(image.path, (time.time() - 3600,) * 2)
    return image


async def test_collect_removes_unused_images_and_their_memos(store: ImageStore, image: Path, tmp_path: Path) -> None:
    old = aged(await store.take(str(image)))
    other = elf.Elf(segments=(elf.load(), *elf.usual_notes(elf.SPT))).build()
    kept = aged(await store.take(str(written(tmp_path / "kept", other))))
    (tmp_path / "store" / "manifests" / "damaged").write_bytes(b"{")
    assert await store.collect({kept.sha256}, dry_run=True) == (old.sha256,)
    assert old.sha256 in files(tmp_path)
    assert await store.collect({kept.sha256}) == (old.sha256,)
    assert files(tmp_path) == {kept.sha256, "memo"}
    assert len(list((tmp_path / "store" / "manifests").iterdir())) == 1


async def test_collect_spares_an_image_that_was_taken_a_moment_ago(store: ImageStore, image: Path) -> None:
    aged(await store.take(str(image)))
    await store.take(str(image))
    assert await store.collect(set()) == ()


async def test_collect_spares_an_image_that_a_start_holds(store: ImageStore, image: Path, tmp_path: Path) -> None:
    """A start that copies disks, or waits for a network, may take longer than the age at which images are removed."""
    old = aged(await store.take(str(image)))
    held = await store.hold(old)
    assert await store.collect(set(), dry_run=True) == ()
    assert await store.collect(set()) == ()
    os.close(held)
    assert await store.collect(set()) == (old.sha256,)
    with pytest.raises(HostError, match="No such file"):
        await store.hold(old)


async def test_an_image_leaves_what_others_may_take_of_the_file_system(
    store: ImageStore, image: Path, tmp_path: Path
) -> None:
    limited = ImageStore(tmp_path / "store", room=lambda: 0)
    with pytest.raises(StoreFullError, match="of the file system of .* at most 0, since the rest is promised"):
        await limited.take(str(image))
    await store.take(str(image))
    assert (await limited.take(str(image))).sha256 == (await limited.preview(str(image))).sha256 == SHA256


async def test_an_image_that_the_store_has_need_not_be_admitted(store: ImageStore, image: Path, tmp_path: Path) -> None:
    def refuse(size: int) -> None:
        raise TakenError(f"{size} bytes are too many.")

    with pytest.raises(TakenError, match=f"^{len(CONTENT)} bytes are too many"):
        await store.take(str(image), admit=refuse)
    assert files(tmp_path) == set()
    await store.take(str(image))
    await store.take(str(image), admit=refuse)
