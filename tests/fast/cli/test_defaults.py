"""Values that --help states without the import of the modules that define them."""

from solo5_systemd.base.names import Target
from solo5_systemd.cli.parser import parse
from solo5_systemd.task.option_table import SETTINGS
from solo5_systemd.task.property_types import SIZE
from solo5_systemd.task.workload import DEFAULT_MEMORY, STOP_TIMEOUT_S, StopSignal


def test_what_help_has_without_an_import_is_what_the_modules_define() -> None:
    arguments = parse(("stop", "web"))
    assert (arguments.timeout_s, arguments.signal) == (STOP_TIMEOUT_S, StopSignal.TERM)
    assert f"(default: {SIZE.format(DEFAULT_MEMORY)})" in SETTINGS["Memory"].help
    assert SETTINGS["Tender"].form.split("|") == [*Target]
