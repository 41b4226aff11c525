"""A test service with each kind of method, made of protobuf's own messages."""

from google.protobuf import descriptor_pb2, descriptor_pool, wrappers_pb2
from google.protobuf.descriptor import ServiceDescriptor

_TEXT = wrappers_pb2.StringValue.DESCRIPTOR.full_name


def _described() -> ServiceDescriptor:
    file = descriptor_pb2.FileDescriptorProto(
        name="greetings.proto", package="greetings", dependency=[wrappers_pb2.DESCRIPTOR.name]
    )
    service = file.service.add(name="Greetings")
    for name, streams_requests, streams_responses in (
        ("Greet", False, False),
        ("GreetOften", False, True),
        ("GreetEach", True, True),
    ):
        service.method.add(
            name=name,
            input_type=f".{_TEXT}",
            output_type=f".{_TEXT}",
            client_streaming=streams_requests,
            server_streaming=streams_responses,
        )
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return pool.FindServiceByName("greetings.Greetings")


GREETINGS = _described()
