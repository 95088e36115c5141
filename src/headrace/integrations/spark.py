"""dataframe_to_mds: the rows of a Spark DataFrame become a dataset of samples, a part for each partition.

Spark runs a partition again when an executor is lost, and twice at once when one seems slow. Each attempt writes a part
of its own, and the one whose result Spark took counts (attempted_parts.py).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.datasets.samples import MDSWriter
from headrace.datasets.samples.options import opened_outputs
from headrace.datasets.samples.places import overlap
from headrace.errors import FieldError, OptionError, UnfinishedDatasetError
from headrace.formats.stream import StreamArrayFormat
from headrace.integrations.attempted_parts import Parts, Run
from headrace.preparation.rows.columns import array_dtype
from headrace.preparation.rows.tables import rows_of_batch
from headrace.store import MemoryStore, Store

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["dataframe_to_mds"]

Samples = Iterable[Mapping[str, Any]]
_RESULT = "partition int, part string"
_SCALARS = {
    "byte": "int8",
    "short": "int16",
    "integer": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
}
_ENCODINGS = {**_SCALARS, "decimal": "str_decimal", "string": "str", "binary": "bytes", "boolean": "json"}
_JSON = {*_SCALARS, "string", "boolean", "void"}


def dataframe_to_mds(
    dataframe: "DataFrame",
    merge_index: bool = True,
    mds_kwargs: Mapping[str, Any] | None = None,
    udf_iterable: Callable[..., Samples] | None = None,
    udf_kwargs: Mapping[str, Any] | None = None,
) -> tuple[str, str]:
    """Writes the rows as MDS samples, in their order, and returns (local, remote), where each is "" if there is none.

    mds_kwargs are MDSWriter's parameters. `out` has to be a place that the driver and all executors reach; of a pair
    (local, remote) this is the remote, and local is each machine's own. `columns` are those of the schema without a
    word; `compression` is "zstd" and `hashes` ["xxh3_64"]. exist_ok=True replaces a dataset that is there.

    udf_iterable(pandas_dataframe, **udf_kwargs) gives the samples of a batch of rows; then `columns` are its own.
    merge_index=False leaves one dataset a partition, in folders by the partition's number, for merge_index() later.

    A partition gives one part, whichever attempts Spark makes at it, and none if it is empty; the files depend on the
    partitions and not on the number of executors. Until index.json is there no dataset is. Whatever fails is raised as
    Spark raises it, and what was written is removed.

    Raises TypeError for no DataFrame, OptionError for arguments that mean nothing and columns that have no encoding,
    ExistingOutputError and ShardOwnedError where something is there or somebody writes, InputError for no samples.
    """
    if not (hasattr(dataframe, "mapInArrow") and hasattr(dataframe, "schema")):
        raise TypeError(f"dataframe is a {type(dataframe).__name__}; expected a DataFrame of PySpark 3.3 or newer")
    if not isinstance(merge_index, bool):
        raise OptionError("merge_index", merge_index, "True or False")
    options, out, exist_ok = _checked(mds_kwargs)
    if udf_iterable is None:
        columns = _columns(dataframe, options.pop("columns", None))
        dataframe = dataframe.select([f"`{name.replace('`', '``')}`" for name in columns])
    elif "columns" not in options:
        raise OptionError("mds_kwargs", mds_kwargs, "columns in it: those of the samples that udf_iterable gives")
    else:
        columns = dict(options.pop("columns"))
    keep_local = options.pop("keep_local", False)
    MDSWriter(columns=columns, out=MemoryStore(), keep_local=keep_local, **options).finish()  # which checks them
    stores = opened_outputs(out, keep_local=keep_local)
    _check_places(out, stores)
    udf = None if udf_iterable is None else partial(udf_iterable, **(udf_kwargs or {}))
    with Run(stores, exist_ok=exist_ok) as run:
        task = _Task(Parts(stores, run.name, {"columns": columns, **options}), columns, udf)
        run.commit(_written(dataframe, task), merge=merge_index)
    return _named(out, stores)


@dataclass(frozen=True)
class _Task:
    """What each task gets; it pickles as configuration."""

    parts: Parts
    columns: Mapping[str, Any]
    udf: Callable[["pd.DataFrame"], Samples] | None

    def write(self, samples: Samples) -> list[tuple[int, str]]:
        """Write this task's part; its partition and part, or nothing where there are no samples."""
        from pyspark import TaskContext

        partition: int = TaskContext.get().partitionId()
        part = self.parts.write(partition, samples)
        return [] if part is None else [(partition, part)]


def _written(dataframe: "DataFrame", task: _Task) -> list[str]:
    """Let Spark write; the part of each partition that has samples, in order."""
    if task.udf is None:
        results = dataframe.mapInArrow(partial(_write_arrow, task), _RESULT)
    else:
        results = dataframe.mapInPandas(partial(_write_pandas, task), _RESULT)
    found: dict[int, str] = {}
    for partition, part in results.collect():
        if partition in found:  # it would be there twice
            raise UnfinishedDatasetError(task.parts.where, f"Spark has two results of partition {partition}")
        found[partition] = part
    return [part for _, part in sorted(found.items())]


