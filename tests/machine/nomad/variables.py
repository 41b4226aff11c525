"""Nomad variables, whose changes make Nomad render templates again."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.machine.nomad.agent import api

DATA = '{{ with nomadVar "nomad/jobs/%s" }}{{ .word }}{{ end }}'
"""What a template renders: the job's word."""


def template(job: str, name: str, mode: str, *, data: str = DATA) -> str:
    """Return a template of a job's variable in `local/NAME`; `mode` is the HCL of its change_mode."""
    return f"""
template {{
  data        = <<-END
{data % job}
END
  destination = "local/{name}"
  splay       = "0s"
{mode}
}}
"""


def put(job: str, word: str) -> None:
    path = f"nomad/jobs/{job}"
    api(f"/v1/var/{path}", "PUT", {"Path": path, "Items": {"word": word}})


@contextmanager
def word(job: str) -> Iterator[None]:
    """Set the job's variable to `one` while the block runs."""
    put(job, "one")
    try:
        yield
    finally:
        api(f"/v1/var/nomad/jobs/{job}", "DELETE")
