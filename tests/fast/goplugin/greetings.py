"""A service of every kind of method, made of protobuf's own messages: what a plugin might serve."""

from google.protobuf import descriptor_pb2, descriptor_pool, wrappers_pb2
from google.protobuf.descriptor import ServiceDescriptor

_TEXT = wrappers_pb2.StringValue.DESCRIPTOR.full_name


def _described() -> ServiceDescriptor:
    file = descriptor_pb2.FileDescriptorProto(
        name="greetings.proto", package="greetings", dependency=[wrappers_pb2.DESCRIPTOR.name]
    )
    service = file.service.add(name="Greetings")
    for name, asks, answers in (("Greet", False, False), ("GreetOften", False, True), ("GreetEach", True, True)):
        service.method.add(
            name=name,
            input_type=f".{_TEXT}",
            output_type=f".{_TEXT}",
            client_streaming=asks,
            server_streaming=answers,
        )
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return pool.FindServiceByName("greetings.Greetings")


GREETINGS = _described()
