"""The generator writes unit files to any directory, and knows its own ones again."""

import asyncio
import pickle
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event

import pytest
from tests.fast.image import elfbuilder as elf

from solo5_systemd.base import declared_units, locks
from solo5_systemd.base.errors import HostError, NotFoundError, SettingsError
from solo5_systemd.base.locks import closing, lock_file
from solo5_systemd.base.names import Target, TaskName
from solo5_systemd.host import tenders
from solo5_systemd.host.tenders import TenderPath
from solo5_systemd.pid1 import generator, kept_declarations
from solo5_systemd.pid1.generator import Generator
from solo5_systemd.pid1.kept_declarations import is_cleared, kept_declaration, kept_refusal, remove_if_gone
from solo5_systemd.settings.solo5_toml import Settings
from solo5_systemd.unit.tender import Tender

Make = Callable[..., list[str]]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    async def find(_self: TenderPath, target: Target) -> Tender:
        return Tender(path=f"/usr/bin/solo5-{target}", target=target, version="1", abi_version=2)

    monkeypatch.setattr(TenderPath, "find", find)
    monkeypatch.setattr(tenders, "FSTAB", tmp_path / "fstab")
    monkeypatch.setattr(generator, "groups_for", lambda target, nics: ())
    monkeypatch.setattr(generator, "ETC", tmp_path / "etc")
    monkeypatch.setattr(generator, "UNITS", (str(tmp_path / "system"), str(tmp_path / "other")))
    monkeypatch.setattr(generator, "systemd_release", lambda: 257)
    monkeypatch.setattr(declared_units, "DIRECTORY", str(tmp_path / "run"))
    monkeypatch.setattr(locks, "RUN", tmp_path / "locks")
    monkeypatch.setattr(kept_declarations, "SYSTEM", tmp_path / "system")
    monkeypatch.setattr(kept_declarations, "UNITS", str(tmp_path / "units"))
    monkeypatch.setattr(kept_declarations, "WAITING", str(tmp_path / "waiting"))
    for name in ("etc", "system", "other", "units"):
        (tmp_path / name).mkdir()

    def run(
        settings: Settings | SettingsError = Settings(),  # noqa: B008 - frozen
        budget_s: float = 60.0,
    ) -> list[str]:
        monkeypatch.setattr(generator, "of_generators", dict)
        monkeypatch.setattr(generator, "BUDGET_S", budget_s)
        return list(Generator(settings).run())

    return run


@pytest.fixture
def web(tmp_path: Path, make: Make) -> Path:
    """A declaration of an image that exists."""
    image = tmp_path / "web.spt"
    image.write_bytes(elf.Elf(segments=(elf.load(), *elf.usual_notes(elf.SPT))).build())
    path = tmp_path / "etc/web.unikernel"
    path.write_text(f"[Unikernel]\nImage={image}\n")
    path.chmod(0o644)
    return path


WAITS = "Publish=8080:80\nIdleSec=5min\nIdleAction=stop\n"


def test_unchanged_files_are_not_written_again(make: Make, web: Path, tmp_path: Path) -> None:
    make()
    unit = tmp_path / "system/web.service"
    before = unit.stat().st_ino
    assert make() == []
    assert unit.stat().st_ino == before
    web.write_text(web.read_text() + "Memory=64M\n")
    make()
    assert unit.stat().st_ino != before


def test_a_file_that_is_there_again_before_its_task_has_ended_stays(make: Make, web: Path, tmp_path: Path) -> None:
    make()
    good = web.read_text()
    web.unlink()
    (tmp_path / "units/invocation:web.service").symlink_to("0123")
    make()
    web.write_text(good)
    assert make() == []
    remove_if_gone(TaskName("web"))
    assert (tmp_path / "system/web.service").exists()
    web.unlink()
    make()
    request = Path(declared_units.DIRECTORY, "web/update.json")
    request.touch()
    remove_if_gone(TaskName("web"))
    assert request.exists(), "the end of an update would not know the guest beside the task"
    request.unlink()
    remove_if_gone(TaskName("web"))
    assert not request.parent.exists()


def test_a_start_of_a_refused_file_is_no_running_task(make: Make, web: Path, tmp_path: Path) -> None:
    web.write_text(web.read_text() + "Memry=64M\n")
    make()
    (tmp_path / "units/invocation:web.service").symlink_to("0123")
    web.write_text(web.read_text().replace("Memry", "Memori"))
    [fault] = make()
    text = (tmp_path / "system/web.service").read_text()
    assert "Refused since" not in text
    assert fault.replace("[", "(").replace("]", ")") in text


