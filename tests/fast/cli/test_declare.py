"""`run --declare`: a file instead of a start."""

from pathlib import Path

import pytest
from tests.fast.cli.conftest import Solo5ctl

from solo5_systemd.settings import files as settings_files

WORDS = (
    "run --declare web -m 64M -p 443:443 --block data=disk:web,size=64M --property TasksMax=32 /srv/web.hvt {mirage}"
)
TEXT = """\
[Unikernel]
Image=/srv/web.hvt
Argument={mirage}
Memory=64M
Publish=443:443/tcp
Block=data=disk:web,size=64M

[Service]
TasksMax=32

[Install]
WantedBy=multi-user.target
"""


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(settings_files, "ETC", tmp_path)
    return tmp_path


def test_a_task_is_written_instead_of_started(solo5ctl: Solo5ctl, etc: Path) -> None:
    result = solo5ctl(*WORDS.split())
    assert (result.status, result.out) == (0, f"{etc}/web.unikernel\n")
    assert "systemctl daemon-reload && systemctl enable --now web" in result.err
    assert (etc / "web.unikernel").read_text() == TEXT
    assert solo5ctl.engine.workloads == []


def test_why_it_could_not_start_now_is_a_warning(solo5ctl: Solo5ctl, etc: Path) -> None:
    solo5ctl.engine.faults = {"web": "image '/a.spt' does not exist."}
    done = solo5ctl("run", "--declare", "web", "/a.spt")
    assert (done.status, done.out) == (0, f"{etc}/web.unikernel\n")
    assert done.err.startswith("solo5ctl: warning: the task could not start now: image '/a.spt' does not exist.\n")


def test_an_existing_file_is_kept_unless_it_is_to_be_replaced(solo5ctl: Solo5ctl, etc: Path) -> None:
    (etc / "web.unikernel").write_text("mine")
    refused = solo5ctl(*WORDS.split())
    assert refused.status == 125
    assert f"{etc}/web.unikernel exists: expected a new name." in refused.err
    assert (etc / "web.unikernel").read_text() == "mine"
    assert solo5ctl("run", "--replace", *WORDS.split()[1:]).status == 0
    assert (etc / "web.unikernel").read_text() == TEXT


def test_a_declaration_is_printed_without_root_and_not_written(solo5ctl: Solo5ctl, etc: Path) -> None:
    result = solo5ctl("run", "--dry-run", *WORDS.split()[1:], root=False)
    assert (result.status, result.out) == (0, TEXT)
    assert list(etc.iterdir()) == []
    assert "requires root" in solo5ctl(*WORDS.split(), root=False).err


@pytest.mark.parametrize("option", ["--name=a", "-d", "--rm", "--scope", "--json"])
def test_options_of_a_start_are_refused_with_declare(option: str, solo5ctl: Solo5ctl) -> None:
    assert "--declare and --" in solo5ctl("run", option, "--declare", "web", "a.hvt").err


@pytest.mark.parametrize("name", ["web@", "a/b", "-x", "solo5-networkd"])
def test_a_name_that_no_unit_can_have_is_refused(name: str, solo5ctl: Solo5ctl, etc: Path) -> None:
    assert solo5ctl("run", f"--declare={name}", "a.hvt").status == 125
    assert list(etc.iterdir()) == []


def test_what_a_file_cannot_hold_is_refused(solo5ctl: Solo5ctl, etc: Path) -> None:
    result = solo5ctl("run", "--declare", "web", "/srv/a\nb.hvt")
    assert result.status == 125
    assert "task web cannot be declared: Image= has the character" in result.err
    assert list(etc.iterdir()) == []


def test_a_task_that_is_to_be_dormant_is_declared(solo5ctl: Solo5ctl, etc: Path) -> None:
    words = ("--idle", "5min", "/srv/a.hvt")
    assert solo5ctl("run", "--declare", "web", "--idle-action", "stop", *words).status == 0
    assert "IdleSec=300\nIdleAction=stop\n" in (etc / "web.unikernel").read_text()
    assert solo5ctl("run", "--declare", "blog", "--idle-action", "sleep", *words).status == 0
    assert "IdleAction" not in (etc / "blog.unikernel").read_text()
    refused = solo5ctl("run", "--idle-action", "stop", *words)
    assert (refused.status, refused.out) == (125, "")
    assert "--idle-action stop is for declared tasks: expected sleep" in refused.err
