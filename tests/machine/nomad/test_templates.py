"""Templates that change while their task runs: the effect of each change_mode."""

import hashlib
from contextlib import ExitStack

from tests.machine.conftest import GUESTS, eventually, inspect, ok, unit_property
from tests.machine.nomad.jobs import SLEEPER, TWO_STARTS, Allocation, Jobs, ended, hcl
from tests.machine.nomad.variables import put, template, word

HANGUP = '  change_mode = "signal"\n  change_signal = "SIGHUP"'
USER_SIGNAL = '  change_mode = "signal"\n  change_signal = "SIGUSR1"'
NOOP = '  change_mode = "noop"'
NO_PROGRAM = "a unikernel has no shell and no processes: nothing can be executed in it"


def script(*, fail: bool) -> str:
    return f"""
  change_mode = "script"
  change_script {{
    command       = "/bin/reload"
    fail_on_error = {str(fail).lower()}
  }}
"""


def rendered(alloc: Allocation, name: str, text: str) -> None:
    path = alloc.file(f"guest/local/{name}")
    eventually(lambda: path.read_text().strip() == text, f"{name} of {alloc} is rendered anew")


def test_signal_script_and_noop_leave_the_task_as_it_is(jobs: Jobs) -> None:
    """Two signals that would kill a tender, and a script: each is an event, and the task runs on."""
    modes = {"hangup": HANGUP, "user": USER_SIGNAL, "nothing": NOOP, "script": script(fail=False)}
    with word("heedless"):
        templates = "".join(template("heedless", name, mode) for name, mode in modes.items())
        [alloc] = jobs.run(hcl("heedless", SLEEPER, task=templates))
        alloc.says("sleeping")
        before = unit_property(alloc.unit(), "InvocationID")
        put("heedless", "two")
        for name in modes:
            rendered(alloc, name, "two")
        alloc.happens("SIGHUP was not sent: a unikernel has no signal handlers")
        alloc.happens("SIGUSR1 was not sent: a unikernel has no signal handlers")
        alloc.happens(NO_PROGRAM)
        assert (alloc.task()["State"], alloc.task()["Restarts"]) == ("running", 0), alloc.events()
        assert unit_property(alloc.unit(), "InvocationID") == before
        assert alloc.logs().count("sleeping") == 1


ARCHIVE = f'''
unikernel = "{GUESTS}/tar.spt"
args      = ["stay"]
block "storage" {{ files = ["local/conf"] }}
'''


def outdated(alloc: Allocation) -> bool:
    shown = inspect(alloc.name())
    [disk] = shown["disks"]
    assert ("older than its files" in ok("solo5ctl", "inspect", shown["name"])) is disk["outdated"]
    return bool(disk["outdated"])


def test_inspect_shows_that_an_archive_is_older_than_its_files(jobs: Jobs) -> None:
    with word("archived"):
        [alloc] = jobs.run(hcl("archived", ARCHIVE, task=template("archived", "conf/word", NOOP)))
        alloc.says("member local/conf/word")
        before = unit_property(alloc.unit(), "InvocationID")
        assert not outdated(alloc)
        put("archived", "two")
        rendered(alloc, "conf/word", "two")
        assert outdated(alloc)
        other = alloc.file("guest/local/conf/word").with_name("other")
        other.write_text("three\n")
        put("archived", "one")
        rendered(alloc, "conf/word", "one")
        assert outdated(alloc), "it has one file more"
        other.unlink()
        assert not outdated(alloc)
        assert (alloc.task()["State"], alloc.task()["Restarts"]) == ("running", 0), alloc.events()
        assert unit_property(alloc.unit(), "InvocationID") == before


def test_restart_brings_the_rendered_file_into_the_archive(jobs: Jobs) -> None:
    with word("renewed"):
        [alloc] = jobs.run(hcl("renewed", ARCHIVE, task=template("renewed", "conf/word", '  change_mode = "restart"')))
        alloc.says(member("one"))
        put("renewed", "two")
        alloc.says(member("two"))
        eventually(lambda: alloc.task()["State"] == "running", "it runs again")
        assert alloc.logs().count("member local/conf/word") == 2
        assert not outdated(alloc)


def member(text: str) -> str:
    """Return what the guest prints of the template's file with this word."""
    content = f"{text}\n".encode()
    return f"member local/conf/word type 0 size {len(content)} sha256 {hashlib.sha256(content).hexdigest()}"


def test_what_is_asked_for_as_an_end_is_one(jobs: Jobs) -> None:
    """A signal that ends the task, to which the restart policy applies, and a script with fail_on_error."""
    ending = template("ending", "word", '  change_mode = "signal"\n  change_signal = "SIGTERM"')
    failing = template("failing", "word", script(fail=True))
    with ExitStack() as words:
        for job in ("ending", "failing"):
            words.enter_context(word(job))
        [stopped] = jobs.run(hcl("ending", SLEEPER, group=TWO_STARTS, task=ending))
        [failed] = jobs.run(hcl("failing", SLEEPER, task=failing))
        for alloc in (stopped, failed):
            alloc.says("sleeping")
        for job in ("ending", "failing"):
            put(job, "two")
        stopped.happens("Task restarting")
        eventually(lambda: stopped.logs().count("sleeping") == 2, "it is started anew")
        assert ended("failing") == failed
        assert NO_PROGRAM in " ".join(failed.events())
        assert "Stopped on request" in " ".join(failed.events())
