"""Values as another program may write them: documents of any shape, and sound ones with something changed."""

import copy
from typing import Any

from hypothesis import strategies as st

HOSTILE_TEXTS = (
    "", " ", "\n", "a\nb", "a\r", "a\x00b", "\x1b[2J", "\u2028", "\ud800", "\\", "a\\", "%s", "${x}", "{}", "'", '"',
    "../..", "/dev/sda", "1" * 5000, "9" * 400 + "s", "x" * 10_000, "1e999", "NaN", "-1", "0x10", "١", "256.1.1.1",
    "10.0.0.1/33", "10.0.0.0/8", "ff:ff:ff:ff:ff:ff", "02:00:00:00:00:01", "tcp", "default", "reserved",
)  # fmt: skip
TEXTS = st.sampled_from(HOSTILE_TEXTS) | st.text(max_size=20)
NUMBERS = st.sampled_from([0, 1, -1, 65535, 65536, 1 << 31, (1 << 53) + 1, (1 << 63) - 1]) | st.integers(
    -(1 << 63), (1 << 64) - 1
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(), TEXTS)
DOCUMENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=12
)


@st.composite
def changed(draw: st.DrawFn, sound: Any, values: st.SearchStrategy[Any] = DOCUMENTS) -> Any:
    """Return a document like a sound one, in which one to three values, at any depth, are others, missing or added."""
    document = copy.deepcopy(sound)
    for _ in range(draw(st.integers(1, 3))):
        place = document
        while isinstance(place, dict | list) and place:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = draw(st.sampled_from(keys))
            if not isinstance(place[key], dict | list) or not place[key] or draw(st.booleans()):
                _change(draw, place, key, values)
                break
            place = place[key]
    return document


def _change(draw: st.DrawFn, place: Any, key: Any, values: st.SearchStrategy[Any]) -> None:
    what = draw(st.sampled_from(("replace", "remove", "add")))
    if what == "replace":
        place[key] = draw(values)
    elif what == "remove":
        del place[key]
    elif isinstance(place, dict):
        place[draw(TEXTS)] = draw(values)
    else:
        place.insert(key, draw(values))
