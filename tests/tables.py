"""Write what the manuals have of the tables of settings: `make tables`.

units/solo5.toml, the tags of keys in solo5.toml(5) and when these apply, what solo5ctl(1) and solo5.unikernel(5) have
of each setting of a task up to `.\\" more`, the tables between `<!-- tables: … -->` and `<!-- end -->` in
docs/nomad-job.md and docs/nomad-plugin.md, and what completions/ have of the parser between `# tables: …` and `# end`.
tests/fast/test_tables.py compares.
"""

import argparse
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from solo5_systemd.cli.parser import VERBS, build, load
from solo5_systemd.nomad.plugin_config import Defaults, PluginConfig
from solo5_systemd.nomad.task_options import TASK, OwnOptions
from solo5_systemd.settings.network_keys import keys_on, keys_with, network_keys
from solo5_systemd.settings.network_policy import HOST, LAN, NetworkPolicy
from solo5_systemd.settings.node_limits import KEYS as AMOUNTS
from solo5_systemd.settings.node_limits import Limits
from solo5_systemd.settings.records import TYPES, Entry, entries
from solo5_systemd.settings.solo5_toml import Settings
from solo5_systemd.task.settings import KEYS, SETTINGS, Setting

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "units" / "solo5.toml"
MANUAL = ROOT / "docs" / "man" / "solo5.toml.5"
COMMANDS = ROOT / "docs" / "man" / "solo5ctl.1"
DECLARATION = ROOT / "docs" / "man" / "solo5.unikernel.5"
JOB = ROOT / "docs" / "nomad-job.md"
PLUGIN = ROOT / "docs" / "nomad-plugin.md"
BASH = ROOT / "completions" / "solo5ctl.bash"
ZSH = ROOT / "completions" / "_solo5ctl"

FILE_KEYS = {each.name: each for each in entries(Settings) if "meaning" in each.metadata}

HEAD = """\
# Settings of solo5-systemd; see solo5.toml(5). The files /etc/solo5/*.toml are read in alphabetical order; a later key
# overrides an earlier one. Commented keys have their defaults, or examples with what holds if they are left out.
"""
LIMITS = f"""
# What tasks take of the node together: a part of it in percent, or numbers
# ({", ".join(AMOUNTS)}).
#[limits]
"""
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
    return None if entry.default in (None, MISSING) else entry.type.write(entry.default)


def toml(value: Any) -> str:
    if isinstance(value, dict) and value:
        keys = {key: key if key.isidentifier() else json.dumps(key) for key in value}
        return f"{{ {', '.join(f'{keys[key]} = {toml(each)}' for key, each in value.items())} }}"
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
    default = [network[key] for key in keys_on(HOST) if key not in keys_with("ipv6")]
    only_lan = [network[key] for key in keys_on(LAN) if key not in keys_on(HOST)]
    return "\n".join([
        HEAD, *commented(FILE_KEYS.values()), LIMITS.rstrip(), *commented(entries(Limits)), "",
        "# The network of a NIC without another one.", "#[network.default]", *commented(default), OTHERS.rstrip(),
        *commented(network[key] for key in keys_with("ipv6")), "",
        LAST.strip(), *commented(only_lan), "",
    ])  # fmt: skip


def manual(text: str) -> str:
    """Return solo5.toml(5) with the default of each key in its first tag, and the keys that apply after a restart."""
    for name, each in {**FILE_KEYS, **network_keys()}.items():
        default = words(each).replace("-", "\\-").replace("'", "\\(aq")
        tag = f'.TP\n.BR {name} " (default: {default})"\n'.replace("\\", r"\\")
        text, count = re.subn(rf"^\.TP\n\.BR? {name}\b.*\n", tag, text, count=1, flags=re.MULTILINE)
        assert count == 1, f"solo5.toml(5) has no paragraph of {name}"
    *others, last = (each.name for each in entries(NetworkPolicy))
    policy = "its policy,\n.BR " + ' ", " '.join(others) + f' " and " {last} ,\n'
    text, count = re.subn(r"its policy,\n\.BR .*\n", policy, text)
    assert count == 1, "solo5.toml(5) has no sentence about the policy of a network"
    return text


def roff(text: str) -> str:
    """Return a text with the options, keys and placeholders in it in bold."""
    text = re.sub(r"--[a-z-]+|\{\w+\}|\b[A-Z]\w+=(?=[ ,.]|$)|solo5ctl run", r"\\fB\g<0>\\fR", text)
    return text.replace("-", "\\-").replace("'", "\\(aq")


def form(text: str) -> str:
    """Return the form of a value: its variables in italics, what is typed as it is in bold."""
    fonts = re.sub(r"([A-Z][A-Z0-9]*)|([a-z0-9_=:,/-]+)", lambda m: f"\\f{'I' if m[1] else 'B'}{m[0]}\\fR", text)
    return fonts.replace("-", "\\-")


