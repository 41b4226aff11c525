"""Execute a command in a kernel that has no nfnetlink, by a filter of seccomp(2).

    without_nfnetlink.py COMMAND [ARGUMENT …]

socket(2) fails for NETLINK_NETFILTER as without the module: EPROTONOSUPPORT (netlink_create of
net/netlink/af_netlink.c).
"""

import ctypes
import errno
import os
import socket
import struct
import sys

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _EQUALS, _RETURN = 0x20, 0x15, 0x06
_ERRNO, _ALLOW = 0x00050000, 0x7FFF0000
_NUMBER, _FAMILY, _PROTOCOL = 0, 16, 32  # of struct seccomp_data: the call, its first and its third argument
_SOCKETS = (41, 198)  # of x86-64, and of aarch64
_NETFILTER = 12


def forbid() -> None:
    """Have this process, and what it executes, find no nfnetlink."""
    program = [
        (_LOAD, 0, 0, _NUMBER),
        (_EQUALS, 1, 0, _SOCKETS[0]),
        (_EQUALS, 0, 5, _SOCKETS[1]),
        (_LOAD, 0, 0, _FAMILY),
        (_EQUALS, 0, 3, socket.AF_NETLINK),
        (_LOAD, 0, 0, _PROTOCOL),
        (_EQUALS, 0, 1, _NETFILTER),
        (_RETURN, 0, 0, _ERRNO | errno.EPROTONOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("=HBBI", *each) for each in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    filtered = struct.pack("HP", len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _FILTER, filtered):
        code_ = ctypes.get_errno()
        raise OSError(code_, os.strerror(code_))


if __name__ == "__main__":
    forbid()
    os.execvp(sys.argv[1], sys.argv[1:])
