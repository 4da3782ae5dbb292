"""Waiting for rank 0: as long as it lives, and no longer."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from trainer.heartbeat import beating, wait_while_beating

SHORT = timedelta(seconds=0.5)


def test_work_may_take_longer_than_the_timeout():
    store, counts = dist.HashStore(), []
    add = store.add

    class Counted:
        """Sets the key once the waiting side has let several timeouts pass."""

        wait = staticmethod(store.wait)

        def add(self, key: str, amount: int) -> int:
            counts.append(add(key, amount))
            if len(counts) == 4:
                store.set("main", "over")
            return counts[-1]

    with beating(store, SHORT):
        wait_while_beating(Counted(), "main", SHORT)
    assert counts == sorted(set(counts)), "each time it looked there were more"
    assert "heartbeat" not in [thread.name for thread in threading.enumerate()]


def test_silence_ends_the_wait_with_the_stores_own_error():
    with pytest.raises(dist.DistStoreError):
        wait_while_beating(dist.HashStore(), "main", timedelta(seconds=0.1))


def test_a_store_that_has_gone_ends_the_heartbeat_alone():
    class Gone:
        def add(self, key: str, amount: int) -> int:
            tried.set()
            raise dist.DistNetworkError("Broken pipe")

    tried = threading.Event()
    with beating(Gone(), timedelta(seconds=0.1)):
        assert tried.wait(20)
