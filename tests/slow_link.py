"""A proxy on loopback that is a long way off: everything passes through it, late, or piece by piece, or not at all."""

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator

_READ_BYTES = 64 * 1024


class SlowLink:
    """A way to a port of loopback. What is changed here holds for all connections at once.

    `delay_s`: how long whatever is read waits before it is passed on, each way. `piece_bytes`: how much is passed on at
    a time.
    """

    def __init__(self, to_port: int, delay_s: float) -> None:
        self.delay_s = delay_s
        self.piece_bytes = _READ_BYTES
        link = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with socket.create_connection(("127.0.0.1", to_port)) as onward:
                    back = threading.Thread(target=link._pass_on, args=(onward, self.request))
                    back.start()
                    link._pass_on(self.request, onward)
                    back.join()

        self._open = threading.Event()
        self._open.set()
        self._server = _Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        """Take everything, and pass it on only at the end."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    @contextlib.contextmanager
    def serving(self) -> Iterator["SlowLink"]:
        """Be there as long as the context is entered."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="slow-link")
        thread.start()
        try:
            yield self
        finally:
            self._open.set()
            self.delay_s = 0.0
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):  # either end may be gone: that of the other follows
            while data := source.recv(_READ_BYTES):
                while data:
                    piece, data = data[: self.piece_bytes], data[self.piece_bytes :]
                    time.sleep(self.delay_s)  # the way is long: nobody waits for anything else here
                    self._open.wait()
                    target.sendall(piece)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
