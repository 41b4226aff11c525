"""Write what the manuals have of the tables of settings: `make tables`.

units/solo5.toml, the tags of keys in solo5.toml(5), and the tables between `<!-- tables: … -->` and `<!-- end -->` in
docs/nomad-plugin.md. tests/fast/test_tables.py compares.
"""

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from solo5_systemd.nomad.plugin_config import Defaults, ForgottenTasksConfig, GcConfig, PluginConfig
from solo5_systemd.settings.network_keys import keys_on, network_keys
from solo5_systemd.settings.network_policy import HOST, LAN
from solo5_systemd.settings.node_limits import KEYS as AMOUNTS
from solo5_systemd.settings.node_limits import RESERVE_MB, Limits
from solo5_systemd.settings.records import Entry, entries
from solo5_systemd.settings.solo5_toml import Settings
from solo5_systemd.task.policy import Ceilings

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "units" / "solo5.toml"
MANUAL = ROOT / "docs" / "man" / "solo5.toml.5"
PLUGIN = ROOT / "docs" / "nomad-plugin.md"

FILE_KEYS = {each.name: each for each in entries(Settings) if "meaning" in each.metadata}
BLOCKS = {"defaults": Defaults, "ceilings": Ceilings, "gc": GcConfig, "dangling_tasks": ForgottenTasksConfig}

HEAD = """\
# Settings of solo5-systemd; see solo5.toml(5). The files /etc/solo5/*.toml are read in alphabetical order; a later key
# overrides an earlier one. Commented keys have their defaults, or examples with what holds if they are left out.
"""
LIMITS = f"""
# What tasks take of the node together: MiB that stay free, and parts of the node, or numbers
# ({", ".join(AMOUNTS)}). Left out: a tenth of the file
# system, at most {RESERVE_MB}; these parts.
#[limits]
#reserve_mb = {RESERVE_MB}
"""
IPV6 = ("gateway6", "nat66", "ra")
OTHERS = """
# Another one, with IPv6, for NICs that are started with --net NIC=backend.
#[network.backend]
#ipv4 = "10.90.0.0/24"
#ipv6 = "2001:db8:1::/64"
"""
LAST = """
# That of guests in the network namespaces of other programs.
#[network.namespace]
#ipv4 = "10.91.0.0/24"
#ipv6 = false

# One on an existing bridge, which stays as it is: its guests are machines of the LAN.
#[network.lan]
#ipv4 = "192.168.1.0/24"
#gateway4 = "192.168.1.1"
#ipv6 = "2001:db8:2::/64"
"""


def plain(entry: Entry) -> Any:
    """Return the default as TOML and JSON have it; None: there is none."""
    return None if entry.default is None else entry.type.write(entry.default)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.dumps(key)} = {toml(each)}' for key, each in value.items())} }}"
    return json.dumps(value)


def words(entry: Entry) -> str:
    """Return the default in words."""
    value = plain(entry)
    if entry.metadata["shown"]:
        return str(entry.metadata["shown"])
    if isinstance(value, list | dict):
        return ", ".join(value) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def commented(keys: Iterable[Entry]) -> Iterator[str]:
    """Yield the lines of units/solo5.toml with keys: what each means, and its default or an example."""
    for each in keys:
        example = each.metadata.get("example", plain(each))
        is_default = example == plain(each) or words(each) == toml(example)
        left_out = "" if is_default else f" Left out: {words(each)}."
        yield from textwrap.wrap(each.metadata["meaning"] + left_out, 118, initial_indent="# ", subsequent_indent="# ")
        yield f"#{each.name} = {toml(example)}"


def example() -> str:
    """Return units/solo5.toml."""
    network = network_keys()
    default = [network[key] for key in keys_on(HOST) if key not in IPV6]
    only_lan = [network[key] for key in keys_on(LAN) if key not in keys_on(HOST)]
    shares = [
        f"#{scope} = " + (f"{{ percent = {share.percent} }}" if share.percent else "{}")
        for scope, share in Limits().shares.items()
    ]
    return "\n".join([
        HEAD, *commented(FILE_KEYS.values()), LIMITS.rstrip(), *shares, "",
        "# The network of a NIC without another one.", "#[network.default]", *commented(default), OTHERS.rstrip(),
        *commented(network[key] for key in IPV6), "",
        LAST.strip(), *commented(only_lan), "",
    ])  # fmt: skip


def manual(text: str) -> str:
    """Return solo5.toml(5) with the default of each key in its first tag."""
    for name, each in {**FILE_KEYS, **network_keys()}.items():
        default = words(each).replace("-", "\\-").replace("'", "\\(aq")
        tag = f'.TP\n.BR {name} " (default: {default})"\n'.replace("\\", r"\\")
        text, count = re.subn(rf"^\.TP\n\.BR? {name}\b.*\n", tag, text, count=1, flags=re.MULTILINE)
        assert count == 1, f"solo5.toml(5) has no paragraph of {name}"
    return text


def rows(keys: Iterable[Entry]) -> Iterator[str]:
    for each in keys:
        value = plain(each)
        code = f"`{json.dumps(value)}`" if value is not None else "none"
        default = "" if each.type.kind or each.type.is_map else each.metadata["shown"] or code
        type_ = "block" if each.type.kind or each.type.is_map else each.type.hcl
        name = f'`{each.name} "NAME"`' if each.type.kind and each.type.is_map else f"`{each.name}`"
        yield f"| {name} | {type_} | {default} | {each.metadata['meaning']} |"


def tables() -> Mapping[str, Iterable[str]]:
    """Return the tables of docs/nomad-plugin.md."""
    head = {"plugin": "option", "network": "key of `network`", **{name: f"key of `{name}`" for name in BLOCKS}}
    keys = {"plugin": entries(PluginConfig), "network": network_keys().values()}
    keys |= {name: entries(kind) for name, kind in BLOCKS.items()}
    line = "|---|---|---|---|"
    return {name: [f"| {head[name]} | type | default | meaning |", line, *rows(keys[name])] for name in keys}


def plugin(text: str) -> str:
    """Return docs/nomad-plugin.md with its tables."""
    found = tables()

    def block(match: "re.Match[str]") -> str:
        return "\n".join([match[1], "", *found[match[2]], "", "<!-- end -->"])

    text, count = re.subn(r"(<!-- tables: (\w+) -->)\n.*?<!-- end -->", block, text, flags=re.DOTALL)
    assert count == len(found), "docs/nomad-plugin.md lacks a table"
    return text


def written() -> Mapping[Path, str]:
    """Return each file as it should be."""
    return {EXAMPLE: example(), MANUAL: manual(MANUAL.read_text()), PLUGIN: plugin(PLUGIN.read_text())}


if __name__ == "__main__":
    for path, content in written().items():
        path.write_text(content)
