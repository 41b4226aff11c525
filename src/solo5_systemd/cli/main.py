"""The entry of `solo5ctl`: choose the verb, and turn whatever goes wrong into a sentence and an exit status."""

import os
import sys
from collections.abc import Sequence

from solo5_systemd.cli.parser import parse
from solo5_systemd.cli.screen import abandon_output, process_screen
from solo5_systemd.cli.session import Session
from solo5_systemd.errors import Solo5Error

INTERRUPTED = 128 + 2
BROKEN_PIPE = 128 + 13
INTERNAL = 125


def main() -> int:
    return run(sys.argv[1:], Session(process_screen()))


def run(words: Sequence[str], session: Session) -> int:
    """One call; the exit status is the verb's, or the error's (`errors.Solo5Error.exit_status`)."""
    try:
        arguments = parse(words)
        session.screen.colour &= not arguments.no_color
        status: int = arguments.execute(arguments, session)
    except Solo5Error as error:
        session.screen.complain(error)
        return error.exit_status
    except ImportError as error:
        return _lacking(error, session)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        abandon_output()
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the one place where nothing may pass
        return _internal(error, session)
    return status


def _lacking(error: ImportError, session: Session) -> int:
    """A verb's module needs one that is not installed; where it is one of ours, that is a fault."""
    from solo5_systemd.dependencies import blamed

    try:
        lacking = blamed(error)
    except ImportError:
        return _internal(error, session)
    session.screen.complain(lacking)
    return lacking.exit_status


def _internal(error: Exception, session: Session) -> int:
    """A fault of ours: said in a line, and whole to those who ask for it."""
    if os.environ.get("SOLO5_DEBUG"):
        raise error
    session.screen.say(
        f"internal error: {type(error).__name__}: {error}\nTo see where, call it again with SOLO5_DEBUG=1 set."
    )
    return INTERNAL
