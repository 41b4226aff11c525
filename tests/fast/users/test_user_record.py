import json

from solo5_systemd.base.names import TaskName
from solo5_systemd.users.user_record import user_record

WEB = TaskName("web")


def test_a_second_name_is_of_the_same_user() -> None:
    first, second = json.loads(user_record(61200, WEB)), json.loads(user_record(61200, WEB, "solo5-web"))
    assert second.pop("userName") == "solo5-web"
    assert first.pop("userName") == "solo5-61200"
    assert first == second