def paragraph(text: str, tag: str, lines: Iterable[str]) -> str:
    """Return a manual page with what a tagged paragraph has of the table; what is by hand follows `.\\" more`."""
    written = "".join(f"{line}\n" for line in (".TP", *lines))
    pattern = rf'^\.TP\n\.BR {re.escape(tag)}[ "].*\n(?:.*\n)*?(?=\.\\" more$|\.TP$|\.S[SH])'
    text, count = re.subn(pattern, lambda _: written, text, flags=re.MULTILINE)
    assert count == 1, f"the manual page has no paragraph of {tag}"
    return text


def meaning(setting: Setting) -> Iterator[str]:
    if setting.help:
        yield f"{setting.help[0].upper()}{setting.help[1:]}."
    if setting.default:
        yield f"Default: {setting.default}."
    if setting.is_list:
        yield "May be repeated."


def commands(text: str) -> str:
    """Return solo5ctl(1) with the settings of a task among the options of `run`."""
    for each in SETTINGS.values():
        if each.option.startswith("--"):
            first, *others = (name.replace("-", "\\-") for name in each.options)
            tag = "".join((f".BR {first}", *(f' ", " {other}' for other in others)))
            tag += f' " {form(each.form.replace("…", ""))}"'
            text = paragraph(text, first, (tag, *map(roff, meaning(each))))
    return text


def declaration(text: str) -> str:
    """Return solo5.unikernel(5) with the settings of a task as keys."""
    keys = {each.option: f"{each.name}=" for each in KEYS.values()}
    keys["ARGs"] = keys["ARG"]
    for each in KEYS.values():
        lines = [re.sub(r"ARGs|--[a-z-]+", lambda match: keys[str(match[0])], line) for line in meaning(each)]
        if each.has_words:
            lines.append("Takes several values.")
        if each.option.startswith("--"):
            lines.append(f"The option {each.option} of solo5ctl run.")
        text = paragraph(text, f"{each.name}=", (f'.BR {each.name}= " {form(each.form)}"', *map(roff, lines)))
    return text


def sentence(help_: str) -> str:
    """Return what an option of `run` means as that of a job."""
    meaning = re.sub(r"\{\w+\}", r"`\g<0>`", help_.replace("ARGs", "`args`"))
    return f"{meaning[0].upper()}{meaning[1:]}."


HELPS = {each.help: sentence(each.help) for each in SETTINGS.values() if each.help}


def rows(keys: Iterable[Entry]) -> Iterator[str]:
    for each in keys:
        meaning = HELPS.get(each.metadata["meaning"], each.metadata["meaning"])
        is_block = each.type.kind or each.type.is_map
        if is_block:
            default = ""
        elif each.default is MISSING:
            default = "required"
        else:
            value = plain(each)
            default = each.metadata["shown"] or (f"`{json.dumps(value)}`" if value is not None else "none")
        name = f'`{each.name} "NAME"`' if each.type.kind and each.type.is_map else f"`{each.name}`"
        yield f"| {name} | {'block' if is_block else each.type.hcl} | {default} | {meaning} |"


def task() -> Iterator[Entry]:
    """Yield the options of a task, each with the plugin's default of it; those that are also of `run` come first."""
    of_plugin = {each.name: each for each in entries(Defaults)}
    shared = []
    for setting in SETTINGS.values():
        if setting.job:
            attr = TASK.object.attributes[setting.job].Attr
            metadata = {"meaning": setting.help, "shown": setting.default or ("`[]`" if setting.is_list else "")}
            type_, default = TYPES[str]._replace(hcl=attr.type), MISSING if attr.required else None
            shared.append(Entry(setting.job, type_, default, metadata))
    for each in (*shared, *entries(OwnOptions)):
        plugin = of_plugin.get(each.name, each)
        meaning = {**plugin.metadata, "meaning": each.metadata["meaning"]}
        yield each._replace(default=plugin.default, metadata=meaning)


def blocks(kind: object) -> Iterator[tuple[str, Iterable[Entry]]]:
    """Yield each block in a block, with its keys."""
    for each in entries(kind):
        if each.type.kind:
            yield each.name, entries(each.type.kind)
            yield from blocks(each.type.kind)


