"""A client of `mailserver.history.delivery`, as far as that is concerned."""

from mailserver.net.sessions import Code


class Client:
    """Takes down what it is sent. Each packet has its turn first, for about as many bytes as it has then."""

    def __init__(self) -> None:
        self.sent: list[tuple[Code, bytes]] = []
        self.turns: list[int] = []

    async def wait_turn(self, size: int) -> None:
        self.turns.append(size)

    async def drain(self) -> None:
        """It has read all that it was sent."""

    def end(self) -> None:
        """Nothing more is sent to it."""

    def send(self, code: Code, payload: bytes) -> None:
        self.sent.append((code, payload))
        assert len(self.turns) >= len(self.sent)
