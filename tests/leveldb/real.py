"""LevelDB itself, Debian's libleveldb1d: what it writes, and what it reads of what others have written."""

import contextlib
import ctypes
import os
from collections.abc import Iterator, Mapping
from ctypes.util import find_library
from functools import cache
from pathlib import Path

import pytest

_POINTER, _SIZE, _BYTES = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
_FUNCTIONS: Mapping[str, tuple[object, ...]] = {
    "options_create": (_POINTER,),
    "options_set_create_if_missing": (None, _POINTER, ctypes.c_ubyte),
    "options_set_compression": (None, _POINTER, ctypes.c_int),
    "options_set_write_buffer_size": (None, _POINTER, _SIZE),
    "options_set_block_size": (None, _POINTER, _SIZE),
    "options_destroy": (None, _POINTER),
    "writeoptions_create": (_POINTER,),
    "readoptions_create": (_POINTER,),
    "open": (_POINTER, _POINTER, _BYTES, _POINTER),
    "close": (None, _POINTER),
    "put": (None, _POINTER, _POINTER, _BYTES, _SIZE, _BYTES, _SIZE, _POINTER),
    "delete": (None, _POINTER, _POINTER, _BYTES, _SIZE, _POINTER),
    "get": (_POINTER, _POINTER, _POINTER, _BYTES, _SIZE, _POINTER, _POINTER),
    "compact_range": (None, _POINTER, _BYTES, _SIZE, _BYTES, _SIZE),
    "writebatch_create": (_POINTER,),
    "writebatch_put": (None, _POINTER, _BYTES, _SIZE, _BYTES, _SIZE),
    "writebatch_delete": (None, _POINTER, _BYTES, _SIZE),
    "writebatch_destroy": (None, _POINTER),
    "write": (None, _POINTER, _POINTER, _POINTER, _POINTER),
    "free": (None, _POINTER),
}
"""What each returns, and takes."""

BUFFER_BYTES = 64 * 1024
"""The least after which it begins a new journal, and writes what is in the old one to a table."""


def require_leveldb() -> None:
    """Skip the test where it is not installed; in CI that fails it."""
    if find_library("leveldb") is not None:
        return
    missing = "no LevelDB: on Debian, apt-get install libleveldb1d"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(find_library("leveldb"))
    for name, (returns, *takes) in _FUNCTIONS.items():
        function = getattr(library, f"leveldb_{name}")
        function.restype, function.argtypes = returns, takes
    return library


class RealLevelDb:
    """A database that LevelDB has open."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._writing = _library().leveldb_writeoptions_create()
        self._reading = _library().leveldb_readoptions_create()

    def put(self, key: bytes, value: bytes) -> None:
        """Write an entry."""
        with _checked() as error:
            _library().leveldb_put(self._handle, self._writing, key, len(key), value, len(value), error)

    def delete(self, key: bytes) -> None:
        """Delete an entry."""
        with _checked() as error:
            _library().leveldb_delete(self._handle, self._writing, key, len(key), error)

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Write and delete entries in one batch."""
        batch = _library().leveldb_writebatch_create()
        for key, value in changes.items():
            if value is None:
                _library().leveldb_writebatch_delete(batch, key, len(key))
            else:
                _library().leveldb_writebatch_put(batch, key, len(key), value, len(value))
        with _checked() as error:
            _library().leveldb_write(self._handle, self._writing, batch, error)
        _library().leveldb_writebatch_destroy(batch)

    def get(self, key: bytes) -> bytes | None:
        """Read an entry."""
        size = _SIZE()
        with _checked() as error:
            found = _library().leveldb_get(self._handle, self._reading, key, len(key), ctypes.byref(size), error)
        if found is None:
            return None
        value = ctypes.string_at(found, size.value)
        _library().leveldb_free(found)
        return value

    def compact(self) -> None:
        """Write everything into tables that do not lie over each other."""
        _library().leveldb_compact_range(self._handle, None, 0, None, 0)

    def close(self) -> None:
        """Close it."""
        _library().leveldb_close(self._handle)


@contextlib.contextmanager
def _checked() -> Iterator[object]:
    error = ctypes.c_char_p()
    yield ctypes.cast(ctypes.byref(error), _POINTER)
    assert error.value is None, error.value


@contextlib.contextmanager
def real_leveldb(folder: Path, *, is_compressed: bool = True) -> Iterator[RealLevelDb]:
    """Have LevelDB open a database, or make one."""
    options = _library().leveldb_options_create()
    _library().leveldb_options_set_create_if_missing(options, 1)
    _library().leveldb_options_set_compression(options, int(is_compressed))
    _library().leveldb_options_set_write_buffer_size(options, BUFFER_BYTES)
    _library().leveldb_options_set_block_size(options, 1024)
    with _checked() as error:
        handle = _library().leveldb_open(options, os.fsencode(folder), error)
    database = RealLevelDb(handle)
    try:
        yield database
    finally:
        database.close()
        _library().leveldb_options_destroy(options)
