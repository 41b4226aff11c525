"""What Nomad sends, with all that a test does not care about filled in."""

from typing import Any, NamedTuple

import msgpack

from solo5_systemd.base.names import task_service
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.task_options import TaskOptions, task_options
from solo5_systemd.nomad.workload import name_of

ALLOCATION = "3fa85f64-5717-4562-b3fc-2c963f66afa6"
TASK_ID = f"{ALLOCATION}/web/9c1185a5"
NAME = name_of(TASK_ID)
UNIT = task_service(NAME)
NOTHING: tuple[set[str], set[str]] = (set(), set())
"""What a machine holds without tasks."""

SCOPES = ("service", "scope")
"""`allowed_units` for tests of scopes."""


def packed(**keys: object) -> bytes:
    """A job's `config` as Nomad encodes it."""
    data = msgpack.packb(keys)
    assert isinstance(data, bytes)
    return data


def port(label: str, value: int, to: int = 0, host_ip: str = "") -> wire.PortMapping:
    return wire.PortMapping(label=label, value=value, to=to, host_ip=host_ip)


def task_config(
    *ports: wire.PortMapping, memory_mb: int = 64, memory_max_mb: int = 0, **config: object
) -> wire.TaskConfig:
    """A task with the options `config`, of an image that the machine in memory has."""
    return wire.TaskConfig(
        id=TASK_ID,
        name="web",
        msgpack_driver_config=packed(**{"unikernel": "/srv/app", **config}),
        alloc_dir="/alloc",
        alloc_id=ALLOCATION,
        job_name="shop",
        job_id="shop",
        task_group_name="front",
        namespace="default",
        resources=wire.Resources(
            allocated_resources=wire.AllocatedTaskResources(
                memory=wire.AllocatedMemoryResources(memory_mb=memory_mb, memory_max_mb=memory_max_mb)
            ),
            linux_resources=wire.LinuxResources(cpu_shares=500, PercentTicks=0.25),
            ports=ports,
        ),
    )


def in_group(*ports: wire.PortMapping, **config: Any) -> wire.TaskConfig:
    """A task of a group with a network namespace of its own."""
    task = task_config(*ports, **config)
    task.network_isolation_spec.mode = wire.NetworkIsolationSpec.GROUP
    task.network_isolation_spec.path = "/var/run/netns/group"
    return task


def options_of(task: wire.TaskConfig) -> TaskOptions:
    return task_options(task.msgpack_driver_config)


class Fifos(NamedTuple):
    """The two that Nomad reads a task's console from."""

    stdout: str
    stderr: str

    def of(self, task: wire.TaskConfig) -> wire.TaskConfig:
        """The task, with these."""
        task.stdout_path, task.stderr_path = self
        return task
