"""The dump of albatross-daemon in DER, byte by byte: an encoder that has nothing of the decoder of `convert`."""

from collections.abc import Iterable, Sequence


def tlv(tag: int, *contents: bytes) -> bytes:
    content = b"".join(contents)
    size = len(content)
    if size < 128:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(length))) + length + content


def sequence(*contents: bytes) -> bytes:
    return tlv(0x30, *contents)


def set_of(contents: Iterable[bytes]) -> bytes:
    return tlv(0x31, *sorted(contents))


def explicit(number: int, *contents: bytes) -> bytes:
    return tlv(0xA0 | number, *contents)


def integer(value: int) -> bytes:
    return tlv(0x02, value.to_bytes((value + (value < 0)).bit_length() // 8 + 1, signed=True))


def boolean(value: bool) -> bytes:
    return tlv(0x01, b"\xff" if value else b"\0")


def octets(value: bytes) -> bytes:
    return tlv(0x04, value)


def utf8(value: str) -> bytes:
    return tlv(0x0C, value.encode())


NULL = tlv(0x05)
SOLO5, BHYVE = explicit(0, NULL), explicit(1, NULL)
QUIT = explicit(0, NULL)


def restart(*codes: int) -> bytes:
    return explicit(1, set_of(map(integer, codes)))


def block(name: str, device: str | None = None, sector_size: int | None = None) -> bytes:
    return sequence(
        utf8(name), b"" if device is None else utf8(device), b"" if sector_size is None else integer(sector_size)
    )


def bridge(name: str, host: str | None = None, mac: bytes | None = None) -> bytes:
    return sequence(utf8(name), b"" if host is None else utf8(host), b"" if mac is None else octets(mac))


def config(
    version: int,
    image: bytes,
    *,
    kind: bytes = SOLO5,
    compressed: bool = False,
    startup: int | None = None,
    add_name: bool = False,
    on_failure: bytes = QUIT,
    cpus: Sequence[int] = (0,),
    memory: int = 32,
    blocks: Sequence[bytes] = (),
    bridges: Sequence[bytes] = (),
    arguments: Sequence[str] | None = None,
    numcpus: int = 1,
    boot_partition: str | None = None,
) -> bytes:
    """Return the configuration of a unikernel, as a dump has it whose CHOICE has this number."""
    start = b"" if startup is None else integer(startup)
    return sequence(
        kind,
        boolean(compressed),
        octets(image),
        start + boolean(add_name) if version >= 5 else b"",
        on_failure,
        set_of(map(integer, cpus)) if version == 6 else integer(cpus[0]),
        integer(memory),
        explicit(0, set_of(blocks)) if blocks else b"",
        explicit(1, set_of(bridges)) if bridges else b"",
        b"" if arguments is None else explicit(2, sequence(*map(utf8, arguments))),
        explicit(3, integer(numcpus)) if version == 6 else b"",
        explicit(4, utf8(boot_partition)) if boot_partition is not None else b"",
    )


def policy(unikernels: int = 10, memory: int = 1024, block_mb: int | None = None) -> bytes:
    blocks = b"" if block_mb is None else integer(block_mb)
    return sequence(sequence(integer(0)), integer(unikernels), integer(memory), blocks, sequence(utf8("service")))


def dump(version: int, unikernels: Sequence[tuple[str, bytes]], policies: Sequence[tuple[str, bytes]] = ()) -> bytes:
    """Return a whole dump."""
    pairs = sequence(*(sequence(utf8(name), value) for name, value in unikernels))
    if version == 3:
        return explicit(3, pairs)
    return explicit(version, sequence(pairs, sequence(*(sequence(utf8(name), value) for name, value in policies))))
