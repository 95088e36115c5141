"""prepare() into samples: a folder a task, merged in order, whatever the workers have to do, and only once."""

import hashlib

import pytest

from headrace import CSVWriter, SampleDataset, SampleStorage, prepare
from headrace.errors import PreparationError, PublishedError

COLUMNS = {"id": "int", "text": "str"}


def samples_of(numbers):
    for number in numbers:
        yield {"id": number, "text": f"sample {number}"}


def even_groups_only(group):
    """A filter that drops all of what every other task has."""
    return samples_of(range(10 * group, 10 * group + 10)) if group % 2 == 0 else iter(())


def nothing(group):
    return iter(())


def run(folder, splits, make_samples=samples_of, *, workers=1, **options):
    return prepare(splits, make_samples, SampleStorage(folder, COLUMNS), workers=workers, progress=False, **options)


def ids(folder):
    return [sample["id"] for sample in SampleDataset(folder)[:]]


def contents(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_three_inputs_for_four_workers_and_tasks_that_are_filtered_away_end_whole(tmp_path):
    run(tmp_path / "few", [range(1), range(1, 2), range(2, 3)], workers=4)
    assert ids(tmp_path / "few") == [0, 1, 2]
    run(tmp_path / "filtered", range(4), even_groups_only, workers=4)
    dataset = SampleDataset(tmp_path / "filtered")
    assert ids(tmp_path / "filtered") == [*range(10), *range(20, 30)]
    assert len(dataset.shard_lengths) == 2, "a task without samples adds no shard"
    assert dataset.shard_lengths.min() > 0
    assert dataset.verify() == []


def test_any_number_of_workers_gives_the_same_files_and_nothing_of_ours_stays(tmp_path):
    splits = [range(start, start + 7) for start in range(0, 84, 7)]  # more than ten, so that numbers order the folders
    for workers in (1, 3):
        run(tmp_path / str(workers), splits, workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "3")
    assert ids(tmp_path / "1") == list(range(84))
    assert all(name.endswith((".mds", "index.json")) for name in contents(tmp_path / "1"))


def test_a_second_run_has_nothing_to_do_and_another_plan_is_refused_unless_it_overwrites(tmp_path):
    run(tmp_path, [range(5), range(5, 9)])
    before = contents(tmp_path)
    assert run(tmp_path, [range(5), range(5, 9)]).skipped == 2
    with pytest.raises(PublishedError):
        run(tmp_path, [range(3)])
    assert contents(tmp_path) == before
    run(tmp_path, [range(5), range(100, 102)], overwrite=True)
    assert ids(tmp_path) == [*range(5), 100, 101]
    assert len([name for name in contents(tmp_path) if name.endswith(".mds")]) == 2


def test_a_sample_that_does_not_fit_fails_the_run_which_then_goes_on_where_it_stopped(tmp_path):
    with pytest.raises(PreparationError, match="sample 1, field 'id'"):
        run(tmp_path, [range(4), [4, "five"]])
    with pytest.raises(Exception, match="unfinished"):
        ids(tmp_path)
    report = run(tmp_path, [range(4), [4, 5]])
    assert (report.done, report.skipped) == (1, 1)
    assert ids(tmp_path) == list(range(6))


def test_no_sample_at_all_is_an_error_and_so_is_metadata(tmp_path):
    with pytest.raises(PreparationError, match="2 splits gave 0 records"):
        run(tmp_path / "none", range(2), nothing)
    with pytest.raises(PreparationError, match="no place for metadata"):
        run(tmp_path / "metadata", [range(2)], metadata={"made": "today"})
    assert not (tmp_path / "metadata").exists()


def test_any_writer_and_its_options_fill_the_folders(tmp_path):
    storage = SampleStorage(tmp_path, COLUMNS, CSVWriter, compression="zstd", hashes=["sha1"], newline="\r\n")
    prepare([range(3), range(3, 5)], samples_of, storage, workers=1, progress=False)
    described = SampleDataset(tmp_path, verify=True).describe()
    assert (described["format"], described["compression"], described["hashes"]) == ("csv", "zstd", ["sha1"])
    assert ids(tmp_path) == list(range(5))
