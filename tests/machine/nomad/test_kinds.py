"""Types of jobs, and what follows the end of their guest."""

from tests.machine.conftest import eventually, sh
from tests.machine.nomad.jobs import (
    NEVER_AGAIN,
    ONE_START,
    SLEEPER,
    TWO_STARTS,
    Jobs,
    allocation,
    allocations,
    ended,
    events,
    happens,
    hcl,
    logs,
    running,
    says,
    status,
    task,
)
from tests.machine.nomad.test_deployments import update


def hello(*words: str) -> str:
    args = ", ".join(f'"{word}"' for word in words)
    return f'unikernel = "hello.spt"\nargs = [{args}]\nquiet = true'


def test_batch_that_ends_with_0_is_complete(jobs: Jobs) -> None:
    alloc = ended(jobs.submit(hcl("good", hello("well", "done"), kind="batch")))
    assert allocation(alloc)["ClientStatus"] == "complete"
    assert "Exit Code: 0" in status(alloc)
    says(alloc, "argument 1: 'well'\nargument 2: 'done'\n")
    assert "solo5_exit" not in logs(alloc), "it is quiet"


def test_batch_that_ends_with_3_follows_its_restart_policy(jobs: Jobs) -> None:
    alloc = ended(jobs.submit(hcl("bad", hello("exit=3"), kind="batch", group=TWO_STARTS)))
    assert allocation(alloc)["ClientStatus"] == "failed"
    assert task(alloc)["Restarts"] == 1
    assert sum("Exit Code: 3" in event for event in events(alloc)) == 2, "the first run and one more"
    eventually(lambda: logs(alloc).count("argument 1: 'exit=3'") == 2, "and both consoles")


def test_dispatched_job_passes_its_meta_as_arguments(jobs: Jobs) -> None:
    parameters = 'parameterized {\n  meta_required = ["greeting"]\n}\n'
    jobs.submit(hcl("greet", hello("--greeting=${NOMAD_META_greeting}"), kind="batch", job=parameters))
    says(ended(jobs.dispatch("greet", "greeting=good morning")), "--greeting=good morning")


def test_data_of_a_dispatcher_reaches_the_guest_as_it_is(jobs: Jobs) -> None:
    parameters = 'parameterized {\n  meta_required = ["json"]\n}\n'
    for name, key in (("safe", "verbatim"), ("unsafe", "args")):
        config = f'unikernel = "hello.spt"\nquiet = true\n{key} = ["--name={{name}}", "--json=${{NOMAD_META_json}}"]'
        jobs.submit(hcl(name, config, kind="batch", job=parameters, group=ONE_START))
    alloc = ended(jobs.dispatch("safe", 'json={"a":"{hostname}"}'))
    says(alloc, """arguments: '--name={name} --json={"a":"{hostname}"}'""")  # the guest splits it, and unquotes
    refused = ended(jobs.dispatch("unsafe", "json={hostname}"))
    happens(refused, "config.args has the value of NOMAD_META_json")
    assert not task(refused)["Restarts"]


def test_a_job_with_an_affinity_is_scaled(jobs: Jobs) -> None:
    affinity = 'affinity {\n  attribute = "${attr.driver.solo5.spt}"\n  value = "1"\n  weight = 50\n}\n'
    scaling = "scaling {\n  min = 1\n  max = 2\n}\n"
    jobs.run(hcl("scaled", SLEEPER, job=affinity + update(), group=NEVER_AGAIN + scaling))
    for count in (2, 1):
        scale = ("nomad", "job", "scale", "-detach", "scaled", "group", str(count))
        eventually(lambda scale=scale: sh(*scale).returncode == 0, "its last deployment is over")  # type: ignore[misc]
        running("scaled", count)
    assert "maximum" in sh("nomad", "job", "scale", "-detach", "scaled", "group", "3").stderr


def test_system_job_runs_on_every_node(jobs: Jobs) -> None:
    [alloc] = jobs.run(hcl("everywhere", SLEEPER, kind="system", group=ONE_START))
    says(alloc, "sleeping")


def test_sysbatch_job_ends_on_every_node(jobs: Jobs) -> None:
    alloc = ended(jobs.submit(hcl("once", hello("here"), kind="sysbatch", group=ONE_START)))
    assert allocation(alloc)["ClientStatus"] == "complete"


def test_service_that_ends_is_started_again(jobs: Jobs) -> None:
    restart = 'restart {\n  attempts = 2\n  delay = "1s"\n  interval = "10m"\n  mode = "fail"\n}\n'
    job = jobs.submit(hcl("short", hello("bye"), group=restart))
    eventually(lambda: allocations(job) and logs(allocations(job)[0]["ID"]).count("bye") >= 2, "it runs twice")
