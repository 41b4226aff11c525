"""`image`: the requirements of an image and whether it can run here."""

import json
from pathlib import Path

import pytest
from tests.fast.cli.conftest import Solo5ctl

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import DeviceName, Target
from solo5_systemd.cli.verbs import image
from solo5_systemd.host.tenders import TenderPath
from solo5_systemd.image.manifest import GUEST_HEAP, Manifest
from solo5_systemd.unit.tender import Tender


def looked(monkeypatch: pytest.MonkeyPatch, target: Target, *problems: HostError) -> None:
    """Have an image with devices, whose tender is missing for a reason, and its devices for another one."""
    nics, disks = (DeviceName("service"),), (DeviceName("storage"),)
    manifest = Manifest(target=target, nics=nics, disks=disks, min_memory=(1 << 20) + GUEST_HEAP)
    faults = dict(zip(("tender", "device"), problems, strict=False))

    async def find(_: TenderPath, target: Target) -> Tender:
        if "tender" in faults:
            raise faults["tender"]
        return Tender(path="/x/solo5", target=target, version="0.12.1", abi_version=2)

    def groups_for(_: Target, *, nics: bool) -> tuple[str, ...]:
        if "device" in faults:
            raise faults["device"]
        return ()

    def manifest_of(path: str) -> Manifest:
        if path == "missing":
            raise HostError("missing: no such file.")
        return manifest

    monkeypatch.setattr(TenderPath, "find", find)
    monkeypatch.setattr(image, "groups_for", groups_for)
    monkeypatch.setattr(image, "manifest_of", manifest_of)


def test_an_image_that_can_run(solo5ctl: Solo5ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    looked(monkeypatch, Target.HVT)
    result = solo5ctl("image", "web.hvt", root=False)
    assert (result.status, result.out) == (
        0,
        "   Image: web.hvt\n"
        "  Target: hvt, ABI version 2\n"
        "     NIC: service\n"
        "    Disk: storage\n"
        "  Memory: 14M to 4162M, 10M or more of it for the tender; its runtime needs more, OCaml 5 about 4M\n"
        "  Tender: /x/solo5 (version 0.12.1)\n"
        "Runnable: yes\n",
    )
    assert json.loads(solo5ctl("image", "--json", "web.hvt").out) == [
        {
            "image": "web.hvt",
            "target": "hvt",
            "abi_version": 2,
            "devices": [{"name": "service", "kind": "NET_BASIC"}, {"name": "storage", "kind": "BLOCK_BASIC"}],
            "memory_min": 14 << 20,
            "memory_max": 4162 << 20,
            "runnable": True,
            "problems": [],
            "tender": "/x/solo5",
            "tender_version": "0.12.1",
        }
    ]


def test_an_image_that_cannot_run_has_its_problems_and_exit_status_126(
    solo5ctl: Solo5ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked(monkeypatch, Target.SPT, HostError("a is missing.", "Do b."), HostError("c."))
    result = solo5ctl("image", "web.spt")
    assert result.status == 126
    assert result.out.endswith("Runnable: no\n Problem: a is missing. Do b.\n Problem: c.\n")
    assert (
        "  Memory: 10M or more, 8M or more of it for the tender; its runtime needs more, OCaml 5 about 4M\n"
        in result.out
    )
    [document] = json.loads(solo5ctl("image", "--json", "web.spt").out)
    assert (document["runnable"], document["problems"]) == (False, ["a is missing. Do b.", "c."])
    assert not {"tender", "memory_max"} & set(document)


@pytest.mark.parametrize(
    ("content", "status", "sentence"),
    [(None, 127, "does not exist"), (b"", 126, "cannot run"), (b"\x7fELF" + bytes(60), 126, "cannot run")],
)
def test_an_invalid_image_is_one_sentence(
    solo5ctl: Solo5ctl, tmp_path: Path, content: bytes | None, status: int, sentence: str
) -> None:
    if content is not None:
        (tmp_path / "x").write_bytes(content)
    result = solo5ctl("image", str(tmp_path / "x"), root=False)
    assert (result.status, result.out) == (status, "")
    assert sentence in result.err
    assert len(result.err.splitlines()) <= 2


def test_an_image_that_cannot_be_read_hides_no_other(solo5ctl: Solo5ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    looked(monkeypatch, Target.SPT)
    result = solo5ctl("image", "web.hvt", "missing", "web.hvt")
    assert (result.status, result.err) == (HostError.exit_status, "solo5ctl: missing: no such file.\n")
    assert [line for line in result.out.splitlines() if "Image:" in line or not line] == [
        "   Image: web.hvt", "", "   Image: web.hvt",
    ]  # fmt: skip
