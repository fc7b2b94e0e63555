"""The package's exceptions, one for each C status that is a failure.

========================  =================  ============================
exception                 C status           is also a
========================  =================  ============================
:class:`OutOfBlocks`      ``TL_EFULL``       :class:`RuntimeError`
:class:`EnvelopeError`    ``TL_EFORMAT``     :class:`ValueError`
:class:`ShapeError`       ``TL_ESHAPE``      :class:`ValueError`
:class:`InvalidArgument`  ``TL_EINVAL``      :class:`ValueError`
:class:`Unsupported`      ``TL_EUNSUPPORTED``  :class:`NotImplementedError`
:class:`OutOfMemory`      ``TL_ENOMEM``      :class:`MemoryError`
========================  =================  ============================

``TL_ENOTFOUND`` and ``TL_EBUSY`` are answers, not errors: ``None`` and ``False``.
"""

from __future__ import annotations


class KVError(Exception):
    """A call that the C library refused; the text is its own message.

    Attributes:
        status: the C status, for example 5.
        name: its name, for example ``"TL_EFULL"``.
    """

    status: int = 0
    name: str = "TL_UNKNOWN"

    def __init__(self, message: str, status: int | None = None, name: str | None = None) -> None:
        super().__init__(message)
        if status is not None:
            self.status = status
        if name is not None:
            self.name = name


class InvalidArgument(KVError, ValueError):
    """An argument that no valid call has: an id nobody holds, a fill above the block's size."""

    status = 1
    name = "TL_EINVAL"


class BlockIndexError(InvalidArgument, IndexError):
    """A block id or layer out of range, where one is looked at: in views and introspection."""


class OutOfMemory(KVError, MemoryError):
    """The allocator has no memory for the pool."""

    status = 2
    name = "TL_ENOMEM"


class ShapeError(KVError, ValueError):
    """An envelope whose dimensions are not the pool's."""

    status = 3
    name = "TL_ESHAPE"


class OutOfBlocks(KVError, RuntimeError):
    """Fewer blocks are free or cached than the call needs; it may work later."""

    status = 5
    name = "TL_EFULL"


class EnvelopeError(KVError, ValueError):
    """Bytes that are no valid envelope.

    Attributes:
        rule: the reader's rule that is broken (1, 2, 3 or 5), where
            :meth:`Envelope.parse <tinyllm_kv.Envelope.parse>` found it; otherwise ``None``.
        offset: the byte offset of the field that breaks it; otherwise ``None``.
    """

    status = 7
    name = "TL_EFORMAT"

    def __init__(
        self,
        message: str,
        status: int | None = None,
        name: str | None = None,
        *,
        rule: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message, status, name)
        self.rule = rule
        self.offset = offset


class Unsupported(KVError, NotImplementedError):
    """A valid request that this build does not offer."""

    status = 9
    name = "TL_EUNSUPPORTED"


#: C status -> exception.
BY_STATUS: dict[int, type[KVError]] = {
    cls.status: cls
    for cls in (InvalidArgument, OutOfMemory, ShapeError, OutOfBlocks, EnvelopeError, Unsupported)
}
