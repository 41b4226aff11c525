from dataclasses import replace

import pytest
from tests.support.fakes.images import disk, planned
from tests.support.fakes.tasks import LEASE

from solo5_systemd.base.names import TaskName
from solo5_systemd.network.model import Reservation
from solo5_systemd.storage.model import Backing
from solo5_systemd.unit.tender import lasting_path, sandbox_path


def test_the_options_name_all_devices_and_end_with_the_memory() -> None:
    disks = [disk("storage", path="/srv/a b,c.img")]
    parts = replace(planned(), reservation=Reservation(task=TaskName("web"), leases=(LEASE,)), disks=disks)
    assert parts.device_options(sandbox_path) == (
        "--net:service=s5-1f00c0de",
        "--net-mac:service=02:00:5e:10:00:01",
        "--block:storage=/run/solo5-disks/storage",
        "--block-sector-size:storage=512",
        f"--mem={parts.memory_mib}",
    )


@pytest.mark.parametrize("backing", [Backing.COPY, Backing.ARCHIVE])
def test_the_path_of_a_private_disk_has_the_reason_why_it_cannot_be_mounted_again(backing: Backing) -> None:
    assert sandbox_path(disk("data", path="/srv/with blank")) == "/run/solo5-disks/data"
    private = replace(disk("data"), backing=backing)
    assert sandbox_path(private) == "/run/solo5-disks/private-disk-ends-with-its-first-run/data"
    assert lasting_path(private) == "/run/solo5-disks/data"
