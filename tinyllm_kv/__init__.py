"""A paged KV-block pool in C, driven from Python.

:class:`Pool` holds the attention keys and values of many sequences in fixed-size blocks of
one slab: shared by forks until someone writes, found again by the hash of their tokens,
and moved between engines as checksummed envelopes.
"""

from ._version import __version__
from .envelope import Envelope
from .errors import (
    BlockIndexError,
    EnvelopeError,
    InvalidArgument,
    KVError,
    OutOfBlocks,
    OutOfMemory,
    ShapeError,
    Unsupported,
)
from .hashing import block_hash, block_hashes, crc32c, namespace
from .paged import PagedKVCache
from .pool import Config, Pool, Stats
from .sources import get_include, get_sources

__all__ = [
    "BlockIndexError",
    "Config",
    "Envelope",
    "EnvelopeError",
    "InvalidArgument",
    "KVError",
    "OutOfBlocks",
    "OutOfMemory",
    "PagedKVCache",
    "Pool",
    "ShapeError",
    "Stats",
    "Unsupported",
    "__version__",
    "block_hash",
    "block_hashes",
    "crc32c",
    "get_include",
    "get_sources",
    "namespace",
]
