"""The same rows in every kind of input, and a look at every kind of output."""

import csv
import gzip
import json

import numpy as np
import zstandard

from headrace.datasets import DocumentStorage, StreamStorage, StreamWithMetaStorage
from headrace.datasets.samples.dataset import SampleDataset
from headrace.datasets.samples.writer import MDSWriter
from headrace.formats.annotated import SpanNumpyFormat
from headrace.formats.documents import DocumentJsonFormat
from headrace.formats.stream import StreamNumpyFormat

NUM_ROWS = 23
ROWS = [
    {
        "id": i,
        "text": f'row {i}, "quoted"\n' + "é" * (i % 5),
        "score": i / 8,
        "tokens": [(i * 7 + j) % 1000 for j in range(1 + i % 4)],
    }
    for i in range(NUM_ROWS)
]
SCALARS = [{name: row[name] for name in ("id", "text", "score")} for row in ROWS]
TOKENS = [token for row in ROWS for token in row["tokens"]]


def write_jsonl(path, rows=ROWS):
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if path.suffix == ".gz":
        data = gzip.compress(data)
    path.write_bytes(zstandard.compress(data) if path.suffix == ".zst" else data)
    return path


def write_csv(path, rows=SCALARS, **options):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), **options)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(path, rows=ROWS, **options):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), path, **{"row_group_size": 5, **options})
    return path


def write_hugging_face(path, rows=ROWS):
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_list(rows).save_to_disk(str(path))
    return path


def write_mds(path, rows=ROWS):
    columns = {"id": "int", "text": "str", "score": "float64", "tokens": "ndarray:uint16"}
    columns = {name: columns[name] for name in rows[0]}
    with MDSWriter(out=path, columns=columns, size_limit=600) as writer:
        for row in rows:
            writer.write(row | {"tokens": np.array(row["tokens"], np.uint16)} if "tokens" in row else row)
    return path


def write_documents(path, rows=ROWS):
    storage = DocumentStorage(path, DocumentJsonFormat())
    with storage.sync_writer() as writer:
        for number, row in enumerate(rows):
            writer.append(number // 10, row)
    storage.publish()
    return path


def write_stream(path):
    """All tokens, in shards of 7."""
    storage = StreamStorage(path, StreamNumpyFormat([("tokens", "<u2")]))
    with storage.sync_writer() as writer:
        for shard, begin in enumerate(range(0, len(TOKENS), 7)):
            writer.append(shard, {"tokens": TOKENS[begin : begin + 7]})
    storage.publish()
    return path


def write_annotated(path):
    """A span a row, whose payload is the row without its tokens."""
    storage = StreamWithMetaStorage(path, SpanNumpyFormat([("tokens", "<u2")], DocumentJsonFormat()))
    with storage.sync_writer() as writer:
        for number, (row, scalars) in enumerate(zip(ROWS, SCALARS, strict=True)):
            record = {"tokens": row["tokens"], "span_lengths": [len(row["tokens"])], "payloads": [scalars]}
            writer.append(number // 9, record)
    storage.publish()
    return path


def plain(value):
    """The value with lists for arrays and Python's numbers."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def read_mds(path):
    with SampleDataset(path) as dataset:
        return [plain(sample) for sample in dataset[:]]


def columns_of(path):
    with SampleDataset(path) as dataset:
        return dataset.columns


def read_documents(path):
    with DocumentStorage(path).dataset() as dataset:
        return [plain(document) for document in dataset[:]]


def read_stream(path):
    with StreamStorage(path).sync_reader() as reader:
        found = reader.read(0, reader.total_length)
        return {name: values.tolist() for name, values in found.items()}


def read_jsonl(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def files_of(path):
    """Relative path -> bytes, of a directory or a file, what only writers read left out."""
    if path.is_file():
        return {path.name: path.read_bytes()}
    found = {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}
    return {name: data for name, data in found.items() if not name.startswith(".headrace/")}
