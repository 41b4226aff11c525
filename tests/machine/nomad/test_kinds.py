"""Types of jobs, and what follows the end of their guest."""

from tests.machine.conftest import eventually
from tests.machine.nomad.jobs import (
    ONE_START,
    TWO_STARTS,
    Jobs,
    allocation,
    ended,
    events,
    happens,
    hcl,
    logs,
    says,
    status,
    task,
)


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