def page(path: Path, tables: Mapping[str, Iterable[Entry]]) -> str:
    """Return a page of docs/ with its tables; the first is of options, the others are of the keys of blocks."""
    first, *_ = tables

    def table(match: "re.Match[str]") -> str:
        head = "option" if match[2] == first else f"key of `{match[2]}`"
        lines = [f"| {head} | type | default | meaning |", "|---|---|---|---|", *rows(tables[match[2]])]
        return "\n".join([match[1], "", *lines, "", "<!-- end -->"])

    text, count = re.subn(r"(<!-- tables: (\w+) -->)\n.*?<!-- end -->", table, path.read_text(), flags=re.DOTALL)
    assert count == len(tables), f"{path} lacks a table"
    return text


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield every parser by its verb: ``, `run`, `network`, `network ls` …"""
    top, verbs = build()
    yield "", top
    for verb, parser in verbs.items():
        load(verb, parser)
        yield verb, parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, inner in action.choices.items():
                    yield f"{verb} {name}", inner


def options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.option_strings]


def summaries(verb: str, parser: argparse.ArgumentParser) -> Mapping[str, str]:
    """Return the summaries of the verbs of a parser."""
    if not verb:
        return VERBS
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {each.dest: str(each.help) for action in inner for each in action._choices_actions}


def bash() -> Iterator[str]:
    found = dict(parsers())
    yield "_solo5ctl_verbs() { # VERB"
    yield "    case $1 in"
    for verb, parser in found.items():
        if verbs := summaries(verb, parser):
            yield f'        "{verb}") echo "{" ".join(verbs)}" ;;'
    yield from (
        "    esac",
        "}",
        "",
        '_solo5ctl_options() { # VERB; those that take a value end with "="',
        "    case $1 in",
    )
    for verb, parser in found.items():
        names = [name + "=" * (each.nargs != 0) for each in options(parser) for name in each.option_strings]
        lines = textwrap.wrap(" ".join(names), 100, break_long_words=False, break_on_hyphens=False)
        yield f'        "{verb}") echo "' + " \\\n            ".join(lines) + '" ;;'
    yield from ("    esac", "}")


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def zsh() -> Iterator[str]:
    found = dict(parsers())
    yield from ("_solo5ctl_verbs() {", "  local -a verbs", "  case $1 in")
    for verb, parser in found.items():
        if verbs := summaries(verb, parser):
            yield from (f"    ({quoted(verb)})", "      verbs=(")
            yield from (f"        {quoted(f'{name}:{summary}')}" for name, summary in verbs.items())
            yield from ("      )", "      ;;")
    yield from ("  esac", "  _describe -t verbs verb verbs", "}", "", "_solo5ctl_options() {", "  case $1 in")
    for verb, parser in found.items():
        yield from (f"    ({quoted(verb)})", "      specs=(")
        yield from (f"        {specification(each, verb)}" for each in options(parser))
        yield from ("      )", "      ;;")
    yield from ("  esac", "}")


def specification(option: argparse.Action, verb: str) -> str:
    """Return an option as _arguments of zsh has it (zshcompsys(1)): where it excludes others, how it takes a value."""
    takes, repeats = option.nargs != 0, isinstance(option, argparse._AppendAction)
    names = [name + takes * ("=" if name.startswith("--") else "+") for name in option.option_strings]
    help_ = re.sub(r"([\[\]\\])", r"\\\1", re.split(r"; | \(default", str(option.help))[0])
    value = ""
    if takes:
        metavar = str(option.metavar or option.dest.upper()).replace(":", "\\:")
        value = f":{metavar}: _solo5ctl_value {option.option_strings[-1]} {verb}"
    before = "*" if repeats else "(- *)" if not verb and names[-1] in ("--help", "--version") else ""
    before = before or (f"({' '.join(option.option_strings)})" if len(names) > 1 else "")
    if len(names) == 1:
        return quoted(f"{before}{names[0]}[{help_}]{value}")
    return f"{quoted(before)}{{{','.join(names)}}}{quoted(f'[{help_}]{value}')}"


def completions(text: str, lines: Iterable[str]) -> str:
    """Return a file of completions with what follows from the parser."""
    found = "\n".join(lines).replace("\\", "\\\\")
    text, count = re.subn(
        r"(?<=^# tables: options\n).*?(?=^# end$)", f"{found}\n", text, flags=re.DOTALL | re.MULTILINE
    )
    assert count == 1, "completions lack the options"
    return text


def written() -> Mapping[Path, str]:
    """Return each file as it should be."""
    of_plugin = {"plugin": entries(PluginConfig), **dict(blocks(PluginConfig)), "network": network_keys().values()}
    del of_plugin["io"]  # in docs/nomad-job.md
    return {
        EXAMPLE: example(),
        MANUAL: manual(MANUAL.read_text()),
        COMMANDS: commands(COMMANDS.read_text()),
        DECLARATION: declaration(DECLARATION.read_text()),
        PLUGIN: page(PLUGIN, of_plugin),
        JOB: page(JOB, {"task": task(), **dict(blocks(OwnOptions))}),
        BASH: completions(BASH.read_text(), bash()),
        ZSH: completions(ZSH.read_text(), zsh()),
    }


if __name__ == "__main__":
    for path, content in written().items():
        path.write_text(content)
