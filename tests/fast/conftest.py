from contextlib import suppress

from tests.settled import no_task_left, pytest_configure, pytest_itemcollected, pytest_runtest_call

__all__ = ["no_task_left", "pytest_configure", "pytest_itemcollected", "pytest_runtest_call"]

# How long an example takes depends on what else the machine does; the test's own timeout is the limit.
with suppress(ModuleNotFoundError):  # in a test machine, where only those run that do without
    from hypothesis import settings

    settings.register_profile("unhurried", deadline=None)
    settings.load_profile("unhurried")
