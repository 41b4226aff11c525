"""The files of declarations: which are read, in which order, and which are refused."""

from pathlib import Path

import pytest

from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError, SettingsError
from solo5_systemd.declared import files
from solo5_systemd.declared.files import declarations, own_instances

TEXT = "[Unikernel]\nImage=/a\n"


def read(directory: Path, name: str = "web") -> list[tuple[str, str]]:
    sources = files.read_sources(name, directory)
    return [(each.path.removeprefix(f"{directory}/"), each.content.decode()) for each in sources]


def write(path: Path, text: str = TEXT) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o644)
    return path


def test_declarations_are_listed_by_name_without_masked_ones(tmp_path: Path) -> None:
    for name in ("web.unikernel", "a@.unikernel", "a@1.unikernel", "other.toml"):
        write(tmp_path / name)
    (tmp_path / "masked.unikernel").symlink_to("/dev/null")
    assert declarations(tmp_path) == ("a@", "a@1", "web")
    assert declarations(tmp_path / "none") == ()
    with pytest.raises(SettingsError, match="cannot be read: Not a directory"):
        declarations(tmp_path / "other.toml")


def test_drop_ins_of_all_of_a_prefix_and_of_one_follow_in_the_order_of_their_names(tmp_path: Path) -> None:
    write(tmp_path / "web-a@.unikernel", "own")
    places = ("web-a@1.unikernel.d", "web-a@.unikernel.d", "web-.unikernel.d", "unikernel.d")
    for number, place in enumerate(places):
        for file in (f"{number}.conf", "masked.conf", "same.conf", ".hidden.conf", "README"):
            write(tmp_path / place / file, place)
    write(tmp_path / "web.unikernel.d" / "9.conf", "of another")
    (tmp_path / "web-a@1.unikernel.d/masked.conf").unlink()
    (tmp_path / "web-a@1.unikernel.d/masked.conf").symlink_to("/dev/null")
    found = [content for _, content in read(tmp_path, "web-a@1")]
    assert found == ["own", *places, "web-a@1.unikernel.d"]
    of_template = [content for _, content in read(tmp_path, "web-a@")]
    assert of_template == ["own", *places[1:], "web-a@.unikernel.d", "web-a@.unikernel.d"]


def test_instances_that_differ_from_their_template(tmp_path: Path) -> None:
    for name in ("web@.unikernel", "web@1.unikernel", "web2@3.unikernel", "web@x.toml"):
        write(tmp_path / name)
    for name in ("web@.unikernel.d", "web@2.unikernel.d", "web@1.unikernel.d"):
        (tmp_path / name).mkdir()
    (tmp_path / "web@4.unikernel").symlink_to("/dev/null")
    assert own_instances("web@", tmp_path) == {"web@1", "web@2", "web@4"}
    assert own_instances("web@", tmp_path / "none") == frozenset()


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"there is no declaration 'web': expected the file .*/web\.unikernel"):
        read(tmp_path)
    with pytest.raises(NotFoundError, match=r"/web@\.unikernel"):
        read(tmp_path, "web@1")
    (tmp_path / "web.unikernel").symlink_to("/dev/null")
    with pytest.raises(NotFoundError, match=r"declaration 'web' is masked: .*/web\.unikernel is a link to /dev/null"):
        read(tmp_path)
    with pytest.raises(InvalidRequestError, match="not usable"):
        read(tmp_path, "../web")


@pytest.mark.parametrize("directory", [".", "web.unikernel.d", "web@.unikernel.d", "web@1.unikernel.d"])
def test_a_directory_that_others_may_write_refuses_the_declaration(tmp_path: Path, directory: str) -> None:
    name = "web@1" if "@" in directory else "web"
    for file in ("web.unikernel", "web@.unikernel"):
        write(tmp_path / file)
    for each in ("web.unikernel.d", "web@.unikernel.d", "web@1.unikernel.d"):
        write(tmp_path / each / "10.conf")
    read(tmp_path, name)
    (tmp_path / directory).chmod(0o775)
    with pytest.raises(SettingsError, match=f"{tmp_path / directory} may be changed by group") as caught:
        read(tmp_path, name)
    assert str(caught.value).startswith(f"{tmp_path}/")


def test_a_declaration_is_not_written_where_others_may_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(SettingsError, match=f"{tmp_path} may be changed by every user"):
        files.write_source("web", TEXT, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_not_everybody_may_read_is_marked(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    write(tmp_path / "web.unikernel")
    write(tmp_path / "web.unikernel.d/10.conf").chmod(0o600)
    assert [each.is_public for each in files.read_sources("web", tmp_path)] == [True, False]


def test_a_declaration_is_written_atomically_and_replaced_on_request_only(tmp_path: Path) -> None:
    path = files.write_source("web", TEXT, tmp_path / "solo5")
    assert read(tmp_path / "solo5") == [("web.unikernel", TEXT)]
    assert path.stat().st_mode & 0o777 == 0o644
    with pytest.raises(InvalidRequestError, match=r"web\.unikernel exists: expected a new name"):
        files.write_source("web", "other", tmp_path / "solo5")
    assert files.write_source("web", "other", tmp_path / "solo5", replace=True).read_text() == "other"
    assert [each.name for each in (tmp_path / "solo5").iterdir()] == ["web.unikernel"]


def test_a_declaration_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="cannot be written: Not a directory"):
        files.write_source("web", TEXT, write(tmp_path / "file") / "below")
    with pytest.raises(InvalidRequestError, match="not usable"):
        files.write_source("../web", TEXT, tmp_path)
