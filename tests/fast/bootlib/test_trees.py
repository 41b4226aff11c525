"""Which trees machines are made of."""

from tests.support.bootlib import trees


def test_a_machine_with_more_packages_has_a_tree_of_another_name() -> None:
    more = trees.equipped(["podman"])
    assert more.packages == (*trees.MACHINE.packages, "podman")
    assert not f"{more.name}-".startswith(f"{trees.MACHINE.name}-"), "the cache keeps three trees of each name"


def test_a_machine_without_more_packages_has_the_usual_tree() -> None:
    assert trees.equipped([]) == trees.MACHINE


def test_the_machine_beside_other_programs_is_the_usual_one_and_they_are_not_started() -> None:
    assert set(trees.MACHINE.packages) < set(trees.BESIDE.packages)
    assert trees.BESIDE.finish[:-1] == trees.MACHINE.finish
