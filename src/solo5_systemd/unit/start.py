"""What passes between the engine and PID 1 when a unit is started, beside the unit itself."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class UnitFiles:
    """Descriptors handed to a unit with its start; the caller closes its own copies."""

    stdin: int | None = None
    stderr: int | None = None


class JobFailedError(Exception):
    """systemd's job for a unit ended otherwise than done; the engine finds out why."""

    def __init__(self, unit: str, result: str) -> None:
        super().__init__(f"{unit}: {result}")
        self.unit = unit
        self.result = result
