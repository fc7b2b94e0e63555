"""Sequences over a pool: block tables, lengths and the names of blocks.

A sequence of 6 positions in blocks of 4, and its fork, which then appended a position::

    table of "a"   [ 7, 2 ]        block 7   | 0 1 2 3 |   held by both, registered
                     |  +--------> block 2   | 4 5 . . |   held by "a" alone
    table of "b"   [ 7, 5 ]
                        +--------> block 5   | 4 5 6 . |   the copy that "b" wrote into

Position ``p`` of a sequence is slot ``p % block_size`` of block ``table[p // block_size]``,
in every layer. The layers may have different lengths while a step is computed; a position
counts for a block's fill, and for its name, once the last layer has it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._convert import UINT32, UINT64_MAX, integer, integers
from .envelope import Envelope
from .errors import OutOfBlocks, ShapeError
from .hashing import block_hashes
from .pool import Pool

_FLOAT16 = np.dtype(np.float16)
_NO_TOKENS = np.empty(0, np.uint32)
_NO_HASHES = np.empty(0, np.uint64)


class _Names(NamedTuple):
    """The chained hashes of a sequence's blocks, as far as its tokens are known."""

    last: int  #: what the next block is chained to: the hash before it, or the sequence's parent
    hashes: NDArray[np.uint64]  #: of the blocks whose tokens are known, 0 for one that needs no name
    tail: NDArray[np.uint32] | None  #: the known tokens after those; None: a gap, no later block has a name

    def extended(self, tokens: NDArray[np.uint32], block_size: int) -> _Names:
        if self.tail is None:
            return self
        tail = np.concatenate([self.tail, tokens])
        fresh = block_hashes(tail, block_size, self.last)
        if not len(fresh):
            return self._replace(tail=tail)
        rest = tail[len(fresh) * block_size :].copy()
        return _Names(int(fresh[-1]), np.concatenate([self.hashes, fresh]), rest)


