"""The protocols of Waku v2 that light clients speak, without I/O: filter, store, lightpush, metadata."""
