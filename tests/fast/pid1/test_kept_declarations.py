"""What is kept of a declaration is read at a start, whatever is in the files."""

from dataclasses import replace
from pathlib import Path

import pytest

from solo5_systemd.base import declared_units
from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import TaskName
from solo5_systemd.declared.syntax import Source
from solo5_systemd.pid1.kept_declarations import Kept, kept_declaration

WEB = TaskName("web")
HVT = "/usr/bin/solo5-hvt"
KEPT = Kept(sources=[Source(path="/a", content=b"\xff\n", is_public=False)], tender=HVT, nics=True)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(declared_units, "DIRECTORY", str(tmp_path))
    (tmp_path / "web").mkdir()
    return tmp_path / "web/sources"


def test_a_unit_file_is_fit_for_its_tender_and_for_nics_or_none_unless_they_were_assumed() -> None:
    without = replace(KEPT, nics=False)
    assert (KEPT.fits(HVT, nics=True), KEPT.fits(HVT, nics=False)) == (True, False)
    assert (without.fits(HVT, nics=True), without.fits(HVT, nics=False)) == (False, True)
    assumed = replace(KEPT, nics_assumed=True)
    assert (assumed.fits(HVT, nics=True), assumed.fits(HVT, nics=False)) == (True, True)
    for tender in ("/usr/local/bin/solo5-hvt", "/usr/bin/solo5-spt"):
        assert not assumed.fits(tender, nics=True)


def test_what_is_kept_is_read_as_it_was_written(file: Path) -> None:
    file.write_text(KEPT.text())
    assert kept_declaration(WEB) == KEPT


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"sources": [], "tender": 1, "more": 2}', '{"sources": [1]}'])
def test_a_damaged_file_is_an_error(file: Path, text: str | None) -> None:
    if text is not None:
        file.write_text(text)
    with pytest.raises(HostError, match="cannot be read: .*Run: systemctl daemon-reload"):
        kept_declaration(WEB)
