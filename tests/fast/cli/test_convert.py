"""`convert`: files that are read and written, and that nothing is written elsewhere or in part."""

import json
import os
import zlib
from pathlib import Path

import pytest
from tests.fast.cli.conftest import Result, Solo5ctl
from tests.fast.image.elfbuilder import Elf, load, usual_notes
from tests.support import albatross as der

from solo5_systemd.cli import albatross_files
from solo5_systemd.cli.verbs import convert
from solo5_systemd.declared import albatross

HVT = Elf(segments=(load(), *usual_notes())).build()


@pytest.fixture(autouse=True)
def on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.uname", lambda: type("Uname", (), {"machine": "x86_64"}))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def dumped(state: Path, *named: tuple[str, bytes], policies: tuple[str, ...] = ()) -> str:
    state.write_bytes(der.dump(6, named, [(name, der.policy()) for name in policies]))
    return str(state)


def web(image: bytes = HVT, **values: object) -> bytes:
    return der.config(6, image, **values)  # type: ignore[arg-type]


def names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


def refused(result: Result, sentence: str) -> None:
    assert (result.status, result.out) == (125, "")
    assert sentence in result.err
    assert "Traceback" not in result.err


def test_declarations_and_images_are_written(solo5ctl: Solo5ctl, state: Path, tmp_path: Path) -> None:
    packed = web(zlib.compress(HVT), compressed=True)
    file = dumped(
        state, (":web", web()), ("foo:dns", packed), (":vm", web(b"", kind=der.BHYVE)), (":odd", web(b"x")),
        policies=("foo:",),
    )  # fmt: skip
    out = tmp_path / "out" / "put"
    result = solo5ctl("convert", "--output", str(out), file, root=False)
    assert (result.status, result.out) == (
        0,
        "".join(f"{out}/{name}.unikernel\n" for name in ("web", "foo-dns", "odd")),
    )
    assert names(out) == ["foo-dns.hvt", "foo-dns.unikernel", "odd.image", "odd.unikernel", "web.hvt", "web.unikernel"]
    assert (out / "web.hvt").read_bytes() == (out / "foo-dns.hvt").read_bytes() == HVT
    assert f"Image={out}/foo-dns.hvt\n" in (out / "foo-dns.unikernel").read_text()
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} <= {0o644, 0o600}
    for sentence in (
        "solo5ctl: ':vm' is a virtual machine of bhyve: not converted.",
        "solo5ctl: the policy of 'foo:' is not converted: limit tasks by a slice, or by their own keys.",
        "solo5ctl: odd: The image cannot be read as one of Solo5 for this host: solo5ctl image shows the reason.",
    ):
        assert sentence in result.err.splitlines()


def test_declarations_are_printed(solo5ctl: Solo5ctl, state: Path, tmp_path: Path) -> None:
    result = solo5ctl("convert", dumped(state, (":web", web()), (":dns", web())))
    assert result.status == 0
    assert result.out.startswith("# web.unikernel\n# Unikernel web of albatross")
    assert "\n\n# dns.unikernel\n# Unikernel dns of albatross" in result.out
    assert "Image=/srv/unikernels/dns.hvt\n" in result.out
    assert names(tmp_path) == ["state"]


def test_json_has_the_same(solo5ctl: Solo5ctl, state: Path, tmp_path: Path) -> None:
    file = dumped(state, ("foo:web", web()))
    [printed] = json.loads(solo5ctl("convert", "--json", file).out)
    [written] = json.loads(solo5ctl("convert", "--json", "--output", str(tmp_path / "out"), file).out)
    assert (printed["name"], printed["albatross_name"]) == ("foo-web", "foo:web")
    assert "file" not in printed
    assert Path(written["file"]).read_text() == written["declaration"]
    assert Path(written["image"]).read_bytes() == HVT
    assert printed["notes"] == written["notes"] == ["Memory= is for guest (32 MiB) and tender (8 MiB)."]


@pytest.mark.parametrize(
    "named",
    [
        [(":web", web()), ("../../etc/cron.d/x", web())],
        [(":web", web()), ("a\nb", web())],
        [(":web", web()), (":a/b", web())],
        [(":web", web()), (":bad", web(memory=-1))],
        [(":web", web()), (":bad", web(b"no stream", compressed=True))],
        [("a:b-c", web()), ("a-b:c", web())],
    ],
    ids=["dots", "line break", "slash", "memory", "no stream", "one name for two"],
)
def test_nothing_is_written_unless_all_can_be(
    solo5ctl: Solo5ctl, state: Path, tmp_path: Path, named: list[tuple[str, bytes]]
) -> None:
    refused(solo5ctl("convert", "--output", str(tmp_path / "out"), dumped(state, *named)), "expected ")
    assert names(tmp_path) == ["state"]


def test_a_file_that_exists_is_left_alone(solo5ctl: Solo5ctl, state: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    victim = tmp_path / "victim"
    (out / "web.unikernel").symlink_to(victim)
    file = dumped(state, (":dns", web()), (":web", web()))
    refused(
        solo5ctl("convert", "--output", str(out), file), f"{out}/web.unikernel exists: expected new names in {out}."
    )
    assert names(out) == ["web.unikernel"]
    assert not victim.exists()


def test_a_directory_that_cannot_be_used(
    solo5ctl: Solo5ctl, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = dumped(state, (":web", web()))
    refused(solo5ctl("convert", "--output", file, file), "cannot be used: ")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    refused(solo5ctl("convert", "--output", str(tmp_path / "out"), file), "cannot be written: No space left on device")
    assert names(tmp_path / "out") == []

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        convert.execute(
            type("Arguments", (), {"output": str(tmp_path / "out"), "file": file, "json": False}),  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
        )
    assert names(tmp_path / "out") == []


def test_files_that_are_no_dump(
    solo5ctl: Solo5ctl, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "does not exist" in solo5ctl("convert", str(state)).err
    assert "cannot be read: " in solo5ctl("convert", f"{Path(__file__)}/x").err
    assert "is no dump of albatross" in solo5ctl("convert", str(tmp_path)).err
    os.mkfifo(tmp_path / "fifo")
    refused(solo5ctl("convert", str(tmp_path / "fifo")), "is no dump of albatross: expected a regular file of 1024 MiB")
    refused(solo5ctl("convert", "/dev/null"), "is no dump of albatross")
    refused(solo5ctl("convert", __file__), "the file is no dump of albatross")
    state.touch()
    os.truncate(state, albatross_files.DUMP_MAX + 1)
    refused(solo5ctl("convert", str(state)), "expected a regular file of 1024 MiB or less")


def test_images_have_a_limit_together(
    solo5ctl: Solo5ctl, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = web(zlib.compress(bytes(10 << 20), 9), compressed=True)
    file = dumped(state, *((f":web{i}", bomb) for i in range(4)))
    monkeypatch.setattr(albatross_files, "IMAGES_MAX", 30 << 20)
    refused(solo5ctl("convert", "--output", str(tmp_path / "out"), file), "the images are too large")
    monkeypatch.setattr(albatross, "IMAGE_MAX", 9 << 20)
    refused(
        solo5ctl("convert", "--output", str(tmp_path / "out"), file), "its image is too large: expected 9 MiB or less"
    )
    assert names(tmp_path) == ["state"]


def test_without_the_library(solo5ctl: Solo5ctl, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(__import__("sys").modules, "solo5_systemd.declared.albatross_dump", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "asn1crypto.core", None)
    result = solo5ctl("convert", dumped(state, (":web", web())))
    assert result.status == 125
    assert "Install python3-asn1crypto (Debian) or asn1crypto (pip)." in result.err
