"""Files that Nomad writes into a task's directory before its start: templates."""

from tests.machine.conftest import GUESTS
from tests.machine.nomad.jobs import Jobs, ended, hcl, says


def test_template_becomes_a_disk(jobs: Jobs) -> None:
    text = "rendered for render "
    padding = "x" * (512 - len(text) - 1)  # a template's text ends with a newline
    template = f"""
template {{
  data        = <<-END
rendered for {{{{ env "NOMAD_JOB_NAME" }}}} {padding}
END
  destination = "local/sector.img"
  perms       = "666"
}}
"""
    config = f'unikernel = "{GUESTS}/disk.spt"\nargs = ["read"]\nblock "storage" {{\n  source = "local/sector.img"\n}}'
    says(ended(jobs.submit(hcl("render", config, kind="batch", task=template))), text)
