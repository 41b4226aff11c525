"""Specifiers in [Unikernel]."""

import pytest

from solo5_systemd.declared.syntax import HostNames, expand, specifiers

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
    assert expand("%f %n", specifiers("web", HOST)) == "/web web.service"


UNKNOWN = [(text, HOST, "unknown specifier .* %% is a percent sign") for text in ("%u", "%h", "%d", "%", "50% x", "%é")]


@pytest.mark.parametrize(
    ("text", "host", "words"),
    [*UNKNOWN, ("%i", HOST, "empty here"), ("%I", HOST, "empty here"), ("%m", HostNames(), "empty here")],
)
def test_an_unknown_specifier_or_one_without_a_value_is_refused(text: str, host: HostNames, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        expand(text, specifiers("web", host))
