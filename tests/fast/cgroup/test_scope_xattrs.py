"""Log fields of a scope in an extended attribute of its cgroup."""

from pathlib import Path

import pytest
from tests.support.fakes.attributes import Attributes

from solo5_systemd.cgroup.scope_xattrs import ATTRIBUTE, ScopeFields

GROUP = "/solo5.slice/solo5-task-web.scope"
FIELDS = {"NOMAD_ALLOC_DIR": "/a/b/alloc", "NOTE": "two\nlines and \0 a zero: “é”"}


@pytest.fixture
def attributes(monkeypatch: pytest.MonkeyPatch) -> Attributes:
    return Attributes(monkeypatch)


@pytest.fixture(params=["unified", "hybrid"])
def mount(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A cgroup file system; on a hybrid host it is one level deeper."""
    top = tmp_path if request.param == "unified" else tmp_path / "unified"
    (top / GROUP.lstrip("/")).mkdir(parents=True)
    (top / "cgroup.procs").touch()
    return tmp_path


def test_what_was_written_is_read(attributes: Attributes, mount: Path) -> None:
    marks = ScopeFields(mount)
    assert marks.read(GROUP) == {}
    marks.write(GROUP, FIELDS)
    assert marks.read(GROUP) == FIELDS


def test_a_removed_cgroup_gets_no_attribute(attributes: Attributes, mount: Path) -> None:
    ScopeFields(mount).write("/solo5.slice/other.scope", FIELDS)
    assert attributes.stored == {}


@pytest.mark.parametrize("mark", [b"", b"oops", b"\xff", b"[]", b'{"a": 1}', b'{"a": ["b"]}'])
def test_a_malformed_attribute_gives_no_fields(attributes: Attributes, mount: Path, mark: bytes) -> None:
    marks = ScopeFields(mount)
    marks.write(GROUP, FIELDS)
    [key] = attributes.stored
    assert key[1] == ATTRIBUTE
    attributes.stored[key] = mark
    assert marks.read(GROUP) == {}
