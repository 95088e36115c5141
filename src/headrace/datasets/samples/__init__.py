"""Samples with named columns: MosaicML Streaming's MDS, JSON, CSV, TSV and XSV shards, listed by index.json.

`index.py` is that list, `writer.py` writes shards and then the list, with `background.py` for what need not wait;
`merge.py` joins the lists of many writers, and `dataset.py` reads. Nothing but Streaming's own files stays behind.
"""
