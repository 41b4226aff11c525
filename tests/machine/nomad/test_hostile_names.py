"""Names and properties of a job hold a command for root: after a daemon-reload it is no directive."""

from pathlib import Path

from tests.machine.conftest import systemctl, unit_property
from tests.machine.nomad.jobs import SLEEPER, Jobs, ended, hcl, refusal, unit

EXECUTED = Path("/run/executed")
HOSTILE = rf"x\n[Service]\nTemporaryFileSystem=\nBindPaths=\nExecStopPost=+/usr/bin/touch {EXECUTED}\n#"
DEVICE = f'{SLEEPER}\nproperties {{\n  IOReadBandwidthMax = "/dev/{HOSTILE} 1M"\n}}'


def test_names_and_properties_of_a_job_are_no_directives(jobs: Jobs) -> None:
    named = hcl("named", SLEEPER, job=f'name = "{HOSTILE}"').replace('group "group"', f'group "{HOSTILE}"')
    [alloc] = jobs.run(named)
    limited = ended(jobs.submit(hcl("limited", DEVICE, kind="batch")))
    service = unit(alloc)
    systemctl("daemon-reload")
    assert unit_property(service, "ExecStopPost") == ""
    assert unit_property(service, "TemporaryFileSystem") != ""
    assert unit_property(service, "Description").startswith(r"Nomad task x\x0a[Service]\x0aTemporaryFileSystem=\x0a")
    assert "config.properties.IOReadBandwidthMax may not be set by a job" in refusal(limited)
    jobs.purge()
    assert not EXECUTED.exists()
