"""8/WAKU-MAIL without I/O: history requests, their answers, and cursors."""
