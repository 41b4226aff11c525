"""The host side of go-plugin, as the tests need it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import grpc
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import StringValue

from solo5_systemd.goplugin.proto import plugin_pb2

_UNLIMITED = [("grpc.max_receive_message_length", -1)]
_GREETER = Path(__file__).parent / "greeter.py"


class Plugin:
    """The greeter's process, and a connection to it after its handshake."""

    def __init__(self, process: subprocess.Popen[bytes], stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.process, self.stdout, self.stderr = process, stdout, stderr
        self.line = stdout.readline().decode()
        self.socket = Path(self.line.split("|")[3]) if self.line else None
        self.host = Host(grpc.insecure_channel(f"unix:{self.socket}", _UNLIMITED)) if self.socket else None

    def logged(self) -> list[dict[str, Any]]:
        """Wait until the plugin has exited, and return all lines of its log."""
        self.process.wait(timeout=30)
        return [json.loads(line) for line in self.stderr]


@dataclass(frozen=True)
class Host:
    channel: grpc.Channel

    def call(self, method: str, request: Message, response: type[Message]) -> Any:
        return self.channel.unary_unary(method, *_codec(request, response))(request, timeout=30)

    def stream(self, method: str, request: Message, response: type[Message]) -> Any:
        return self.channel.unary_stream(method, *_codec(request, response))(request)

    def shut_down(self) -> None:
        self.call("/plugin.GRPCController/Shutdown", plugin_pb2.Empty(), plugin_pb2.Empty)

    def greet(self, whom: str) -> str:
        answer = self.call("/greetings.Greetings/Greet", StringValue(value=whom), StringValue)
        return str(answer.value)

    def greet_often(self, whom: str) -> Any:
        return self.stream("/greetings.Greetings/GreetOften", StringValue(value=whom), StringValue)

    def greet_each(self, *names: str) -> Any:
        requests = (StringValue(value=name) for name in names)
        codec = _codec(StringValue(), StringValue)
        return self.channel.stream_stream("/greetings.Greetings/GreetEach", *codec)(requests)


def _codec(request: Message, response: type[Message]) -> tuple[Any, Any]:
    return type(request).SerializeToString, response.FromString


@contextmanager
def launched(temporary: Path, **changes: str) -> Iterator[Plugin]:
    """Start the greeter as a host does, its environment changed by *changes*."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TMPDIR": str(temporary),
        "GREETER_COOKIE": "crumbs",
        **changes,
    }
    with subprocess.Popen(
        [sys.executable, str(_GREETER)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stderr
        plugin = Plugin(process, process.stdout, process.stderr)
        try:
            yield plugin
        finally:
            if plugin.host:
                plugin.host.channel.close()
            process.kill()
