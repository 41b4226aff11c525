"""Which unit a task has: a declared task's is `NAME.service`, written by the generator, any other's `solo5-task-NAME`.

    /run/solo5/declared/NAME/    one for each declared task, made with its unit file; of an instance of a template, at
                                 its first start; root's
    /run/solo5/declared/NAME@/   of a template, which is no task

The directory is the only record of which names are declared, so that a unit's name can be derived both ways by any
process, without a call of PID 1.
"""

import os
from collections.abc import Iterator, Mapping

from solo5_systemd.base.decode import Fields, json_document
from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import (
    DECLARED,
    MARK,
    TaskName,
    declared_outcome_target,
    declared_task_of_unit,
    is_instance,
    is_task_name,
    outcome_target,
    task_of_unit,
    task_scope,
    task_service,
    template_of,
)

DIRECTORY = DECLARED
SOURCES, REFUSED = "sources", "refused"
"""The file with the files of a declaration, and the one with the reason why it was refused while its task ran.

An instance has one of them if its declaration is not that of the template alone."""

UPDATE = "update.json"
"""The file with the request of an update, as long as it is under way."""

DROP_IN = "50-update.conf"
"""The drop-in with the image of the last update."""

FIELDS = "fields"
"""The file of the log fields that a start has determined."""

TENDER = "tender"
"""The directory with what the tender of a run writes: a file system of `STDERR_MAX` bytes, not all of /run."""

STDERR = "stderr"
"""The file of the tender's stderr, in that directory; and beside it, that of the last run."""

STDERR_MAX = 64 << 10
"""Bytes; a tender writes a line or two, and one that a guest has taken over as much as it can."""


def declared_service(task: TaskName) -> str:
    """Return the unit of a declared task."""
    return f"{task}.service"


def is_declared(task: TaskName) -> bool:
    """Return whether a task is declared; also of a file that was removed, until its unit is over and its unit file."""
    return os.path.isdir(f"{DIRECTORY}/{task}")  # noqa: PTH112 - for speed


def has_declaration(task: TaskName) -> bool:
    """Return whether a task is declared, or would be: an instance that was not started yet, of a declared template.

    The unit of another name may be one of another program: `getty@tty1`.
    """
    by_template = is_instance(task) and os.path.isdir(f"{DIRECTORY}/{template_of(task)}")  # noqa: PTH112 - for speed
    return by_template or is_declared(task)


def service_of(task: TaskName) -> str:
    """Return the unit of a task that is not a scope."""
    return declared_service(task) if has_declaration(task) else task_service(task)


def units_of(task: TaskName) -> tuple[str, ...]:
    """Return the names that the unit of a task may have."""
    if is_instance(task):  # only declared ones run; systemd has no instances of scopes
        return (service_of(task),)
    own = (declared_service(task),) if is_declared(task) else ()
    return (*own, task_service(task), task_scope(task))


def outcome_targets_of(task: TaskName) -> tuple[str, ...]:
    """Return the names that the outcome target of a task may have; that of an instance outlives its template."""
    if is_instance(task):
        return (declared_outcome_target(task),)
    own = (declared_outcome_target(task),) if is_declared(task) else ()
    return (*own, outcome_target(task))


def declared_task(unit: str) -> TaskName | None:
    """Return the declared task of a unit; None if it is no declared task's."""
    task = declared_task_of_unit(unit)
    return task if task is not None and is_declared(task) else None


def task_of(unit: str) -> TaskName | None:
    """Return the task of a unit; None if it is not a task's."""
    return task_of_unit(unit) or declared_task(unit)


def declared_tasks() -> Iterator[TaskName]:
    """Yield the declared tasks."""
    try:
        names = os.listdir(DIRECTORY)  # noqa: PTH208 - for strings
    except OSError:
        return
    yield from (TaskName(name) for name in names if is_task_name(name))


def declaration_directory(task: TaskName) -> str:
    """Return the directory with what is kept of a task's declaration: its own, or its template's."""
    own = f"{DIRECTORY}/{task}"
    is_own = not is_instance(task) or any(os.path.lexists(f"{own}/{file}") for file in (SOURCES, REFUSED))
    return own if is_own else f"{DIRECTORY}/{template_of(task)}"


def forget_instance(task: TaskName) -> None:
    """Remove what the starts of an instance have made, if a template declares it: it is not to be listed any more.

    Not during an update: its files have what an interrupted one has left. Its end calls this again.
    """
    own = f"{DIRECTORY}/{task}"
    by_template = is_instance(task) and declaration_directory(task) != own
    if by_template and not os.path.lexists(f"{own}/{UPDATE}"):
        import shutil  # imported here for startup time: it imports compressors

        shutil.rmtree(own, ignore_errors=True)


def prepared_fields(task: TaskName) -> Mapping[str, str]:
    """Return the log fields that the last start of a declared task has determined, such as its image's SHA-256."""
    try:
        with open(f"{DIRECTORY}/{task}/{FIELDS}", "rb") as file:  # noqa: PTH123 - for startup time
            fields = Fields(json_document(file.read(), FIELDS))
        return {key: fields.text(key) for key in fields}
    except (OSError, InvalidRequestError):
        return {}


def stderr_lines(task: TaskName) -> list[str]:
    """Return what the tender of a declared task's last run has written to stderr, by lines; for root only."""
    for name in (f"{TENDER}/{STDERR}", STDERR):
        try:
            with open(f"{DIRECTORY}/{task}/{name}", "rb") as file:  # noqa: PTH123 - for startup time
                return file.read(STDERR_MAX).decode("utf-8", "replace").splitlines()
        except OSError:  # the task does not run, or has not yet
            continue
    return []


def is_ours(path: str | os.PathLike[str]) -> bool:
    """Return whether the generator has written a file."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - for startup time
            return file.read(len(MARK)) == MARK.encode()
    except OSError:
        return False
