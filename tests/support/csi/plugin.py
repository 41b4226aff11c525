#!/usr/bin/python3
"""A plugin of the Container Storage Interface for tests: directories for file systems, loop devices for block devices.

    CSI_ENDPOINT=unix:///run/csi.sock plugin.py --volumes DIRECTORY --name NAME

Nomad runs it by raw_exec, and sets CSI_ENDPOINT. Its messages come from descriptors that the build of csi-sanity has
written, so that no generated code has to fit the installed protobuf. It has no state but its directory:

    DIRECTORY/ID/size     bytes
    DIRECTORY/ID/data/    what is mounted as a file system
    DIRECTORY/ID/image    what is behind the loop device
"""

import argparse
import hashlib
import os
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

DESCRIPTORS = Path("/usr/local/share/csi.descriptors")
SIZE = 1 << 20
"""Bytes of a volume without a requested capacity."""

NOT_FOUND, INVALID = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT
EXISTS = grpc.StatusCode.ALREADY_EXISTS


class RefusalError(Exception):
    """An error of the interface: a status, and its text."""


class Plugin:
    """The services Identity, Controller and Node; `new` returns an empty message of csi.v1."""

    def __init__(self, name: str, volumes: Path, new: Callable[..., Any]) -> None:
        self._name = name
        self._volumes = volumes
        self._new = new

    # --- Identity

    def get_plugin_info(self, _: Any) -> Any:
        return self._new("GetPluginInfoResponse", name=self._name, vendor_version="1")

    def get_plugin_capabilities(self, _: Any) -> Any:
        return self._new("GetPluginCapabilitiesResponse", capabilities=[{"service": {"type": "CONTROLLER_SERVICE"}}])

    def probe(self, _: Any) -> Any:
        return self._new("ProbeResponse")

    # --- Controller

    def controller_get_capabilities(self, _: Any) -> Any:
        return self._new("ControllerGetCapabilitiesResponse", capabilities=[{"rpc": {"type": "CREATE_DELETE_VOLUME"}}])

    def create_volume(self, request: Any) -> Any:
        needs(request.name, "a name")
        needs(request.volume_capabilities, "capabilities")
        size = request.capacity_range.required_bytes or request.capacity_range.limit_bytes or SIZE
        identifier = hashlib.sha256(request.name.encode()).hexdigest()[:32]
        volume = self._volumes / identifier
        if volume.exists():
            if int((volume / "size").read_text()) != size:
                raise RefusalError(EXISTS, f"volume {request.name} has another size")
        else:
            (volume / "data").mkdir(parents=True)
            with (volume / "image").open("wb") as image:
                image.truncate(size)
            (volume / "size").write_text(str(size))
        return self._new("CreateVolumeResponse", volume={"volume_id": identifier, "capacity_bytes": size})

    def delete_volume(self, request: Any) -> Any:
        needs(request.volume_id, "a volume")
        if self._is_volume(request.volume_id):
            shutil.rmtree(self._volumes / request.volume_id)
        return self._new("DeleteVolumeResponse")

    def validate_volume_capabilities(self, request: Any) -> Any:
        needs(request.volume_id, "a volume")
        needs(request.volume_capabilities, "capabilities")
        self._volume(request.volume_id)
        return self._new(
            "ValidateVolumeCapabilitiesResponse", confirmed={"volume_capabilities": request.volume_capabilities}
        )

    # --- Node

    def node_get_capabilities(self, _: Any) -> Any:
        return self._new("NodeGetCapabilitiesResponse")

    def node_get_info(self, _: Any) -> Any:
        return self._new("NodeGetInfoResponse", node_id=socket.gethostname())

    def node_publish_volume(self, request: Any) -> Any:
        needs(request.volume_id, "a volume")
        needs(request.target_path, "a target")
        needs(request.HasField("volume_capability"), "a capability")
        volume, target = self._volume(request.volume_id), Path(request.target_path)
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
        return self._new("NodePublishVolumeResponse")

    def node_unpublish_volume(self, request: Any) -> Any:
        needs(request.volume_id, "a volume")
        needs(request.target_path, "a target")
        volume, target = self._volume(request.volume_id), Path(request.target_path)
        if is_mounted(target):
            run("umount", str(target))
        if target.is_dir():
            target.rmdir()
        target.unlink(missing_ok=True)
        for device in self._devices(volume):
            try:
                run("losetup", "--detach", device)  # at once, or when its last user closes it
            except RefusalError:
                if device in self._devices(volume):
                    raise  # and not only closed by its last user since an earlier call
        return self._new("NodeUnpublishVolumeResponse")

    # --- volumes

    def _is_volume(self, identifier: str) -> bool:
        return "/" not in identifier and (self._volumes / identifier / "size").exists()

    def _volume(self, identifier: str) -> Path:
        if not self._is_volume(identifier):
            raise RefusalError(NOT_FOUND, f"volume {identifier} does not exist")
        return self._volumes / identifier

    def _devices(self, volume: Path) -> list[str]:
        return run("losetup", "--noheadings", "--output=NAME", "--associated", str(volume / "image")).split()

    def _device(self, volume: Path) -> str:
        found = self._devices(volume)
        return found[0] if found else run("losetup", "--find", "--show", str(volume / "image")).strip()


