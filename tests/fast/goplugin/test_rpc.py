import pytest
from tests.fast.goplugin.greetings import GREETINGS

from solo5_systemd.goplugin.rpc import service_handler


def test_a_method_that_is_missing_is_noticed_before_anything_is_served() -> None:
    class Mute:
        async def greet(self) -> None: ...

    with pytest.raises(AttributeError, match="greet_often"):
        service_handler(GREETINGS, Mute(), lambda _: None)
