"""What the Debian package installs, by its own lists."""

from pathlib import Path

PACKAGING = Path(__file__).parents[2] / "packaging/debian"
CHECKOUT = PACKAGING.parents[1]


def _installed() -> list[Path]:
    """Every file that a list of debhelper's names, as often as it does."""
    lines = [line.split() for lists in PACKAGING.glob("*.install") for line in lists.read_text().splitlines() if line]
    found = [(pattern, sorted(CHECKOUT.glob(pattern))) for *patterns, _ in lines for pattern in patterns]
    assert [pattern for pattern, files in found if not files] == [], "a pattern that no file matches"
    return [file for _, files in found for file in files]


def test_no_file_is_installed_twice() -> None:
    installed = _installed()
    assert sorted({file for file in installed if installed.count(file) > 1}) == []


def test_every_file_of_units_is_installed() -> None:
    """debhelper installs those of sysusers.d and tmpfiles.d by links beside its lists."""
    linked = {link.resolve() for link in PACKAGING.glob("solo5-systemd.*") if link.is_symlink()}
    assert set(CHECKOUT.glob("units/*")) == {*linked, *(file for file in _installed() if file.parent.name == "units")}
