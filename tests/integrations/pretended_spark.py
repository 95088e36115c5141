"""As much of Spark as dataframe_to_mds sees, so that a test says which attempt runs when, and whose result is lost."""

import sys
import threading
from itertools import islice
from types import ModuleType, SimpleNamespace

import pyarrow as pa

NAMES = {pa.int64(): "long", pa.int16(): "short", pa.string(): "string", pa.bool_(): "boolean", pa.float64(): "double"}


class Type:
    """A type of Spark's, by the name that it has there."""

    def __init__(self, name, element=None, fields=()):
        self._name = name
        self.elementType = element
        self.fields = [SimpleNamespace(name=f"f{number}", dataType=given) for number, given in enumerate(fields)]

    def typeName(self):
        return self._name

    def simpleString(self):
        return self._name


def type_of(arrow):
    return Type("array", type_of(arrow.value_type)) if pa.types.is_list(arrow) else Type(NAMES[arrow])


class Context:
    """TaskContext, of the partition that this thread runs."""

    current = threading.local()

    @classmethod
    def get(cls):
        return cls()

    def partitionId(self):
        return self.current.partition


class Frame:
    """A DataFrame with these partitions, each a list of rows. run_all(attempt) makes the attempts and has the results.

    attempt(partition, rows=None) runs one, with other rows if they are given, and returns its result, [] for none.
    """

    def __init__(self, partitions, run_all=None, schema=None, fields=None):
        self.partitions = [list(rows) for rows in partitions]
        self.run_all = run_all or (lambda attempt: [result for p in range(len(partitions)) for result in attempt(p)])
        self.arrow = schema or pa.Table.from_pylist([row for rows in self.partitions for row in rows]).schema
        found = fields or [(field.name, type_of(field.type)) for field in self.arrow]
        self.schema = SimpleNamespace(fields=[SimpleNamespace(name=name, dataType=given) for name, given in found])

    def select(self, columns):
        names = [name.removeprefix("`").removesuffix("`").replace("``", "`") for name in columns]
        rows = [[{name: row[name] for name in names} for row in rows] for rows in self.partitions]
        return Frame(rows, self.run_all, pa.schema([self.arrow.field(name) for name in names]))

    def mapInArrow(self, function, schema):
        def attempt(partition, rows=None):
            Context.current.partition = partition
            return [
                tuple(row.values()) for batch in function(self.batches(partition, rows)) for row in batch.to_pylist()
            ]

        return SimpleNamespace(collect=lambda: self.run_all(attempt))

    def mapInPandas(self, function, schema):
        def attempt(partition, rows=None):
            Context.current.partition = partition
            frames = (batch.to_pandas() for batch in self.batches(partition, rows))
            return [tuple(row) for frame in function(frames) for row in frame.itertuples(index=False)]

        return SimpleNamespace(collect=lambda: self.run_all(attempt))

    def batches(self, partition, rows=None):
        """Batches of two rows."""
        rows = iter(self.partitions[partition] if rows is None else rows)
        while two := list(islice(rows, 2)):
            yield from pa.Table.from_pylist(two, self.arrow).to_batches()


def install(monkeypatch):
    """`from pyspark import TaskContext` finds the one above."""
    module = ModuleType("pyspark")
    module.TaskContext = Context
    monkeypatch.setitem(sys.modules, "pyspark", module)
