"""What tasks take together: each scope's limit, the reserve of a file system, and the texts of both."""

import json
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solo5_systemd.base.errors import HostError, InvalidRequestError, SettingsError, TakenError
from solo5_systemd.settings.node_limits import (
    OPERATOR,
    Claim,
    Limits,
    Node,
    Resource,
    Scope,
    Share,
    Space,
    Tenant,
    Totals,
    check_space,
    tenant,
)
from solo5_systemd.settings.solo5_toml import parse_settings

WEB, API, OTHER = tenant("shop", "web"), tenant("shop", "api"), tenant("bank", "web")
NODE = Node(capacity=lambda: {Resource.TASKS: 100, Resource.PORTS: 8000, f"{Resource.ADDRESSES}/default": 250})


def check(node: Node, new: Claim, others: Iterable[Claim]) -> None:
    node.check(new, lambda: Totals(others), "task t")


def claim(of: Tenant = WEB, **amounts: int) -> Claim:
    return Claim(tenant=of, amounts={Resource[name.upper()]: amount for name, amount in amounts.items()})


def test_a_job_has_a_tenth_and_a_namespace_half_of_the_node_and_root_all_of_it() -> None:
    ten = [claim(tasks=1)] * 10
    for others in ([], ten[1:], [claim(API, tasks=1)] * 40, [claim(OTHER, tasks=1)] * 99):
        check(NODE, claim(tasks=1), others)
    with pytest.raises(TakenError) as caught:
        check(NODE, claim(tasks=1), ten)
    assert str(caught.value) == (
        "task t would have 1 tasks: expected at most 0, since the limit of job 'web' is 10, of which 10 are in use. "
        "Request less or end tasks; the operator sets limits.job in solo5.toml(5)."
    )
    with pytest.raises(TakenError, match="limit of namespace 'shop' is 50, of which 50 are in use"):
        check(NODE, claim(tasks=1), [claim(API, tasks=1)] * 50)
    check(NODE, claim(OPERATOR, tasks=1, ports=7999), [*ten * 10, claim(OPERATOR, tasks=900)])


def test_what_is_too_much_alone_is_not_tried_again() -> None:
    with pytest.raises(InvalidRequestError, match="would have 801 published ports: expected at most 800, since the"):
        check(NODE, claim(ports=801), [])
    with pytest.raises(InvalidRequestError, match="26 addresses of network default: expected at most 25"):
        check(NODE, Claim(tenant=WEB, amounts={"addresses/default": 26}), [])
    check(NODE, Claim(tenant=WEB, amounts={"addresses/lan": 26}), [])


def test_a_scope_that_has_too_much_already_may_have_what_adds_nothing() -> None:
    limits = Limits(job=Share(amounts={Resource.IMAGES: 100}))
    node = Node(limits=limits)
    image = Claim(tenant=WEB, amounts={f"{Resource.IMAGES}/aa": 90})
    totals = Totals([image, image])
    assert totals.of(WEB, Scope.JOB)[Resource.IMAGES] == 90
    totals.add(image, -1)
    assert totals.of(OTHER, Scope.NODE)[Resource.IMAGES] == 90
    totals.add(image, -1)
    assert totals.of(WEB, Scope.NAMESPACE)[Resource.IMAGES] == 0
    check(node, image, [image])
    with pytest.raises(TakenError, match="would have 20 bytes of images: expected at most 10"):
        check(node, Claim(tenant=WEB, amounts={f"{Resource.IMAGES}/bb": 20}), [image])
    large = Claim(tenant=WEB, amounts={f"{Resource.IMAGES}/cc": 900})
    check(node, image, [large, image])


