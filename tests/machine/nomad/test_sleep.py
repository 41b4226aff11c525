"""Jobs whose guests sleep: for Nomad they run, and events name what woke them."""

from tests.machine.conftest import Machine, Outside, eventually, ok
from tests.machine.nomad.agent import NODE_ADDRESS, Agent
from tests.machine.nomad.jobs import NEVER_AGAIN, SERVER, Jobs, ended, hcl, network, port_hcl
from tests.machine.test_sleep import asleep

PORT = network(port_hcl("web", static=8080, to=80))
IDLE = '\nidle {\n  after = "5s"\n}\n'


def test_a_job_sleeps_and_a_request_wakes_it(jobs: Jobs, outside: Outside, machine: Machine, agent: Agent) -> None:
    machine.expect("plugin|EOF|Unavailable|rpc error")
    [alloc] = jobs.run(hcl("resting", SERVER + IDLE, group=NEVER_AGAIN + PORT))
    alloc.happens("Asleep: no packet for its idle time")
    assert (asleep(alloc.name()), alloc.task()["State"]) == (True, "running")
    assert outside.tcp(NODE_ADDRESS, 8080)
    alloc.happens(f"Woken by TCP {outside.there}:")
    eventually(lambda: asleep(alloc.name()), "it sleeps again")
    agent.kill_plugin()
    assert (asleep(alloc.name()), alloc.task()["State"]) == (True, "running")
    assert outside.tcp(NODE_ADDRESS, 8080)
    ok("nomad", "job", "stop", "-detach", "resting")
    alloc.happens("Stopped on request")


def test_a_signal_wakes_it_only_to_end_it(jobs: Jobs, outside: Outside) -> None:
    [alloc] = jobs.run(hcl("resting", SERVER + IDLE, group=NEVER_AGAIN + PORT))
    alloc.happens("Asleep: no packet for its idle time")
    for number, event in (
        ("SIGUSR1", "SIGUSR1 was not sent"),
        ("SIGSTOP", "Frozen by SIGSTOP, until SIGCONT"),
        ("SIGCONT", "Thawed by SIGCONT"),
    ):
        ok("nomad", "alloc", "signal", "-s", number, alloc, "guest")
        alloc.happens(event)
        assert (asleep(alloc.name()), alloc.task()["State"]) == (True, "running"), number
    assert outside.tcp(NODE_ADDRESS, 8080)
    eventually(lambda: not asleep(alloc.name()), "its record follows")
    assert alloc.task()["State"] == "running"
    eventually(lambda: asleep(alloc.name()), "it sleeps again")
    ok("nomad", "alloc", "signal", "-s", "SIGTERM", alloc, "guest")
    eventually(lambda: alloc.task()["State"] == "dead", "it has ended")
    assert any("Signal: 15" in event for event in alloc.events()), "not by SIGKILL"


def test_an_end_where_there_is_no_packet_is_refused(jobs: Jobs) -> None:
    stop = SERVER + '\nidle {\n  after = "5min"\n  action = "stop"\n}\n'
    assert "has ended for Nomad" in ended(jobs.submit(hcl("stopping", stop))).refusal()
