from tests.settled import no_task_left, pytest_configure, pytest_itemcollected, pytest_runtest_call

__all__ = ["no_task_left", "pytest_configure", "pytest_itemcollected", "pytest_runtest_call"]
