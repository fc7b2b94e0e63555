"""The exceptions: which C status gives which, what they are also, and what they carry."""

from __future__ import annotations

import pickle

import pytest

import tinyllm_kv
from tinyllm_kv import _binding, errors

TABLE = [
    ("OutOfBlocks", 5, "TL_EFULL", RuntimeError),
    ("EnvelopeError", 7, "TL_EFORMAT", ValueError),
    ("ShapeError", 3, "TL_ESHAPE", ValueError),
    ("InvalidArgument", 1, "TL_EINVAL", ValueError),
    ("Unsupported", 9, "TL_EUNSUPPORTED", NotImplementedError),
    ("OutOfMemory", 2, "TL_ENOMEM", MemoryError),
]
OK, NOT_FOUND, BUSY, IO = 0, 6, 8, 10


@pytest.mark.parametrize("name, status, status_name, also", TABLE)
def test_table(name: str, status: int, status_name: str, also: type[Exception]) -> None:
    """Each is a KVError and the builtin that a caller without this package would catch."""
    error = getattr(tinyllm_kv, name)
    assert issubclass(error, tinyllm_kv.KVError)
    assert issubclass(error, also)
    assert (error.status, error.name) == (status, status_name)
    assert errors.BY_STATUS[status] is error


def test_answers_are_no_errors() -> None:
    """TL_ENOTFOUND and TL_EBUSY have no exception; nor has TL_OK."""
    assert errors.BY_STATUS.keys() == {status for _, status, _, _ in TABLE}
    assert not {OK, NOT_FOUND, BUSY} & errors.BY_STATUS.keys()


@pytest.mark.parametrize("name", [name for name, *_ in TABLE])
def test_errors_travel(name: str) -> None:
    """An exception keeps text, status and name through pickle: worker processes send them."""
    error = getattr(tinyllm_kv, name)("why")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), "why")
    assert (again.status, again.name) == (error.status, error.name)


def test_a_status_without_an_exception_is_a_kv_error() -> None:
    """A status that the table does not have raises KVError itself, with its code and name."""
    with pytest.raises(tinyllm_kv.KVError) as caught:
        _binding.refuse(-IO)
    assert type(caught.value) is tinyllm_kv.KVError
    assert (caught.value.status, caught.value.name) == (IO, "TL_EIO")


def test_no_memory() -> None:
    """A slab beyond the machine's memory is OutOfMemory, with C's text."""
    with pytest.raises(MemoryError, match="^tl_kv_pool_create: no memory") as caught:
        tinyllm_kv.Pool(2**10, 2**20, n_layers=2**18, n_kv_heads=8, head_dim=2)
    assert type(caught.value) is tinyllm_kv.OutOfMemory


def test_a_size_beyond_any_memory() -> None:
    """A slab whose bytes no size_t can count is an InvalidArgument: it never wraps to a small one."""
    with pytest.raises(tinyllm_kv.InvalidArgument, match="^tl_kv_pool_create: the size"):
        tinyllm_kv.Pool(2**16, 2**16, n_layers=2**16, n_kv_heads=2**14, head_dim=1)


def test_an_unsupported_pool() -> None:
    """A dtype that C does not offer is Unsupported: Pool asks for none, the binding would say it."""
    from tinyllm_kv._kv import ffi, lib

    cfg = ffi.new("tl_kv_cfg *", (1, 1, 1, 1, 1, lib.TL_F32, lib.TL_KV_FORMAT_V1))
    answer = lib.tl_kvx_create(cfg, ffi.new("tl_kvx **"), ffi.new("tl_kv_pool **"))
    with pytest.raises(NotImplementedError, match="^tl_kv_pool_create: dtype 0") as caught:
        _binding.refuse(answer)
    assert type(caught.value) is tinyllm_kv.Unsupported
