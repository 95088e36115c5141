"""The writers: MDS, JSON, CSV, TSV and XSV shards, with Streaming's parameters and, for equal options, its bytes."""

from collections.abc import Mapping
from functools import partial
from typing import Unpack

from headrace.datasets.samples.options import Place
from headrace.datasets.samples.sample_writer import SampleWriter, WriterOptions
from headrace.errors import OptionError
from headrace.formats.lines import LineShards
from headrace.formats.mds.encodings import Encoding
from headrace.formats.mds.samples import SampleColumns
from headrace.formats.mds.shards import MdsShards
from headrace.formats.xsv import XsvShards

__all__ = ["CSVWriter", "JSONWriter", "MDSWriter", "TSVWriter", "XSVWriter"]


class MDSWriter(SampleWriter):
    """Writes MDS shards. columns maps names to encodings: names such as "int" or "ndarray:uint16", or an Encoding.

    out is a directory, a Store, or a pair (local, remote) of these. allow_unsafe_types=True permits `pkl`.
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, str | Encoding],
        out: Place | tuple[Place, Place],
        allow_unsafe_types: bool = False,
        **options: Unpack[WriterOptions],
    ) -> None:
        compiled = SampleColumns(columns, ignore_extra=options.get("ignore_extra", False))
        if compiled.unsafe and allow_unsafe_types is not True:
            shown = {name: columns[name] for name in compiled.unsafe}
            raise OptionError(
                "columns", shown, "allow_unsafe_types=True beside pickles, which run code when read; json is safe"
            )
        super().__init__(partial(MdsShards, compiled), out, options)


class JSONWriter(SampleWriter):
    """Writes shards of JSON lines. columns maps names to "str", "int" or "float"; out as for MDSWriter."""

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        newline: str = "\n",
        out: Place | tuple[Place, Place],
        **options: Unpack[WriterOptions],
    ) -> None:
        ignore_extra = options.get("ignore_extra", False)
        super().__init__(
            lambda shard_options: LineShards(columns, newline, shard_options, ignore_extra=ignore_extra), out, options
        )


class XSVWriter(SampleWriter):
    """Writes shards of lines with separators, without quoting; columns and out as for JSONWriter."""

    _format = "xsv"

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        separator: str | None,
        newline: str = "\n",
        out: Place | tuple[Place, Place],
        **options: Unpack[WriterOptions],
    ) -> None:
        ignore_extra = options.get("ignore_extra", False)
        super().__init__(
            lambda shard_options: XsvShards(
                self._format, columns, separator, newline, shard_options, ignore_extra=ignore_extra
            ),
            out,
            options,
        )


class CSVWriter(XSVWriter):
    """XSVWriter with commas."""

    _format = "csv"

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        newline: str = "\n",
        out: Place | tuple[Place, Place],
        **options: Unpack[WriterOptions],
    ) -> None:
        _refuse_separator(options, "commas")
        super().__init__(columns=columns, separator=None, newline=newline, out=out, **options)


class TSVWriter(XSVWriter):
    """XSVWriter with tabs."""

    _format = "tsv"

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        newline: str = "\n",
        out: Place | tuple[Place, Place],
        **options: Unpack[WriterOptions],
    ) -> None:
        _refuse_separator(options, "tabs")
        super().__init__(columns=columns, separator=None, newline=newline, out=out, **options)


def _refuse_separator(options: Mapping[str, object], separators: str) -> None:
    if "separator" in options:
        raise OptionError(
            "separator", options["separator"], f"none: values are separated by {separators}; see XSVWriter"
        )
