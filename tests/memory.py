"""Whether objects are freed as soon as nothing refers to them, and not only when Python looks for reference cycles."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_search_for_cycles() -> Iterator[None]:
    """Free nothing meanwhile that is a part of a reference cycle."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
