"""docs/declared.md, "For users of Quadlet": each of our settings there is one that a declaration can have."""

import re
from pathlib import Path

import pytest

from solo5_systemd.declared.declaration import parse_declaration
from solo5_systemd.declared.syntax import HostNames, Source
from solo5_systemd.settings.network import DEFAULT_NETWORK

PAGE = (Path(__file__).parents[3] / "docs/declared.md").read_text()
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in PAGE.partition("## For users of Quadlet")[2].partition("\n## ")[0].splitlines()
    if line.startswith("| ") and "`" in line
]
SETTINGS = [
    setting for row in ROWS[1:] for setting in re.findall(r"`([A-Za-z]+=[^`]+)`", row[1]) if "systemctl" not in row[1]
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_is_one_of_a_declaration(setting: str) -> None:
    image = "" if setting.startswith("Image=") else "Image=/srv/web.hvt\n"
    text = f"[Unikernel]\n{image}{setting}\n"
    source = Source(path="/etc/solo5/web.unikernel", content=text.encode())
    declaration = parse_declaration("web", [source], host=HostNames(), served=[DEFAULT_NETWORK])
    assert declaration.workload.image.endswith("/web.hvt")


def test_the_table_is_found() -> None:
    assert len(SETTINGS) >= 16
