import time
from pathlib import Path

import pytest

from solo5_systemd.base.errors import SettingsError
from solo5_systemd.settings import files
from solo5_systemd.settings.files import CachedSettings, read_settings
from solo5_systemd.settings.solo5_toml import Settings, parse_settings


@pytest.fixture(autouse=True)
def public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(files, "ETC", tmp_path)
    monkeypatch.setattr(files, "RUN", tmp_path / "run")


def write(directory: Path, **texts: str) -> None:
    for name, text in texts.items():
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


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        *(
            ({"a": "network.default.mtu = 1400", "b": text}, r"/b\.toml cannot be read as TOML: ")
            for text in ("a", "b =")
        ),
        ({"a": "network.default.mtu = 1400", "b": "network.default.mtu = 1"}, r"/b\.toml: network\.default\.mtu is 1"),
        (
            {"a": 'network.a.ipv4 = "10.0.0.0/24"', "b": 'network.b.ipv4 = "10.0.0.0/16"'},
            r": network\.b\.ipv4 is 10\.0\.0\.0/16, which overlaps",
        ),
    ],
)
def test_the_file_that_is_wrong_is_named_or_the_directory_where_only_the_sum_is(
    tmp_path: Path, texts: dict[str, str], words: str
) -> None:
    write(tmp_path, **texts)
    with pytest.raises(SettingsError, match=f"^{tmp_path}{words}"):
        read_settings(tmp_path)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_bytes(b"\xff")
    with pytest.raises(SettingsError, match=r"^\S*/b\.toml cannot be read as TOML: "):
        read_settings(tmp_path)


def test_a_value_is_not_quoted_from_a_file_that_not_everybody_may_read(tmp_path: Path) -> None:
    write(tmp_path, a="network.default.mtu = 1")
    (tmp_path / "a.toml").chmod(0o640)
    with pytest.raises(SettingsError, match=r"/a\.toml: network\.default\.mtu is not valid: expected a whole number"):
        read_settings(tmp_path)
    write(tmp_path, a='network.a.ipv4 = "10.0.0.0/24"', b='network.b.ipv4 = "10.0.0.0/16"')
    with pytest.raises(SettingsError, match=rf"^{tmp_path}: network\.b\.ipv4 is not valid: expected a range of"):
        read_settings(tmp_path)


@pytest.mark.parametrize("place", ["run", "etc", "etc/a.toml"])
def test_settings_that_others_may_write_are_refused(tmp_path: Path, place: str) -> None:
    for name in ("run", "etc"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, a="reserved_ports = [22]")
    assert read_settings(tmp_path / "etc", tmp_path / "run").reserves(22)
    (tmp_path / place).chmod(0o777)
    with pytest.raises(SettingsError, match=rf"{tmp_path / place} may be changed by every user"):
        read_settings(tmp_path / "etc", tmp_path / "run")


def test_a_long_running_process_parses_unchanged_files_once(
    tmp_path: Path, settled: None, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    etc, run = tmp_path / "etc", tmp_path / "run"
    etc.mkdir()
    monkeypatch.setattr(files, "ETC", etc)
    settings = CachedSettings()
    assert settings().reserved_ports == ()  # without a file, and without the directory of this boot
    write(etc, a="reserved_ports = [22]")
    assert settings() is settings()
    assert settings().reserves(22)
    assert parsed == ["a.toml"]
    write(etc, a="reserved_ports = [22, 23]")
    assert settings().reserves(23)
    run.mkdir()
    write(run, nomad="[network.back]")
    assert [network.name for network in settings().networks] == ["default", "back"]
    (etc / "a.toml").unlink()
    assert not settings().reserves(22)
    assert parsed == ["a.toml", "a.toml", "nomad.toml", "a.toml", "nomad.toml"]


def test_a_file_that_has_just_changed_is_parsed_each_time(tmp_path: Path, parsed: list[str]) -> None:
    """Its times may not reveal the next change."""
    settings = CachedSettings()
    for port in range(10, 30):
        write(tmp_path, a=f"reserved_ports = [{port}]")
        assert settings().reserves(port)
    assert len(parsed) == 20


def test_a_second_change_within_the_time_of_the_first_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parsed: list[str]
) -> None:
    """On a file system with times of whole seconds, in place and with the same size."""
    second = 1_000_000_000
    monkeypatch.setattr(files, "_stamps", lambda place: [(str(place), 1, 20, 7 * second, 7 * second)])
    settings = CachedSettings()
    for port, now in ((22, 7.1), (23, 7.4), (24, 7.9)):
        write(tmp_path, a=f"reserved_ports = [{port}]")
        monkeypatch.setattr(time, "time", lambda now=now: now)
        assert settings().reserves(port)
    monkeypatch.setattr(time, "time", lambda: 10)
    assert settings() is settings()
    assert len(parsed) == 4


def test_a_file_that_cannot_be_accessed_is_named(tmp_path: Path) -> None:
    settings = CachedSettings()
    (tmp_path / "a.toml").symlink_to("a.toml")
    with pytest.raises(SettingsError, match=r"/a\.toml cannot be read"):
        settings()
    (tmp_path / "a.toml").unlink()
    assert settings() == read_settings(tmp_path)


def test_settings_that_cannot_be_read_are_an_error_until_they_are_corrected(tmp_path: Path, settled: None) -> None:
    settings = CachedSettings()
    write(tmp_path, a="reserved_ports = 22")
    for _ in range(2):
        with pytest.raises(SettingsError, match="reserved_ports"):
            settings()
    write(tmp_path, a="reserved_ports = [22]")
    assert settings().reserves(22)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """File times reveal each change at once."""
    monkeypatch.setattr(files, "_TIMES_SETTLE_S", -1e9)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of parsed files."""
    names: list[str] = []
    document = files._document

    def parse(file: Path, content: bytes) -> dict[str, object]:
        names.append(file.name)
        return document(file, content)

    monkeypatch.setattr(files, "_document", parse)
    return names
