"""The task options, by their effect."""

from pathlib import Path

from tests.machine.conftest import eventually, inspect, ok, unit_property
from tests.machine.nomad.agent import Agent
from tests.machine.nomad.jobs import SCOPE, SERVER, SLEEPER, Jobs, hcl

from solo5_systemd.host.tenders import IGNORED_SIGNALS


def scopes() -> list[str]:
    return ok("systemctl", "list-units", "--plain", "--no-legend", "solo5-task-*.scope").split()[:1]


def _status(process: str, key: str) -> str:
    """Return a line of proc(5), status."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{key}:")).split()[1]


def test_scope_holds_a_tender_that_is_the_drivers_child(jobs: Jobs, agent: Agent) -> None:
    [alloc] = jobs.run(hcl("scoped", f"{SERVER}\n{SCOPE}"))
    alloc.says("serving")
    [unit] = scopes()
    control_group = unit_property(unit, "ControlGroup")
    assert "solo5.slice" in control_group
    tender = Path("/sys/fs/cgroup", control_group[1:], "cgroup.procs").read_text().strip()
    assert int(_status(tender, "PPid")) == agent.plugin()
    ignored = int(_status(tender, "SigIgn"), 16)
    assert not [number for number in IGNORED_SIGNALS if ignored & 1 << number - 1], (
        "a console's reader that goes ends it"
    )
    ok("nomad", "job", "stop", "-detach", "scoped")
    alloc.happens("Stopped on request")
    eventually(lambda: not scopes(), "the scope is gone")


def test_kill_signal_that_no_tender_takes_still_ends_the_task(jobs: Jobs) -> None:
    [alloc] = jobs.run(hcl("stubborn", SLEEPER, task='kill_signal = "SIGQUIT"'))
    ok("nomad", "job", "stop", "-detach", "stubborn")
    alloc.happens("kill_signal SIGQUIT does not stop a tender")
    eventually(lambda: alloc.about()["ClientStatus"] == "complete", "it is over")
    assert "Stopped on request" in " ".join(alloc.events())


LABELS = 'labels {\n  TEAM = "platform"\n  COST_CENTER = "12 34"\n}\n'


def test_labels_are_journal_fields_and_inspected(jobs: Jobs) -> None:
    [service] = jobs.run(hcl("labelled", f"{SLEEPER}\n{LABELS}"))
    [scope] = jobs.run(hcl("labelled-scope", f"{SLEEPER}\n{SCOPE}{LABELS}"))
    journal = ("journalctl", "--no-pager", "--output=cat", "TEAM=platform", f"NOMAD_ALLOC_ID={service}")
    eventually(lambda: "sleeping" in ok(*journal), "the label finds the console")
    for alloc in (service, scope):
        name = alloc.name()
        fields = inspect(name)["log_fields"]
        assert (fields["TEAM"], fields["COST_CENTER"]) == ("platform", "12 34")
