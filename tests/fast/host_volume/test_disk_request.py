"""The requests of Nomad's host volumes: sizes, parameters and paths, checked before anything is created."""

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.host_volume.request import GRAIN, MAX_SIZE, CreateRequest, create_request, delete_request
from solo5_systemd.settings.node_limits import Tenant

ID = "3fa85f64-5717-4562-b3fc-2c963f66afa6"
MIB = 1 << 20


def environment(
    low: str = str(MIB), high: str = str(2 * MIB), parameters: str = "null", **others: str
) -> dict[str, str]:
    """Return the variables of `create`, as Nomad 1.11 sets them."""
    return {
        "DHV_OPERATION": "create",
        "DHV_NAMESPACE": "shop",
        "DHV_VOLUMES_DIR": "/var/lib/nomad/host_volumes",
        "DHV_VOLUME_ID": ID,
        "DHV_VOLUME_NAME": "data",
        "DHV_CAPACITY_MIN_BYTES": low,
        "DHV_CAPACITY_MAX_BYTES": high,
        "DHV_PARAMETERS": parameters,
        **others,
    }


def test_create() -> None:
    assert create_request(environment()) == CreateRequest(
        tenant=Tenant(namespace="shop"),
        name="data",
        directory=f"/var/lib/nomad/host_volumes/{ID}",
        size=MIB,
        size_max=2 * MIB,
        preallocate=False,
    )


@pytest.mark.parametrize(
    "low, high, size, size_max",
    [
        ("0", "50000000", 50000000 // GRAIN * GRAIN, 50000000),
        ("1", "0", GRAIN, None),
        ("50000000", "60000000", (50000000 // GRAIN + 1) * GRAIN, 60000000),
        (str(MAX_SIZE), str(MAX_SIZE), MAX_SIZE, MAX_SIZE),
    ],
)
def test_a_size_is_a_multiple_of_the_sector(low: str, high: str, size: int, size_max: int | None) -> None:
    request = create_request(environment(low, high))
    assert (request.size, request.size_max) == (size, size_max)


@pytest.mark.parametrize(
    "given, words",
    [
        (("0", "0"), "volume data has no capacity: expected the size of its disk"),
        (("50000000", "50000000"), "between capacity_min 50000000 and capacity_max 50000000.*Set capacity_max to 5000"),
        (("0", "512"), f"Set capacity_max to {GRAIN} or more"),
        (("-1", "0"), "capacity_min is -1 bytes: expected 0 to"),
        (("0", str(MAX_SIZE + 1)), "capacity_max is .* bytes: expected 0 to"),
        (("0", "1GiB"), "capacity_max is 1GiB bytes"),
        (("٣", "0"), "capacity_min is"),
        (("0", str(MIB), '{"preallocate": "yes"}'), 'parameters.preallocate is \'yes\': expected "true" or "false"'),
        (
            ("0", str(MIB), '{"prealocate": "true"}'),
            "parameters.prealocate is not a known key: expected one of preallocate",
        ),
        (("0", str(MIB), "[1]"), "expected a table"),
        (("0", str(MIB), "{"), "it is not JSON"),
        (("0", str(MIB), "[" * 100000), "it is not JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_capacity_that_no_disk_has_and_wrong_parameters_are_refused(given: tuple[str, ...], words: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        create_request(environment(*given))
    assert re.search(words, str(refused.value))


@pytest.mark.parametrize(
    "parameters, preallocate",
    [
        ("null", False),
        ("{}", False),
        ("", False),
        ('{"preallocate": "true"}', True),
        ('{"preallocate": "false"}', False),
    ],
)
def test_parameters(parameters: str, preallocate: bool) -> None:
    assert create_request(environment(parameters=parameters)).preallocate is preallocate


@pytest.mark.parametrize("variable", ["DHV_VOLUMES_DIR", "DHV_VOLUME_ID"])
@pytest.mark.parametrize("text", ["", "relative", "../../etc", f"{ID}/..", f"{ID}\n"])
def test_wrong_path_is_refused(variable: str, text: str) -> None:
    for request in (create_request, delete_request):
        with pytest.raises(InvalidRequestError, match=f"{variable} is"):
            request(environment(**{variable: text}))


@pytest.mark.parametrize(
    "created, directory",
    [
        ("", f"/var/lib/nomad/host_volumes/{ID}"),
        (f"/srv/older/{ID}", f"/srv/older/{ID}"),
        ("/var/lib/nomad/host_volumes", f"/var/lib/nomad/host_volumes/{ID}"),
        ("/", f"/var/lib/nomad/host_volumes/{ID}"),
        (f"relative/{ID}", f"/var/lib/nomad/host_volumes/{ID}"),
        (f"/srv/{ID}/../..", f"/var/lib/nomad/host_volumes/{ID}"),
    ],
)
def test_only_the_directory_of_this_volume_is_deleted(created: str, directory: str) -> None:
    assert delete_request(environment(DHV_CREATED_PATH=created)) == ("data", directory)


@given(st.dictionaries(st.sampled_from(sorted(environment())), st.text(max_size=60)))
def test_any_text_is_a_request_or_one_sentence(changed: dict[str, str]) -> None:
    """A user of Nomad writes name, capacity and parameters; a job's variable may be any bytes (surrogates, too)."""
    given = {**environment(), **changed}
    with suppress(InvalidRequestError):
        request = create_request(given)
        assert request.directory.endswith(f"/{given['DHV_VOLUME_ID']}")
        assert request.size % GRAIN == 0 < request.size
