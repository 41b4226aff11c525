"""What the runs of all tiers show together: which test has run nowhere, and which assertion has never held."""

from collections.abc import Mapping, Sequence

from tests.ran.run import Ending, Run
from tests.ran.source import assertions


def complaints(runs: Mapping[str, Run], collected: Sequence[str], sources: Mapping[str, str], digest: str) -> list[str]:
    """Return a sentence for each test that ran to its end in no tier, and for each assertion that never held."""
    if strange := [tier for tier, run in runs.items() if run.digest != digest]:
        return [f"{tier}: its report is of other tests; run it again." for tier in strange]
    idle = [f"{test}: {why}." for test in collected if (why := _idle(test, runs))]
    return idle + _never(runs, sources)


def _idle(test: str, runs: Mapping[str, Run]) -> str:
    """Return why a test has passed in no tier; empty where it has."""
    endings = {tier: run.endings[test] for tier, run in runs.items() if test in run.endings}
    if Ending.PASSED in endings.values():
        return ""
    if endings:
        return ", ".join(f"{ending} in {tier}" for tier, ending in endings.items())
    left_out = [tier for tier, run in runs.items() if test in run.collected]
    return f"left out in {', '.join(left_out)}, and run nowhere" if left_out else "run nowhere"


def _never(runs: Mapping[str, Run], sources: Mapping[str, str]) -> list[str]:
    """Return the assertions that have not held in any run, of tests that have passed."""
    passed = {
        test.partition("[")[0] for run in runs.values() for test, end in run.endings.items() if end is Ending.PASSED
    }
    return [
        f"{file}:{each.first}: this assertion of {each.test} was never evaluated."
        for file, text in sources.items()
        for each in assertions(text)
        if f"{file}::{each.test}" in passed
        and not any(each.first <= line <= each.last for run in runs.values() for line in run.lines.get(file, ()))
    ]
