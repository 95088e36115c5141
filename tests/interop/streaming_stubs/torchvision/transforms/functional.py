"""In place of the real package: what mosaicml-streaming imports, and its readers and writers never use."""

to_tensor = None
