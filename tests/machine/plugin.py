"""The plugin's process, launched as Nomad does, and its first answers over the handshake's socket."""

import json
import os
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import msgpack
from tests.machine.taken_away import without

from solo5_systemd.nomad.proto import base_pb2 as base
from solo5_systemd.nomad.proto import driver_pb2 as wire

PLUGIN = "/usr/lib/nomad/plugins/solo5"
COOKIE = "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255"
PATIENCE = 120.0
_PACKAGE = "/hashicorp.nomad.plugins"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a launched plugin did. Without a handshake, its line on stdout, there is no fingerprint."""

    handshake: str
    log: str
    status: int
    health: "wire.FingerprintResponse.HealthState | None" = None
    description: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def logged(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.log.splitlines()]


def fingerprinted(gone: Collection[Path], config: Mapping[str, object]) -> Answer:
    """Launch the plugin without some files, configure it, take its first fingerprint, and have it end."""
    with subprocess.Popen(
        without(gone, [PLUGIN]), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stderr
        line = process.stdout.readline()
        found = _first(line.split("|")[3], config) if line else None
        process.terminate()
        log = process.stderr.read()
        status = process.wait(PATIENCE)
    answer = Answer(handshake=line, log=log, status=status)
    if found is None:
        return answer
    return replace(
        answer,
        health=found.health,
        description=found.health_description,
        attributes={key: value.string_val for key, value in found.attributes.items()},
    )


def environment() -> dict[str, str]:
    """Return what Nomad launches a plugin with."""
    return os.environ | {"NOMAD_PLUGIN_MAGIC_COOKIE": COOKIE, "PLUGIN_PROTOCOL_VERSIONS": "2"}


def configure(channel: grpc.Channel, config: Mapping[str, object]) -> None:
    """Call SetConfig."""
    request = base.SetConfigRequest(msgpack_config=msgpack.packb(config))
    channel.unary_unary(
        f"{_PACKAGE}.base.proto.BasePlugin/SetConfig",
        base.SetConfigRequest.SerializeToString,
        base.SetConfigResponse.FromString,
    )(request, timeout=PATIENCE)


def method(channel: grpc.Channel, name: str, request: Any, response: Any) -> Callable[..., Any]:
    """Return a method of the driver that takes one message and returns one."""
    path = f"{_PACKAGE}.drivers.proto.Driver/{name}"
    call: Callable[..., Any] = channel.unary_unary(path, request.SerializeToString, response.FromString)
    return call


def _first(socket: str, config: Mapping[str, object]) -> wire.FingerprintResponse:
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        configure(channel, config)
        answers = channel.unary_stream(
            f"{_PACKAGE}.drivers.proto.Driver/Fingerprint",
            wire.FingerprintRequest.SerializeToString,
            wire.FingerprintResponse.FromString,
        )(wire.FingerprintRequest(), timeout=PATIENCE)
        first = next(iter(answers))
        answers.cancel()
    assert isinstance(first, wire.FingerprintResponse)
    return first
