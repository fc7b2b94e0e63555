"""The border to C: the one file that touches cffi.

It offers the compiled functions (``lib``), pointers to the memory of arrays and buffers,
the making of a pool with its slab as an array, and the raising of C's refusals. The
modules above it see integers, arrays and exceptions only.

Who owns what::

    Pool ----> handle (tl_kvx)            the lock; forgets the pool when closed
      |
      +------> owner (tl_kv_pool) <---- keeper <---- slab array <---- every view
               destroyed with the last of them
"""

from __future__ import annotations

from functools import partial
from os import register_at_fork
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from .errors import BY_STATUS, BlockIndexError, InvalidArgument, KVError

try:
    from ._kv import ffi
    from ._kv import lib as lib
except ModuleNotFoundError as error:
    if error.name != f"{__package__}._kv":
        raise
    raise ImportError(
        "tinyllm_kv: the compiled extension is not here; install the package (pip install .) "
        "and import it from outside its source folder, or install it in place (pip install -e .)"
    ) from None

if TYPE_CHECKING:
    from ._kv import CData

CLOSED: int = -lib.TL_KVX_CLOSED
NOT_FOUND: int = -lib.TL_ENOTFOUND

#: Pointers to the memory of contiguous arrays; the caller keeps the array alive.
u8 = partial(ffi.from_buffer, ffi.typeof("uint8_t[]"))
u16 = partial(ffi.from_buffer, ffi.typeof("uint16_t[]"))
u32 = partial(ffi.from_buffer, ffi.typeof("uint32_t[]"))
u64 = partial(ffi.from_buffer, ffi.typeof("uint64_t[]"))


def bytes_of(buffer: object, name: str, *, writable: bool = False) -> CData:
    """Return the bytes of any contiguous buffer, whatever its item size; ``len`` counts bytes.

    Raises:
        TypeError, ValueError, BufferError: it is no such buffer, or not writable.
    """
    try:
        return ffi.from_buffer(buffer, require_writable=writable)
    except (TypeError, ValueError, BufferError) as error:
        raise type(error)(f"{name}: {error}") from None


def refuse(answer: int) -> NoReturn:
    """Raise the exception for a call that answered less than 0, with C's own message."""
    raise _refusal(answer)


def refuse_look(answer: int) -> NoReturn:
    """Do as :func:`refuse`, for views and introspection: an id out of range is an IndexError."""
    error = _refusal(answer)
    raise BlockIndexError(str(error)) if isinstance(error, InvalidArgument) else error


def _refusal(answer: int) -> Exception:
    buffer = ffi.new("char[256]")
    lib.tl_kvx_take_error(buffer)
    message = ffi.string(buffer).decode(errors="replace")
    if answer == CLOSED:
        return ValueError(message)
    if -answer in BY_STATUS:
        return BY_STATUS[-answer](message)
    return KVError(message, -answer, ffi.string(lib.tl_status_str(-answer)).decode())


# ---- fork ----------------------------------------------------------------------


def _watch_fork() -> CData:
    """Return the group of all pools' handles, which is held still around every fork.

    What holds and releases it is C as a whole: no signal handler and no finalizer can come
    in between and leave it held.
    """
    group = ffi.new("tl_kvx_group **")
    answer = lib.tl_kvx_group_create(group)
    if answer < 0:
        refuse(answer)
    hold, release = partial(lib.tl_kvx_hold, group[0]), partial(lib.tl_kvx_release, group[0])
    register_at_fork(before=hold, after_in_parent=release, after_in_child=release)
    made: CData = group[0]
    return made


_group = _watch_fork()


# ---- a pool --------------------------------------------------------------------


def create(
    n_blocks: int, block_tokens: int, n_layers: int, n_kv_heads: int, head_dim: int
) -> tuple[object, NDArray[np.float16], NDArray[np.float16], int]:
    """Create a pool. Return its handle, its slab twice and the bytes of one block.

    The slab is float16 ``[n_blocks, n_layers, 2, n_kv_heads, block_tokens, head_dim]``, first
    writable, then read-only for good. The pool lives as long as one of these arrays or a
    view of them, and no shorter than the caller uses the handle without closing it.
    """
    cfg = ffi.new(
        "tl_kv_cfg *",
        (n_blocks, block_tokens, n_layers, n_kv_heads, head_dim, lib.TL_F16, lib.TL_KV_FORMAT_V1),
    )
    handle, pool = ffi.new("tl_kvx **"), ffi.new("tl_kv_pool **")
    answer = lib.tl_kvx_create(cfg, handle, pool)
    if answer < 0:
        refuse(answer)
    lib.tl_kvx_join(handle[0], _group)
    closing = ffi.gc(handle[0], lib.tl_kvx_destroy)
    owner = ffi.gc(pool[0], lib.tl_kv_pool_destroy)
    block_bytes: int = lib.tl_kv_block_bytes(owner)
    first = lib.tl_kv_block_ptr(owner, 0, 0, 0)
    keeper = ffi.gc(first, partial(_keep, owner))
    memory = memoryview(ffi.buffer(keeper, n_blocks * block_bytes))
    shape = n_blocks, n_layers, 2, n_kv_heads, block_tokens, head_dim
    slab, fixed = (np.frombuffer(m, np.float16).reshape(shape) for m in (memory, memory.toreadonly()))
    return closing, slab, fixed, block_bytes


def _keep(_owner: object, _memory: object) -> None:
    """Do nothing: being bound to the owner, as the memory's destructor, is what keeps it alive."""


def stats(handle: object) -> tuple[int, int, int, int]:
    """Return the counts of free, used and cached blocks, and of evictions."""
    out = ffi.new("tl_kv_stats *")
    answer = lib.tl_kvx_stats(handle, out)
    if answer < 0:
        refuse(answer)
    return out.free, out.used, out.cached, out.evictions


def registered_hash(handle: object, block: int) -> int:
    """Return the hash a block is registered under, 0 for none."""
    out = ffi.new("uint64_t *")
    answer = lib.tl_kvx_registered_hash(handle, block, out)
    if answer < 0:
        refuse_look(answer)
    return int(out[0])
