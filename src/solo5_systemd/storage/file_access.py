"""Write permission of another user on a file, by mode and POSIX ACL (acl(5)).

access(2) is of no use: it checks the caller, which is root.
"""

import stat
import struct
from collections.abc import Collection
from typing import NamedTuple

READ = 0o4
READ_WRITE = 0o6
_VERSION = struct.Struct("<I")
_ENTRY = struct.Struct("<HHI")  # tag, permissions, user or group: linux/posix_acl_xattr.h
_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 1, 2, 4, 8, 16, 32


def may_open(
    user: int, groups: Collection[int], *, owner: int, group: int, mode: int, acl: bytes | None, how: int = READ_WRITE
) -> bool:
    """Return whether a process of a user, with all of its groups (credentials(7)) and no capability, may open a file.

    Args:
        acl: the file's `system.posix_acl_access`; None without one.
    """
    bits = stat.S_IMODE(mode)
    entries = [_Entry(_USER_OBJ, bits >> 6 & 7), _Entry(_GROUP_OBJ, bits >> 3 & 7), _Entry(_OTHER, bits & 7)]
    if acl:
        entries = [_Entry(*fields) for fields in _ENTRY.iter_unpack(acl[_VERSION.size :])]
    if user == owner:
        return any(_allows(it, how) for it in entries if it.tag == _USER_OBJ)
    mask = next((it.permissions for it in entries if it.tag == _MASK), READ_WRITE)
    limited = [it._replace(permissions=it.permissions & mask) for it in entries]
    named = [it for it in limited if it.tag == _USER and it.number == user]
    if named:
        return any(_allows(it, how) for it in named)
    own = [it for it in limited if it.tag == _GROUP and it.number in groups]
    own += [it for it in limited if it.tag == _GROUP_OBJ and group in groups]
    return any(_allows(it, how) for it in own or (it for it in entries if it.tag == _OTHER))


class _Entry(NamedTuple):
    tag: int
    permissions: int
    number: int = 0


def _allows(entry: _Entry, how: int) -> bool:
    return entry.permissions & how == how
