"""The two patterns of parallel conversion in Headrace's own words: run it again after a crash, and it goes on.

One task a group, each with a directory of its own, merged at the end; finished tasks are never done twice.
"""

from collections.abc import Iterator

from headrace import SampleDataset, SampleStorage, prepare

DIRECTORY = "prepared_data"


def numbers(group: range) -> Iterator[dict[str, int]]:
    """The samples of a group: fetch, decode and clean here."""
    for number in group:
        yield {"number": number}


def main() -> None:
    """Four groups with two processes."""
    groups = [range(start, start + 10) for start in range(0, 40, 10)]
    storage = SampleStorage(DIRECTORY, {"number": "int"}, compression="zstd")
    report = prepare(groups, numbers, storage, workers=2)
    print(f"{report.done} groups written, {report.skipped} were there")
    print([sample["number"] for sample in SampleDataset(DIRECTORY)])


if __name__ == "__main__":
    main()
