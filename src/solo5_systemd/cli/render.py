"""Tables, sizes and times as text; colour is added by the caller's `Paint` function."""

from collections.abc import Callable, Mapping, Sequence

from solo5_systemd.base.sanitize import printable

Row = Sequence[str]
Paint = Mapping[str, Callable[[str], str]]
"""By a column's header: takes a padded cell, returns the cell as it is written."""

UNKNOWN = "-"

_UNITS = ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))
_SPANS = (
    (31_536_000, "year"),
    (2_592_000, "month"),
    (604_800, "week"),
    (86_400, "day"),
    (3600, "hour"),
    (60, "minute"),
    (1, "second"),
)


def table(header: Row, rows: Sequence[Row], paint: Paint | None = None) -> str:
    """Return rows as aligned columns, two blanks apart, below the header; empty cells are `UNKNOWN`."""
    cells = [[printable(cell) or UNKNOWN for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in (header, *cells)) for i in range(len(header))]
    widths[-1] = 0  # nothing is beside the last one
    painters = [(paint or {}).get(column, str) for column in header]
    lines = ["  ".join(map(str.ljust, header, widths))]
    for row in cells:
        padded = map(str.ljust, row, widths)
        lines.append("  ".join(painter(cell) for painter, cell in zip(painters, padded, strict=True)))
    return "".join(f"{line}\n" for line in lines)


def fields(pairs: Sequence[tuple[str, str]]) -> str:
    """Return `name: value` lines with aligned colons, as in systemctl status; empty values are `UNKNOWN`."""
    width = max((len(name) for name, _ in pairs), default=0)
    return "".join(f"{name.rjust(width)}: {printable(value) or UNKNOWN}\n" for name, value in pairs)


def visible_line(line: bytes) -> bytes:
    """Return a console line with control characters other than tab escaped, for a terminal."""
    text = line.decode("utf-8", "surrogateescape")
    return "\t".join(printable(part) for part in text.split("\t")).encode()


def size(count: int) -> str:
    """Return bytes in the largest unit of 1024: `128M`, `1.5G`, `512`."""
    for factor, suffix in _UNITS:
        if count >= factor:
            return f"{count / factor:.1f}".removesuffix(".0") + suffix
    return str(count)


def span(seconds: float) -> str:
    """Return a duration in its largest unit: `3 minutes`."""
    for length, unit in _SPANS:
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return "less than a second"


def moment(microseconds: int) -> str:
    """Return RFC 3339 in UTC with microseconds, which `journalctl --since` accepts."""
    from datetime import UTC, datetime  # imported here for startup time: tables do not need it

    whole, rest = divmod(microseconds, 1_000_000)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{rest:06d}Z"
