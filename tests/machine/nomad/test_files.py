"""Files that Nomad writes into a task's directory before its start: artifacts and templates."""

import hashlib

from tests.machine.conftest import GUESTS, ok
from tests.machine.nomad.jobs import Jobs, allocation, ended, hcl, says, status


def artifact(source: str, checksum: str) -> str:
    return f"""
artifact {{
  source      = "{source}"
  destination = "local/hello.spt"
  mode        = "file"
  options {{
    checksum = "sha256:{checksum}"
  }}
}}
"""


def test_image_comes_by_artifact(jobs: Jobs, web: str) -> None:
    checksum = hashlib.sha256((GUESTS / "hello.spt").read_bytes()).hexdigest()
    config = 'unikernel = "local/hello.spt"\nargs = ["fetched"]'
    alloc = ended(jobs.submit(hcl("fetch", config, kind="batch", task=artifact(f"{web}/hello.spt", checksum))))
    assert allocation(alloc)["ClientStatus"] == "complete", status(alloc)
    says(alloc, "fetched")
    assert "hello.spt" in ok("nomad", "alloc", "fs", alloc, "guest/local/")


def test_artifact_with_another_checksum_is_not_run(jobs: Jobs, web: str) -> None:
    config = 'unikernel = "local/hello.spt"'
    alloc = ended(jobs.submit(hcl("forged", config, kind="batch", task=artifact(f"{web}/hello.spt", "0" * 64))))
    assert allocation(alloc)["ClientStatus"] == "failed"
    assert "checksum" in status(alloc).lower()


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
