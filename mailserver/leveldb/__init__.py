"""The files of a LevelDB, to be read only: its journals, its manifest, its tables. What is in them, in one order.

Spec: LevelDB's `doc/log_format.md`, `doc/table_format.md` and `doc/impl.md`; goleveldb writes the same files. Other
modules find the files and read their bytes (`store.leveldb`).
"""
