"""The host's programs that `boot` calls are there: on a bare machine, by what `setup` installs."""

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import bootlib

INSIDE = {"runner.py"}
"""What runs in the machine that was booted."""

BUILT = {"go"}
"""What is taken from a Debian tree."""

CALLS = {"run", "Popen", "_do", "_output"}


def first_words(source: str) -> Iterator[str]:
    """Yield the program of each call whose argv is written out."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        argv = node.args[0]
        first = argv.elts[0] if isinstance(argv, ast.List | ast.Tuple) and argv.elts else argv
        if (
            name in CALLS
            and isinstance(first, ast.Constant)
            and isinstance(first.value, str)
            and " " not in first.value
        ):
            yield first.value


PROGRAMS = {
    word
    for path in Path(bootlib.__path__[0]).glob("*.py")
    if path.name not in INSIDE
    for word in first_words(path.read_text())
} - BUILT


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_a_program_that_boot_calls_is_installed(program: str) -> None:
    assert shutil.which(program), f"{program}: its package is missing in tests/machine/setup"


def test_programs_are_found_in_the_sources() -> None:
    assert {"ip", "mount", "git", "make", "apt-get"} <= PROGRAMS
