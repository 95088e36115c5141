"""dataframe_to_mds in Spark itself: the same files whoever runs what, and nothing lost where it runs again."""

import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from headrace import SampleDataset
from interop.spark_side import ROWS

pytestmark = pytest.mark.interop
RECIPE = Path(__file__).parents[2] / "docs" / "recipes" / "spark.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def written(spark, tmp_path_factory):
    """The folder with all datasets, and what Spark raised."""
    folder = tmp_path_factory.mktemp("spark")
    return folder, spark.write(folder)


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_number_of_executors_shows_in_no_byte(written):
    folder, _ = written
    assert files(folder / "by-one") == files(folder / "by-three")
    assert sorted(path.name for path in (folder / "by-one").iterdir()) == [
        "00000",
        "00002",
        "00003",
        "00004",
        "index.json",
    ]


def test_every_kind_of_column_comes_back_by_value(written):
    folder, _ = written
    samples = list(SampleDataset(folder / "by-three"))
    assert [int(sample["id"]) for sample in samples] == [*range(200), *range(400, ROWS)]
    last = samples[-1]
    assert last.pop("array").tolist() == [999, 7]
    assert last == {
        "id": np.int64(999),
        "short": np.int16(499),
        "byte": np.int8(49),
        "float": np.float32(124.875),
        "decimal": Decimal("999.000"),
        "text": "row 999",
        "bytes": b"999",
        "even": False,
        "struct": {"at": 999, "names": ["a", None]},
        "map": {"id": 999},
    }


@pytest.mark.parametrize("name", ["failed-once", "killed-once"])
def test_a_partition_that_runs_again_is_there_once(written, name):
    folder, seen = written
    assert seen[name] == ""
    assert (folder / f"{name}.mark").exists()
    assert [sample["number"] for sample in SampleDataset(folder / name)] == [*range(ROWS)]
    assert files(folder / name) == files(folder / "undisturbed")


def test_what_fails_for_good_leaves_nothing_and_says_where(written):
    folder, seen = written
    assert "sample 7, field 'id'" in seen["null"]
    assert "no samples" in seen["empty"]
    assert files(folder / "null") == files(folder / "empty") == {}


def test_a_dataset_that_is_there_stays(written):
    _, seen = written
    assert seen["there"].startswith("ExistingOutputError")


def test_every_block_of_the_recipe_runs(spark, tmp_path):
    spark.run("\n".join(BLOCK.findall(RECIPE.read_text(encoding="utf-8"))), tmp_path)
