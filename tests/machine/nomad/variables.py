"""Nomad's variables, whose changes have templates rendered anew."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.machine.nomad.agent import api

DATA = '{{ with nomadVar "nomad/jobs/%s" }}{{ .word }}{{ end }}'
"""What a template renders: the job's word."""


def template(job: str, name: str, mode: str, *, data: str = DATA) -> str:
    """A template of a job's word in `local/NAME`; `mode` is HCL, the change_mode and what belongs to it."""
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
def word(job: str, value: str) -> Iterator[None]:
    """The job's word, until the block is left."""
    put(job, value)
    try:
        yield
    finally:
        api(f"/v1/var/nomad/jobs/{job}", "DELETE")
