import pytest
from hypothesis import given
from hypothesis import strategies as st

from solo5_systemd.cgroup.usage import ALL, CPU, MEMORY, Cpu, Io, Memory, Usage, cpu_percent, usage

FILES = {
    "memory.current": b"9000\n",
    "memory.peak": b"9500\n",
    "memory.max": b"134217728\n",
    "memory.stat": b"anon 100\nfile 5000\nkernel 30\nshmem 4000\nfile_mapped 1\n",
    "memory.swap.current": b"0\n",
    "memory.events": b"low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n",
    "cpu.stat": b"usage_usec 700\nuser_usec 500\nsystem_usec 200\nnr_periods 9\nnr_throttled 3\nthrottled_usec 44\n",
    "io.stat": b"254:0 rbytes=1 wbytes=20 rios=3 wios=4 dios=0\n8:0 rbytes=1000 wbytes=1 rios=1 wios=1\n7:0 \n",
    "pids.current": b"3\n",
    "cpu.pressure": b"some avg10=1.25 avg60=0.50 avg300=0.00 total=77\nfull avg10=0.00 avg60=0.0 avg300=0.00 total=0\n",
    "memory.pressure": b"some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
    "io.pressure": b"",
}
QUIET = {"avg10": 0.0, "avg60": 0.0, "avg300": 0.0, "total": 0}


def test_a_full_set_of_files_gives_every_value() -> None:
    assert set(FILES) == set(ALL)
    assert usage(FILES, 12.5) == Usage(
        time=12.5,
        memory=Memory(current=9000, peak=9500, limit=134217728, rss=4100, cache=1000, kernel=30, swap=0, oom_kills=1),
        cpu=Cpu(total=700, user=500, system=200, periods=9, throttled_periods=3, throttled=44),
        disks={
            "254:0": Io(read_bytes=1, written_bytes=20, reads=3, writes=4),
            "8:0": Io(read_bytes=1000, written_bytes=1, reads=1, writes=1),
        },
        processes=3,
        pressure={
            "cpu": {"some": QUIET | {"avg10": 1.25, "avg60": 0.5, "total": 77}, "full": QUIET},
            "memory": {"some": QUIET | {"total": 5}},
            "io": {},
        },
    )


def test_the_basic_files_tell_memory_and_processor_time() -> None:
    found = usage({name: FILES[name] for name in (*MEMORY, CPU)}, 1.0)
    whole = usage(FILES, 1.0)
    assert found.cpu == whole.cpu
    assert found.memory == Memory(current=9000, peak=9500, rss=4100, cache=1000, kernel=30, swap=0)


def test_what_the_kernel_does_not_tell_is_unknown_and_not_zero() -> None:
    assert usage({}, 1.0) == Usage(time=1.0)
    assert usage({"cpu.stat": b"usage_usec 7\n"}, 1.0) == Usage(time=1.0, cpu=Cpu(total=7))
    assert usage({"memory.stat": b"file 10\n"}, 1.0) == Usage(time=1.0)
    assert usage({"memory.stat": b"shmem 10\n"}, 1.0) == Usage(time=1.0)
    assert usage({}, 1.0).io == Io()


def test_no_limit_is_no_number() -> None:
    assert usage({"memory.max": b"max\n"}, 1.0).memory.limit is None


def test_devices_are_summed_and_none_is_zero() -> None:
    assert usage(FILES, 1.0).io == Io(read_bytes=1001, written_bytes=21, reads=4, writes=5)
    assert usage({"io.stat": b""}, 1.0).io == Io(read_bytes=0, written_bytes=0, reads=0, writes=0)


def test_devices_have_the_names_that_are_looked_up() -> None:
    assert set(usage(FILES, 1.0, {"254:0": "vda", "8:0": "sda"}.__getitem__).disks or ()) == {"vda", "sda"}


def test_a_cache_is_never_less_than_nothing() -> None:
    assert usage({"memory.stat": b"anon 1\nfile 10\nshmem 12\n"}, 1.0).memory.cache == 0


@given(st.dictionaries(st.sampled_from(sorted(FILES)), st.text(alphabet="a0.=\n 9²", max_size=40)))
def test_any_text_gives_numbers_or_nothing(files: dict[str, str]) -> None:
    assert usage({name: text.encode() for name, text in files.items()}, 1.0).time == 1.0


def sample(time: float, total: int | None) -> Usage:
    return Usage(time=time, cpu=Cpu(total=total))


@pytest.mark.parametrize(
    "before, after, percent",
    [
        (sample(1, 0), sample(2, 500_000), 50.0),
        (sample(1, 1_000_000), sample(3, 5_000_000), 200.0),
        (sample(1, 9), sample(2, 5), 0.0),
        (sample(1, None), sample(2, 5), None),
        (sample(1, 5), sample(2, None), None),
        (sample(2, 5), sample(2, 9), None),
    ],
)
def test_a_percentage_is_of_one_processor_between_two_samples(
    before: Usage, after: Usage, percent: float | None
) -> None:
    assert cpu_percent(before, after) == percent
