"""Integers and arrays of integers, converted and checked, never reinterpreted."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InvalidArgument

UINT32 = np.dtype(np.uint32)
UINT64 = np.dtype(np.uint64)
UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1
_INT64_MAX = 2**63 - 1
_INTEGERS = (int, np.integer)


def _index(value: Any, name: str) -> int:
    try:
        if not isinstance(value, np.bool_):  # no integer to every NumPy, a deprecated one to some
            return index(value)
    except TypeError:
        pass
    raise TypeError(f"{name}: {value!r} is not an integer")


def integer(value: Any, least: int, most: int, name: str, error: type[Exception] = OverflowError) -> int:
    """Return ``value`` as an int within ``least`` … ``most``; ``error`` otherwise.

    Raises:
        TypeError: it is no integer.
    """
    number = _index(value, name)
    if not least <= number <= most:
        raise error(f"{name}: {number} is not in {least} … {most}")
    return number


def block_id(value: Any, name: str) -> int:
    """Return ``value`` as an int that C can take and refuse: what is absurd stays out of range.

    Raises:
        TypeError: it is no integer.
    """
    if type(value) is not int:
        value = _index(value, name)
    number: int = value
    if -_INT64_MAX <= number <= _INT64_MAX:
        return number
    return _INT64_MAX if number > 0 else -_INT64_MAX


def is_one(value: object) -> bool:
    """Return whether a value stands for one integer, not for an array of them."""
    return isinstance(value, _INTEGERS) or (
        hasattr(type(value), "__index__") and getattr(value, "ndim", 0) == 0
    )


def own_uint32(values: Any, name: str, error: type[Exception] = InvalidArgument) -> NDArray[np.uint32]:
    """Return ids or counts as an array that nobody else can change while C reads it more than once.

    Raises:
        TypeError, ValueError: as :func:`integers`.
        error: one is not in 0 … 2^32-1.
    """
    own: NDArray[np.uint32] = integers(values, UINT32, name, error).copy()
    return own


def integers(
    values: Any, dtype: np.dtype[Any], name: str, error: type[Exception] = OverflowError
) -> NDArray[Any]:
    """Return ``values`` as a contiguous, aligned one-dimensional array of an unsigned ``dtype``.

    An array that is one already comes back as itself.

    Raises:
        TypeError: an element is no integer.
        ValueError: more than one dimension.
        error: an element is out of the range of ``dtype``.
    """
    if type(values) is np.ndarray and values.dtype is dtype and values.ndim == 1:
        flags = values.flags
        if flags.c_contiguous and flags.aligned:
            return values
    try:
        array = np.asarray(values)
    except OverflowError:  # an int beyond 64 bits, in some versions of NumPy
        array = np.empty(0, object)
    except ValueError as ragged:
        raise ValueError(f"{name}: {ragged}") from None
    exact = array.dtype.kind in "iu"
    if not exact and not isinstance(values, np.ndarray) and array.dtype.kind in "fO" and array.ndim == 1:
        return _from_objects(values, dtype, name, error)
    if not exact and array.size:
        raise TypeError(f"{name}: integers expected, not {array.dtype}")
    if array.ndim > 1:
        raise ValueError(f"{name}: one dimension expected, not {array.ndim}")
    if exact and array.size and not np.can_cast(array.dtype, dtype):
        _check_range(int(array.min()), int(array.max()), dtype, name, error)
    return np.require(array.reshape(-1), dtype, ["C", "A"])


def _from_objects(values: Any, dtype: np.dtype[Any], name: str, error: type[Exception]) -> NDArray[Any]:
    """Convert a sequence that NumPy has no integer type for: mixed signs above 2^63, floats."""
    try:
        numbers = [index(value) for value in values]
    except TypeError:
        raise TypeError(f"{name}: integers expected") from None
    if numbers:
        _check_range(min(numbers), max(numbers), dtype, name, error)
    return np.array(numbers, dtype)


def _check_range(least: int, most: int, dtype: np.dtype[Any], name: str, error: type[Exception]) -> None:
    limit = int(np.iinfo(dtype).max)
    if least < 0 or most > limit:
        raise error(f"{name}: {least if least < 0 else most} is not in 0 … {limit}")
