"""What is kept of a declaration is read at a start, whatever is in the files."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from solo5_systemd.base import declared_units
from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import DeviceName, Target, TaskName
from solo5_systemd.image.manifest import Device, DeviceKind, Manifest
from solo5_systemd.pid1.kept_declarations import Basis, kept_basis
from solo5_systemd.unit.tender import Tender

HVT = Tender(path="/usr/bin/solo5-hvt", target=Target.HVT, version="1", abi_version=2)


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared_units, "DIRECTORY", str(tmp_path))


def of(*nics: str) -> Basis:
    devices = tuple(Device(name=DeviceName(name), kind=DeviceKind.NET_BASIC) for name in nics)
    return Basis.of(HVT, Manifest(target=Target.HVT, abi_version=2, devices=devices))


def test_a_unit_file_for_assumed_nics_is_fit_for_an_image_without_them() -> None:
    with_nics, without = of("service"), of()
    assert with_nics.fits(of("other", "names"))
    assert not with_nics.fits(without)
    assert not without.fits(with_nics)
    assumed = replace(with_nics, nics_assumed=True)
    assert assumed.fits(without)
    assert assumed.fits(with_nics)


def test_an_assumed_unit_file_is_for_one_tender() -> None:
    assumed = replace(of("service"), nics_assumed=True)
    for other in (
        replace(of(), tender="/usr/local/bin/solo5-hvt"),
        replace(of(), tender="/usr/bin/solo5-spt"),
    ):
        assert not assumed.fits(other)


def test_a_basis_is_kept_as_text(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    kept = replace(of("service"), nics_assumed=True)
    (tmp_path / "web/basis").write_text(json.dumps(asdict(kept)))
    assert kept_basis(TaskName("web")) == kept


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"tender": 1, "more": 2}'])
def test_a_damaged_basis_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web/basis").write_text(text)
    with pytest.raises(HostError, match="Run: systemctl daemon-reload"):
        kept_basis(TaskName("web"))
    (tmp_path / "web/basis").unlink()
    with pytest.raises(HostError, match="cannot be read"):
        kept_basis(TaskName("web"))
