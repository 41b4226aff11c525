"""HACKING.md, docs/architecture.md, docs/decisions/ and docs/glossary.md name paths, tests and layers that exist."""

import re
import tomllib
from pathlib import Path

import pytest
from tests.support.doc_tables import DOCS, missing

ROOT = DOCS.parent
SOURCES = ROOT / "src" / "solo5_systemd"
DECISIONS = sorted((DOCS / "decisions").glob("*.md"))
ARCHITECTURE = DOCS / "architecture.md"
HACKING = ROOT / "HACKING.md"
LINKED = sorted({*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "tests").rglob("*.md")})
PAPERS = [HACKING, ARCHITECTURE, DOCS / "glossary.md", DOCS / "timeouts.md", *DECISIONS]

HEADINGS = ["Why", "Alternatives", "What would change it", "Code", "Tests"]
CRUMB = 50
"""Lines under which a module needs a reason in SMALL."""

SMALL = {
    "base/descriptors.py": "of the file descriptor store and of netlink sockets",
    "base/event_loop.py": "of locks, and of reads that verbs make without a loop",
    "base/journal_entry.py": "of the network service too, which imports nothing of `journal/`",
    "base/vanishing_files.py": "of cgroups, processes and records in /run",
    "network/overview.py": "of networkd and `solo5ctl network`, whose records a start does not import",
    "network/use.py": "of `solo5ctl metrics`, which imports no settings of networks",
    "nomad/errors.py": "of both services of Nomad's",
}
"""The modules under CRUMB lines, and why each is one of its own. Verbs, `__main__` and `dbus/` need no reason."""

MADE = ("build/", "dist/")
"""Directories of the checkout that a build makes."""

_FILES = (".py", ".md", ".toml", ".proto", "Makefile")
_PATH = re.compile(r"[\w@.*+-]+(?:/[\w@.*+-]*)*")
_CHECKOUT = re.compile(r"(?<![\w/~.-])(?:tests|src|docs|units|examples|packaging|completions)/[\w./@*-]*[\w/*]")
_IN_FILE = re.compile(r"`([\w/@.-]+)`\s\(([^()]*)\)")
_LINK = re.compile(r"\]\(([^)\s:]+)\)")
_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def named(text: str) -> set[str]:
    """Return the paths that a paper names: in backquotes, and words that begin with a folder of the checkout."""
    quoted = {word.partition("::")[0] for word in re.findall(r"`([^`\n]+)`", text)}
    paths = {word for word in quoted if _PATH.fullmatch(word) and ("/" in word or word.endswith(_FILES))}
    return {word for word in paths | set(_CHECKOUT.findall(text)) if not word.startswith(MADE)}


def exists(path: str) -> bool:
    """Look below the checkout and below src/solo5_systemd; `*` stands for any name."""
    return any(next(root.glob(path.rstrip("/")), None) for root in (ROOT, SOURCES))


def lost(text: str) -> list[str]:
    """Return the paths that a paper names and that do not exist."""
    return sorted(path for path in named(text) if not exists(path))


def unknown(text: str) -> list[str]:
    """Return the names in parentheses behind a path, as in "`base/sanitize.py` (`printable`)", and not in that file."""
    pairs = [(path, name) for path, names in _IN_FILE.findall(text) for name in re.findall(r"`(\w+)`", names)]
    return [f"{name} in {path}" for path, name in pairs if not re.search(rf"\b{name}\b", content(path))]


def content(path: str) -> str:
    """Return the text of a file below the checkout or src/solo5_systemd; empty: there is none."""
    found = (root / path for root in (ROOT, SOURCES))
    return next((file.read_text() for file in found if file.is_file()), "")


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: str(paper.relative_to(ROOT)))
def test_every_path_that_is_named_exists(paper: Path) -> None:
    assert lost(paper.read_text()) == []


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: str(paper.relative_to(ROOT)))
def test_every_name_behind_a_path_is_in_that_file(paper: Path) -> None:
    assert unknown(paper.read_text()) == []


def test_every_link_has_a_file_and_a_heading() -> None:
    assert len(LINKED) > 50
    assert [f"{paper.relative_to(ROOT)}: {link}" for paper in LINKED for link in dead_links(paper)] == []


def dead_links(paper: Path) -> list[str]:
    """Return the links of a paper to a file that does not exist, or to a heading that its file does not have."""
    links = [(link, *link.partition("#")[::2]) for link in _LINK.findall(paper.read_text())]
    targets = [(link, paper.parent / path if path else paper, heading) for link, path, heading in links]
    return [link for link, file, heading in targets if not file.exists() or (heading and heading not in anchors(file))]


