"""SAMPLES: one shard's bytes to samples and back. Formats never know where bytes live, or which are wanted."""

from headrace.formats.stream import StreamArrayFormat, StreamFormat, StreamNumpyFormat

__all__ = ["StreamArrayFormat", "StreamFormat", "StreamNumpyFormat"]
