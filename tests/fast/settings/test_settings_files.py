from pathlib import Path

import pytest

from solo5_systemd.errors import SettingsError
from solo5_systemd.settings.files import read_settings
from solo5_systemd.settings.model import Settings, parse_settings


def write(directory: Path, **files: str) -> None:
    for name, text in files.items():
        (directory / f"{name}.toml").write_text(text)


def test_no_directory_is_no_setting(tmp_path: Path) -> None:
    assert read_settings(tmp_path / "absent") == parse_settings({}) != Settings()


def test_a_later_file_wins_key_by_key(tmp_path: Path) -> None:
    write(
        tmp_path,
        a="[network.default]\nmtu = 1400\nmasquerade = false",
        b='tender_paths = ["/opt"]\n[network.default]\nmtu = 1300',
    )
    (tmp_path / "c.toml.bak").write_text("ignored")
    settings = read_settings(tmp_path)
    assert settings.tender_paths == ("/opt",)
    assert (settings.networks[0].mtu, settings.networks[0].masquerade) == (1300, False)


def test_a_key_may_build_on_one_of_another_file(tmp_path: Path) -> None:
    write(tmp_path, a='network.default.ipv4 = "10.0.0.0/24"', b='network.default.gateway4 = "10.0.0.9"')
    assert str(read_settings(tmp_path).networks[0].gateway4) == "10.0.0.9"


@pytest.mark.parametrize("text", ["nonsense", "a = ", "\xff"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "b.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingsError, match=r"^\S*/b\.toml cannot be read as TOML: "):
        read_settings(tmp_path)


def test_a_directory_of_that_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "d.toml").mkdir()
    with pytest.raises(SettingsError, match=r"/d\.toml cannot be read"):
        read_settings(tmp_path)


def test_the_file_that_is_wrong_is_named(tmp_path: Path) -> None:
    write(tmp_path, a="network.default.mtu = 1400", b="network.default.mtu = 1")
    with pytest.raises(SettingsError, match=r"^\S*/b\.toml: network\.default\.mtu is 1"):
        read_settings(tmp_path)


def test_where_only_the_sum_of_the_files_is_wrong_the_directory_is_named(tmp_path: Path) -> None:
    write(tmp_path, a='network.a.ipv4 = "10.0.0.0/24"', b='network.b.ipv4 = "10.0.0.0/16"')
    with pytest.raises(SettingsError, match=rf"^{tmp_path}: network\.b\.ipv4 is 10\.0\.0\.0/16, which overlaps"):
        read_settings(tmp_path)
