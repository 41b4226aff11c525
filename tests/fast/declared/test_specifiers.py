"""Specifiers in [Unikernel]."""

import pytest

from solo5_systemd.declared.specifiers import HostNames, expand, specifiers

HOST = HostNames(
    hostname="web1.example.org", machine_id="f" * 32, boot_id="e" * 32, kernel="6.1.0", architecture="arm64"
)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("%n %N %p %P %j %J %i %I %f", "a-b@c-d.service a-b@c-d a-b a/b b b c-d c/d /c/d"),
        ("%H %l %m %b %v %a", f"web1.example.org web1 {'f' * 32} {'e' * 32} 6.1.0 arm64"),
        ("%S/%C/%E/%L/%t/%T/%V", "/var/lib//var/cache//etc//var/log//run//tmp//var/tmp"),
        ("100%% %%i {x}", "100% %i {x}"),
    ],
)
def test_a_specifier_has_systemds_meaning(text: str, expanded: str) -> None:
    assert expand(text, specifiers("a-b@c-d", HOST)) == expanded


def test_the_file_name_of_a_declaration_without_instance_is_its_own() -> None:
    assert expand("%f %n", specifiers("web", HOST)) == "/web web.service"


@pytest.mark.parametrize("text", ["%u", "%h", "%d", "%", "50% x", "%é"])
def test_an_unknown_specifier_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="unknown specifier .* %% is a percent sign"):
        expand(text, specifiers("web", HOST))


@pytest.mark.parametrize(("text", "host"), [("%i", HOST), ("%I", HOST), ("%m", HostNames())])
def test_a_specifier_without_a_value_is_refused(text: str, host: HostNames) -> None:
    with pytest.raises(ValueError, match="empty here"):
        expand(text, specifiers("web", host))
