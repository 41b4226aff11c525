"""Missing modules of the kernel: which errors mean one, and what to do."""

import errno
import os

import pytest

from solo5_systemd.base.errors import HostError
from solo5_systemd.network.modules import BRIDGE, needing, nft_hint


def _fail(code: int) -> None:
    with needing(BRIDGE, "bridge solo5-default"):
        raise OSError(code, os.strerror(code))


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOENT, errno.ENODEV])
def test_the_error_of_a_missing_module_names_it(code: int) -> None:
    words = f"bridge solo5-default cannot be made: {os.strerror(code)}; expected a kernel with module bridge."
    with pytest.raises(HostError, match=words) as caught:
        _fail(code)
    assert caught.value.hint.startswith("`modprobe bridge` loads it; if that finds none, install the modules")


def test_the_error_class_of_pyroute2_has_a_code() -> None:
    class NetlinkError(Exception):
        code = errno.EOPNOTSUPP

    with pytest.raises(HostError, match="cannot be made: Operation not supported; "), needing(BRIDGE, "it"):
        raise NetlinkError(95, "Operation not supported")
    with pytest.raises(HostError, match="cannot be made: refused; "), needing(BRIDGE, "it"):
        raise NetlinkError("refused")


def test_another_error_is_no_missing_module() -> None:
    with pytest.raises(PermissionError):
        _fail(errno.EPERM)


def test_a_refusal_by_nftables_has_modules_where_it_may_be_for_want_of_one() -> None:
    plain = "`nft list ruleset` shows the present rules."
    assert nft_hint("Error: Could not process rule: Operation not permitted", ("nf_tables",)) == plain
    for reason in ("No such file or directory", "Operation not supported"):
        hint = nft_hint(f"Error: Could not process rule: {reason}", ("nf_tables", "nft_ct"))
        assert hint.startswith(f"{plain} If a module is missing: `modprobe -a nf_tables nft_ct` loads it")
