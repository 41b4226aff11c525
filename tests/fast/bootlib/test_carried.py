"""What of this machine's way to pip's index goes into a bare tree, and what does not."""

import os
from pathlib import Path

import pytest
from tests.support.bootlib import carried


def test_variables_of_pip_proxies_and_authorities_are_carried_and_no_others() -> None:
    wanted = {
        "PIP_INDEX_URL": "https://mirror.example/simple",
        "https_proxy": "http://proxy.example:3128",
        "NO_PROXY": "localhost",
        "SSL_CERT_FILE": "/etc/ssl/own.crt",
    }
    others = {"PIPELINE": "7", "PATH": "/bin", "PYTHONPATH": "/srv", "LD_LIBRARY_PATH": "/opt/lib"}
    assert carried.wanted_variables({**wanted, **others}) == wanted


@pytest.mark.parametrize("name", ["PIP_CACHE_DIR", "PIP_TARGET", "PIP_PREFIX", "PIP_USER"])
def test_where_pip_writes_on_this_machine_stays_here(name: str) -> None:
    assert carried.wanted_variables({name: "/home/dev/pip"}) == {}


def test_paths_are_found_among_words_and_as_urls() -> None:
    texts = ["/opt/wheels file:///srv/wheels https://mirror.example/simple", "180", "/etc/ssl/own.crt"]
    assert [str(path) for path in carried.paths_in(texts)] == ["/opt/wheels", "/srv/wheels", "/etc/ssl/own.crt"]


def test_values_of_all_sections_of_a_pip_conf_count() -> None:
    text = "[global]\ncert = /etc/ssl/own.crt\nfind-links =\n    /opt/wheels\n[install]\nno-binary = %(x)s\n"
    assert list(carried.values(text)) == ["/etc/ssl/own.crt", "\n/opt/wheels", "%(x)s"]


def test_what_the_settings_name_comes_along_where_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wheels").mkdir()
    settings = tmp_path / "home/.config/pip/pip.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"[global]\nfind-links = {tmp_path}/wheels {tmp_path}/missing\n")
    for name in carried.wanted_variables(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setattr(carried, "_SYSTEM_FILES", ())
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert carried.carried(Path("/root")) == carried.Carried(
        variables={},
        paths=(
            (settings, Path("/root/.config/pip/pip.conf")),
            (tmp_path / "wheels", tmp_path / "wheels"),
        ),
    )
