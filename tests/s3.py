"""A fake of S3 on loopback: moto's server, behind a gate that refuses, hangs, or counts what passes.

As with a private bucket, whoever has no credentials is denied.

It is in memory and in this process; only what is asked for over HTTP reaches it.
"""

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import uuid4

import pyarrow.fs as pafs
import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import FakeKey, s3_backends
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from tests.certificates import Certificate

TOGETHER_WITHIN_S = 5.0

_OF_USERS = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY")

_DENIED = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
)

_COPIED = b"<?xml version='1.0' encoding='UTF-8'?><CopyObjectResult><ETag>\"0\"</ETag></CopyObjectResult>"


class FakeS3:
    """A server with one bucket. `asked`: the requests that came, as `GET /bucket/key`."""

    def __init__(self, server: BaseWSGIServer, gate: "_Gate", certificate: Certificate | None) -> None:
        self._server = server
        self._serving = threading.Thread(target=server.serve_forever, args=(0.01,), name="fake-s3")
        self._serving.start()
        self._gate = gate
        self.bucket = f"bucket-{uuid4().hex}"
        self.port = server.server_port
        self._reserved = socket.socket()
        self.endpoint = f"{'http' if certificate is None else 'https'}://127.0.0.1:{self.port}"
        self.url = f"s3://{self.bucket}/some/archive"
        self.files = pafs.S3FileSystem(
            access_key="key",
            secret_key="secret",
            region="us-east-1",
            endpoint_override=self.endpoint,
            tls_ca_file_path=None if certificate is None else str(certificate.authority_file),
            allow_bucket_creation=True,
        )
        self.files.create_dir(self.bucket)

    @property
    def asked(self) -> list[str]:
        return self._gate.asked

    @property
    def fetched(self) -> Counter[str]:
        """How many bytes of objects were fetched, by what their names end in."""
        return self._gate.fetched

    @property
    def root(self) -> str:
        """The archive, as pyarrow names it."""
        return self.url.removeprefix("s3://")

    def upload(self, folder: Path) -> None:
        """Have the archive hold what a folder holds, and nothing else. Second names are left out, as by the job."""
        self.files.delete_dir_contents(self.root, missing_dir_ok=True)
        for file in folder.rglob("*"):
            name = file.relative_to(folder).as_posix()
            if file.is_file() and not name.startswith("_snapshots/"):
                with self.files.open_output_stream(f"{self.root}/{name}") as stream:
                    stream.write(file.read_bytes())

    def paths(self, ending: str) -> list[str]:
        """The objects whose names end so, as pyarrow names them."""
        wanted = pafs.FileSelector(self.root, recursive=True)
        return [one.path for one in self.files.get_file_info(wanted) if one.is_file and one.path.endswith(ending)]

    def objects(self) -> dict[str, bytes]:
        """What the archive holds, by name, without the empty objects that stand for directories."""
        return {name: key.value for name, key in self._keys().items() if name and not name.endswith("/")}

    def hold(self, objects: Mapping[str, bytes]) -> None:
        """Have the archive hold these objects, and nothing else."""
        keys = self._backend.get_bucket(self.bucket).keys
        for name in self._keys():
            keys.pop(f"{self._prefix}{name}")
        for name, content in objects.items():
            self._backend.put_object(self.bucket, f"{self._prefix}{name}", content)

    def age(self, below: str, by_s: float) -> None:
        """Let time go by for the objects whose names begin so."""
        for name, key in self._keys().items():
            if name.startswith(below):
                key.last_modified -= timedelta(seconds=by_s)

    @property
    def _backend(self) -> Any:
        return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]

    @property
    def _prefix(self) -> str:
        return f"{self.root.partition('/')[2]}/"

    def _keys(self) -> dict[str, FakeKey]:
        found = self._backend.get_bucket(self.bucket).keys.items()
        return {name.removeprefix(self._prefix): key for name, key in found if name.startswith(self._prefix)}

    @contextlib.contextmanager
    def refusing_changes_after(self, changes: int) -> Iterator[None]:
        """Let so many requests change something. What is in the bucket then is what a kill at that moment leaves."""
        self._gate.changes_left = changes
        try:
            yield
        finally:
            self._gate.changes_left = None

    @contextlib.contextmanager
    def refusing_after(self, requests: int) -> Iterator[None]:
        """Grant so many requests, and deny all after them."""
        self._gate.requests_left = requests
        try:
            yield
        finally:
            self._gate.requests_left = None

    @contextlib.contextmanager
    def forgetting(self, ending: str) -> Iterator[None]:
        """Confirm copies whose names end so, and do not make them."""
        self._gate.forgets = ending
        try:
            yield
        finally:
            self._gate.forgets = ""

    @contextlib.contextmanager
    def answering_together(self, count: int, ending: str) -> Iterator[None]:
        """Answer requests for objects whose names end so only when `count` of them have come."""
        self._gate.waiting = ending, threading.Barrier(count, timeout=TOGETHER_WITHIN_S)
        try:
            yield
        finally:
            self._gate.waiting = None

    @contextlib.contextmanager
    def denying(self, ending: str = "") -> Iterator[None]:
        """Deny access to everybody for a while, or only to what ends so."""
        self._gate.denies = ending
        try:
            yield
        finally:
            self._gate.denies = None

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Take requests, and answer them only at the end."""
        self._gate.is_open.clear()
        try:
            yield
        finally:
            self._gate.is_open.set()

    def stop(self) -> None:
        """Be gone: connections are refused from now on. Nobody else gets the port meanwhile."""
        self._gate.is_open.set()
        if not self._serving.is_alive():  # it was stopped before
            return
        self._server.shutdown()
        self._serving.join()  # the thread closes the socket, later than shutdown() returns
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", self.port))

    def release(self) -> None:
        """Others may have the port."""
        self._reserved.close()


class _Gate:
    def __init__(self) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self.asked: list[str] = []
        self.fetched: Counter[str] = Counter()
        self.denies: str | None = None
        self.waiting: tuple[str, threading.Barrier] | None = None
        self.forgets = ""
        self.changes_left: int | None = None
        self.requests_left: int | None = None
        self._counting = threading.Lock()
        self._answering = threading.Lock()
        self.is_open = threading.Event()
        self.is_open.set()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self.asked.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
        self.is_open.wait()
        if self.waiting is not None and environ["PATH_INFO"].endswith(self.waiting[0]):
            self.waiting[1].wait()
        is_denied = self.denies is not None and environ["PATH_INFO"].endswith(self.denies)
        if is_denied or "HTTP_AUTHORIZATION" not in environ or not self._is_granted(environ["REQUEST_METHOD"]):
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"" if environ["REQUEST_METHOD"] == "HEAD" else _DENIED]
        if self.forgets and "HTTP_X_AMZ_COPY_SOURCE" in environ and environ["PATH_INFO"].endswith(self.forgets):
            start_response("200 OK", [("Content-Type", "application/xml")])
            return [_COPIED]
        with self._answering:  # moto closes what is replaced while somebody reads it
            answered = [*self._app(environ, start_response)]
        self.fetched[PurePosixPath(environ["PATH_INFO"]).suffix] += sum(map(len, answered))
        return answered

    def _is_granted(self, method: str) -> bool:
        with self._counting:
            if self.requests_left is not None:
                self.requests_left -= 1
            if self.changes_left is not None and method not in ("GET", "HEAD"):
                self.changes_left -= 1
            return (self.requests_left or 0) >= 0 and (self.changes_left or 0) >= 0


class _Quiet(WSGIRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say nothing: tests compare what the mailserver logs."""


@contextlib.contextmanager
def fake_s3(monkeypatch: pytest.MonkeyPatch, certificate: Certificate | None = None) -> Iterator[FakeS3]:
    """Serve S3, and have the environment say where it is, as users say it.

    Args:
        certificate: by HTTPS, with this one. Clients are to be told of its authority.
    """
    gate = _Gate()
    tls = None if certificate is None else certificate.context
    server = make_server("127.0.0.1", 0, gate, threaded=True, request_handler=_Quiet, ssl_context=tls)
    fake = FakeS3(server, gate, certificate)
    for name in (*_OF_USERS, *_PROXIES, *map(str.lower, _PROXIES)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", fake.endpoint)
    try:
        yield fake
    finally:
        fake.stop()
        fake.release()
