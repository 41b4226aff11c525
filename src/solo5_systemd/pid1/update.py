"""solo5-update@NAME.service: updates a declared task.

    update NAME                 the update that `solo5ctl update` has requested, or that of `systemctl reload NAME`
    update --end NAME           after its end: finishes or rolls back an interrupted update
    update --last-end NAME      the same, where that has failed or was killed

The unit is started once the new guest has the published ports, and runs until the update is over.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from solo5_systemd.base.declared_units import DROP_IN, declared_service, forget_instance, is_declared, prepared_fields
from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError, Solo5Error
from solo5_systemd.base.names import TaskName, declared_outcome_target, is_instance, prepare_service, task_name
from solo5_systemd.declared.declaration import Declaration, parse_declaration
from solo5_systemd.declared.files import host_names, read_sources
from solo5_systemd.declared.syntax import Source, parse_file
from solo5_systemd.declared.update_files import Phase, UpdateFiles, sha256
from solo5_systemd.declared.update_request import READY_TIMEOUT_S, ready_by
from solo5_systemd.engine.restart import StoppedError
from solo5_systemd.engine.runtime import Runtime, connect
from solo5_systemd.engine.update import Updater
from solo5_systemd.image.store import manifest_of
from solo5_systemd.pid1.kept_declarations import is_active, kept_declaration, kept_refusal, remove_if_gone, unseen
from solo5_systemd.settings.files import read_settings
from solo5_systemd.task.settings import SECTION
from solo5_systemd.unit.state import OVER


class ImageSwitch:
    """Changes the image of a declaration to `image`, by its drop-in and a daemon-reload; empty: it is not changed."""

    def __init__(self, name: TaskName, files: UpdateFiles, runtime: Runtime, image: str = "") -> None:
        self._name = name
        self._files = files
        self._units = runtime.backends.units
        self._image = image
        self._digest = sha256(image)

    async def switch(self) -> None:
        """Have the next start use the new image. If that fails, the declaration is as before."""
        check_in_effect(self._name)
        if sha256(self._image) != self._digest:
            raise HostError(f"{self._image} was changed during the update.", "Repeat the update.")
        await asyncio.to_thread(self._files.keep, prepared_fields(self._name).get("SOLO5_IMAGE", ""))
        declared = declared_image(self._name, self._files)
        if self._image == declared:  # without a drop-in, later edits of Image= take effect as usual
            self._files.remove_drop_in()
        else:
            self._files.set_image(self._image, declared, lasting=True)
        try:
            await self._units.reload()
            check_in_effect(self._name)  # the generator may have left all as it was, such as without its lock in time
        except BaseException:
            self._files.unset_image()
            with suppress(Solo5Error):  # it may have taken effect, though the reply is late or lost
                await asyncio.shield(self._units.reload())
            raise

    async def revert(self) -> None:
        """Have the next start use the image that ran before."""
        self._files.unset_image()
        await self._units.reload()
        replaced = self._files.kept()
        # The new image may have replaced the file that the declaration names.
        if replaced is not None and sha256(_declared(self._name).workload.image) != replaced.sha256:
            self._files.set_image(replaced.present, declared_image(self._name, self._files), lasting=False)
            await self._units.reload()


async def update(name: TaskName) -> None:
    """Update a task; raises Solo5Error where it does not run the new image."""
    files = UpdateFiles(name)
    try:
        async with connect(read_settings) as runtime:
            if files.phase is not None:  # of an update whose end was killed as well
                await _end(runtime, name, _declared(name), files)
            check_in_effect(name)
            declaration = _declared(name)
            if not files.under_way:  # by `systemctl reload`: there is a request as long as an update is under way
                files.write_request()
            request = files.request(declaration.update)
            image = request.image or _present_image(files, declaration)
            _check_precedence(name, image, files)
            images = ImageSwitch(name, files, runtime, image)
            updater = _updater(runtime, name, declaration, images, files)
            await updater.ensure_runs()
            old = manifest_of(str(files.running_image))
            try:
                with unseen(kept_declaration(name).sources):
                    await updater.update(declaration.workload, request, declaration.update.ready, old)
            except Solo5Error as error:
                if files.phase is not Phase.DRAINING:  # in that phase, the task runs the new image already
                    raise
                files.step(f"the rest of the update is repeated: {error}")  # by ExecStopPost=
    except Solo5Error as error:
        files.failed(error)
        raise
    files.log(f"task {name} is updated", end=0)


async def end(name: TaskName, *, is_last: bool = False) -> None:
    """Finish or roll back an interrupted update: the task has the new image, or the earlier one.

    It raises if neither succeeds; a guest beside the task has its ports then. The record of the update stays, unless
    this is the last attempt: an operator has to start the task.
    """
    files = UpdateFiles(name)
    phase, is_over = files.phase, is_last
    try:
        if phase is not None:
            async with connect(read_settings) as runtime:
                declaration = None
                with suppress(Solo5Error):  # its file may have been removed meanwhile
                    declaration = _declared(name)
                await _end(runtime, name, declaration, files)
            files.step(f"interrupted ({phase}), now finished or rolled back")
        is_over = True
    except Solo5Error as error:
        files.failed(error)
        raise
    finally:
        if is_over:
            files.end()
            if not is_active(declared_service(name), prepare_service(name)):
                await asyncio.to_thread(remove_if_gone, name)
            if is_instance(name):  # it may have been removed during its update
                async with connect(read_settings) as runtime:
                    if await runtime.backends.units.active_state(declared_outcome_target(name)) in OVER:
                        forget_instance(name)


def _updater(
    runtime: Runtime, name: TaskName, declaration: Declaration | None, images: ImageSwitch, files: UpdateFiles
) -> Updater:
    publishes = declaration is not None and bool(declaration.workload.publish)
    return Updater(runtime, name, declared_service(name), images, files, publishes=publishes)


async def _end(runtime: Runtime, name: TaskName, declaration: Declaration | None, files: UpdateFiles) -> None:
    images = ImageSwitch(name, files, runtime)
    updater = _updater(runtime, name, declaration, images, files)
    # In these phases the task has one image for good, and only the guest beside it is left over.
    if declaration is None or files.phase in (Phase.BESIDE, Phase.DRAINING):
        await updater.abandon()
    else:
        request = files.request(declaration.update)
        condition = ready_by(request.ready, await updater.ports())
        try:
            await updater.complete(condition, request.timeout)
        except StoppedError:  # the operator has stopped the task: it stays so
            await images.revert()
            await updater.abandon()
        except Solo5Error:
            await images.revert()
            usual = ready_by(declaration.update.ready, await updater.ports())
            with suppress(StoppedError):
                await updater.complete(usual, declaration.update.timeout or READY_TIMEOUT_S, restart=True)
        else:
            await (asyncio.to_thread(files.remember) if files.switched else images.revert())
    files.settle()


def check_in_effect(name: TaskName) -> None:
    """Check that the files of a declaration are those of the last daemon-reload, which has not refused them.

    The daemon-reload of an update would put edits into effect that were not checked, without a way back.
    """
    present = read_sources(name)
    _parsed(name, present)  # for its error, with the line: of one that was refused, no sources are kept
    if present != tuple(kept_declaration(name).sources):
        raise InvalidRequestError(
            f"the declaration of task {name} has changed since the last daemon-reload: expected the one in effect.",
            "To update the task with the changes: systemctl daemon-reload, and then the same command.",
        )
    if sentence := kept_refusal(name):
        raise InvalidRequestError(sentence)


def declared_image(name: TaskName, files: UpdateFiles) -> str:
    """Return the image of a declaration in effect without the drop-in of an update; empty without one."""
    with suppress(Solo5Error):
        sources = [source for source in kept_declaration(name).sources if source.path != str(files.drop_in)]
        return _parsed(name, sources).workload.image
    return ""


def _present_image(files: UpdateFiles, declaration: Declaration) -> str:
    """Return the image of a request without one: that of the last update, until the declaration has another one."""
    declared = declared_image(declaration.workload.name, files)
    if not declared or not files.takes_declared(declared):
        return declaration.workload.image
    files.step(f"Image={declared} was changed since the last update, and takes the place of {files.drop_in}")
    return declared


def _check_precedence(name: TaskName, image: str, files: UpdateFiles) -> None:
    """Refuse an image that has to be written to the drop-in of an update, if another drop-in comes after it."""
    if image == declared_image(name, files):  # no drop-in is written for it
        return
    for line in (line for source in kept_declaration(name).sources[1:] for line in parse_file(source)):
        if (line.section, line.key) == (SECTION, "Image") and Path(line.path).name > DROP_IN:
            raise line.error(
                f"Image= has precedence over that of {files.drop_in}: expected it in a file before that one.",
                "Give the file a lower number, and then: systemctl daemon-reload",
            )


def _declared(name: TaskName) -> Declaration:
    """Return the declaration as of the last daemon-reload."""
    return _parsed(name, kept_declaration(name).sources)


def _parsed(name: TaskName, sources: Sequence[Source]) -> Declaration:
    return parse_declaration(name, sources, host=host_names(), served=read_settings().served)


def main(words: Sequence[str]) -> int:
    """Update, or end an update; return the exit status."""
    ends: Mapping[str, Callable[[TaskName], Coroutine[None, None, None]]] = {
        "--end": end,
        "--last-end": partial(end, is_last=True),
    }
    act = ends.get("".join(words[:1]), update)
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    try:
        name = task_name(words[-1])
        if not is_declared(name):
            raise NotFoundError(f"no task {name!r} is declared in /etc/solo5.")
        asyncio.run(act(name))
    except Solo5Error as error:
        print(error, file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
