"""`solo5ctl -H HOST` by a real sshd: exit statuses, streams, and that neither host names nor words are commands."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Machine, Runner, eventually, ok, sh

HOST = "root@127.0.0.1:2222"
ROOT = Path("/root/.ssh")


@pytest.fixture
def sshd(machine: Machine, tmp_path: Path) -> Iterator[None]:
    """An sshd that lets root of this machine in, by a key."""
    run, had_run, had_root = Path("/run/sshd"), Path("/run/sshd").exists(), ROOT.exists()
    run.mkdir(exist_ok=True)
    ROOT.mkdir(mode=0o700, exist_ok=True)
    key = tmp_path / "host"
    for path in (key, ROOT / "id_ed25519"):
        ok("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path))
    keys = tmp_path / "authorized"
    keys.write_text((ROOT / "id_ed25519.pub").read_text())
    (ROOT / "known_hosts").write_text(f"[127.0.0.1]:2222 {(tmp_path / 'host.pub').read_text()}")
    config = tmp_path / "sshd_config"
    config.write_text(
        f"Port 2222\nListenAddress 127.0.0.1\nHostKey {key}\nAuthorizedKeysFile {keys}\nStrictModes no\nUsePAM no\n"
        "PermitRootLogin prohibit-password\nPidFile none\n"
    )
    server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", str(config)])
    try:
        eventually(lambda: sh("ssh-keyscan", "-p", "2222", "127.0.0.1").stdout, "sshd listens")
        yield
    finally:
        server.terminate()
        server.wait()
        for name in ("id_ed25519", "id_ed25519.pub", "known_hosts"):
            (ROOT / name).unlink()
        if not had_root:
            ROOT.rmdir()
        if not had_run:
            run.rmdir()


@pytest.mark.usefixtures("sshd")
def test_a_command_line_has_the_same_effect_as_there(run: Runner) -> None:
    name = run("sleeper.spt")
    assert json.loads(ok("solo5ctl", "-H", HOST, "ps", "--json")) == json.loads(ok("solo5ctl", "ps", "--json"))
    assert ok("solo5ctl", "-H", HOST, "stop", name).strip() == name
    assert json.loads(ok("solo5ctl", "inspect", "--json", name))[0]["phase"] == "ended"


@pytest.mark.usefixtures("sshd")
def test_the_status_and_the_message_are_those_of_the_other_host() -> None:
    for words in (("inspect", "missing"), ("run", "--rm", str(GUESTS / "hello.spt"), "exit=7"), ("nonsense",)):
        there, here = sh("solo5ctl", "-H", HOST, *words), sh("solo5ctl", *words)
        assert (there.returncode, there.stderr) == (here.returncode, here.stderr)
        assert there.returncode > 0


def test_without_an_sshd_the_status_is_that_of_ssh(machine: Machine) -> None:
    done = sh("solo5ctl", "-H", HOST, "ps")
    assert done.returncode == 255
    assert "Connection refused" in done.stderr


@pytest.mark.usefixtures("sshd")
def test_stdin_and_stdout_carry_a_disk() -> None:
    content = bytes(range(256)) * 4096
    try:
        put = subprocess.run(
            ["solo5ctl", "-H", HOST, "disk", "import", "sent", "-"], input=content, capture_output=True, check=False
        )
        assert put.returncode == 0, put.stderr
        got = subprocess.run(["solo5ctl", "-H", HOST, "disk", "export", "sent", "-"], capture_output=True, check=True)
        assert got.stdout == content
    finally:
        ok("solo5ctl", "disk", "rm", "sent")


@pytest.mark.usefixtures("sshd")
def test_no_word_is_a_command_on_the_other_host() -> None:
    words = ("$(touch /tmp/taken)", "`touch /tmp/taken`", "a; touch /tmp/taken", "'", "a\nb", "*")
    for word in words[:1], words[1:]:
        there, here = sh("solo5ctl", "-H", HOST, "inspect", "--", *word), sh("solo5ctl", "inspect", "--", *word)
        assert (there.returncode, there.stderr) == (here.returncode, here.stderr)
        assert there.returncode > 0
    host = sh("solo5ctl", "-H", "-oProxyCommand=touch /tmp/taken", "ps")
    assert (host.returncode, "is not a host: expected [USER@]HOST[:PORT]" in host.stderr) == (125, True)
    assert not Path("/tmp/taken").exists()
