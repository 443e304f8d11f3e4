from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipelines.cleaning import content_hash
from pipelines.deduplication import HASH_BYTES, partition_hashes, repeated_rows

UNITS = st.lists(st.lists(st.integers(0, 12), max_size=12), min_size=1, max_size=6)
"""Units of documents; equal numbers stand for equal documents."""

Part = tuple[int, NDArray[np.uint32], NDArray[np.void]]


def hashes_of(documents: list[int]) -> NDArray[np.void]:
    return np.array([content_hash(f"document {n}") for n in documents], f"V{HASH_BYTES}")


def parts_of(units: list[list[int]]) -> list[Part]:
    return [
        (number, np.arange(len(documents), dtype=np.uint32), hashes_of(documents))
        for number, documents in enumerate(units)
    ]


def kept(units: list[list[int]], repeated: dict[int, NDArray[np.uint32]]) -> list[list[int]]:
    return [
        [document for row, document in enumerate(documents) if row not in repeated[number]]
        for number, documents in enumerate(units)
    ]


def first_of_each(units: list[list[int]]) -> list[list[int]]:
    first: list[list[int]] = []
    for number, documents in enumerate(units):
        earlier = {n for unit in units[:number] for n in unit}
        first.append([n for n in dict.fromkeys(documents) if n not in earlier])
    return first


@given(UNITS)
def test_of_equal_documents_the_first_is_kept(units: list[list[int]]) -> None:
    assert kept(units, repeated_rows(parts_of(units))) == first_of_each(units)


@given(UNITS, st.randoms())
def test_the_order_in_which_units_arrive_is_no_matter(
    units: list[list[int]], random: Random
) -> None:
    parts = parts_of(units)
    random.shuffle(parts)
    assert kept(units, repeated_rows(parts)) == first_of_each(units)


@given(UNITS, st.integers(1, 20))
def test_how_many_partitions_there_are_is_no_matter(
    units: list[list[int]], num_partitions: int
) -> None:
    found: dict[int, list[int]] = {number: [] for number in range(len(units))}
    for partition in range(num_partitions):
        parts = [
            (number, *partition_hashes(hashes, num_partitions)[partition])
            for number, _, hashes in parts_of(units)
        ]
        for number, rows in repeated_rows(parts).items():
            found[number] += rows.tolist()
    together = {number: np.array(rows, np.uint32) for number, rows in found.items()}
    assert kept(units, together) == first_of_each(units)


@given(UNITS)
def test_every_unit_is_answered_with_ascending_rows(units: list[list[int]]) -> None:
    repeated = repeated_rows(parts_of(units))
    assert repeated.keys() == set(range(len(units)))
    for rows in repeated.values():
        assert rows.dtype == np.uint32
        assert (np.diff(rows.astype(int)) > 0).all()


@given(st.lists(st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES)), st.integers(1, 32))
def test_partitions_hold_every_row_once_with_its_hash(
    hashes: list[bytes], num_partitions: int
) -> None:
    packed = np.array(hashes, f"V{HASH_BYTES}")
    partitions = partition_hashes(packed, num_partitions)
    assert len(partitions) == num_partitions
    rows = np.concatenate([rows for rows, _ in partitions])
    assert sorted(rows.tolist()) == list(range(len(hashes)))
    for some_rows, some_hashes in partitions:
        assert [hashes[row] for row in some_rows] == [h.tobytes() for h in some_hashes]


@given(st.lists(st.integers(0, 20), min_size=1), st.lists(st.integers(0, 20), min_size=1))
def test_equal_hashes_fall_in_the_same_partition(one: list[int], two: list[int]) -> None:
    in_one, in_two = (
        {
            content.tobytes(): partition
            for partition, (_, some) in enumerate(partition_hashes(hashes_of(documents), 16))
            for content in some
        }
        for documents in (one, two)
    )
    for content in in_one.keys() & in_two.keys():
        assert in_one[content] == in_two[content]


def test_hashes_that_differ_in_any_byte_are_different() -> None:
    base = bytes(range(HASH_BYTES))
    hashes = [base]
    for i in range(HASH_BYTES):
        changed = bytearray(base)
        changed[i] ^= 0x80
        hashes.append(bytes(changed))
    packed = np.array(hashes, f"V{HASH_BYTES}")
    assert repeated_rows([(0, np.arange(len(hashes), dtype=np.uint32), packed)])[0].size == 0


def test_documents_spread_over_the_partitions() -> None:
    partitions = partition_hashes(hashes_of(list(range(1600))), 16)
    assert all(60 < len(rows) < 140 for rows, _ in partitions)
