"""JSON-RPC over HTTP where the settings say, of the mailserver and of the communities' process."""

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from mailserver.api.dispatch import Dispatcher, Method
from mailserver.api.errors import ErrorCodes
from mailserver.app.process import listen
from mailserver.data_dir.folder import read_token

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def serve_rpc(
    address: str, token_file: str, methods: Mapping[str, Method], known: ErrorCodes
) -> AsyncIterator[int]:
    """Serve methods as long as the context is entered; yield the port.

    Args:
        address: HOST:PORT.
        token_file: has the token that callers must send; "": there is none.
    Raises:
        StartupError: the address or the token cannot be used, or others can reach the address, and there is no token.
    """
    from mailserver.api.server import RpcServer  # noqa: PLC0415 - its HTTP library takes 11 MB, and 0.2 s of the start

    token = read_token(Path(token_file)) if token_file else None
    server = RpcServer(Dispatcher(methods, known), token=token)
    port = await listen(server.start, "rpc", address)
    log.info("serving JSON-RPC port=%d token=%s", port, "no" if token is None else "yes")
    try:
        yield port
    finally:
        await server.stop()
