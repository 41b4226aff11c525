"""Drop-ins of others that change the units of tasks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from solo5_systemd.base.errors import HostError
from solo5_systemd.host.drop_ins import check_drop_ins

TASK, SCOPE, DECLARED = "solo5-task-web-1.service", "solo5-task-web-1.scope", "web-1.service"


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    return tmp_path / "etc"


@pytest.fixture
def check(tmp_path: Path, etc: Path) -> Callable[[str], None]:
    directories = [str(etc), str(tmp_path / "usr")]
    return lambda unit: check_drop_ins(unit, declared=not unit.startswith("solo5-task-"), directories=directories)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("directory", ["service.d", "solo5-.service.d", "solo5-task-web-.service.d", f"{TASK}.d"])
@pytest.mark.parametrize("key", ["User", "Restart", "ExecStartPre", "PrivateTmp", "LogLevelMax", "UMask"])
def test_a_tasks_sandbox_and_restarts_are_the_drivers(
    check: Callable[[str], None], etc: Path, directory: str, key: str
) -> None:
    path = write(etc / directory / "all.conf", f"[Unit]\nAfter=x.service\n[Service]\n# a comment\n  {key} = root\n")
    with pytest.raises(HostError, match=f"drop-in {path} sets {key}= of {TASK}"):
        check(TASK)


def test_limits_and_timeouts_are_the_operators(check: Callable[[str], None], etc: Path) -> None:
    unit = "[Unit]\nOnFailure=mail@%n\n"
    text = f"{unit}[Service]\nMemoryHigh=1G\nMemoryMax=2G\nTimeoutStopFailureMode=abort\nIPAccounting=yes\n"
    path = write(etc / "service.d/all.conf", f"{text}#User=root\n[Install]\nUser=root\n")
    write(etc / "service.d/note.txt", "[Service]\nUser=root\n")
    write(etc / "other-.service.d/all.conf", "[Service]\nUser=root\n")
    for unit in (TASK, SCOPE, DECLARED):
        check(unit)
    for changed in (f"{text}User=root\n", "\ufeff[Service]\nUser=root\n"):  # PID 1 skips a byte order mark
        path.write_text(changed)
        with pytest.raises(HostError):
            check(TASK)


def test_a_scope_has_its_own(check: Callable[[str], None], etc: Path) -> None:
    path = write(etc / "scope.d/all.conf", "[Scope]\nKillMode=none\n")
    check(TASK)
    with pytest.raises(HostError, match=f"{path} sets KillMode="):
        check(SCOPE)


def test_what_an_administrator_sets_of_a_declared_tasks_unit_is_meant(check: Callable[[str], None], etc: Path) -> None:
    for directory in ("web-.service.d", f"{DECLARED}.d"):
        write(etc / directory / "own.conf", "[Service]\nExecStartPre=/bin/true\n")
    check(DECLARED)
    write(etc / "service.d/all.conf", "[Service]\nUser=root\n")
    with pytest.raises(HostError, match=f"all.conf sets User= of {DECLARED}"):
        check(DECLARED)


@pytest.mark.parametrize("unit", [TASK, DECLARED])
def test_a_hidden_one_changes_nothing(check: Callable[[str], None], etc: Path, tmp_path: Path, unit: str) -> None:
    write(tmp_path / "usr/service.d/all.conf", "[Service]\nUser=root\n")
    with pytest.raises(HostError) as refused:
        check(unit)
    commands = refused.value.hint.removeprefix("Hide it: ").split(" && ")
    for command in commands:
        words = [word.replace("/etc/systemd/system", str(etc)) for word in command.split()]
        if words[0] == "mkdir":
            Path(words[-1]).mkdir(parents=True)
        else:
            Path(words[-1]).symlink_to(words[-2])
    check(unit)


def test_one_that_cannot_be_read_is_refused(check: Callable[[str], None], etc: Path) -> None:
    (etc / "service.d/all.conf").mkdir(parents=True)
    with pytest.raises(HostError, match="cannot be read: Is a directory"):
        check(TASK)
