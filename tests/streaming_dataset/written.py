"""Datasets of numbers for tests: sample i of all streams has the number i in its column."""

from pathlib import Path

from headrace import MDSWriter, Stream

SIZES = (34, 12, 55)


def write_numbers(directory, numbers, *, a_shard=10, **options):
    """MDS samples {"number": n, "text": str} for each of the numbers, so many a shard."""
    columns = {"number": "int", "text": "str"}
    with MDSWriter(out=str(directory), columns=columns, size_limit=None, **options) as out:
        for count, number in enumerate(numbers):
            if count and count % a_shard == 0:
                out.flush_shard()
            out.write({"number": number, "text": f"text {number}"})
    return Path(directory)


def write_streams(directory, sizes=SIZES, **options):
    """The folders of streams with so many samples each."""
    first, folders = 0, []
    for name, size in zip("abcdefgh", sizes, strict=False):
        folders.append(write_numbers(directory / name, range(first, first + size), **options))
        first += size
    return folders


def streams(folders, **weights):
    """A Stream for each folder; weights=[...] gives one option of each."""
    ((name, values),) = weights.items() if weights else (("proportion", [None] * len(folders)),)
    return [Stream(local=folder, **{name: value}) for folder, value in zip(folders, values, strict=True)]


def numbers_of(samples):
    """The numbers in samples, or in batches of them."""
    found = []
    for sample in samples:
        number = sample["number"]
        found += number.tolist() if hasattr(number, "tolist") else [number]
    return found
