"""mailserver.net.unix_socket: sockets that only their owner may use, however deep their folder lies."""

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from mailserver.errors import StartupError
from mailserver.net.unix_socket import bind_private, short_path


@pytest.fixture
def no_mask() -> Iterator[None]:
    """Whatever is made now is for everybody, unless it says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as asking, short_path(path) as short:
        asking.connect(short)


def test_socket_is_its_owners_alone_whatever_the_umask(tmp_path: Path, no_mask: None) -> None:
    with bind_private(tmp_path / "name"):
        assert stat.S_IMODE((tmp_path / "name").stat().st_mode) == 0o600


def test_nobody_connects_before_it_listens(tmp_path: Path) -> None:
    with bind_private(tmp_path / "name") as bound:
        with pytest.raises(ConnectionRefusedError):
            connect(tmp_path / "name")
        bound.listen()
        connect(tmp_path / "name")


def test_path_may_be_longer_than_the_kernel_allows(tmp_path: Path) -> None:
    deep = tmp_path / ("a" * 100) / ("b" * 100)
    deep.mkdir(parents=True)

    with bind_private(deep / "name") as bound:
        bound.listen()
        connect(deep / "name")


def test_socket_that_was_left_is_replaced(tmp_path: Path) -> None:
    bind_private(tmp_path / "name").close()

    with bind_private(tmp_path / "name") as bound:
        bound.listen()
        connect(tmp_path / "name")


def test_socket_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "name").mkdir()

    with pytest.raises(StartupError, match=f"cannot create {tmp_path}/name: Is a directory"):
        bind_private(tmp_path / "name")
    with pytest.raises(StartupError, match=f"cannot create {tmp_path}/none/name: No such file"):
        bind_private(tmp_path / "none" / "name")
