"""How this machine reaches pip's index: the part of its configuration that a bare tree needs as well."""

import configparser
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_AUTHORITIES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_SYSTEM_FILES = (Path("/etc/pip.conf"), Path("/etc/xdg/pip/pip.conf"))
_USER_FILES = (".config/pip/pip.conf", ".pip/pip.conf")
_NOT_CARRIED = ("PIP_CACHE_DIR", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PIP_LOG")


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """Variables of the environment, and files and directories as pairs of their place here and in the tree."""

    variables: dict[str, str]
    paths: tuple[tuple[Path, Path], ...]


def carried(home: Path) -> Carried:
    """Return what of this machine goes into a tree whose user lives in *home*."""
    variables = wanted_variables(os.environ)
    files = _configuration_files(variables, home)
    texts = [*variables.values(), *(value for file, _ in files for value in values(file.read_text()))]
    named = [(path, path) for path in dict.fromkeys(paths_in(texts)) if path.exists()]
    return Carried(variables=variables, paths=tuple(dict.fromkeys([*files, *named])))


def wanted_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that decide where pip downloads from, and whom it trusts."""
    return {
        name: value
        for name, value in environment.items()
        if name.lower() in _PROXIES
        or name in _AUTHORITIES
        or (name.startswith("PIP_") and name not in _NOT_CARRIED)
    }  # fmt: skip


def values(text: str) -> Iterator[str]:
    """Give the values in the *text* of a pip.conf."""
    parser = configparser.RawConfigParser()
    parser.read_string(text)
    for section in parser.sections():
        yield from (value for _, value in parser.items(section))


def paths_in(texts: list[str]) -> Iterator[Path]:
    """Give the absolute paths among the words of *texts*, as they are or as file: URLs."""
    for text in texts:
        for word in text.split():
            if (path := word.removeprefix("file://")).startswith("/"):
                yield Path(path)


def _configuration_files(variables: Mapping[str, str], home: Path) -> list[tuple[Path, Path]]:
    named = Path(variables.get("PIP_CONFIG_FILE", os.devnull))
    pairs = [(file, file) for file in (*_SYSTEM_FILES, named)]
    pairs += [(Path.home() / file, home / file) for file in _USER_FILES]
    return [(here, there) for here, there in pairs if here.is_file()]
