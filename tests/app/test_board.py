"""app.workers.Board: memory that processes share."""

import os

from mailserver.app.workers import Board


def test_what_a_process_says_the_others_see() -> None:
    board = Board(3)
    assert (board.running, board.share_seen(1, 5.0)) == (0, 5.0)

    child = os.fork()
    if not child:
        board[2] = True
        board.share_seen(2, 9.5)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    assert (board.running, board[2], board[0]) == (1, True, False)
    assert board.share_seen(1, 6.0) == 9.5
    assert board.share_seen(1, 10.0) == 10.0
