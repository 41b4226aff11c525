"""Entry point of `solo5ctl`: runs the verb, and maps exceptions to a message and an exit status."""

import gc
import os
import sys
from collections.abc import Sequence

from solo5_systemd.base.dependencies import dependency_error
from solo5_systemd.base.errors import Solo5Error
from solo5_systemd.cli.context import CancelledError, CommandContext
from solo5_systemd.cli.parser import parse
from solo5_systemd.cli.terminal import standard_screen

EXIT_SIGINT = 128 + 2
EXIT_SIGPIPE = 128 + 13
EXIT_SIGTERM = 128 + 15
EXIT_INTERNAL_ERROR = 125

GC_THRESHOLD = 200_000
"""Objects between two collections of garbage. With Python's 2000, collections are a fifth of `ps` of 500 tasks."""


def main() -> int:
    """Run `solo5ctl` with this process's arguments, and end the process; the console script's entry point.

    While another thread runs, such as one that copies an image, the end is left to the interpreter, which waits for it.
    Otherwise nothing is left to do, and the interpreter's own end is a fifth of a start.
    """
    gc.set_threshold(GC_THRESHOLD)
    status = run(sys.argv[1:], CommandContext(standard_screen()))
    threads = sys.modules.get("threading")  # without it, no thread was started
    if threads is None or threads.active_count() == 1:
        os._exit(status)
    return status


def run(words: Sequence[str], context: CommandContext) -> int:
    """Run one command line, and return the verb's exit status, or that of its error."""
    try:
        if words and words[0].startswith("-"):  # -H is before the verb; else its module is not imported: startup time
            from solo5_systemd.cli.remote import execute_there, split_host

            host, rest = split_host(words)
            if host is not None:
                execute_there(host, rest)
        arguments = parse(words)
        context.screen.colour &= not arguments.no_color
        status: int = arguments.execute(arguments, context)
    except Solo5Error as error:
        context.screen.error(error)
        return error.exit_status
    except ImportError as error:
        return _missing_module(error, context)
    except KeyboardInterrupt:
        return EXIT_SIGINT
    except CancelledError:
        return EXIT_SIGTERM
    except BrokenPipeError:  # such as in `solo5ctl logs web | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the interpreter's flush at exit does not raise again
        return EXIT_SIGPIPE
    except Exception as error:  # noqa: BLE001 - top level: reported as an internal error
        return _internal_error(error, context)
    return status


def _missing_module(error: ImportError, context: CommandContext) -> int:
    """Report a dependency that is not installed; a missing module of solo5_systemd is an internal error."""
    try:
        missing = dependency_error(error)
    except ImportError:
        return _internal_error(error, context)
    context.screen.error(missing)
    return missing.exit_status


def _internal_error(error: Exception, context: CommandContext) -> int:
    """Report a bug in one line, or with its traceback if SOLO5_DEBUG is set."""
    if os.environ.get("SOLO5_DEBUG"):
        raise error
    context.screen.message(f"internal error: {type(error).__name__}: {error}\nFor a traceback, set SOLO5_DEBUG=1.")
    return EXIT_INTERNAL_ERROR
