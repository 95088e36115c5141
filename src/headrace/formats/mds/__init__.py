"""MDS, the binary shards of MosaicML Streaming: encodings of values, samples of columns, and the file."""