@pytest.fixture
def no_tender(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async def find(_self: TenderPath, target: Target) -> Tender:
        raise NotFoundError(f"no tender for {target}: expected one.")

    monkeypatch.setattr(TenderPath, "find", find)


@pytest.mark.usefixtures("no_tender")
def test_a_tender_that_is_not_there_yet_is_expected_below_a_mount_of_fstab(
    make: Make, web: Path, tmp_path: Path
) -> None:
    (tmp_path / "fstab").write_text(f"# all\n\n/dev/a / ext4\n/dev/b {tmp_path}/opt/solo5 ext4\n")
    for directory in ("opt/solo5", "opt/solo5/bin"):
        assert make(Settings(tender_paths=(f"{tmp_path}/missing", f"{tmp_path}/{directory}"))) == []
        assert f"ExecStart={tmp_path}/{directory}/solo5-spt " in (tmp_path / "system/web.service").read_text()


@pytest.mark.usefixtures("no_tender")
@pytest.mark.parametrize(("there", "expected"), [(("a",), "b"), (("b",), "a"), (("a", "b"), "a"), ((), "a")])
def test_a_tender_that_is_not_there_yet_is_expected_in_a_directory_that_is_not(
    make: Make, web: Path, tmp_path: Path, there: tuple[str, ...], expected: str
) -> None:
    for name in there:
        (tmp_path / name).mkdir()
    assert make(Settings(tender_paths=(f"{tmp_path}/a", f"{tmp_path}/b"))) == []
    tender = f"{tmp_path}/{expected}/solo5-spt"
    text = (tmp_path / "system/web.service").read_text()
    assert f"ExecStart={tender} " in text
    assert " -/usr/lib:/usr/lib " in text
    waits = (tmp_path / "system/solo5-prepare@web.service.d/declared.conf").read_text()
    assert f'RequiresMountsFor="{tender}" ' in waits
    assert kept_declaration(TaskName("web")).tender == tender


def test_an_image_that_is_not_there_yet_is_assumed(
    make: Make, web: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def groups_for(target: Target, *, nics: bool) -> tuple[str, ...]:
        raise HostError("/dev/kvm does not exist.")

    monkeypatch.setattr(generator, "groups_for", groups_for)
    (tmp_path / "web.spt").unlink()
    assert make() == []
    assert kept_declaration(TaskName("web")).nics_assumed
    text = (tmp_path / "system/web.service").read_text()
    assert "ExecStart=/usr/bin/solo5-hvt" in text
    assert "SupplementaryGroups=kvm" in text
    web.write_text(web.read_text() + "Tender=spt\nNetwork=eth=default\n")
    make()
    text = (tmp_path / "system/web.service").read_text()
    assert "ExecStart=/usr/bin/solo5-spt" in text
    assert "PrivateNetwork=no" in text
    assert "SupplementaryGroups=\n" in text


@pytest.mark.parametrize("place", ["system/web.service", "other/web.service", "system/web.socket", "other/web.socket"])
def test_another_unit_of_the_name_is_left_alone(make: Make, web: Path, tmp_path: Path, place: str) -> None:
    web.write_text(web.read_text() + WAITS)
    other = tmp_path / place
    other.write_text("[Unit]\n")
    [fault] = make()
    assert fault == f"{web}: unit {other.name} is {other} already: expected a name that no other unit has."
    web.unlink()
    make()
    assert other.read_text() == "[Unit]\n"


@pytest.fixture
def template(web: Path) -> Path:
    """The same as a template, with something that differs."""
    path = web.rename(web.with_name("web@.unikernel"))
    path.write_text(path.read_text() + "Publish=80%i:80\nLabel=SITE=%i\n")
    return path


def system(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "system").iterdir())


def test_a_running_instance_whose_own_file_is_refused_keeps_the_unit_of_its_template(
    make: Make, template: Path, tmp_path: Path
) -> None:
    make()
    (tmp_path / "run/web@1").mkdir()
    (tmp_path / "units/invocation:web@1.service").symlink_to("0123")
    own = template.with_name("web@1.unikernel")
    own.write_text("[Unikernel]\nMemry=1M\n")
    [fault] = make()
    text = (tmp_path / "system/web@1.service").read_text()
    assert "Wants=solo5-prepare@web@%i.service" in text
    assert text.endswith("Restart=no\n")
    assert kept_refusal(TaskName("web@1")) == fault
    assert kept_refusal(TaskName("web@2")) == ""
    own.unlink()
    assert make() == []
    assert kept_refusal(TaskName("web@1")) == ""
    assert not (tmp_path / "system/web@1.service").exists()


def test_an_instance_does_not_survive_a_soft_reboot(make: Make, template: Path) -> None:
    template.write_text(f"[Unit]\nSurviveFinalKillSignal=yes\n{template.read_text()}")
    [fault] = make()
    assert "SurviveFinalKillSignal=yes is not for a template" in fault


def test_a_task_that_survives_soft_reboots_has_all_units_of_it_survive(make: Make, web: Path, tmp_path: Path) -> None:
    good = web.read_text()
    units = ("web.service", "solo5-prepare@web.service.d/declared.conf", "solo5.slice.d/declared.conf")
    web.write_text(f"[Unit]\nSurviveFinalKillSignal=yes\n{good}")
    assert make() == []
    for unit in units:
        assert "DefaultDependencies=no" in (tmp_path / "system" / unit).read_text()
    (tmp_path / "units/invocation:web.service").symlink_to("0123")
    web.write_text(f"{web.read_text()}Memry=64M\n")
    make()
    assert (tmp_path / "system/solo5.slice.d").exists(), "it runs on, and survives"
    (tmp_path / "units/invocation:web.service").unlink()
    web.write_text(f"[Unit]\nSurviveFinalKillSignal=no\n{good}")
    make()
    for unit in units[:2]:
        assert "DefaultDependencies=no" not in (tmp_path / "system" / unit).read_text()
    assert not (tmp_path / "system/solo5.slice.d").exists()


def test_a_template_is_removed_while_the_preparation_of_its_last_instance_ends(
    make: Make, template: Path, tmp_path: Path
) -> None:
    make()
    (tmp_path / "run/web@1").mkdir()
    (tmp_path / "run/web@1/uncleared").touch()
    (tmp_path / "units/invocation:solo5-prepare@web@1.service").symlink_to("0123")
    assert is_cleared(TaskName("web@1"))
    template.unlink()
    make()
    assert system(tmp_path) == []
    assert list((tmp_path / "run").iterdir()) == []


def test_a_lock_that_is_held_costs_the_budget_and_leaves_units_that_say_why(
    make: Make, web: Path, tmp_path: Path
) -> None:
    assert make() == []
    before = (tmp_path / "system/web.service").read_text()
    (tmp_path / "etc/new.unikernel").write_text(web.read_text())
    with closing(lock_file(tmp_path / "locks/declared")):
        begun = time.monotonic()
        (sentence,) = make(budget_s=0.2)
        assert time.monotonic() - begun < 30
    assert "locks/declared is locked by another process" in sentence
    assert "stay as they were at the last daemon-reload" in sentence
    assert (tmp_path / "system/web.service").read_text() == before
    assert "locks/declared is locked by another process" in (tmp_path / "system/new.service").read_text()
    assert make() == []
    assert "locks/declared" not in (tmp_path / "system/new.service").read_text()


def test_an_image_that_hangs_costs_the_budget_once_and_is_assumed(
    make: Make, web: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"etc/{name}.unikernel").write_text(web.read_text())
    answer = Event()
    monkeypatch.setattr(generator, "manifest_of", lambda _image: answer.wait(60))
    begun = time.monotonic()
    (sentence,) = make(budget_s=0.2)
    assert time.monotonic() - begun < 30
    answer.set()
    assert "took too long" in sentence
    for name in ("a", "b", "c", "web"):
        assert "ExecStart=" in (tmp_path / f"system/{name}.service").read_text()


def test_a_tender_that_hangs_costs_the_budget_once(
    make: Make, web: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_self: TenderPath, _target: Target) -> Tender:
        await asyncio.get_running_loop().run_in_executor(None, answer.wait, 60)
        raise NotFoundError("none")

    answer = Event()
    monkeypatch.setattr(TenderPath, "find", hang)
    (sentence,) = make(budget_s=0.2)
    answer.set()
    assert "took too long" in sentence
    assert "ExecStart=" in (tmp_path / "system/web.service").read_text()


def test_parts_of_the_declarations_become_what_all_become(
    make: Make, web: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = web.read_text()
    for number in range(7):
        own = tmp_path / f"etc/site{number}.unikernel"
        own.write_text("[Unikernel]\nMemory=much\n" if number == 3 else text)
        own.chmod(0o644)
    survives = "[Unit]\nSurviveFinalKillSignal=yes\n"
    (tmp_path / "etc/site6.unikernel").write_text(text + survives)
    in_one = make()
    system = tmp_path / "system"
    written = {path: path.read_text() for path in system.rglob("*") if path.is_file()}
    shutil.rmtree(system)
    system.mkdir()

    def parts(work: Callable[[Sequence[str]], object], names: Sequence[str], _: int) -> list[object]:
        return [pickle.loads(pickle.dumps(work([name]))) for name in names]

    monkeypatch.setattr(generator, "in_processes", parts)
    assert make() == in_one
    assert len(in_one) == 1
    assert {path: path.read_text() for path in system.rglob("*") if path.is_file()} == written
    assert any(path.parent.name == "solo5.slice.d" for path in written)
