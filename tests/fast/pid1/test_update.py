"""Updates of a declared task where PID 1 or solo5-networkd does not answer; machine tests have the others."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from solo5_systemd.base import declared_units, locks
from solo5_systemd.base.errors import HostError, InvalidRequestError, Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.declared import update_files
from solo5_systemd.declared.update_files import Phase, UpdateFiles
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.pid1 import update
from solo5_systemd.unit.state import ActiveState

WEB = TaskName("web")


class Declared:
    """The drop-in of an update: `read` is what PID 1 has of it, `written` what is in the file."""

    def __init__(self, *, is_read: bool) -> None:
        self.written = self.read = "old"
        self._is_read = is_read
        self._reloads = 0

    def set_image(self, image: str, _: str, *, lasting: bool) -> None:
        assert lasting
        self.written = image

    def unset_image(self) -> None:
        self.written = "old"

    def keep(self, _: str) -> None:
        pass

    async def reload(self) -> None:
        """A daemon-reload: of the first one the reply is lost, or the generator has no lock in time."""
        self._reloads += 1
        if self._reloads == 1 and not self._is_read:
            return
        self.read = self.written
        if self._reloads == 1:
            raise HostError("no answer from PID 1.")

    def check_in_effect(self, _: TaskName) -> None:
        if self.read != self.written:
            raise InvalidRequestError("the declaration has changed.")


@pytest.mark.parametrize(("is_read", "error"), [(True, "no answer"), (False, "has changed")])
async def test_a_switch_fails_and_is_undone_if_a_reload_has_no_reply_or_no_effect(
    monkeypatch: pytest.MonkeyPatch, is_read: bool, error: str
) -> None:
    """Else the task would have the new image at its next start though the update failed, or the old one after it."""
    declared = Declared(is_read=is_read)
    monkeypatch.setattr(update, "check_in_effect", declared.check_in_effect)
    monkeypatch.setattr(update, "sha256", lambda _: "")
    monkeypatch.setattr(update, "prepared_fields", lambda _: {})
    monkeypatch.setattr(update, "declared_image", lambda *_: "old")
    runtime = SimpleNamespace(backends=SimpleNamespace(units=declared))
    images = update.ImageSwitch(WEB, cast(UpdateFiles, declared), cast(Runtime, runtime), "new")
    with pytest.raises(Solo5Error, match=error):
        await images.switch()
    assert (declared.written, declared.read) == ("old", "old")


@pytest.mark.parametrize("is_repeated", [True, False])
async def test_an_end_that_fails_is_made_again_by_the_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_repeated: bool
) -> None:
    """The guest beside the task has its ports until an end of the update has succeeded."""
    ends: list[str] = []

    @asynccontextmanager
    async def connect(_: object) -> AsyncGenerator[Any, None]:
        yield SimpleNamespace(backends=SimpleNamespace(units=SimpleNamespace(active_state=inactive)))

    async def inactive(_: str) -> ActiveState:
        return ActiveState.INACTIVE

    async def failing_once(*_: object) -> None:
        ends.append("end")
        if len(ends) == 1:
            raise HostError("solo5-networkd does not answer.")

    for name, value in (
        ("connect", connect), ("_end", failing_once),
        ("_declared", lambda _: None),
    ):  # fmt: skip
        monkeypatch.setattr(update, name, value)
    monkeypatch.setattr(declared_units, "DIRECTORY", str(tmp_path))
    monkeypatch.setattr(locks, "RUN", tmp_path / "locks")
    monkeypatch.setattr(update_files, "log_about", lambda *_, **__: None)
    (tmp_path / WEB).mkdir()
    UpdateFiles(WEB).phase = Phase.BESIDE
    UpdateFiles(WEB).write_request()
    with pytest.raises(HostError, match="does not answer"):
        await update.end(WEB)
    assert (UpdateFiles(WEB).phase, UpdateFiles(WEB).under_way) == (Phase.BESIDE, True)
    if not is_repeated:
        ends.clear()
    forgotten: list[TaskName] = []
    monkeypatch.setattr(update, "forget_instance", forgotten.append)
    monkeypatch.setattr(update, "is_instance", lambda _: True)
    with nullcontext() if is_repeated else pytest.raises(HostError, match="does not answer"):
        await update.end(WEB, is_last=True)
    assert forgotten == [WEB], "an instance that was removed meanwhile is not listed any more"
    assert (UpdateFiles(WEB).phase, UpdateFiles(WEB).under_way) == (None, False), "what is left then is an operator's"
