"""What pyproject.toml cannot say: a build begins with the protobuf messages, generated beside their .proto files.

`python3 setup.py proto` generates them alone. They fit the protobuf that they run with because the platform's own
compiler makes them, so they are never committed.
"""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from setuptools import Command, setup
from setuptools.command.build import build
from setuptools.errors import ExecError

_SOURCE = Path(__file__).resolve().parent / "src"


class Proto(Command):
    """Messages only: services are read from their descriptors when a plugin starts."""

    description = "generate the protobuf messages"
    user_options: ClassVar[list[tuple[str, str, str]]] = []

    def initialize_options(self) -> None:
        """There are no options."""

    def finalize_options(self) -> None:
        """There are no options."""

    def run(self) -> None:
        """Generate `*_pb2.py` and, for type checkers, `*_pb2.pyi`."""
        files = sorted(_SOURCE.glob("solo5_systemd/*/proto/*.proto"))
        options = (f"--proto_path={_SOURCE}", f"--python_out={_SOURCE}", f"--pyi_out={_SOURCE}")
        done = subprocess.run([*_compiler(), *options, *map(str, files)], check=False)
        if done.returncode:
            raise ExecError(f"the protobuf compiler failed with exit status {done.returncode}: see its message above.")


class Build(build):
    """Compile the protobuf messages before the package is built."""

    sub_commands: ClassVar = [("proto", None), *build.sub_commands]


def _compiler() -> list[str]:
    """The one that comes with grpcio-tools, as pip installs it for a build; else the one in PATH, as Debian does."""
    if find_spec("grpc_tools"):
        return [sys.executable, "-m", "grpc_tools.protoc"]
    if program := shutil.which("protoc"):
        return [program]
    raise ExecError(
        "no protobuf compiler: install grpcio-tools (pip), or protobuf-compiler and libprotobuf-dev (Debian)."
    )


setup(cmdclass={"build": Build, "proto": Proto})