def anchors(paper: Path) -> set[str]:
    """Return the anchors of a paper's headings, as GitHub and most renderers of Markdown derive them."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", paper.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = "# The `b` of c\n```\n# not one\n```\n[x](#the-b-of-c), [y](a.md#not-one), [z](b.md)\n"
    (tmp_path / "a.md").write_text(page)
    assert dead_links(tmp_path / "a.md") == ["a.md#not-one", "b.md"]


def test_a_name_that_is_not_in_its_file_is_found() -> None:
    assert unknown("See `base/sanitize.py` (`printable`, `bounded`) and `task/workload.py` (the value).") == []
    assert unknown("See `base/sanitize.py` (`printable`,\n`bear`).") == ["bear in base/sanitize.py"]


def test_a_path_that_does_not_exist_is_found() -> None:
    assert lost("See `unit/translate.py`, `docs/man/`, `tests/fast/test_*.py`, `/run/solo5` and `http/tcp x`.") == []
    assert lost("See `unit/transport.py`.") == ["unit/transport.py"]
    assert lost("Run tests/machine/bout --shell, then `workloads.py`.") == ["tests/machine/bout", "workloads.py"]
    assert lost("`tests/fast/test_nothing.py::test_x`") == ["tests/fast/test_nothing.py"]


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_its_headings_and_names_tests_that_exist(page: Path) -> None:
    text = page.read_text()
    assert re.match(r"# \S.*\n\n\*\*Decision\.\*\* \S", text)
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS
    tests = re.findall(r"`tests/([^`]+::[^`]+)`", text.partition("\n## Tests\n")[2])
    assert [gone for test in tests for gone in missing(f"`{test}`")] == []
    assert tests, "a decision is held by a test"


def test_the_table_of_decisions_has_every_page_under_its_title() -> None:
    rows = re.findall(r"^\| ([^|]+) \| \[([\w-]+)\]\(decisions/\2\.md\) \|$", ARCHITECTURE.read_text(), re.MULTILINE)
    titles = {page.stem: page.read_text().splitlines()[0].removeprefix("# ") for page in DECISIONS}
    assert {stem: title for title, stem in rows} == titles
    assert len(rows) == len(titles)


def test_every_folder_of_the_sources_is_named() -> None:
    folders = {path.parent.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("__init__.py")} - {"."}
    text = ARCHITECTURE.read_text()
    assert [folder for folder in sorted(folders) if f"`{folder}/`" not in text] == []


def test_layers_are_those_of_the_import_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = {each["id"]: each for each in settings["tool"]["importlinter"]["contracts"]}
    layers = "\n".join(contracts["layers"]["layers"])
    assert f"```\n{layers}\n```" in ARCHITECTURE.read_text()


def test_each_change_names_one_file_to_open_first() -> None:
    tables = HACKING.read_text().partition("\n## Where a change goes\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (?!change|---)([^|]+) \| ([^|]+) \| ([^|]*)\|$", tables, re.MULTILINE)
    assert [change for change, first, _ in rows if len(named(first)) != 1] == []
    assert len(rows) >= 40
    assert len(rows) == len({change for change, _, _ in rows})


def test_a_module_is_no_crumb_without_a_reason() -> None:
    assert sorted(SMALL) == crumbs()


def crumbs() -> list[str]:
    """Return the modules under 50 lines; verbs, entry points and the definitions of interfaces count for none."""
    modules = (path.relative_to(SOURCES) for path in SOURCES.rglob("*.py") if not path.stem.startswith("__"))
    own = (path for path in modules if not path.match("cli/verbs/*") and not path.match("dbus/*"))
    written = (path for path in own if not path.stem.endswith("_pb2"))
    return sorted(str(path) for path in written if len((SOURCES / path).read_text().splitlines()) < CRUMB)


FIELD = re.compile(r"journalctl[^`\n]*[ '](?:SOLO5_|NOMAD_|TEAM=|KEY|--facility|\\-\\-facility)[^`\n]*")


def test_no_paper_recommends_a_field_that_anybody_can_write() -> None:
    """Any user writes entries with these fields by journald's own protocol; _TRANSPORT= is journald's alone."""
    papers = [path for top in (DOCS, ROOT / "examples") for path in top.rglob("*") if path.is_file()]
    lines = [line for path in (*papers, ROOT / "README.md") for line in FIELD.findall(path.read_text(errors="replace"))]
    assert len(lines) > 5
    assert [line for line in lines if "_TRANSPORT=stdout" not in line] == []
