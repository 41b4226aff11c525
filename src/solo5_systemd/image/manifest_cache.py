"""The memo of an image file: hash and manifest, so that an unchanged file is neither read nor parsed again."""

import json
from dataclasses import dataclass
from typing import Self

from solo5_systemd.decode import Fields, json_document
from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.image.manifest import MAX_DEVICES, Device, DeviceKind, ImageFacts, Manifest, Target
from solo5_systemd.names import device_name

_ADDRESS = {"low": 0, "high": 1 << 65}  # the sum of a segment's address and size, of 64 bits each


@dataclass(frozen=True, kw_only=True)
class Memo:
    """The SHA-256 of an image's content, in hexadecimal digits, and its properties."""

    sha256: str
    facts: ImageFacts

    def encode(self) -> bytes:
        """Return the memo as JSON."""
        manifest = self.facts.manifest
        document = {
            "sha256": self.sha256,
            "target": manifest.target,
            "abi_version": manifest.abi_version,
            "devices": [{"name": device.name, "kind": device.kind} for device in manifest.devices],
            "entry": self.facts.entry,
            "load_end": self.facts.load_end,
            "memory_end": self.facts.memory_end,
        }
        return json.dumps(document).encode()

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Parse a memo.

        Raises:
            InvalidRequestError: damaged, or written by an incompatible version.
        """
        fields = Fields(json_document(content, "memo"), "memo")
        devices = fields.tables("devices")
        if len(devices) > MAX_DEVICES:
            raise fields.wrong("devices", len(devices), f"at most {MAX_DEVICES}")
        manifest = Manifest(
            target=fields.parsed("target", Target),
            abi_version=fields.integer("abi_version", low=0, high=(1 << 32) - 1),
            devices=tuple(
                Device(name=it.parsed("name", device_name), kind=it.parsed("kind", DeviceKind)) for it in devices
            ),
        )
        return cls(
            sha256=fields.parsed("sha256", _sha256),
            facts=ImageFacts(
                manifest=manifest,
                entry=fields.integer("entry", **_ADDRESS),
                load_end=fields.integer("load_end", **_ADDRESS),
                memory_end=fields.integer("memory_end", **_ADDRESS),
            ),
        )


def is_sha256(text: str) -> bool:
    """Return whether a text is a SHA-256 in lower-case hexadecimal digits, the name of a stored image."""
    return len(text) == 64 and all(digit in "0123456789abcdef" for digit in text)


def _sha256(text: str) -> str:
    if not is_sha256(text):
        raise InvalidRequestError(f"{text!r} is not a SHA-256.")
    return text
