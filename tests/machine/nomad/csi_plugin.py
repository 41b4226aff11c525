#!/usr/bin/python3
"""A plugin of the Container Storage Interface for tests: directories for file systems, loop devices for block devices.

    CSI_ENDPOINT=unix:///run/csi.sock csi_plugin.py DIRECTORY

Nomad runs it by raw_exec, and sets CSI_ENDPOINT. It has what Nomad calls, and the fields that it uses of the messages
of csi.proto, so that no generated code has to fit the installed protobuf. It has no state but its directory:

    DIRECTORY/ID/data/    what is mounted as a file system
    DIRECTORY/ID/image    what is behind the loop device
"""

import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SIZE = 1 << 20
"""Bytes of a volume without a requested capacity."""

SERVICES = {
    "Identity": ("GetPluginInfo", "GetPluginCapabilities", "Probe"),
    "Controller": ("ControllerGetCapabilities", "CreateVolume", "DeleteVolume", "ValidateVolumeCapabilities"),
    "Node": ("NodeGetCapabilities", "NodeGetInfo", "NodePublishVolume", "NodeUnpublishVolume"),
}

MESSAGES = {
    "GetPluginInfoResponse": ("name 1 string", "vendor_version 2 string"),
    "GetPluginCapabilitiesResponse": ("capabilities 1 PluginCapability*",),
    "PluginCapability": ("service 1 Kind",),
    "Kind": ("type 1 int32",),
    "ControllerGetCapabilitiesResponse": ("capabilities 1 ControllerServiceCapability*",),
    "ControllerServiceCapability": ("rpc 1 Kind",),
    "CreateVolumeRequest": (
        "name 1 string",
        "capacity_range 2 CapacityRange",
        "volume_capabilities 3 VolumeCapability*",
    ),
    "CapacityRange": ("required_bytes 1 int64", "limit_bytes 2 int64"),
    "VolumeCapability": ("block 1 Nothing", "mount 2 Mount", "access_mode 3 Kind"),
    "Mount": ("fs_type 1 string", "mount_flags 2 string*"),
    "Nothing": (),
    "CreateVolumeResponse": ("volume 1 Volume",),
    "Volume": ("capacity_bytes 1 int64", "volume_id 2 string"),
    "DeleteVolumeRequest": ("volume_id 1 string",),
    "ValidateVolumeCapabilitiesRequest": ("volume_id 1 string", "volume_capabilities 3 VolumeCapability*"),
    "ValidateVolumeCapabilitiesResponse": ("confirmed 1 Confirmed",),
    "Confirmed": ("volume_capabilities 2 VolumeCapability*",),
    "NodeGetInfoResponse": ("node_id 1 string",),
    "NodePublishVolumeRequest": (
        "volume_id 1 string",
        "target_path 4 string",
        "volume_capability 5 VolumeCapability",
        "readonly 6 bool",
    ),
    "NodeUnpublishVolumeRequest": ("volume_id 1 string", "target_path 2 string"),
}
"""Field, number and type; `*`: repeated. Enumerations are their numbers. The other messages are empty."""

CONTROLLER_SERVICE = CREATE_DELETE_VOLUME = 1
"""Of PluginCapability.Service and of ControllerServiceCapability.RPC."""


Answer = dict[str, Any]
"""The fields of a response."""