def test_limits_of_the_operator() -> None:
    settings = parse_settings(
        {
            "disk_copy_mb": 3,
            "limits": {"reserve_mb": 5, "node": {"tasks": 4}, "job": {"percent": 50, "ports": 2, "copies_mb": 1}},
        }
    )
    limits = settings.limits.copying(settings.disk_copy_mb << 20)
    node = Node(limits=limits, capacity=lambda: {Resource.TASKS: 100})
    check(node, claim(tasks=1, ports=2), [claim(OPERATOR, tasks=3, ports=9)])
    for of in (WEB, OPERATOR):
        with pytest.raises(TakenError, match="limit of all tasks of this node is 4"):
            check(node, claim(of, tasks=1), [claim(OPERATOR, tasks=4)])
        with pytest.raises(InvalidRequestError, match="copied for each run.* limit of a task is 3145728"):
            check(node, claim(of, copied=4 << 20), [])
    with pytest.raises(InvalidRequestError, match="3 published ports: expected at most 2"):
        check(node, claim(ports=3), [])
    with pytest.raises(InvalidRequestError, match="bytes of private copies: expected at most 1048576"):
        check(node, claim(copies=2 << 20), [])
    assert (limits.reserve(1 << 40), Limits().reserve(1 << 40), Limits().reserve(1000)) == (5 << 20, 2 << 30, 100)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"all": {}}, "limits.all is not a known key: expected one of job, namespace, node, reserve_mb, task"),
        ({"job": {"disks": 1}}, "limits.job.disks is not a known key"),
        ({"job": {"percent": 0}}, "limits.job.percent is 0: expected a whole number from 1 to 100"),
        ({"reserve_mb": -1}, "limits.reserve_mb is -1"),
        ({"node": {"tasks": "many"}}, "limits.node.tasks is 'many'"),
    ],
)
def test_wrong_limits_are_named(table: Mapping[str, object], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings({"limits": table})
    assert words in str(caught.value)


def test_the_reserve_is_left_and_what_is_promised_counts() -> None:
    node = Node(limits=Limits(reserve_mb=0), copies=lambda: Space(size=1000, free=100))
    check(node, claim(OPERATOR, copies=60), [claim(OTHER, copies=40)])
    with pytest.raises(HostError) as caught:
        check(node, claim(OPERATOR, copies=61), [claim(OTHER, copies=40)])
    assert caught.value.sentence == (
        "task t can take 61 bytes of the file system of /var/lib/solo5/copies: expected at most 60, since 100 are "
        "free, 40 are promised to others, and 0 stay free."
    )
    with pytest.raises(HostError, match="expected at most 0, since 100 are free, 0 are promised to others, and 100"):
        check_space(Limits(), Space(size=1000, free=100), 1, "task t", "/srv")
    check_space(Limits(), Space(size=1000, free=0), 0, "nothing is made", "/srv")


def test_tenants_are_as_nomad_has_them() -> None:
    assert tenant("", "web") == Tenant(namespace="default", job="web")
    children = {tenant("shop", f"web/{child}") for child in ("dispatch-1", "periodic-2")}
    assert children == {WEB}, "each would have limits of its own"
    assert tenant("shop", "/dispatch-1").job == "/dispatch-1", "a job without a name would be a volume"
    long = [tenant("n" * 128, "j" * 4000 + end) for end in "ab"]
    assert long[0] != long[1]
    assert all(len(each.namespace) == len(each.job) == 64 for each in long)


AMOUNTS = st.dictionaries(st.sampled_from([*Resource, "addresses/default"]), st.integers(1, 1 << 50))


@given(st.text(max_size=100), st.text(max_size=100), AMOUNTS)
def test_a_claim_is_read_as_it_was_written(namespace: str, job: str, amounts: Mapping[str, int]) -> None:
    made = Claim(tenant=tenant(namespace, job), amounts=amounts)
    text = made.to_text()
    assert Claim.from_text(text) == made
    assert "\n" not in text
    assert len(text) < 4096


def test_no_other_text_is_a_claim() -> None:
    for text in ("", "[]", json.dumps(["a", "b", {"tasks": "x"}]), json.dumps(["a", "b", 3])):
        with pytest.raises((ValueError, TypeError)):
            Claim.from_text(text)


def test_a_share_is_of_something() -> None:
    capacity = {Resource.TASKS: 5, "addresses/lan": 14, Resource.IMAGES: 1 << 20}
    parts = [Share(percent=10).most(each, lambda: capacity) for each in (*capacity, Resource.PORTS)]
    assert parts == [1, 4, 64 << 20, None], "parts of a small network or store would be of no use"
    assert Limits().copying(7).task.amounts == {Resource.COPIED: 7}
