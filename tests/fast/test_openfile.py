"""An open file is judged by where it lies, never by the path that led to it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.openfile import check_place, place


@contextmanager
def opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_PATH)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "inside").write_text("x")
    (tmp_path / "outside").write_text("x")
    return root


@pytest.mark.parametrize("roots", [(), ("root",), ("elsewhere", "root"), ("link",), ("root/../root/.",)])
def test_a_file_below_a_root_may_be_used_however_the_root_is_written(root: Path, roots: tuple[str, ...]) -> None:
    (root.parent / "link").symlink_to("root")
    with opened(root / "inside") as descriptor:
        check_place("image", descriptor, [str(root.parent / each) for each in roots])
        assert place(descriptor) == str(root / "inside")


@pytest.mark.parametrize("path", ["link", "../outside", "below/outside", "../root-too/inside"])
def test_a_file_elsewhere_is_refused_whatever_leads_to_it(root: Path, path: str) -> None:
    (root / "link").symlink_to("../outside")
    (root / "below").symlink_to("..")
    (root.parent / "root-too").mkdir()
    (root.parent / "root-too" / "inside").write_text("x")
    with opened(root / path) as descriptor, pytest.raises(InvalidRequestError) as caught:
        check_place("image 'x'", descriptor, [str(root), "/srv"])
    place = (root / path).resolve()
    assert (
        caught.value.sentence
        == f"image 'x' leads to '{place}', which may not be used: expected a file below {root} or /srv."
    )


def test_a_link_that_is_changed_after_the_opening_changes_nothing(root: Path) -> None:
    (root / "link").symlink_to("../outside")
    with opened(root / "link") as descriptor:
        (root / "link").unlink()
        (root / "link").symlink_to("inside")
        with pytest.raises(InvalidRequestError, match="leads to '.*/outside', which"):
            check_place("image", descriptor, [str(root)])
