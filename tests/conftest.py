"""What holds for the tests of every tier: each one asserts, and how it ended is recorded where that is wanted."""

from pathlib import Path

import pytest

# Before anything of them is imported: an assertion counts where pytest has rewritten it.
pytest.register_assert_rewrite(*(f"tests.{path.stem}" for path in Path(__file__).parent.iterdir() if path.is_dir()))

from tests.ran.recorder import pytest_addoption, pytest_configure  # noqa: E402 - see above

__all__ = ["pytest_addoption", "pytest_configure"]