def _write_arrow(task: _Task, batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
    """The task where rows are samples: Arrow's batches in, the part out."""
    import pyarrow as pa

    formats = {
        name: StreamArrayFormat(dtype)
        for name, encoding in task.columns.items()
        if isinstance(encoding, str) and (dtype := array_dtype(encoding)) is not None
    }
    rows = (_by_value(row, formats) for batch in batches for row in rows_of_batch(batch, None))
    for partition, part in task.write(rows):
        columns = {"partition": pa.array([partition], pa.int32()), "part": pa.array([part])}
        yield pa.RecordBatch.from_pydict(columns)


def _write_pandas(task: _Task, batches: Iterator["pd.DataFrame"]) -> Iterator["pd.DataFrame"]:
    """The task where a function of the user's makes samples of pandas' rows, as Spark gives them."""
    import pandas as pd

    udf = task.udf
    assert udf is not None
    for done in task.write(sample for batch in batches for sample in udf(batch)):
        yield pd.DataFrame([done], columns=["partition", "part"])


def _by_value(row: dict[str, Any], formats: Mapping[str, StreamArrayFormat]) -> dict[str, Any]:
    """The row with its arrays in the types of their columns; FieldError for one that would not be the same."""
    for name, stored in formats.items():
        value = row[name]
        if isinstance(value, np.ndarray) and value.dtype != stored.stream_dtype:
            try:
                row[name] = stored.pack(value)
            except FieldError as error:
                raise FieldError(name, error.problem) from None
    return row


def _checked(mds_kwargs: Mapping[str, Any] | None) -> tuple[dict[str, Any], Any, bool]:
    """Options for writers, out and exist_ok; OptionError without out, and for what a part cannot do."""
    options: dict[str, Any] = {"compression": "zstd", "hashes": ["xxh3_64"], **(mds_kwargs or {})}
    if options.get("out") is None:
        raise OptionError("mds_kwargs", mds_kwargs, "out in it: where the dataset is to be")
    if options.pop("resume", False):
        raise OptionError("resume", True, "nothing: a job on Spark starts over")
    options.pop("progress_bar", None)  # Spark has one
    exist_ok = options.pop("exist_ok", False)
    if not isinstance(exist_ok, bool):
        raise OptionError("exist_ok", exist_ok, "True or False")
    return options, options.pop("out"), exist_ok


def _check_places(out: Any, stores: list[Store]) -> None:
    if len(stores) > 1 and overlap(*stores):
        raise OptionError("out", out, "a pair (local, remote) of places of which neither is inside the other")
    if any(isinstance(store, MemoryStore) for store in stores):
        raise OptionError("out", out, "a directory or URL that all executors reach; memory is each process's own")


def _named(out: Any, stores: list[Store]) -> tuple[str, str]:
    """(local, remote) as the caller named them."""
    if isinstance(out, tuple | list):
        local, remote = (place.location if isinstance(place, Store) else str(place) for place in out)
        return local, remote
    name = out.location if isinstance(out, Store) else str(out)
    return ("", name) if stores[-1].capabilities.remote else (name, "")


def _columns(dataframe: "DataFrame", named: Mapping[str, Any] | None) -> dict[str, Any]:
    """The columns to write with their encodings: those named, or all by the schema."""
    types = {}
    for field in dataframe.schema.fields:
        if field.name in types:
            raise OptionError("dataframe", field.name, "columns of different names: it has two of this one")
        types[field.name] = field.dataType
    if named is None:
        return {name: _encoding(name, given) for name, given in types.items()}
    if unknown := [name for name in named if name not in types]:
        raise OptionError("columns", unknown[0], f"columns of the DataFrame: {', '.join(types)}")
    return dict(named)


def _encoding(name: str, given: Any) -> str:
    """What values of this type of Spark's are stored as."""
    kind = given.typeName()
    if kind in _ENCODINGS:
        return _ENCODINGS[kind]
    if kind == "array" and given.elementType.typeName() in _SCALARS:
        return f"ndarray:{_SCALARS[given.elementType.typeName()]}"
    if _is_json(given):
        return "json"
    raise OptionError(
        "dataframe",
        f"{name}: {given.simpleString()}",
        "columns of numbers, text, bytes, arrays of numbers, or what JSON can hold; cast it in Spark, or name in "
        "mds_kwargs['columns'] those to keep",
    )


def _is_json(given: Any) -> bool:
    match given.typeName():
        case "struct":
            return all(_is_json(field.dataType) for field in given.fields)
        case "array":
            return _is_json(given.elementType)
        case "map":
            return given.keyType.typeName() == "string" and _is_json(given.valueType)
    return given.typeName() in _JSON
