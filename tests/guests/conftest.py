import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.guests.namespace import Namespace, ip
from tests.guests.tenders import Tender


@pytest.fixture(params=["hvt", "spt"])
def tender(request: pytest.FixtureRequest, tmp_path: Path) -> Tender:
    return Tender(abi=request.param, scratch=tmp_path)


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    name = f"guests-{os.getpid()}"
    ip("netns", "add", name)
    try:
        yield Namespace(name=name)
    finally:
        ip("netns", "delete", name)


@pytest.fixture
def net_tender(tender: Tender, namespace: Namespace) -> Tender:
    """A tender in a namespace with tap0 (10.0.0.1/24) and tap1 (10.1.0.1/24)."""
    namespace.tap("tap0", "10.0.0.1/24")
    namespace.tap("tap1", "10.1.0.1/24")
    return Tender(abi=tender.abi, scratch=tender.scratch, namespace=namespace.name)