class Plugin:
    """The services Identity, Controller and Node."""

    def __init__(self, volumes: Path) -> None:
        self._volumes = volumes

    # --- Identity

    def get_plugin_info(self, _: Any) -> Answer:
        return {"name": "solo5-test", "vendor_version": "1"}

    def get_plugin_capabilities(self, _: Any) -> Answer:
        return {"capabilities": [{"service": {"type": CONTROLLER_SERVICE}}]}

    def probe(self, _: Any) -> Answer:
        return {}

    # --- Controller

    def controller_get_capabilities(self, _: Any) -> Answer:
        return {"capabilities": [{"rpc": {"type": CREATE_DELETE_VOLUME}}]}

    def create_volume(self, request: Any) -> Answer:
        size = request.capacity_range.required_bytes or request.capacity_range.limit_bytes or SIZE
        identifier = hashlib.sha256(request.name.encode()).hexdigest()[:32]
        volume = self._volumes / identifier
        if not volume.exists():
            (volume / "data").mkdir(parents=True)
            with (volume / "image").open("wb") as image:
                image.truncate(size)
        return {"volume": {"volume_id": identifier, "capacity_bytes": size}}

    def delete_volume(self, request: Any) -> Answer:
        shutil.rmtree(self._volumes / request.volume_id, ignore_errors=True)
        return {}

    def validate_volume_capabilities(self, request: Any) -> Answer:
        return {"confirmed": {"volume_capabilities": request.volume_capabilities}}

    # --- Node

    def node_get_capabilities(self, _: Any) -> Answer:
        return {}

    def node_get_info(self, _: Any) -> Answer:
        return {"node_id": socket.gethostname()}

    def node_publish_volume(self, request: Any) -> Answer:
        volume, target = self._volumes / request.volume_id, Path(request.target_path)
        if not is_mounted(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            if request.volume_capability.HasField("block"):
                target.touch()
                run("mount", "--bind", self._device(volume), str(target))
            else:
                target.mkdir(exist_ok=True)
                run("mount", "--bind", str(volume / "data"), str(target))
            if request.readonly:
                run("mount", "-o", "remount,bind,ro", str(target))
        return {}

    def node_unpublish_volume(self, request: Any) -> Answer:
        volume, target = self._volumes / request.volume_id, Path(request.target_path)
        if is_mounted(target):
            run("umount", str(target))
        if target.is_dir():
            target.rmdir()
        target.unlink(missing_ok=True)
        for device in self._devices(volume):
            try:
                run("losetup", "--detach", device)  # at once, or when its last user closes it
            except subprocess.CalledProcessError:
                if device in self._devices(volume):
                    raise  # and not only closed by its last user since an earlier call
        return {}

    # --- volumes

    def _devices(self, volume: Path) -> list[str]:
        return run("losetup", "--noheadings", "--output=NAME", "--associated", str(volume / "image")).split()

    def _device(self, volume: Path) -> str:
        found = self._devices(volume)
        return found[0] if found else run("losetup", "--find", "--show", str(volume / "image")).strip()


def is_mounted(path: Path) -> bool:
    """Return whether a path is a mount point; Path.is_mount() does not find bind mounts in one file system."""
    return any(line.split()[4] == str(path) for line in Path("/proc/self/mountinfo").read_text().splitlines())


def run(*words: str) -> str:
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout


def classes() -> Callable[[str], Any]:
    """Return a function that returns the class of a message."""
    called = [each for methods in SERVICES.values() for each in methods]
    file = descriptor_pb2.FileDescriptorProto(name="csi.proto", package="csi.v1", syntax="proto3")
    for name in {*MESSAGES, *(f"{each}{way}" for each in called for way in ("Request", "Response"))}:
        message = file.message_type.add(name=name)
        for field, number, kind in map(str.split, MESSAGES.get(name, ())):
            made = message.field.add(name=field, number=int(number))
            made.label = made.LABEL_REPEATED if kind.endswith("*") else made.LABEL_OPTIONAL
            if (one := kind.removesuffix("*")) in MESSAGES:
                made.type, made.type_name = made.TYPE_MESSAGE, f".csi.v1.{one}"
            else:
                made.type = getattr(made, f"TYPE_{one.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    factory: Any = message_factory  # which has the first since protobuf 4.22
    made_of = getattr(factory, "GetMessageClass", None) or factory.MessageFactory(pool).GetPrototype
    return lambda name: made_of(pool.FindMessageTypeByName(f"csi.v1.{name}"))


def handler(plugin: Plugin, method: str, of: Callable[[str], Any]) -> "grpc.RpcMethodHandler[Any, Any]":
    act, response = getattr(plugin, re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower()), of(f"{method}Response")

    def answer(request: Any, _: grpc.ServicerContext) -> Any:
        print(method, str(request).replace("\n", " "), file=sys.stderr, flush=True)
        return response(**act(request))  # what it raises is an error of the call

    return grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=of(f"{method}Request").FromString,
        response_serializer=response.SerializeToString,
    )


def main() -> None:
    volumes = Path(sys.argv[1])
    volumes.mkdir(parents=True, exist_ok=True)
    of, plugin = classes(), Plugin(volumes)
    endpoint = os.environ["CSI_ENDPOINT"]
    Path(endpoint.removeprefix("unix://")).unlink(missing_ok=True)
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))  # one request at a time
    for service, methods in SERVICES.items():
        handlers = {method: handler(plugin, method, of) for method in methods}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"csi.v1.{service}", handlers),))
    server.add_insecure_port(endpoint)
    server.start()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    server.stop(None)


signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})  # before threads begin
if __name__ == "__main__":
    main()
