"""Values that --help states without the import of the modules that define them."""

from solo5_systemd.cli.parser import parse
from solo5_systemd.cli.usage_table import SORT_KEYS
from solo5_systemd.cli.verbs.stats import SORTS
from solo5_systemd.image.manifest import Target
from solo5_systemd.workload import DEFAULT_MEMORY, STOP_TIMEOUT_S, StopSignal


def test_the_sort_keys_are_those_of_the_table() -> None:
    assert ("name", *SORT_KEYS) == SORTS


def test_the_defaults_of_a_stop_are_those_of_a_workload() -> None:
    arguments = parse(("stop", "web"))
    assert (arguments.time, arguments.signal) == (STOP_TIMEOUT_S, StopSignal.TERM)


def test_the_defaults_of_a_run_are_those_of_a_workload() -> None:
    assert parse(("run", "web.spt")).memory == DEFAULT_MEMORY
    for target in Target:
        assert parse(("run", "--tender", target.value, "web.spt")).tender == target.value
