"""Bytes at paths: the first of the three islands.

`store.py` is the contract, `local.py` a directory (`files.py` holds its steps, `descriptors.py` its open files),
`memory.py` a dictionary that behaves the same, `below.py` a folder of another store. `identity.py` tells whether the
process that left something behind still lives, and `lease.py` builds single ownership on that. Nothing here knows what
a shard is.
"""

from headrace.store.below import FolderStore
from headrace.store.cache import CachedStore
from headrace.store.confirming import confirmed, file_pieces
from headrace.store.identity import attempt_id, is_dead, is_here, process_identity
from headrace.store.lease import Holder, Lease, acquire, holder_of, open_leases
from headrace.store.local import LocalStore
from headrace.store.memory import MemoryStore
from headrace.store.open import has_scheme, open_store
from headrace.store.retrying import RetryingStore, RetryPolicy
from headrace.store.store import (
    Buffer,
    ByteWriter,
    Capabilities,
    DatasetFile,
    Digest,
    FileInfo,
    Store,
    Stored,
    StoredForm,
    checked_path,
)

__all__ = [
    "Buffer",
    "ByteWriter",
    "CachedStore",
    "Capabilities",
    "DatasetFile",
    "Digest",
    "FileInfo",
    "FolderStore",
    "Holder",
    "Lease",
    "LocalStore",
    "MemoryStore",
    "RetryPolicy",
    "RetryingStore",
    "Store",
    "Stored",
    "StoredForm",
    "acquire",
    "attempt_id",
    "checked_path",
    "confirmed",
    "file_pieces",
    "has_scheme",
    "holder_of",
    "is_dead",
    "is_here",
    "open_leases",
    "open_store",
    "process_identity",
]
