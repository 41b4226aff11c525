"""Which connection to the bus is PID 1: a signal counts only where it comes from there.

A match rule does not decide that: it selects among signals to all, and any rule of the connection may let one pass. A
signal to one connection passes without any, and the policy of the system bus lets every user send one.
"""

from dbus_next import Message, MessageType

from solo5_systemd.bus.border import SYSTEMD
from solo5_systemd.bus.connection import Connection, RemoteError

BUS = "org.freedesktop.DBus"
_CHANGED = "NameOwnerChanged"
_OWNER_RULE = f"type='signal',sender='{BUS}',interface='{BUS}',member='{_CHANGED}',arg0='{SYSTEMD}'"


class Owner:
    """The present unique owner of org.freedesktop.systemd1 on a connection, from `follow` on."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._generation = 0
        self._owner = ""
        self._changes = 0
        connection.listen(self._received)

    async def follow(self) -> None:
        """Find the owner on the present connection, and every later one there.

        Raises:
            HostError: the bus is gone.
        """
        generation, changes = self._connection.generation, self._changes
        await self._connection.match(_OWNER_RULE)
        try:
            [owner] = await self._connection.call(BUS, "/org/freedesktop/DBus", BUS, "GetNameOwner", "s", [SYSTEMD])
        except RemoteError:  # nothing has the name yet
            owner = ""
        if self._changes == changes:  # else a signal has named a later one
            self._owner = owner
        self._generation = generation

    def sent(self, message: Message) -> bool:
        """Return whether a message is a signal of PID 1's."""
        is_signal = message.message_type is MessageType.SIGNAL
        present = self._generation == self._connection.generation
        return is_signal and present and bool(self._owner) and message.sender == self._owner

    def _received(self, message: Message) -> None:
        named = (message.message_type, message.sender, message.member, message.signature)
        if named == (MessageType.SIGNAL, BUS, _CHANGED, "sss") and message.body[0] == SYSTEMD:
            self._owner = message.body[2]
            self._changes += 1
