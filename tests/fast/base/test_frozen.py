"""The frozen dataclasses of this package behave as those of the standard library."""

import dataclasses
import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, asdict, field, fields, is_dataclass, replace
from typing import Any

import pytest

from solo5_systemd.base import frozen


class Plain:
    """A class, before it is decorated."""

    name: str
    size: int = 3
    labels: Mapping[str, str] = field(default_factory=dict)


@frozen.dataclass(frozen=True, kw_only=True, slots=True)
class Slotted:
    name: str
    size: int = 3
    labels: Mapping[str, str] = field(default_factory=dict)


@frozen.dataclass(frozen=True, kw_only=True)
class Base:
    name: str


@frozen.dataclass(frozen=True, kw_only=True)
class Derived(Base):
    size: int = 3
    labels: Mapping[str, str] = field(default_factory=dict)


@frozen.dataclass(frozen=True)
class Positional:
    name: str
    size: int = 3
    labels: Mapping[str, str] = field(default_factory=dict)


STANDARD: Any = dataclasses.dataclass(frozen=True)(Plain)
ALIKE: list[Any] = [Slotted, Derived, Positional]


@pytest.mark.parametrize("kind", ALIKE)
def test_instances_are_those_of_a_standard_dataclass(kind: Any) -> None:
    standard, own = STANDARD(name="a", labels={"b": "c"}), kind(name="a", labels={"b": "c"})
    assert asdict(own) == asdict(standard)
    assert [each.name for each in fields(own)] == [each.name for each in fields(standard)]
    assert repr(own).partition("(")[2] == repr(standard).partition("(")[2]
    assert replace(own, size=4) == kind(size=4, labels={"b": "c"}, name="a") != own
    assert is_dataclass(own)
    assert own != standard
    assert pickle.loads(pickle.dumps(own)) == own


@pytest.mark.parametrize("kind", ALIKE)
def test_what_compares_equal_is_one_key(kind: Any) -> None:
    assert len({kind(name="a", labels=()), kind(size=3, name="a", labels=()), kind(name="b", labels=())}) == 2
    assert kind(name="a").labels is not kind(name="a").labels


def test_values_are_in_the_order_of_the_fields() -> None:
    assert [*vars(Derived(labels={}, size=1, name="a"))] == ["name", "size", "labels"]
    assert Positional("a", 4) == Positional(size=4, name="a")


@pytest.mark.parametrize("kind", ALIKE)
def test_an_instance_cannot_be_changed(kind: Any) -> None:
    own = kind(name="a")
    with pytest.raises(FrozenInstanceError, match="field 'name' of"):
        own.name = "b"
    with pytest.raises(FrozenInstanceError):
        del own.name
    assert own.name == "a"


@pytest.mark.parametrize("values", [{"name": "a", "colour": 1}, {"size": 1}])
def test_unknown_and_missing_fields_are_refused(values: dict[str, Any]) -> None:
    for kind in (STANDARD, *ALIKE):
        with pytest.raises(TypeError):
            kind(**values)
