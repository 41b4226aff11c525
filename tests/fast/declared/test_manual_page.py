"""solo5.unikernel(5) has each key, each specifier, each setting that is passed on, and an example.

And docs/declared.md, "For users of Quadlet": each of our settings there is one that a declaration can have.
"""

import re
from pathlib import Path

import pytest

from solo5_systemd.declared.declaration import parse_declaration
from solo5_systemd.declared.syntax import Source, specifiers
from solo5_systemd.declared.unit_keys import INSTALL, SERVICE_PASSED_ON
from solo5_systemd.settings.network import DEFAULT_NETWORK
from solo5_systemd.task.settings import KEYS

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "man" / "solo5.unikernel.5").read_text().replace("\\-", "-")


def test_the_paragraphs_of_keys_are_in_their_order() -> None:
    assert re.findall(r'^\.TP\n\.BR (\w+)= ".*"$', PAGE, re.MULTILINE) == [*KEYS]


def test_each_specifier_is_named() -> None:
    assert [each for each in specifiers("web") if f"%{each}" not in PAGE] == []


def test_each_setting_that_is_passed_on_is_named() -> None:
    assert [each for each in sorted(SERVICE_PASSED_ON | INSTALL) if f"{each}=" not in PAGE] == []


def test_the_example_is_a_declaration() -> None:
    text = PAGE.partition("\n.SH EXAMPLE\n.nf\n")[2].partition(".fi")[0]
    source = Source(path="/etc/solo5/web.unikernel", content=text.encode())
    found = parse_declaration("web", [source])
    assert (found.workload.memory, len(found.unit), len(found.service), len(found.install)) == (64 << 20, 2, 1, 1)


ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in (DOCS / "declared.md")
    .read_text()
    .partition("## For users of Quadlet")[2]
    .partition("\n## ")[0]
    .splitlines()
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
    declaration = parse_declaration("web", [source], served=[DEFAULT_NETWORK])
    assert declaration.workload.image.endswith("/web.hvt")


def test_the_table_is_found() -> None:
    assert len(SETTINGS) >= 16
