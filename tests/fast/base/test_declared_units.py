import json
from pathlib import Path

import pytest

from solo5_systemd.base import declared_units
from solo5_systemd.base.declared_units import (
    UPDATE,
    declaration_directory,
    declared_tasks,
    forget_instance,
    is_declared,
    outcome_targets_of,
    prepared_fields,
    service_of,
    task_of,
    units_of,
)
from solo5_systemd.base.names import TaskName


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared_units, "DIRECTORY", str(tmp_path))


WEB, OTHER = TaskName("web"), TaskName("other")


def test_a_declared_task_has_a_unit_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / ".hidden").mkdir()
    assert is_declared(WEB)
    assert not is_declared(OTHER)
    assert service_of(WEB) == "web.service"
    assert service_of(OTHER) == "solo5-task-other.service"
    assert outcome_targets_of(WEB) == ("solo5-outcome-declared@web.target", "solo5-outcome@web.target")
    assert outcome_targets_of(OTHER) == ("solo5-outcome@other.target",)
    assert units_of(WEB) == ("web.service", "solo5-task-web.service", "solo5-task-web.scope")
    assert units_of(OTHER) == ("solo5-task-other.service", "solo5-task-other.scope")
    assert list(declared_tasks()) == [WEB]


def test_the_task_of_a_unit(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    assert task_of("web.service") == WEB
    assert task_of("solo5-task-web.scope") == WEB
    for name in ("web.scope", "other.service", "web", "solo5-prepare@web.service", "../web.service", ".service"):
        assert task_of(name) is None


def test_an_instance_has_the_unit_of_its_name_alone(tmp_path: Path) -> None:
    one = TaskName("web@1")
    assert units_of(one) == ("solo5-task-web@1.service",)  # which no task has: it is a unit of others
    assert outcome_targets_of(one) == ("solo5-outcome-declared@web@1.target",), "its template is gone, too"
    (tmp_path / "web@").mkdir()
    assert service_of(one) == "web@1.service"
    assert units_of(one) == ("web@1.service",)
    assert task_of("web@1.service") is None
    (tmp_path / "web@1").mkdir()
    (tmp_path / "web@").rmdir()
    assert service_of(one) == "web@1.service"
    assert task_of("web@1.service") == one
    assert list(declared_tasks()) == [one]


def test_an_instance_without_files_of_its_own_is_forgotten(tmp_path: Path) -> None:
    directory = str(tmp_path)
    for name in ("web@1", "web@2", "web"):
        (tmp_path / name).mkdir()
    (tmp_path / "web@2" / "sources").touch()
    request = tmp_path / "web@1" / UPDATE
    request.touch()
    forget_instance(TaskName("web@1"))
    assert request.exists(), "an update is under way"
    request.unlink()
    assert declaration_directory(TaskName("web@1")) == f"{directory}/web@"
    assert declaration_directory(TaskName("web@2")) == f"{directory}/web@2"
    for name in ("web@1", "web@2", "web@3", "web"):
        forget_instance(TaskName(name))
    assert {path.name for path in tmp_path.iterdir()} == {"web@2", "web"}


def test_without_the_directory_nothing_is_declared(tmp_path: Path) -> None:
    tmp_path.rmdir()
    assert list(declared_tasks()) == []


def test_fields_of_a_start_are_read_or_empty(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    assert prepared_fields(WEB) == {}
    (tmp_path / "web" / "fields").write_text(json.dumps({"SOLO5_IMAGE_SHA256": "ab"}))
    assert prepared_fields(WEB) == {"SOLO5_IMAGE_SHA256": "ab"}
    (tmp_path / "web" / "fields").write_text("[1")
    assert prepared_fields(WEB) == {}
