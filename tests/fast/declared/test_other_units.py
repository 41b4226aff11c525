"""Other units that have the name of a declaration."""

from pathlib import Path

import pytest

from solo5_systemd.base.errors import TakenError
from solo5_systemd.base.names import MARK
from solo5_systemd.declared.other_units import check_effect, check_free, of_generators, unit_files


@pytest.mark.parametrize(
    ("file", "unit"),
    [
        ("web.container", "web.service"),
        ("sub/web.kube", "web.service"),
        ("web@.container", "web@.service"),
        ("web.pod", "web-pod.service"),
        ("web.volume", "web-volume.service"),
        ("web.artifact", "web-artifact.service"),
    ],
)
def test_a_quadlet_is_a_service(tmp_path: Path, file: str, unit: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("[Container]\n")
    assert of_generators((str(tmp_path),), "/nothing") == {unit: path}
    name = unit.removesuffix(".service")
    with pytest.raises(TakenError, match=f"unit {unit} is made of {path} already: expected a name"):
        check_free(f"{name}7" if name.endswith("@") else name, {unit: path}, {})


def test_what_is_no_service_of_the_system_is_none(tmp_path: Path) -> None:
    for file in ("users/web.container", "users/1000/web.container", "web.conf", "init.d/README"):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o644)
    assert of_generators((str(tmp_path), str(tmp_path / "missing")), str(tmp_path / "init.d")) == {}


def test_an_init_script_is_a_service(tmp_path: Path) -> None:
    for file in ("web", "other.sh"):
        (tmp_path / file).touch(mode=0o755)
    found = of_generators((), str(tmp_path))
    assert found == {"web.service": tmp_path / "web", "other.service": tmp_path / "other.sh"}


@pytest.mark.parametrize("unit", ["web.service", "web.socket"])
def test_another_unit_file_has_the_name_and_a_mask_has_none(tmp_path: Path, unit: str) -> None:
    other = tmp_path / unit
    other.symlink_to("/dev/null")
    check_free("web", {}, unit_files([str(tmp_path), "/nothing"]))
    other.unlink()
    other.write_text(f"{MARK} from /etc/solo5/web.unikernel, by hand.\n[Service]\n")
    check_free("web", {}, unit_files([str(tmp_path)]))
    other.write_text("[Service]\n")
    with pytest.raises(TakenError, match=f"unit {unit} is {other} already"):
        check_free("web", {}, unit_files([str(tmp_path), "/nothing"]))
    with pytest.raises(TakenError, match="begins with solo5-"):
        check_free("solo5-web", {}, {})


@pytest.mark.parametrize("place", ["unikernel.d", "web.unikernel.d", "service.d", "web.service.d"])
def test_a_drop_in_without_effect_is_named_with_its_place(tmp_path: Path, place: str) -> None:
    path = tmp_path / place / "memory.conf"
    path.parent.mkdir()
    path.write_text("[Service]\nNice=1\n")
    if "unikernel" not in place:
        check_effect("web", [str(tmp_path)])
        path.write_text("[Service]\nNice=1\n [Unikernel] \nMemory=64M\n")
    with pytest.raises(TakenError, match=f"{path} has no effect on declaration web: .* in /etc/solo5/web.unikernel.d"):
        check_effect("web", [str(tmp_path)])
    check_effect("web", [])
