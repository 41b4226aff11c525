"""A fixed sample of the hostile images; `make fuzz` reads whole corpora, and takes their time."""

import tracemalloc
from itertools import islice
from pathlib import Path

import pytest
from tests.hostile.claim import LONGEST, complaint, value_or_refusal
from tests.hostile.elffile import ABI_NOTE, HEADER, MANIFEST_NOTE, NOTE, PT_LOAD, ElfFile
from tests.hostile.images import Hostile, corpus, guests, hostile
from tests.hostile.judge import judge
from tests.hostile.mutations import MUTATIONS

from solo5_systemd.base.errors import ImageError
from solo5_systemd.image.store import MAX_SIZE, manifest_of

SEED = 1
SAMPLE = 50 * len(MUTATIONS)


@pytest.fixture(scope="module")
def sample() -> list[Hostile]:
    return list(corpus(SEED, SAMPLE))


def test_each_image_of_the_sample_is_read_or_refused_in_one_sentence_and_few_bytes(sample: list[Hostile]) -> None:
    verdicts = {image: judge(image) for image in sample}
    assert [f"{image}: {verdict.fault}" for image, verdict in verdicts.items() if verdict.fault] == []
    refused = [image for image, verdict in verdicts.items() if verdict.manifest is None]
    assert len(sample) / 2 < len(refused) < len(sample) * 9 / 10
    sentences = {"".join(filter(str.isalpha, verdicts[image].sentence)) for image in refused}
    assert len(sentences) > 40  # the damage is of many kinds


def test_each_mutation_makes_images_that_are_refused(sample: list[Hostile]) -> None:
    refused = {image.mutations[0] for image in sample if judge(image).manifest is None}
    assert refused == {mutation.__name__ for mutation in MUTATIONS}


def test_the_largest_images_take_little_memory(sample: list[Hostile]) -> None:
    chosen = [image for image in sample if {"many", "giant", "devices"} & set(image.mutations)]
    judge(chosen[0])  # what is imported once
    tracemalloc.start()
    try:
        for image in chosen:
            judge(image)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_a_file_with_a_hole_is_read_like_any(sample: list[Hostile], tmp_path: Path) -> None:
    giants = (image for image in sample if image.size > 1 << 29)
    path = tmp_path / "image"
    for image in islice(giants, 40):
        path.unlink(missing_ok=True)
        if image.write(path):
            manifest = value_or_refusal(manifest_of, str(path), error=ImageError)
            assert manifest == (judge(image).manifest if image.size <= MAX_SIZE else None)


def test_a_corpus_is_the_same_for_its_seed() -> None:
    seeds = guests()
    assert hostile(7, 42, seeds) == hostile(7, 42, seeds)
    assert hostile(7, 42, seeds) != hostile(8, 42, seeds)


def test_the_guests_are_sound_images_of_the_kind_that_the_mutations_know() -> None:
    for name, content in guests().items():
        elf = ElfFile(content)
        verdict = judge(Hostile(seed=0, number=0, guest=name, mutations=(), content=content, size=len(content)))
        assert verdict.manifest is not None
        assert len(elf.of_type(PT_LOAD)) >= 2
        assert {elf.get(at, NOTE["n_type"]) for at in elf.notes()} == {ABI_NOTE, MANIFEST_NOTE}
        assert len(elf.entries()) == len(verdict.manifest.devices) + 1
        assert elf.get(0, HEADER["e_entry"]) < verdict.manifest.min_memory


@pytest.mark.parametrize(
    "sentence, words",
    [
        ("it is\nnot one line.", "not printable"),
        ("it has \x1b[31m colours.", "not printable"),
        ("it has a \u2028 separator.", "not printable"),
        ("x" * LONGEST + ".", "characters"),
        ("no sentence", "no sentence"),
    ],
)
def test_what_is_no_sentence_is_a_fault(sentence: str, words: str) -> None:
    error = ImageError("")
    error.sentence = sentence
    assert words in complaint(error)
