"""A real plugin process, called over its socket."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from tests.fast.goplugin.host import Host, Plugin, launched

from solo5_systemd.goplugin.proto import health_pb2, plugin_pb2
from solo5_systemd.goplugin.proto.status_pb2 import Status


def rpc_error(act: Callable[[], object]) -> Any:
    """Return the error of a call."""
    with pytest.raises(grpc.RpcError) as caught:
        act()
    return caught.value


# --- the handshake --------------------------------------------------------------------------------------------------


def test_the_handshake_names_a_socket_that_answers(lasting: Plugin, caller: Host) -> None:
    core, version, network, path, protocol, certificate = lasting.line.rstrip("\n").split("|")
    assert (core, version, network, protocol, certificate) == ("1", "7", "unix", "grpc", "")
    assert Path(path).is_socket()
    assert caller.greet("you") == "hello you"


def test_a_start_from_a_shell_prints_what_the_program_is(temporary: Path) -> None:
    with launched(temporary, GREETER_COOKIE="") as plugin:
        assert plugin.line == ""
        assert plugin.process.wait(timeout=30) == 1
        assert plugin.stderr.read().startswith(b"this program is a plugin: GREETER_COOKIE is not")


def test_a_path_too_long_for_a_socket_is_refused_in_a_sentence(temporary: Path) -> None:
    deep = temporary / ("x" * 100)
    deep.mkdir()
    with launched(deep) as plugin:
        (entry,) = plugin.logged()
        assert plugin.process.returncode == 1
    assert entry["@level"] == "error"
    assert "expected a path of at most 107 bytes" in entry["@message"]
    assert list(deep.iterdir()) == []


def test_the_socket_is_in_the_directory_for_temporary_files_whatever_its_name(temporary: Path) -> None:
    wanted = temporary / "50%25 #?"
    wanted.mkdir()
    with launched(wanted) as plugin:
        assert plugin.socket
        assert plugin.socket.parent.parent == wanted
        assert plugin.socket.is_socket()


def test_only_its_owner_can_reach_the_socket(lasting: Plugin) -> None:
    assert lasting.socket
    assert lasting.socket.parent.stat().st_mode & 0o777 == 0o700


# --- the services of go-plugin --------------------------------------------------------------------------------------


def test_health_is_served_and_stdio_stays_open_and_silent(caller: Host) -> None:
    request, response = health_pb2.HealthCheckRequest(), health_pb2.HealthCheckResponse
    assert caller.call("/grpc.health.v1.Health/Check", request, response).status == response.SERVING
    stdio = caller.stream("/plugin.GRPCStdio/StreamStdio", plugin_pb2.Empty(), plugin_pb2.StdioData)
    caller.greet("you")
    assert stdio.is_active()
    stdio.cancel()


# --- calls ----------------------------------------------------------------------------------------------------------


def test_streams_are_served_side_by_side(caller: Host) -> None:
    streams = [caller.greet_often(str(number)) for number in range(50)]
    assert [next(stream).value for stream in streams] == [f"hello {number} 0" for number in range(50)]
    for stream in streams:
        stream.cancel()


def test_each_request_of_a_stream_is_answered(caller: Host) -> None:
    assert [answer.value for answer in caller.greet_each("one", "two")] == ["hello one", "hello two"]


def test_a_stream_whose_caller_goes_is_cleaned_up_at_once(plugin: Plugin, host: Host) -> None:
    stream = host.greet_often("nobody")
    next(stream)
    stream.cancel()
    host.greet("you")
    host.shut_down()
    assert [entry["@message"] for entry in plugin.logged()] == ["nobody listens to nobody", "closed"]


def test_messages_may_be_larger_than_grpcs_usual_four_mebibytes(caller: Host) -> None:
    name = "x" * 5 * 2**20
    assert caller.greet(name) == f"hello {name}"


def test_an_expected_error_carries_its_sentence_and_details(caller: Host) -> None:
    error = rpc_error(lambda: caller.greet("nobody"))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert error.details() == "there is no \\xff of that name."
    status = Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    detail = StringValue()
    assert status.details[0].Unpack(detail)
    assert (status.code, status.message, detail.value) == (9, "there is no \\xff of that name.", "try another")


def test_an_error_of_any_length_arrives(caller: Host) -> None:
    error = rpc_error(lambda: caller.greet("rambler"))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "… well…" in (error.details() or "")


@pytest.mark.parametrize(("whom", "kind"), [("crash", "KeyError"), ("forsaken", "CancelledError")])
def test_an_unforeseen_error_is_answered_and_logged_once_with_its_traceback(
    plugin: Plugin, host: Host, whom: str, kind: str
) -> None:
    error = rpc_error(lambda: host.greet(whom))
    assert error.code() is grpc.StatusCode.UNKNOWN
    assert f"Greet: internal error of the plugin ({kind}" in (error.details() or "")
    assert host.greet("you") == "hello you"
    host.shut_down()
    first, *others = plugin.logged()
    assert first["@level"] == "error"
    assert "Traceback (most recent call last)" in first["traceback"]
    assert [entry["@message"] for entry in others] == ["closed"]


def test_errors_end_streams_as_they_end_calls(caller: Host) -> None:
    assert rpc_error(lambda: list(caller.greet_each("nobody"))).code() is grpc.StatusCode.FAILED_PRECONDITION


# --- the end --------------------------------------------------------------------------------------------------------


def test_shutdown_cuts_calls_and_leaves_nothing_behind(plugin: Plugin, host: Host, temporary: Path) -> None:
    stream = host.greet_often("you")
    next(stream)
    host.shut_down()
    assert plugin.process.wait(timeout=30) == 0
    assert list(temporary.iterdir()) == []
    assert [entry["@message"] for entry in plugin.logged()] == ["nobody listens to you", "closed"]


def test_a_call_that_ignores_its_cancellation_does_not_keep_the_process(
    plugin: Plugin, host: Host, temporary: Path
) -> None:
    stubborn = host.greet_each("stubborn")
    host.greet("you")
    host.shut_down()
    assert plugin.process.wait(timeout=30) == 0
    assert list(temporary.iterdir()) == []
    stubborn.cancel()


def test_term_ends_it_as_shutdown_does(plugin: Plugin, temporary: Path) -> None:
    plugin.process.terminate()
    assert plugin.process.wait(timeout=30) == 0
    assert [entry["@message"] for entry in plugin.logged()] == ["closed"]
    assert list(temporary.iterdir()) == []


def test_an_interrupt_at_the_terminal_is_not_for_the_plugin(lasting: Plugin, caller: Host) -> None:
    lasting.process.send_signal(signal.SIGINT)
    assert caller.greet("you") == "hello you"


def test_the_next_plugin_removes_what_a_killed_one_left(plugin: Plugin, host: Host, temporary: Path) -> None:
    with launched(temporary) as killed:
        killed.process.kill()
        killed.process.wait()
        assert killed.socket
        assert killed.socket.exists()
        with launched(temporary):
            assert not killed.socket.parent.exists()
    assert plugin.socket
    assert plugin.socket.exists()
    assert host.greet("you") == "hello you"


# --- the host's pipes -----------------------------------------------------------------------------------------------


def test_a_host_that_died_is_outlived(plugin: Plugin, host: Host) -> None:
    plugin.stdout.close()
    plugin.stderr.close()
    for _ in range(3):
        assert host.greet("logger") == "logged"
        assert host.greet("printer") == "printed"


def test_a_host_that_does_not_read_its_log_delays_nothing(plugin: Plugin, host: Host) -> None:
    assert host.greet("flood") == "flooded"
    host.shut_down()
    assert plugin.process.wait(timeout=30) == 0


def test_a_child_never_holds_the_hosts_pipes(plugin: Plugin, host: Host) -> None:
    child = int(host.greet("parent"))
    try:
        host.shut_down()
        out, err = plugin.process.communicate(timeout=30)
    finally:
        os.kill(child, signal.SIGKILL)
    assert out == b""
    assert b"closed" in err


def test_what_is_printed_reaches_the_log_and_never_stdout(plugin: Plugin, host: Host) -> None:
    host.greet("printer")
    host.shut_down()
    assert [entry["@message"] for entry in plugin.logged()] == ["printed by mistake", "and to stderr", "closed"]
    assert plugin.stdout.read() == b""


def test_a_fault_that_ends_the_plugin_is_reported_in_one_line(temporary: Path) -> None:
    with launched(temporary, GREETER_FAILS="yes") as plugin:
        plugin.process.terminate()
        (entry,) = plugin.logged()
        assert plugin.process.returncode == 1
    assert (entry["@level"], entry["@message"]) == ("error", "unhandled exception: it cannot be closed")
    assert "RuntimeError: it cannot be closed" in entry["traceback"]
    assert list(temporary.iterdir()) == []


def test_a_crash_in_c_is_reported_on_the_log(plugin: Plugin) -> None:
    plugin.process.send_signal(signal.SIGSEGV)
    assert b"Fatal Python error: Segmentation fault" in plugin.stderr.read()
    assert plugin.process.wait(timeout=30) == -signal.SIGSEGV