def needs(value: object, what: str) -> None:
    if not value:
        raise RefusalError(INVALID, f"the request has not {what}")


def is_mounted(path: Path) -> bool:
    """Return whether a path is a mount point; Path.is_mount() does not find bind mounts in one file system."""
    return any(line.split()[4] == str(path) for line in Path("/proc/self/mountinfo").read_text().splitlines())


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RefusalError(grpc.StatusCode.INTERNAL, f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def messages() -> tuple[descriptor_pool.DescriptorPool, Callable[[Any], Any]]:
    """Return the pool of messages, and a function that returns the class of a descriptor."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        pool.Add(file)
    factory: Any = message_factory
    if hasattr(factory, "GetMessageClass"):  # since protobuf 4.22
        return pool, factory.GetMessageClass
    return pool, factory.MessageFactory(pool).GetPrototype


def handler(plugin: Plugin, service: Any, of: Callable[[Any], Any]) -> grpc.GenericRpcHandler:
    """Return the handlers of those methods of a service that the plugin has."""
    handlers = {}
    for method in service.methods:
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in method.name).lstrip("_")
        act = getattr(plugin, name, None)
        if act is not None:
            handlers[method.name] = grpc.unary_unary_rpc_method_handler(
                answering(act),
                request_deserializer=of(method.input_type).FromString,
                response_serializer=of(method.output_type).SerializeToString,
            )
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def answering(act: Callable[[Any], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        print(act.__name__, str(request).replace("\n", " "), file=sys.stderr, flush=True)
        try:
            return act(request)
        except RefusalError as refusal:
            context.abort(*refusal.args)

    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description="A CSI plugin for tests.")
    parser.add_argument("--volumes", type=Path, required=True)
    parser.add_argument("--name", default="solo5-test")
    options = parser.parse_args()
    options.volumes.mkdir(parents=True, exist_ok=True)
    pool, of = messages()

    def new(name: str, /, **fields: object) -> Any:
        return of(pool.FindMessageTypeByName(f"csi.v1.{name}"))(**fields)

    plugin = Plugin(options.name, options.volumes, new)
    endpoint = os.environ["CSI_ENDPOINT"]
    Path(endpoint.removeprefix("unix://")).unlink(missing_ok=True)
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))  # one request at a time
    for name in ("Identity", "Controller", "Node"):
        service = pool.FindServiceByName(f"csi.v1.{name}")
        server.add_generic_rpc_handlers((handler(plugin, service, of),))
    server.add_insecure_port(endpoint)
    server.start()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    server.stop(None)


signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})  # before threads begin
if __name__ == "__main__":
    main()
