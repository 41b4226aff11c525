"""`@dataclass(frozen=True)` for classes that share their methods: none is written and compiled for each.

The standard library's takes 0.3 ms for a class. A start of a task imports some ninety, which was an eighth of the run
time of `solo5ctl run --detach`. `fields`, `replace`, `asdict` and `is_dataclass` take these classes as well.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:  # for type checkers, it is the one of the standard library
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool, kw_only: bool = False, slots: bool = False) -> Callable[[type], type]:
        """Return the decorator of a class with fields, whose instances are compared by value and never change."""
        assert frozen  # noqa: S101 - for any other class, there is the standard library's
        bare = dataclasses.dataclass(init=False, repr=False, eq=False, match_args=False, kw_only=kw_only, slots=slots)
        return lambda kind: _complete(bare(kind))


def _complete(kind: Any) -> Any:
    """Add the shared methods to a class, and what they need."""
    fields = kind.__dataclass_fields__
    kind.__frozen_defaults__ = {
        name: _ABSENT if each.default is MISSING else each.default for name, each in fields.items()
    }
    kind.__frozen_factories__ = {
        name: each.default_factory for name, each in fields.items() if each.default_factory is not MISSING
    }
    kind.__frozen_values__ = attrgetter(*fields, "__class__")
    for name, method in _METHODS.items():
        setattr(kind, name, method)
    return kind


_ABSENT = object()
"""The default of a field without one: MISSING can be a value."""

_set = object.__setattr__


def _init(self: Any, *given: object, **named: object) -> None:
    kind = self.__class__
    defaults = kind.__frozen_defaults__
    if given:
        named = {**dict(zip(defaults, given, strict=False)), **named}
    values = {**defaults, **named}
    for name, factory in kind.__frozen_factories__.items():
        if name not in named:
            values[name] = factory()
    if len(values) > len(defaults):
        raise TypeError(f"{kind.__name__} has no field {', '.join(named.keys() - defaults.keys())}")
    for name, value in values.items():
        if value is _ABSENT:
            raise TypeError(f"{kind.__name__} is made without its field {name}")
        _set(self, name, value)


def _set_state(self: Any, state: Any) -> None:
    """Restore what `pickle` has stored."""
    for name, value in (state[1] if isinstance(state, tuple) else state).items():
        _set(self, name, value)


def _refuse(self: Any, name: str, *_value: object) -> NoReturn:
    raise FrozenInstanceError(f"field {name!r} of {self.__class__.__name__} cannot be changed")


def _repr(self: Any) -> str:
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__frozen_defaults__)
    return f"{self.__class__.__qualname__}({shown})"


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self.__frozen_values__(self) == self.__frozen_values__(other)


def _hash(self: Any) -> int:
    return hash(self.__frozen_values__(self))


_METHODS: dict[str, Callable[..., Any]] = {
    "__init__": _init,
    "__setstate__": _set_state,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
}
