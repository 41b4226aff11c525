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
    settings = configparser.RawConfigParser()
    settings.read([file for file, _ in files])
    texts = [*variables.values(), *(value for name in settings.sections() for _, value in settings.items(name))]
    named = [(path, path) for text in texts for path in _paths(text) if path.exists()]
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


def _paths(text: str) -> Iterator[Path]:
    """Give the absolute paths among the words of *text*, as they are or as file: URLs."""
    return (Path(path) for word in text.split() if (path := word.removeprefix("file://")).startswith("/"))


def _configuration_files(variables: Mapping[str, str], home: Path) -> list[tuple[Path, Path]]:
    """Return the files by precedence, the highest last."""
    named = Path(variables.get("PIP_CONFIG_FILE", os.devnull))
    of_user = [(Path.home() / file, home / file) for file in _USER_FILES]
    pairs = [*((file, file) for file in _SYSTEM_FILES), *of_user, (named, named)]
    return [(here, there) for here, there in pairs if here.is_file()]
