"""The agent that tests run under."""

from pathlib import Path

import pytest
from tests.support.bootlib import agent
from tests.support.bootlib.errors import MachineError


def test_another_agent_is_the_program_that_nomad_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nomad-2"
    for given in (program, tmp_path):
        monkeypatch.setenv("NOMAD", str(given))
        with pytest.raises(MachineError, match=f"NOMAD={given} is no program"):
            agent._agent()
    program.touch(mode=0o755)
    monkeypatch.setenv("NOMAD", str(program))
    assert agent._agent() == program