class PagedKVCache:
    """A KV cache of many sequences, each a table of blocks of one pool.

    Sequences have any hashable id. Keys and values are appended layer by layer, shared by
    :meth:`fork` and by :meth:`add_seq` (prefix reuse), and copied when one of the holders
    writes. A block is registered in the pool once every layer has all of its positions and
    its tokens are known; one that finds its name taken by another block stays a private copy
    for good, also when that block has gone.

    What a call refuses it has not begun: lengths, tables, contents and counts are what they
    were. A cache is not thread-safe by itself, as a dict is not.

    Args:
        num_blocks: blocks in the pool.
        block_size: token positions of a block.
        n_layers, n_kv_heads, d_head: the shape of the keys of one position.

    Attributes:
        num_blocks, block_size, n_layers, n_kv_heads, d_head: as given.
        pool: the :class:`Pool` below. Hold a block through it (``pool.ref``) and appends
            leave the block alone: they go to a copy.

    Raises:
        InvalidArgument, OutOfMemory, TypeError: as :class:`Pool`.
    """

    def __init__(
        self,
        num_blocks: SupportsIndex,
        block_size: SupportsIndex,
        n_layers: SupportsIndex,
        n_kv_heads: SupportsIndex,
        d_head: SupportsIndex,
    ) -> None:
        self.pool = Pool(num_blocks, block_size, n_layers=n_layers, n_kv_heads=n_kv_heads, head_dim=d_head)
        self.num_blocks, self.block_size, self.n_layers, self.n_kv_heads, self.d_head = self.pool.cfg[:5]
        # A live sequence has a row in the arrays; a decode step reads and writes many rows at once.
        self._rows: dict[Hashable, int] = {}
        self._free_rows: list[int] = []
        self._names: list[_Names] = []
        self._lengths: NDArray[np.intp] = np.zeros((self.n_layers, 0), np.intp)  #: [layer, row]
        self._tables: NDArray[np.uint32] = np.zeros((0, 1), np.uint32)  #: [row, n]: ids of some blocks, past the count too
        self._counts: NDArray[np.intp] = np.zeros(0, np.intp)  #: [row]: how many blocks the table has

    # ---- life ------------------------------------------------------------

    def close(self) -> None:
        """Let go of the pool. Closing twice is fine; whatever needs the pool raises ValueError afterwards."""
        self.pool.close()

    def __enter__(self) -> PagedKVCache:
        self.pool.__enter__()  # refuses a closed one
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a PagedKVCache owns a pool and cannot be copied or pickled")

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Hashable]:
        """Iterate over the ids of the live sequences, the oldest first; free none meanwhile."""
        return iter(self._rows)

    def __contains__(self, seq_id: object) -> bool:
        return seq_id in self._rows

    def __repr__(self) -> str:
        return f"<PagedKVCache: {len(self._rows)} sequences over {self.pool!r}>"

    # ---- sequences -------------------------------------------------------

    def add_seq(self, seq_id: Hashable, tokens: ArrayLike | None = None, *, parent: SupportsIndex | None = 0) -> int:
        """Begin a sequence, on the blocks of its prompt that the pool still holds.

        Args:
            seq_id: any hashable that is no live sequence's.
            tokens: the prompt, integers in 0 … 2^32-1. Taken over is the longest run of held
                blocks among the full blocks of ``tokens[:-1]``: the last token is always left
                to compute, as its logits are needed.
            parent: a key space of its own (see :func:`namespace`): an adapter's, a tenant's.

        Returns:
            how many positions need no computing; the sequence begins with that length in
            every layer.

        Raises:
            ValueError: ``seq_id`` is live.
            TypeError, OverflowError: a token or ``parent`` is no integer, or out of range.
        """
        self._refuse_live("add_seq", seq_id)
        names = self._named("add_seq", tokens, parent)
        reusable = names.hashes if names.tail is not None and len(names.tail) else names.hashes[:-1]
        reusable = reusable[: self.num_blocks]  # no table is longer
        self._reserve(len(reusable), more_rows=1)
        blocks = self.pool.match_prefix(reusable)
        self._admit(seq_id, blocks, len(blocks) * self.block_size, names)
        return len(blocks) * self.block_size

    def extend_tokens(self, seq_id: Hashable, tokens: ArrayLike) -> None:
        """Give the token ids that follow those known so far.

        They may come before or after the keys and values of their positions: a block is
        registered as soon as both are there. Tokens beyond the positions appended are kept.
        The tokens of a sequence imported without any follow its last position; where that
        position's block cannot be named, neither can the later ones, and they are ignored.

        Args:
            tokens: integers in 0 … 2^32-1.

        Raises:
            KeyError: no such sequence.
            TypeError, OverflowError: a token is no integer, or out of range.
            InvalidArgument: a shared block has been registered under other tokens.
        """
        row = self._row("extend_tokens", seq_id)
        array = integers(tokens, UINT32, "PagedKVCache.extend_tokens: tokens")
        before, after = self._names[row], self._names[row].extended(array, self.block_size)
        first, last = len(before.hashes), min(len(after.hashes), self._full_blocks(row))
        if first < last:
            self.pool.register_many(self._tables[row, first:last], after.hashes[first:last])
        self._names[row] = after

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """Begin ``child`` as a copy of ``parent`` that shares every block until one of them writes.

        Raises:
            KeyError: there is no sequence ``parent``.
            ValueError: ``child`` is live.
        """
        row = self._row("fork", parent)
        self._refuse_live("fork", child)
        blocks = self._blocks(row)
        self._reserve(len(blocks), more_rows=1)
        self.pool.ref(blocks)
        self._admit(child, blocks, self._lengths[:, row], self._names[row])

    def free(self, seq_id: Hashable) -> None:
        """End a sequence and let go of its blocks, the last first, so that a prefix outlives its tail.

        Raises:
            KeyError: no such sequence.
        """
        row = self._row("free", seq_id)
        self.pool.unref(self._blocks(row))
        del self._rows[seq_id]
        self._free_rows.append(row)

    # ---- keys and values -------------------------------------------------

    def append(self, seq_id: Hashable, layer: SupportsIndex, k: ArrayLike, v: ArrayLike) -> None:
        """Append positions to one layer of a sequence.

        Args:
            k, v: ``[n_kv_heads, T, d_head]``, T at least 1, of any float type; stored as
                float16, rounded to nearest even (what is beyond float16 becomes infinite).
                Views of the pool are read as they were before the call.

        Raises:
            KeyError: no such sequence.
            ValueError: no such layer, or another shape.
            TypeError: the elements are no floats, or ``layer`` is no integer.
            OutOfBlocks: the positions, and the copies of shared blocks, need more blocks than
                are free or cached.
        """
        call = "append"
        row = self._row(call, seq_id)
        layer = self._layer(call, layer)
        keys, values = self._own_float16(call, "k", k), self._own_float16(call, "v", v)
        n = keys.shape[1] if keys.ndim == 3 else 0
        shape = self.n_kv_heads, n, self.d_head
        if n == 0 or keys.shape != shape or values.shape != shape:
            raise self._bad_shape(call, "[n_kv_heads, T >= 1, d_head]", keys, values)

        size = self.block_size
        start = int(self._lengths[layer, row])
        columns = np.arange(start // size, -(-(start + n) // size))
        rows = np.full(len(columns), row)
        blocks = self._claim(call, rows, columns)
        nth, slots = np.divmod(np.arange(start % size, start % size + n, dtype=np.uint32), np.uint32(size))
        self.pool._write(layer, blocks[nth], slots, keys, values, heads_first=True)
        self._lengths[layer, row] = start + n
        self._settle(rows, columns, blocks)

    def append_batch(
        self, seq_ids: Iterable[Hashable], layer: SupportsIndex, k: ArrayLike, v: ArrayLike
    ) -> None:
        """Append one position to one layer of each of many sequences, all or nothing: a decode step.

        Args:
            seq_ids: different sequences.
            k, v: ``[n_seqs, n_kv_heads, d_head]``, in the order of ``seq_ids``; as for :meth:`append`.

        Raises:
            KeyError: one of the sequences does not exist.
            ValueError: a sequence stands twice, no such layer, or another shape.
            TypeError, OutOfBlocks: as for :meth:`append`.
        """
        call = "append_batch"
        ids = list(seq_ids)
        try:
            rows = np.fromiter(map(self._rows.__getitem__, ids), np.intp, len(ids))
        except KeyError as missing:
            raise _unknown(call, missing.args[0]) from None
        if len(set(ids)) < len(ids):
            raise ValueError(f"PagedKVCache.{call}: a sequence stands twice in one batch")
        layer = self._layer(call, layer)
        keys, values = self._own_float16(call, "k", k), self._own_float16(call, "v", v)
        shape = len(ids), self.n_kv_heads, self.d_head
        if keys.shape != shape or values.shape != shape:
            raise self._bad_shape(call, f"[{len(ids)} sequences, n_kv_heads, d_head]", keys, values)

        positions = self._lengths[layer].take(rows)
        columns, slots = np.divmod(positions, self.block_size)
        blocks = self._claim(call, rows, columns)
        self.pool._write(layer, blocks, slots.astype(np.uint32), keys, values, heads_first=False)
        self._lengths[layer, rows] = positions + 1
        self._settle(rows, columns, blocks)

    def gather(
        self, seq_id: Hashable, layer: SupportsIndex
    ) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
        """Copy one layer's keys and values out, in position order.

        Returns:
            two contiguous float16 ``[n_kv_heads, seq_len(seq_id, layer), d_head]``.

        Raises:
            KeyError: no such sequence.
            ValueError: no such layer.
        """
        row = self._row("gather", seq_id)
        layer = self._layer("gather", layer)
        size, length, slab = self.block_size, int(self._lengths[layer, row]), self.pool.slab
        out = np.empty((2, self.n_kv_heads, length, self.d_head), np.float16)
        for start in range(0, length, size):
            stop = min(start + size, length)
            out[:, :, start:stop] = slab[self._tables[row, start // size], layer, :, :, : stop - start]
        return out[0], out[1]

    # ---- looking ---------------------------------------------------------

    def block_table(self, seq_id: Hashable) -> NDArray[np.int32]:
        """Return the ids of a sequence's blocks in position order, int32 ``[n]``, a copy.

        Raises:
            KeyError: no such sequence.
        """
        return self._blocks(self._row("block_table", seq_id)).astype(np.int32)

    def seq_len(self, seq_id: Hashable, layer: SupportsIndex = 0) -> int:
        """Return how many positions a layer of a sequence has.

        Raises:
            KeyError: no such sequence.
            ValueError: no such layer.
        """
        row = self._row("seq_len", seq_id)
        return int(self._lengths[self._layer("seq_len", layer), row])

    def stats(self) -> dict[str, int]:
        """Return the pool's counts of this moment: ``free``, ``used``, ``cached`` and ``evictions``."""
        return self.pool.stats()._asdict()

    def num_free_blocks(self) -> int:
        """Return how many blocks an append could take: the free ones and the cached ones."""
        now = self.pool.stats()
        return now.free + now.cached

    # ---- envelopes -------------------------------------------------------

    def export_seq(self, seq_id: Hashable) -> bytes:
        """Write the positions that every layer holds as one envelope.

        Raises:
            KeyError: no such sequence.
        """
        row = self._row("export_seq", seq_id)
        n_blocks = -(-int(self._lengths[:, row].min()) // self.block_size)
        return self.pool.export(self._tables[row, :n_blocks])

    def import_seq(
        self,
        seq_id: Hashable,
        envelope: Any,
        tokens: ArrayLike | None = None,
        *,
        parent: SupportsIndex | None = 0,
    ) -> None:
        """Begin a sequence with the positions of an envelope.

        Its blocks come in registered under the envelope's hashes, and, where ``tokens`` are
        given, the full ones without a hash under theirs. A block whose hash is held already
        stays a private copy.

        Args:
            seq_id: any hashable that is no live sequence's.
            envelope: any contiguous buffer, as for :meth:`Pool.import_`.
            tokens: the token ids from the first position on, as far as they are known: at least
                those of every block that has a hash in the envelope.
            parent: the key space of the tokens, as for :meth:`add_seq`.

        Raises:
            ValueError: ``seq_id`` is live, a block before the last is partial, or the tokens do
                not give all of the envelope's hashes.
            EnvelopeError, ShapeError, OutOfBlocks: as :meth:`Pool.import_`.
            TypeError, OverflowError: a token or ``parent`` is no integer, or out of range.
        """
        call = "import_seq"
        self._refuse_live(call, seq_id)
        names = self._named(call, tokens, parent)
        found = Envelope.parse(envelope)
        shape = found.block_tokens, found.n_layers, found.n_kv_heads, found.head_dim
        if shape != self.pool.cfg[1:5]:
            raise ShapeError(
                f"PagedKVCache.{call}: the envelope has (block_size, n_layers, n_kv_heads, d_head) "
                f"{shape}, the cache {self.pool.cfg[1:5]}"
            )
        partial = np.flatnonzero(found.n_tokens[:-1] < self.block_size)
        if len(partial):
            raise ValueError(f"PagedKVCache.{call}: block {partial[0]} is partial, and not the last")
        length = int(found.n_tokens.sum(dtype=np.intp))
        full = length // self.block_size
        if tokens is None:
            names = _imported_names(names, found)
        else:
            known = names.hashes[:full]
            given = np.zeros(found.n_blocks, np.uint64)
            given[: len(known)] = known
            wrong = np.flatnonzero((found.hashes != 0) & (found.hashes != given))
            if len(wrong):
                raise ValueError(f"PagedKVCache.{call}: the tokens do not give the hash of block {wrong[0]}")
        self._refuse_too_many(call, found.n_blocks)
        self._reserve(found.n_blocks, more_rows=1)
        blocks = self.pool.import_(envelope)
        named = np.flatnonzero(names.hashes[:full])
        self.pool.register_many(blocks[named], names.hashes[named])
        self._admit(seq_id, blocks, length, names)

    # ---- inside ----------------------------------------------------------

    def _row(self, call: str, seq_id: Hashable) -> int:
        try:
            return self._rows[seq_id]
        except KeyError:
            raise _unknown(call, seq_id) from None

    def _refuse_live(self, call: str, seq_id: Hashable) -> None:
        if seq_id in self._rows:
            raise ValueError(f"PagedKVCache.{call}: there is a sequence {seq_id!r} already")

    def _refuse_too_many(self, call: str, n_blocks: int) -> None:
        """Refuse what the pool has no room for, before a table grows for it."""
        there = self.num_free_blocks()
        if n_blocks > there:
            raise OutOfBlocks(f"PagedKVCache.{call}: {n_blocks} blocks needed, {there} are free or cached")

    def _layer(self, call: str, layer: SupportsIndex) -> int:
        return integer(layer, 0, self.n_layers - 1, f"PagedKVCache.{call}: layer", ValueError)

    def _bad_shape(self, call: str, expected: str, k: NDArray[Any], v: NDArray[Any]) -> ValueError:
        return ValueError(
            f"PagedKVCache.{call}: k is {k.shape} and v {v.shape}, expected {expected} "
            f"with {self.n_kv_heads} heads of {self.d_head}"
        )

    def _named(self, call: str, tokens: ArrayLike | None, parent: SupportsIndex | None) -> _Names:
        """Return the names that a prompt gives a new sequence's blocks."""
        chain = integer(0 if parent is None else parent, 0, UINT64_MAX, f"PagedKVCache.{call}: parent")
        names = _Names(chain, _NO_HASHES, _NO_TOKENS)
        if tokens is None:
            return names
        return names.extended(integers(tokens, UINT32, f"PagedKVCache.{call}: tokens"), self.block_size)

    def _own_float16(self, call: str, name: str, values: ArrayLike) -> NDArray[np.float16]:
        """Return floats as :func:`_float16` does, out of the pool's memory: an append may write to what it reads."""
        array = _float16(call, name, values)
        return array.copy() if np.may_share_memory(array, self.pool.slab) else array

    def _blocks(self, row: int) -> NDArray[np.uint32]:
        """Return a row's block table, in place."""
        return self._tables[row, : self._counts[row]]

    def _full_blocks(self, row: int) -> int:
        """Return how many blocks every layer has filled."""
        return int(self._lengths[:, row].min()) // self.block_size

    def _reserve(self, n_blocks: int, *, more_rows: int = 0) -> None:
        """Make room for tables of ``n_blocks``, and for some more rows, so that admitting cannot fail."""
        n_rows, n_columns = self._tables.shape
        more_rows = 0 if more_rows <= len(self._free_rows) else max(8, n_rows)
        more_columns = 0 if n_blocks <= n_columns else max(n_blocks - n_columns, n_columns)
        if more_rows or more_columns:
            tables = np.pad(self._tables, ((0, more_rows), (0, more_columns)))
            lengths = np.pad(self._lengths, ((0, 0), (0, more_rows)))
            counts = np.pad(self._counts, (0, more_rows))
            self._tables, self._lengths, self._counts = tables, lengths, counts
            self._names += [_Names(0, _NO_HASHES, None)] * more_rows
            self._free_rows += range(n_rows + more_rows - 1, n_rows - 1, -1)

    def _admit(
        self, seq_id: Hashable, blocks: NDArray[np.uint32], lengths: int | NDArray[np.intp], names: _Names
    ) -> None:
        """Make held blocks a sequence, after :meth:`_reserve`."""
        row = self._free_rows.pop()
        self._tables[row, : len(blocks)] = blocks
        self._counts[row] = len(blocks)
        self._lengths[:, row] = lengths
        self._names[row] = names
        self._rows[seq_id] = row

    def _claim(self, call: str, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> NDArray[np.uint32]:
        """Give each of some different table cells a block to write to, all or nothing.

        A cell past its table gets a fresh block, one whose block has other holders a copy of
        it; of several cells with one block, which nobody else holds, the last keeps it.

        Returns:
            the cells' blocks, uint32.
        """
        fresh = columns >= self._counts.take(rows)
        there = np.minimum(columns, self._tables.shape[1] - 1)  # of a fresh cell: no matter which
        blocks: NDArray[np.uint32] = self._tables[rows, there]
        holders = self.pool.refcount(blocks)
        shared = (holders > 1) & ~fresh
        left: dict[int, int] = {}
        for cell in np.flatnonzero(shared).tolist():
            block = int(blocks[cell])
            left[block] = left.get(block, int(holders[cell])) - 1
            shared[cell] = left[block] > 0
        cells = np.flatnonzero(fresh | shared)
        if not len(cells):
            return blocks
        self._refuse_too_many(call, len(cells))
        self._reserve(int(columns.max()) + 1)
        taken = self.pool.alloc(len(cells))
        originals = blocks[shared]
        if len(originals):
            slab = self.pool.slab
            slab[taken[shared[cells]]] = slab[originals]
        blocks[cells] = taken
        rows, columns = rows[cells], columns[cells]
        self._tables[rows, columns] = taken
        self._counts[rows] = np.maximum(self._counts[rows], columns + 1)  # a row's last column is its largest
        if len(originals):  # last: no table may name a block that is not held, wherever an interrupt comes
            self.pool.unref(originals)
        return blocks

    def _settle(self, rows: NDArray[np.intp], columns: NDArray[np.intp], blocks: NDArray[np.uint32]) -> None:
        """State the fills of the blocks just written, and register those that became full and have a name."""
        size = self.block_size
        complete = self._lengths.take(rows, axis=1).min(axis=0)
        fills = np.minimum(np.maximum(complete - columns * size, 0), size)
        self.pool.set_fill(blocks, fills.astype(np.uint32))
        full: list[int] = []
        hashes: list[int] = []
        for cell in np.flatnonzero(fills == size).tolist():
            names, column = self._names[rows[cell]].hashes, columns[cell]
            if column < len(names):
                full.append(cell)
                hashes.append(names[column])
        if full:
            self.pool.register_many(blocks[full], np.array(hashes, np.uint64))


def _unknown(call: str, seq_id: Hashable) -> KeyError:
    return KeyError(f"PagedKVCache.{call}: there is no sequence {seq_id!r}")


def _imported_names(names: _Names, found: Envelope) -> _Names:
    """Return the names of an imported sequence whose tokens are unknown: those of the envelope."""
    if not found.n_blocks:
        return names
    last = int(found.hashes[-1])  # 0 of a partial block, too
    return _Names(last, found.hashes, names.tail) if last else names._replace(tail=None)


def _float16(call: str, name: str, values: ArrayLike) -> NDArray[np.float16]:
    """Return floats of any type as a contiguous float16 array, each rounded once, to nearest even."""
    array = np.asarray(values)
    if array.dtype == _FLOAT16:
        return np.ascontiguousarray(array)
    if array.dtype.kind != "f" and not _is_foreign_float(array.dtype):
        raise TypeError(f"PagedKVCache.{call}: {name}: floats expected, not {array.dtype}")
    with np.errstate(all="ignore"):
        if array.dtype.itemsize > 8:
            array = _to_odd(array)
        return array.astype(np.float16, order="C")


def _is_foreign_float(dtype: np.dtype[Any]) -> bool:
    """Return whether a type that NumPy does not know (bfloat16, say) holds floats: what it makes of a half tells."""
    return dtype.kind == "V" and np.can_cast(dtype, np.float64) and bool(dtype.type(0.5) == 0.5)


def _to_odd(array: NDArray[Any]) -> NDArray[np.float64]:
    """Return wider floats as float64, an inexact one as its odd neighbour.

    NumPy takes them to float16 by way of float64 and so rounds twice; after this rounding
    the second gives what rounding once would.
    """
    near = array.astype(np.float64)
    even = (near != array) & (near.view(np.uint64) % 2 == 0)
    toward = np.where(array > near, np.inf, -np.inf)
    return np.where(even, np.nextafter(near, toward), near)
