"""An error of a declaration that not every user may read has file, line and key, and nothing else of the file."""

from itertools import product

import pytest

from solo5_systemd.base.errors import InvalidRequestError, SettingsError
from solo5_systemd.declared.declaration import parse_declaration
from solo5_systemd.declared.syntax import Source
from solo5_systemd.declared.template import parse_template
from solo5_systemd.declared.unit_keys import INSTALL, SERVICE_PASSED_ON, UNIT
from solo5_systemd.task.properties import SETTABLE
from solo5_systemd.task.settings import KEYS, SECTION

SECRET = "S3cr3t"
PLACES = [
    *((SECTION, key) for key in KEYS),
    *(("Unit", key) for key in UNIT),
    *(("Service", key) for key in {*SERVICE_PASSED_ON, *SETTABLE}),
    *(("Install", key) for key in INSTALL),
]
VALUES = [
    *(SECRET, f"{SECRET}=x", f"storage={SECRET}", f"storage:{SECRET}", f"storage:/{SECRET}:{SECRET}"),
    *(f"{SECRET}: expected {SECRET}", f"storage:disk:{SECRET}/x", f"service={SECRET}", f"80:{SECRET}", f"x:{SECRET}"),
    *(f"10.0.0.1 {SECRET}", f'"{SECRET}', f"\\q{SECRET}", f"%{SECRET}", f"{SECRET}\\", f"{{{SECRET}}}", "9" * 30),
]


def refusal(name: str, source: Source) -> str:
    parse = parse_template if name.endswith("@") else parse_declaration
    try:
        parse(name, [source])
    except (SettingsError, InvalidRequestError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("name", "values"), [("web", VALUES), ("web@", VALUES[::5])])
def test_no_value_of_a_file_that_is_not_public_is_in_an_error(name: str, values: list[str]) -> None:
    errors = 0
    for (section, key), value in product(PLACES, values):
        image = "" if key == "Image" else "Image=/srv/a.spt\n"
        text = f"[Unikernel]\n{image}[{section}]\n{key}={value}\n"
        error = refusal(name, Source(path="/etc/solo5/web.unikernel", content=text.encode(), is_public=False))
        errors += error != ""
        assert SECRET not in error, f"{key}={value}"
        assert "9" * 30 not in error, f"{key}={value}"
        assert error.startswith(f"/etc/solo5/web.unikernel:{len(text.splitlines())}: ") or not error
    assert errors > len(PLACES) / 2


@pytest.mark.parametrize(
    "text",
    [SECRET, f"{SECRET}=", f"[{SECRET}", f"[Unikernel]\n{SECRET}", f"[Unikernel]\n={SECRET}", f"[A]\nk={SECRET}\\"],
)
def test_a_line_that_is_no_assignment_is_never_quoted(text: str) -> None:
    """The file may be none of declarations: a key, a table of passwords."""
    with pytest.raises(SettingsError, match=rf"^/f:{len(text.splitlines())}: ") as caught:
        parse_declaration("web", [Source(path="/f", content=text.encode())])
    assert SECRET not in str(caught.value)


def test_what_was_expected_is_shown() -> None:
    content = b"[Unikernel]\nImage=/a\nMemory=much\n"
    with pytest.raises(SettingsError, match=r"^/f:3: Memory= is not valid: expected ") as caught:
        parse_declaration("web", [Source(path="/f", content=content, is_public=False)])
    assert "not every user may read the file" in caught.value.hint
    with pytest.raises(SettingsError, match="^/f:3: Memory= 'much' "):
        parse_declaration("web", [Source(path="/f", content=content)])
