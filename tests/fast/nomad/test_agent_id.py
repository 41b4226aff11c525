import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from solo5_systemd.nomad import start as module
from solo5_systemd.nomad.start import agent_id


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    agent_id.cache_clear()
    yield
    agent_id.cache_clear()


def test_an_agent_is_its_process_and_when_that_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getppid", lambda: 77)  # that of the test may be 1, which is no agent
    (tmp_path / str(os.getppid())).mkdir()
    numbers = " ".join(str(number) for number in range(4, 30))
    (tmp_path / str(os.getppid()) / "stat").write_text(f"{os.getppid()} (nomad (a) b) S {numbers}")
    monkeypatch.setattr(module, "PROC", tmp_path)
    assert agent_id() == f"{os.getppid()}.22"


def test_an_agent_that_died_before_it_was_looked_at_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROC", tmp_path)
    assert agent_id() == ""
    agent_id.cache_clear()
    monkeypatch.undo()
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert agent_id() == ""
