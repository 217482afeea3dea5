"""Threads for files and digests, apart from asyncio's own.

Those are shared with environments, whose code may keep all of them for as long as it likes: weights must be fetched,
checked and swapped meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_THREADS = ThreadPoolExecutor(4, thread_name_prefix="headrace-files")
"""Started as they are needed. Reading and hashing at once with fetching takes two."""


def in_thread(act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """What ``act`` returns, which runs in a thread of our own: ``asyncio.to_thread``, but never behind others' work.

    It has begun when this returns, unless four others run already.
    """
    return asyncio.get_running_loop().run_in_executor(_THREADS, partial(act, *args, **kwargs))
