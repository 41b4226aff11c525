"""What can go wrong around a machine, as one sentence for the person who started it."""


class MachineError(Exception):
    """The machine could not be made, booted or spoken to."""


class MachineGoneError(MachineError):
    """The machine ended before the command did: it was powered off, crashed or killed."""


class MachineTimeoutError(MachineError):
    """The machine did not boot, or the command did not end, within its time."""
