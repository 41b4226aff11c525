"""I/O limits of disks: what an operator and a job may write, and which of the two holds."""

import pytest

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.storage.io_limits import KEYS, NO_IO_LIMITS, IoLimits, io_limit, lowered


@pytest.mark.parametrize(
    "key, text, value",
    [
        ("read_bps", "100K", 100_000),
        ("write_bps", "10M", 10_000_000),
        ("read_bps", "123456", 123_456),
        ("read_bps", "1T", 10**12),
        ("read_iops", "10", 10),
        ("write_iops", "2K", 2000),
    ],
)
def test_a_limit_is_a_number_with_powers_of_1000(key: str, text: str, value: int) -> None:
    assert io_limit(key, text) == value


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("text", ["", "0", "9", "-1", "1.5M", "10m", "10MB", "2T", "M", "١٠٠K", "9" * 16, " 1M", "max"])
def test_another_text_is_no_limit(key: str, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"^{key} '.*' is not an I/O limit: expected 1"):
        io_limit(key, text)


def test_bytes_below_a_second_for_each_request_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="^read_bps '99999' is not an I/O limit: expected 100K to 1T per"):
        io_limit("read_bps", "99999")
    with pytest.raises(InvalidRequestError, match="^read_iops '9' is not an I/O limit: expected 10 to 1T per second"):
        io_limit("read_iops", "9")


def test_limits_are_text_as_a_job_has_them() -> None:
    limits = IoLimits(read_bps=10_000_000, write_bps=123_456, read_iops=500, write_iops=2000)
    assert str(limits) == "read_bps=10M write_bps=123456 read_iops=500 write_iops=2K"
    assert str(NO_IO_LIMITS) == ""


def test_a_job_has_what_the_operator_sets_unless_it_is_less() -> None:
    cap = IoLimits(read_bps=50_000_000, write_bps=20_000_000)
    wanted = IoLimits(read_bps=10_000_000, read_iops=500)
    assert lowered(wanted, cap, "io") == IoLimits(read_bps=10_000_000, write_bps=20_000_000, read_iops=500)
    assert lowered(NO_IO_LIMITS, cap, "io") == cap
    assert lowered(wanted, NO_IO_LIMITS, "io") == wanted
    assert lowered(cap, cap, "io") == cap


def test_a_job_cannot_have_more_than_the_operator_sets() -> None:
    sentence = "io.read_bps is 51M: expected 50M per second or less, this node's ceiling."
    with pytest.raises(InvalidRequestError) as caught:
        lowered(IoLimits(read_bps=51_000_000), IoLimits(read_bps=50_000_000), "io")
    assert caught.value.sentence == sentence
