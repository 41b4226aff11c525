"""Types of jobs, and what follows the end of their guest."""

from tests.machine.conftest import eventually
from tests.machine.nomad.jobs import ONE_START, TWO_STARTS, Jobs, ended, hcl


def test_batch_that_ends_with_3_follows_its_restart_policy(jobs: Jobs) -> None:
    hello = 'unikernel = "hello.spt"\nargs = ["exit=3"]\nquiet = true'
    alloc = ended(jobs.submit(hcl("bad", hello, kind="batch", group=TWO_STARTS)))
    assert alloc.about()["ClientStatus"] == "failed"
    assert alloc.task()["Restarts"] == 1
    assert sum("Exit Code: 3" in event for event in alloc.events()) == 2, "the first run and one more"
    eventually(lambda: alloc.logs().count("argument 1: 'exit=3'") == 2, "and both consoles")


def test_data_of_a_dispatcher_reaches_the_guest_as_it_is(jobs: Jobs) -> None:
    parameters = 'parameterized {\n  meta_required = ["json"]\n}\n'
    for name, key in (("safe", "verbatim"), ("unsafe", "args")):
        config = f'unikernel = "hello.spt"\nquiet = true\n{key} = ["--name={{name}}", "--json=${{NOMAD_META_json}}"]'
        jobs.submit(hcl(name, config, kind="batch", job=parameters, group=ONE_START))
    alloc = ended(jobs.dispatch("safe", 'json={"a":"{hostname}"}'))
    alloc.says("""arguments: '--name={name} --json={"a":"{hostname}"}'""")  # the guest splits it, and unquotes
    refused = ended(jobs.dispatch("unsafe", "json={hostname}"))
    refused.happens("config.args has the value of NOMAD_META_json")
    assert not refused.task()["Restarts"]
