"""The gateway: a process of its own that serves light clients of Waku v2 beside the daemon."""
