"""`export`: what is read of a task, and what is refused."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.fast.cli.conftest import Solo5ctl
from tests.support.fakes.tasks import STARTED, ended, running

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import UnitKind
from solo5_systemd.cli.verbs import export
from solo5_systemd.cli.verbs.export import running_task
from solo5_systemd.declared import files
from solo5_systemd.task.property_types import INFINITY


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "4711").mkdir()
    (tmp_path / "4711" / "cmdline").write_bytes(b"/usr/bin/solo5-hvt\0--mem=60\0--\0/image\0--a=b c\0\0")
    monkeypatch.setattr(export, "unified", lambda: str(tmp_path))
    monkeypatch.setattr(export, "records_of_tasks", dict)
    monkeypatch.setattr(export, "_PROC", str(tmp_path))
    return tmp_path


def cgroup(host: Path, **files: str) -> None:
    directory = host / "solo5.slice" / "solo5-task-web.service"
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("_", ".")).write_text(text)


def test_command_line_and_limits_are_read(host: Path) -> None:
    cgroup(host, memory_max="max\n", cpu_max="150000 100000\n", cpu_weight="7\n")
    found = running_task(running())
    assert list(found.argv) == ["/usr/bin/solo5-hvt", "--mem=60", "--", "/image", "--a=b c", ""]
    assert (found.memory_max, found.cpus, found.cpu_weight) == (INFINITY, 1.5, 7)


def test_a_host_without_controllers_has_no_limits(host: Path) -> None:
    found = running_task(running())
    assert (found.memory_max, found.cpus, found.cpu_weight) == (None, None, None)
    cgroup(host, memory_max="67108864\n", cpu_max="max 100000\n")
    found = running_task(running())
    assert (found.memory_max, found.cpus) == (64 << 20, None)


def test_a_task_that_has_ended_meanwhile_is_one_sentence(host: Path) -> None:
    task = running()
    with pytest.raises(HostError, match="the command line of task web cannot be read: No such file"):
        running_task(replace(task, state=replace(task.state, main_pid=1)))


def test_only_services_that_run_are_exported_by_root(solo5ctl: Solo5ctl) -> None:
    solo5ctl.engine.known = {task.name: task for task in (ended("old"), running("web", kind=UnitKind.SCOPE))}
    assert "does not run" in solo5ctl("export", "old").err
    assert "is a scope" in solo5ctl("export", "web").err
    assert "no task is named" in solo5ctl("export", "none").err
    assert "requires root" in solo5ctl("export", "web", root=False).err


def test_a_dormant_task_is_its_declaration(solo5ctl: Solo5ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "read_sources", partial(files.read_sources, directory=tmp_path))
    (tmp_path / "old.unikernel.d").mkdir()
    for name, text in (("", "# mine\n[Unikernel]\nImage=/srv/old.hvt"), (".d/50-a.conf", "[Service]\nTasksMax=7\n")):
        (tmp_path / f"old.unikernel{name}").write_text(text)
    solo5ctl.engine.known = {task.name: task for task in (replace(ended("old"), asleep=STARTED),)}
    result = solo5ctl("export", "old")
    assert (result.status, result.err) == (0, "")
    assert [line for line in result.out.splitlines() if line] == [
        *(f"# {tmp_path}/old.unikernel", "# mine", "[Unikernel]", "Image=/srv/old.hvt"),
        *(f"# {tmp_path}/old.unikernel.d/50-a.conf", "[Service]", "TasksMax=7"),
    ]
    (tmp_path / "old.unikernel").unlink()
    assert "there is no declaration 'old'" in solo5ctl("export", "old").err
