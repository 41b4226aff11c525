"""What holds for the tests of every tier: each one asserts, and how it ended is recorded where that is wanted."""

import pytest

# Before anything of them is imported: an assertion counts where pytest has rewritten it. In a tree with __init__.py
# pytest imports by the tree's own name, others import it by its whole one.
pytest.register_assert_rewrite("tests", "machine", "guests", "contract", "cluster")

from tests.ran.recorder import pytest_addoption, pytest_configure  # noqa: E402 - see above

__all__ = ["pytest_addoption", "pytest_configure"]
