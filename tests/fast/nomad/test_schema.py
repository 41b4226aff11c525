"""The schemas: what the agent can digest, and what is read of it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.fast.nomad.values import packed

from solo5_systemd.base.errors import Solo5Error
from solo5_systemd.nomad.plugin_config import PLUGIN, plugin_config
from solo5_systemd.nomad.proto.hcl_spec_pb2 import Spec
from solo5_systemd.nomad.task_options import TASK, task_options

TYPES = {"string", "list(string)", "number", "bool"}
ODD = 1.5
"""Right for no key: no text, no list, no table, no whole number."""


def nested(spec: Spec) -> Iterator[Spec]:
    """The specification and all below it."""
    yield spec
    match spec.WhichOneof("block"):
        case "object":
            below = list(spec.object.attributes.values())
        case "block_value":
            below = [spec.block_value.nested]
        case "block_map":
            below = [spec.block_map.nested]
        case _:
            below = []
    for each in below:
        yield from nested(each)


@pytest.mark.parametrize("schema", [PLUGIN, TASK], ids=["plugin", "task"])
def test_a_schema_is_one_that_the_agent_survives(schema: Spec) -> None:
    """Its types are complete, a block has something nested, a map a label, and each key one name inside and out."""
    assert schema.WhichOneof("block") == "object"
    for spec in nested(schema):
        match spec.WhichOneof("block"):
            case "Attr":
                assert spec.Attr.type in TYPES
            case "block_attrs":
                assert spec.block_attrs.type == "string"
            case "block_map":
                assert (list(spec.block_map.labels), spec.block_map.HasField("nested")) == (["name"], True)
            case "block_value":
                assert spec.block_value.HasField("nested")
            case kind:
                assert kind == "object"
        for key, value in spec.object.attributes.items():
            assert getattr(value, value.WhichOneof("block") or "").name == key


def paths(spec: Spec, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where a job or an operator can write something, with labels that stand for any."""
    for key, value in spec.object.attributes.items():
        here = (*above, key)
        match value.WhichOneof("block"):
            case "block_value":
                yield from paths(value.block_value.nested, here)
            case "block_map":
                yield from paths(value.block_map.nested, (*here, "one"))
            case "block_attrs":
                yield (*here, "TasksMax")
            case _:
                yield here


def document(path: tuple[str, ...], value: object) -> dict[str, Any]:
    inner: object = value
    for key in reversed(path[1:]):
        inner = {key: inner}
    return {path[0]: inner}


READERS: list[tuple[Spec, Callable[[bytes], object], str, dict[str, Any]]] = [
    (PLUGIN, plugin_config, "plugin.solo5.config", {}),
    (TASK, task_options, "config", {"unikernel": "a"}),
]


@pytest.mark.parametrize("schema, read, where, least", READERS, ids=["plugin", "task"])
def test_every_key_of_the_schema_is_read(
    schema: Spec, read: Callable[[bytes], object], where: str, least: dict[str, Any]
) -> None:
    written = list(paths(schema))
    assert len(written) > 10
    for path in written:
        with pytest.raises(Solo5Error) as caught:
            read(packed(**least | document(path, ODD)))
        assert str(caught.value).startswith(f"{where}.{'.'.join(path)} is 1.5: expected")


@pytest.mark.parametrize("schema, read, where, least", READERS, ids=["plugin", "task"])
def test_every_key_that_is_read_is_in_the_schema(
    schema: Spec, read: Callable[[bytes], object], where: str, least: dict[str, Any]
) -> None:
    tables = {path[:-1] for path in paths(schema) if path[-1] != "TasksMax"}
    assert () in tables
    for table in tables:
        with pytest.raises(Solo5Error, match="is not a known key") as caught:
            read(packed(**least | document((*table, "unheard-of"), 1)))
        known = str(caught.value).partition("expected one of ")[2].rstrip(".").split(", ")
        keys = {path[len(table)] for path in paths(schema) if path[: len(table)] == table}
        assert set(known) == keys


def test_what_a_job_must_say_is_the_image() -> None:
    required = {spec.Attr.name for spec in nested(TASK) if spec.Attr.required}
    assert required == {"unikernel"}
    assert not [spec for spec in nested(PLUGIN) if spec.Attr.required]
