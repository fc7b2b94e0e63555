"""The pool: fixed-size KV blocks that sequences share, in one slab of C memory."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _binding, picture
from ._binding import NOT_FOUND, bytes_of, lib, refuse, refuse_look, u8, u16, u32, u64
from ._convert import UINT32, UINT32_MAX, UINT64, UINT64_MAX, block_id, integer, integers, is_one, own_uint32
from .errors import BlockIndexError, InvalidArgument

_STATES = ("free", "used", "cached")
_INT64_MAX = 2**63 - 1

# What is called often has a name of its own: a global is found faster than an attribute of lib.
_alloc, _acquire, _match, _lookup = lib.tl_kvx_alloc, lib.tl_kvx_acquire, lib.tl_kvx_match, lib.tl_kvx_lookup
_ref, _ref_many, _unref, _unref_many = lib.tl_kvx_ref, lib.tl_kvx_ref_many, lib.tl_kvx_unref, lib.tl_kvx_unref_many
_cow, _fill, _set_fill, _writable = lib.tl_kvx_cow, lib.tl_kvx_fill, lib.tl_kvx_set_fill, lib.tl_kvx_writable
_set_fill_all, _set_fill_many = lib.tl_kvx_set_fill_all, lib.tl_kvx_set_fill_many
_register, _register_many = lib.tl_kvx_register, lib.tl_kvx_register_many


class Stats(NamedTuple):
    """The blocks of a pool by state, and its evictions since it was made, as of one moment."""

    free: int
    used: int
    cached: int
    evictions: int


class Config(NamedTuple):
    """The shape of a pool: ``tl_kv_cfg`` of the C header."""

    n_blocks: int
    block_tokens: int
    n_layers: int
    n_kv_heads: int
    head_dim: int
    dtype: int = 1
    format: int = 1


class Pool:
    """A pool of fixed-size KV blocks in one slab.

    A block holds the keys and values of ``block_tokens`` positions in every layer. It is
    free, used (held by one or more sequences) or cached (held by nobody, but findable under
    the hash of its tokens until its room is needed).

    Calls serialize themselves: a pool may be used from any number of threads. What a call
    refuses it has not begun: counts, contents and eviction order are what they were. Ids and
    counts are ints, NumPy integers or whatever else has ``__index__``.

    Views (:meth:`k`, :meth:`v`, :meth:`block`, :attr:`slab`) share the pool's memory and
    keep it alive, whatever becomes of the pool. A view means something only while its block
    is held: after that the same bytes are another's. Copy (``view.copy()``) what must last.

    Args:
        n_blocks: blocks in the pool.
        block_tokens: token positions of a block.
        n_layers, n_kv_heads, head_dim: the shape of the keys of one position.

    Raises:
        InvalidArgument: a dimension is not in 1 … 2^32-1, or the size is beyond any memory.
        OutOfMemory: there is no memory for the slab.
        TypeError: a dimension is no integer.
    """

    _handle: object = None
    _slabs: tuple[NDArray[np.float16], NDArray[np.float16]] | None = None  #: writable and read-only; None: closed

    def __init__(
        self,
        n_blocks: SupportsIndex,
        block_tokens: SupportsIndex = 16,
        *,
        n_layers: SupportsIndex,
        n_kv_heads: SupportsIndex,
        head_dim: SupportsIndex,
    ) -> None:
        given = {
            "n_blocks": n_blocks,
            "block_tokens": block_tokens,
            "n_layers": n_layers,
            "n_kv_heads": n_kv_heads,
            "head_dim": head_dim,
        }
        shape = [integer(value, 1, UINT32_MAX, f"Pool: {name}", InvalidArgument) for name, value in given.items()]
        self.cfg = Config(*shape)
        self._handle, slab, fixed, self.block_bytes = _binding.create(*shape)
        self._slabs = slab, fixed

    # ---- life ------------------------------------------------------------

    def close(self) -> None:
        """Let go of the slab; views keep it alive for as long as they live. Closing twice is fine."""
        if self._handle is not None:
            lib.tl_kvx_close(self._handle)  # first invalid, then gone: a call that runs ends before
            self._slabs = None

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called; then every other call raises ValueError."""
        return self._slabs is None

    def __enter__(self) -> Pool:
        if self.closed:
            raise ValueError("Pool: the pool is closed")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a Pool owns memory of its own and cannot be copied or pickled")

    def __len__(self) -> int:
        return self.cfg.n_blocks

    def __repr__(self) -> str:
        c = self.cfg
        shape = (
            f"{c.n_blocks} blocks of {c.block_tokens} tokens, n_layers={c.n_layers}, "
            f"n_kv_heads={c.n_kv_heads}, head_dim={c.head_dim}"
        )
        try:
            s = self.stats()
        except ValueError:
            return f"<Pool: {shape}; closed>"
        return f"<Pool: {shape}; free {s.free}, used {s.used}, cached {s.cached}>"

    # ---- holding blocks --------------------------------------------------

    def alloc(self, n: SupportsIndex = 1) -> NDArray[np.uint32]:
        """Take ``n`` blocks, all or nothing: free ones first, then the least recently used cached ones.

        Returns:
            uint32 ``[n]``, in the order taken. Each has one holder, fill 0 and unspecified contents.

        Raises:
            OutOfBlocks: fewer than ``n`` are free or cached.
            InvalidArgument: ``n`` is negative.
        """
        count = block_id(n, "Pool.alloc: n")
        ids = np.empty(count if 0 <= count <= self.cfg.n_blocks else 0, UINT32)
        answer = _alloc(self._handle, count, u32(ids))
        if answer < 0:
            refuse(answer)
        return ids

    def ref(self, ids: ArrayLike) -> None:
        """Add a holder to a block, or to each of an array of blocks, all or nothing.

        Raises:
            InvalidArgument: nobody holds one of them, or it is out of range.
        """
        if is_one(ids):
            answer = _ref(self._handle, block_id(ids, "Pool.ref: ids"))
        else:
            array = own_uint32(ids, "Pool.ref: ids")
            answer = _ref_many(self._handle, u32(array), len(array))
        if answer < 0:
            refuse(answer)

    def unref(self, ids: ArrayLike) -> None:
        """Drop a holder of a block, or of each of an array of blocks, all or nothing.

        With its last holder a registered block becomes cached, any other free. Of an array
        the last is let go first, so that a prefix chain loses its tail before its head.

        Raises:
            InvalidArgument: a block has fewer holders than the call drops, or is out of range.
        """
        if is_one(ids):
            answer = _unref(self._handle, block_id(ids, "Pool.unref: ids"))
        else:
            array = own_uint32(ids, "Pool.unref: ids")
            answer = _unref_many(self._handle, u32(array), len(array))
        if answer < 0:
            refuse(answer)

    def cow(self, id: SupportsIndex) -> int:
        """Return the block to write to instead of ``id`` (copy on write).

        A block with one holder is its own answer. Of a shared one the caller's share moves to
        a fresh copy (contents and fill). A registered block's contents are published: with
        one holder it comes back as itself and stays read-only.

        Raises:
            InvalidArgument: nobody holds the block, or it is out of range.
            OutOfBlocks: a copy is needed and no block is free or cached.
        """
        answer: int = _cow(self._handle, block_id(id, "Pool.cow: id"))
        if answer < 0:
            refuse(answer)
        return answer

    def fill(self, id: SupportsIndex) -> int:
        """Return how many positions of a block hold data, 0 for a free one.

        Raises:
            BlockIndexError: the block is out of range.
        """
        answer: int = _fill(self._handle, block_id(id, "Pool.fill: id"))
        if answer < 0:
            refuse_look(answer)
        return answer

    def set_fill(self, ids: ArrayLike, n: SupportsIndex | Sequence[int] | NDArray[Any]) -> None:
        """State that the first ``n`` positions of a block, or of each of an array, hold data.

        Args:
            ids: a block or an array of blocks.
            n: positions, one number for all or one for each.

        Raises:
            InvalidArgument: nobody holds a block, it is registered or out of range, an ``n``
                is not in 0 … ``block_tokens``, or the lengths differ; then none is changed.
        """
        if is_one(ids):
            answer = _set_fill(self._handle, block_id(ids, "Pool.set_fill: ids"), block_id(n, "Pool.set_fill: n"))
        else:
            array = own_uint32(ids, "Pool.set_fill: ids")
            if is_one(n):
                answer = _set_fill_all(self._handle, u32(array), len(array), block_id(n, "Pool.set_fill: n"))
            else:
                fills = own_uint32(n, "Pool.set_fill: n")
                if len(fills) != len(array):
                    raise InvalidArgument(f"Pool.set_fill: {len(array)} blocks and {len(fills)} fills")
                answer = _set_fill_many(self._handle, u32(array), u32(fills), len(array))
        if answer < 0:
            refuse(answer)

    def _write(
        self,
        layer: int,
        ids: NDArray[np.uint32],
        slots: NDArray[np.uint32],
        k: NDArray[np.float16],
        v: NDArray[np.float16],
        *,
        heads_first: bool,
    ) -> None:
        """Write one position of one layer in each of ``ids``: into a slot of a block that is its holder's own.

        Args:
            ids, slots: uint32 ``[n]``; a block may stand more than once.
            k, v: contiguous float16 ``[n, n_kv_heads, head_dim]``, or ``[n_kv_heads, n, head_dim]``
                if ``heads_first``.

        Raises:
            InvalidArgument: a block is shared, registered or held by nobody, or something is
                out of range; then nothing is written.
        """
        heads, dim, n = self.cfg.n_kv_heads, self.cfg.head_dim, len(ids)
        strides = (dim, n * dim) if heads_first else (heads * dim, dim)
        answer = lib.tl_kvx_write(self._handle, layer, u32(ids), u32(slots), n, u16(k), u16(v), *strides)
        if answer < 0:
            refuse(answer)

    def evict(self, n: SupportsIndex | None = None) -> int:
        """Drop the ``n`` oldest cached blocks (all of them by default) to free, for a change of weights.

        Returns:
            how many were dropped; each counts as an eviction.

        Raises:
            InvalidArgument: ``n`` is negative.
        """
        answer: int = lib.tl_kvx_evict(self._handle, _INT64_MAX if n is None else block_id(n, "Pool.evict: n"))
        if answer < 0:
            refuse(answer)
        return answer

    # ---- the prefix cache ------------------------------------------------

    def register(self, id: SupportsIndex, hash: SupportsIndex) -> bool:
        """Publish a full block under a hash, so that lookups find it.

        Returns:
            ``True``, or ``False`` when another block holds the hash already.

        Raises:
            InvalidArgument: nobody holds the block, it is not full, it is registered under
                another hash, it is out of range, or ``hash`` is 0.
            OverflowError: ``hash`` is not in 0 … 2^64-1.
        """
        name = integer(hash, 0, UINT64_MAX, "Pool.register: hash")
        answer = _register(self._handle, block_id(id, "Pool.register: id"), name)
        if answer < 0:
            refuse(answer)
        return bool(answer)

    def register_many(self, ids: ArrayLike, hashes: ArrayLike) -> int:
        """Publish blocks under their hashes, one each.

        Returns:
            how many were newly registered. A hash that another block holds is skipped; a
            block that is registered under its hash already counts 0.

        Raises:
            InvalidArgument: as :meth:`register`, or the lengths differ; then none is registered.
            OverflowError: a hash is not in 0 … 2^64-1.
        """
        blocks = own_uint32(ids, "Pool.register_many: ids")
        names = integers(hashes, UINT64, "Pool.register_many: hashes")
        if len(blocks) != len(names):
            raise InvalidArgument(f"Pool.register_many: {len(blocks)} blocks and {len(names)} hashes")
        answer: int = _register_many(self._handle, u32(blocks), u64(names), len(blocks))
        if answer < 0:
            refuse(answer)
        return answer

    def lookup(self, hash: SupportsIndex) -> int | None:
        """Find the block registered under a hash and hold it.

        Returns:
            the block's id (0 is one), or ``None``.

        Raises:
            OverflowError: ``hash`` is not in 0 … 2^64-1.
        """
        answer: int = _lookup(self._handle, integer(hash, 0, UINT64_MAX, "Pool.lookup: hash"))
        if answer >= 0:
            return answer
        return None if answer == NOT_FOUND else refuse(answer)

    def match_prefix(self, hashes: ArrayLike) -> NDArray[np.uint32]:
        """Find the longest run of registered blocks from the start of ``hashes`` and hold each.

        Returns:
            uint32 ``[length of the run]``. Nothing after the first miss is held.

        Raises:
            OverflowError: a hash is not in 0 … 2^64-1.
        """
        names = integers(hashes, UINT64, "Pool.match_prefix: hashes")
        ids = np.empty(len(names), UINT32)
        answer = _match(self._handle, u64(names), len(names), u32(ids))
        if answer < 0:
            refuse(answer)
        return ids[:answer]

    def acquire(self, hashes: ArrayLike, n: SupportsIndex) -> tuple[NDArray[np.uint32], int]:
        """Admit a sequence of ``n`` blocks in one step: hold its cached prefix, allocate the rest.

        Args:
            hashes: of the sequence's full blocks, in order.
            n: blocks in all. A run of hits longer than that is cut.

        Returns:
            uint32 ``[n]``, the hits first, and the number of hits.

        Raises:
            OutOfBlocks: the rest is more than are free or cached beside the hits. No reference
                is held then, and eviction order is what it was.
            InvalidArgument: ``n`` is negative.
            OverflowError: a hash is not in 0 … 2^64-1.
        """
        names, count = integers(hashes, UINT64, "Pool.acquire: hashes"), block_id(n, "Pool.acquire: n")
        ids = np.empty(max(0, min(count, self.cfg.n_blocks + len(names))), UINT32)
        hits: int = _acquire(self._handle, u64(names), len(names), count, u32(ids))
        if hits < 0:
            refuse(hits)
        return ids, hits

    def count_prefix(self, hashes: ArrayLike) -> int:
        """Return the length of the run :meth:`match_prefix` would find, holding and moving nothing."""
        names = integers(hashes, UINT64, "Pool.count_prefix: hashes")
        answer: int = lib.tl_kvx_count_prefix(self._handle, u64(names), len(names))
        if answer < 0:
            refuse(answer)
        return answer

    def holds(self, hash: SupportsIndex) -> bool:
        """Return whether a block is registered under a hash, holding and moving nothing."""
        answer = lib.tl_kvx_holds(self._handle, integer(hash, 0, UINT64_MAX, "Pool.holds: hash"))
        if answer < 0:
            refuse(answer)
        return bool(answer)

    # ---- looking ---------------------------------------------------------

    @overload
    def refcount(self, id: int | np.integer[Any]) -> int: ...
    @overload
    def refcount(self, id: NDArray[Any] | Sequence[int]) -> NDArray[np.uint32]: ...
    def refcount(self, id: Any) -> int | NDArray[np.uint32]:
        """Return how many hold a block, or each of an array of blocks.

        Returns:
            a number, or uint32 ``[n]``.

        Raises:
            BlockIndexError: a block is out of range.
        """
        if not is_one(id):
            ids = own_uint32(id, "Pool.refcount: ids", BlockIndexError)
            counts = np.empty(len(ids), np.uint32)
            answer = lib.tl_kvx_refcount_many(self._handle, u32(ids), len(ids), u32(counts))
            if answer < 0:
                refuse_look(answer)
            return counts
        count: int = lib.tl_kvx_refcount(self._handle, block_id(id, "Pool.refcount: id"))
        if count < 0:
            refuse_look(count)
        return count

    def registered_hash(self, id: SupportsIndex) -> int:
        """Return the hash a block is registered under, 0 for none. Raises :class:`BlockIndexError` out of range."""
        return _binding.registered_hash(self._handle, block_id(id, "Pool.registered_hash: id"))

    def state(self, id: SupportsIndex) -> str:
        """Return ``"free"``, ``"used"`` or ``"cached"``. Raises :class:`BlockIndexError` out of range."""
        answer = lib.tl_kvx_state(self._handle, block_id(id, "Pool.state: id"))
        if answer < 0:
            refuse_look(answer)
        return _STATES[answer]

    def stats(self) -> Stats:
        """Return the counts of this moment."""
        return Stats(*_binding.stats(self._handle))

    def _states(self) -> NDArray[np.uint8]:
        """Return the state of every block, uint8 ``[n_blocks]``, as C numbers them."""
        states = np.empty(self.cfg.n_blocks, np.uint8)
        answer = lib.tl_kvx_states(self._handle, u8(states))
        if answer < 0:
            refuse(answer)
        return states

    def map(self) -> str:
        """Draw the pool: a cell a block, ``.`` free, ``#`` used, ``o`` cached; 64 to a line, 32 lines at most.

        Of a larger pool a cell stands for several blocks and shows the busiest.
        """
        return picture.text(self._states())

    def _repr_html_(self) -> str:
        """Show the pool in a notebook: what :func:`repr` says, and the map in colours."""
        shown = f"<div>{escape(repr(self))}</div>"
        return shown if self.closed else shown + picture.html(self._states())

    # ---- views -----------------------------------------------------------

    def _slab_for(self, block: int) -> NDArray[np.float16]:
        """Return the slab to look at a block through, writable if the block is its holder's own."""
        slabs = self._slabs
        answer = _writable(self._handle, block)
        if answer < 0 or slabs is None:
            refuse_look(answer)
        return slabs[0 if answer else 1]

    def _layer(self, layer: SupportsIndex, call: str) -> int:
        return integer(layer, 0, self.cfg.n_layers - 1, f"Pool.{call}: layer", BlockIndexError)

    def k(self, id: SupportsIndex, layer: SupportsIndex) -> NDArray[np.float16]:
        """Return the keys of one layer of a block, in place.

        Returns:
            float16 ``[n_kv_heads, block_tokens, head_dim]``, writable if the block has exactly
            one holder and is not registered.

        ``torch.from_numpy(view)`` and ``numpy.from_dlpack(view)`` share its memory, and keep it
        alive. NumPy lets DLPack have a read-only view from 2.1 on (before, BufferError or
        TypeError), a writable one always; torch takes a read-only one with a warning.

        Raises:
            BlockIndexError: the block or the layer is out of range.
        """
        block = block_id(id, "Pool.k: id")
        view: NDArray[np.float16] = self._slab_for(block)[block, self._layer(layer, "k"), 0]
        return view

    def v(self, id: SupportsIndex, layer: SupportsIndex) -> NDArray[np.float16]:
        """Return the values of one layer of a block, in place; shape and errors as for :meth:`k`."""
        block = block_id(id, "Pool.v: id")
        view: NDArray[np.float16] = self._slab_for(block)[block, self._layer(layer, "v"), 1]
        return view

    def block(self, id: SupportsIndex) -> NDArray[np.float16]:
        """Return a whole block, in place.

        Returns:
            float16 ``[n_layers, 2, n_kv_heads, block_tokens, head_dim]`` (2: keys, values),
            writable as :meth:`k` says.

        Raises:
            BlockIndexError: the block is out of range.
        """
        block = block_id(id, "Pool.block: id")
        view: NDArray[np.float16] = self._slab_for(block)[block]
        return view

    @property
    def slab(self) -> NDArray[np.float16]:
        """The whole pool in place, for kernels and for indexing by block table; always writable.

        float16 ``[n_blocks, n_layers, 2, n_kv_heads, block_tokens, head_dim]``. Nothing stops a
        write to a shared or registered block here: hold the block, and :meth:`cow` it first.
        """
        slabs = self._slabs
        if slabs is None:
            raise ValueError("Pool.slab: the pool is closed")
        return slabs[0][:]

    # ---- envelopes -------------------------------------------------------

    def export_bytes(self, n: SupportsIndex) -> int:
        """Return the bytes of an envelope of ``n`` blocks.

        Raises:
            InvalidArgument: ``n`` is not in 0 … 2^32-1, or the size is beyond 63 bits.
        """
        answer: int = lib.tl_kvx_export_bytes(self._handle, block_id(n, "Pool.export_bytes: n"))
        if answer < 0:
            refuse(answer)
        return answer

    def export(self, ids: ArrayLike) -> bytes:
        """Write blocks, in the order of ``ids``, as an envelope for another pool.

        Raises:
            InvalidArgument: nobody holds a block, it is empty (fill 0), or it is out of range.
        """
        blocks = own_uint32(ids, "Pool.export: ids")
        size = lib.tl_kvx_export_size(self._handle, u32(blocks), len(blocks))
        if size < 0:
            refuse(size)
        envelope = bytes(size)
        # Nobody has seen these bytes yet, so that writing to them is safe; a copy would cost
        # as much as the export.
        answer = lib.tl_kvx_export(self._handle, u32(blocks), len(blocks), u8(envelope), len(envelope))
        if answer < 0:
            refuse(answer)
        return envelope

    def export_into(self, ids: ArrayLike, buffer: Any) -> int:
        """Write the envelope of :meth:`export` to the start of a writable contiguous buffer.

        Returns:
            the bytes written.

        Raises:
            OutOfBlocks: the buffer is too small; the text gives the size needed.
            InvalidArgument: as for :meth:`export`, or the buffer overlaps the pool.
            TypeError, ValueError, BufferError: no writable contiguous buffer.
        """
        blocks = own_uint32(ids, "Pool.export_into: ids")
        out = bytes_of(buffer, "Pool.export_into: buffer", writable=True)
        answer: int = lib.tl_kvx_export(self._handle, u32(blocks), len(blocks), out, len(out))
        if answer < 0:
            refuse(answer)
        return answer

    def import_(self, buffer: Any) -> NDArray[np.uint32]:
        """Take the blocks of an envelope into the pool, held, filled, and registered under their hashes.

        A block whose hash is held already stays a private copy.

        Args:
            buffer: the envelope, any contiguous buffer of its exact length.

        Returns:
            uint32 ``[blocks of the envelope]``, in its order.

        Raises:
            EnvelopeError: the bytes are no valid envelope.
            ShapeError: its dimensions are not the pool's.
            OutOfBlocks: fewer blocks are free or cached than it has.
        """
        data = bytes_of(buffer, "Pool.import_: buffer")
        most = max(0, len(data) - 32) // (12 + self.block_bytes)  # whole records: no header is believed
        ids = np.empty(min(most, self.cfg.n_blocks), np.uint32)
        answer = lib.tl_kvx_import(self._handle, data, len(data), u32(ids))
        if answer < 0:
            refuse(answer)
        return ids[:answer]
