import grpc
import pytest
from tests.fast.goplugin.greetings import GREETINGS

from solo5_systemd.goplugin.rpc import Failure, service_handler


def test_a_method_that_is_missing_is_noticed_before_anything_is_served() -> None:
    class Mute:
        async def greet(self) -> None: ...

    with pytest.raises(AttributeError, match="greet_often"):
        service_handler(GREETINGS, Mute(), lambda _: None)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
def test_no_failure_can_look_like_a_dead_plugin(code: grpc.StatusCode) -> None:
    with pytest.raises(ValueError, match="means a dead plugin to go-plugin"):
        Failure(code=code, message="no")
