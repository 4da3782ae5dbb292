"""Process group, ranks, reductions, and agreement between ranks. One process needs no group."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.errors import LostRank, RunError, UserError
from trainer.heartbeat import beating, wait_while_beating

T = TypeVar("T")
FAREWELL_SECONDS = 5.0
_FAILURE = "failure"  # in the store
# What gloo, NCCL and the store say of a rank that is silent, and of one that has gone.
_SILENCE = ("Timed out waiting", "timed out after", "imeout after", "Wait timeout", "Application timeout")
_PARTING = (
    "Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed", "remote process exited",
    "Connection refused", "recvValue failed", "sendBytes failed", "Failed to recv",
)  # fmt: skip


@dataclass(frozen=True)
class Ranks:
    """Who this process is, from the launcher's environment."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def read_ranks(environ: Mapping[str, str] = os.environ) -> Ranks:
    """Read RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; a missing one means a single process."""
    try:
        world_size = int(environ.get("WORLD_SIZE", "1"))
        rank = int(environ.get("RANK", "0"))
        local_rank = int(environ.get("LOCAL_RANK", rank))
        local_world_size = int(environ.get("LOCAL_WORLD_SIZE", world_size))
    except ValueError as error:
        raise UserError(f"RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers: {error}", True) from None
    if world_size == 1:
        return Ranks()
    return Ranks(rank, world_size, local_rank, local_world_size)


def refuse_ranks(flag: str, ranks: Ranks) -> None:
    """What one process does for all: raises UserError where a launcher started several."""
    if ranks.world_size > 1:
        raise UserError(
            f"{flag} runs in one process, and {ranks.world_size} were started: start it without torchrun", True
        )


class Group:
    """All ranks of a run. Every method is a no-op or an identity in a world of one."""

    def __init__(self, ranks: Ranks, device: torch.device, timeout_s: float = 300.0) -> None:
        self.ranks = ranks
        self.device = device
        self._store: Any = None
        self._timeout = timedelta(seconds=timeout_s)
        self._host_group: Any = None  # None is the default group, gloo on a CPU
        self._calls = 0
        self._at_close: list[Callable[[], None]] = []
        if ranks.world_size > 1:
            try:
                self._join()
            except dist.DistError as error:
                raise LostRank(
                    f"rank {ranks.rank} of {ranks.world_size} did not meet the others within {timeout_s:g} s (--dist-timeout): start as "
                    f"many processes as WORLD_SIZE says, and see that MASTER_ADDR and MASTER_PORT can be reached ({error})"
                ) from error

    def _join(self) -> None:
        """Meet the other ranks. Raises dist.DistError where one does not come."""
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        store, rank, world_size = next(iter(dist.rendezvous("env://", timeout=self._timeout)))
        # torchrun keeps one store over restarts: without a prefix an attempt would meet the last one's addresses.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        prefixed = dist.PrefixStore(f"attempt{attempt}", store)
        options: dict[str, Any] = {"device_id": self.device} if backend == "nccl" else {}
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("group", prefixed),
            rank=rank,
            world_size=world_size,
            timeout=self._timeout,
            **options,
        )
        self._store = prefixed

    @property
    def is_main(self) -> bool:
        return self.ranks.is_main

    @property
    def world_size(self) -> int:
        return self.ranks.world_size

    @property
    def active(self) -> bool:
        return self._store is not None

    def sum(self, tensor: Tensor) -> Tensor:
        """``tensor`` summed over ranks, on every rank; the argument is left as it is."""
        if not self.active:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    def open_host_group(self) -> None:
        """Make ``sum_on_host`` possible on CUDA; every rank calls it."""
        if self.device.type == "cuda" and self._host_group is None:
            self._host_group = self.new_host_group()

    def new_host_group(self) -> Any:
        """A gloo group of all ranks, for tensors on the host; None in a world of one. Every rank calls it."""
        return dist.new_group(backend="gloo", timeout=self._timeout) if self.active else None

    def at_close(self, function: Callable[[], None]) -> None:
        """Call ``function`` before the process group goes, where ranks end by agreement."""
        self._at_close.append(function)

    def sum_on_host(self, values: list[int]) -> list[int]:
        """``values`` summed over ranks without the device taking part; on CUDA after ``open_host_group``."""
        if not self.active:
            return values
        total = torch.tensor(values)
        dist.all_reduce(total, group=self._host_group)
        return total.tolist()

    def gather(self, value: T) -> list[T]:
        """Every rank's picklable ``value``, in rank order, on every rank."""
        if not self.active:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def on_main(self, function: Callable[[], T]) -> T:
        """Run ``function`` on rank 0 and hand its result, or its RunError, to every rank.

        The others wait in the store, not in a collective: listing a large folder or a download may take longer than
        the group's timeout, which here holds for signs of life. Another error of rank 0 ends them silently, with exit code 1.
        """
        outcome: list[Any] = [None, None]
        failure: Exception | None = None
        if self.is_main:
            try:
                with beating(self._store, self._timeout) if self.active else contextlib.nullcontext():
                    outcome[0] = function()
            except RunError as error:
                error.on_every_rank = True
                outcome[1] = failure = error
            except Exception as error:
                failure = error
                outcome[1] = RunError(f"rank 0 failed: {error}", on_every_rank=True)
        if self.active:
            self._calls += 1
            key = f"main/{self._calls}"
            if self.is_main:
                self._store.set(key, "over")
            else:
                wait_while_beating(self._store, key, self._timeout)
            dist.broadcast_object_list(outcome, src=0)
        if failure is not None:
            raise failure
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Rank 0's batch-norm statistics to every rank."""
        if self.active:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def lost_rank(self, error: Exception) -> LostRank | None:
        """What an error of a collective means where it tells of another rank; None for any other error."""
        text = str(error)
        if not self.active or not isinstance(error, RuntimeError):
            return None
        if any(mark in text for mark in _SILENCE):
            return LostRank(
                f"another process of this run gave no answer for {self._timeout.total_seconds():g} s (--dist-timeout): it is "
                "frozen, or its machine or network is; look at the processes that say nothing here, and raise "
                "--dist-timeout where a step or a checkpoint takes that long"
            )
        if any(mark in text for mark in _PARTING):
            why = self._failure_of_another()
            if why is not None:
                here = self.ranks.local_world_size == self.world_size
                return LostRank(f"another process of this run has ended: {why}", said_already=here)
            return LostRank(
                "another process of this run has ended, or the torchrun that started it: its own error, above or on its "
                "machine, says why; one that was killed for memory leaves none (look at the kernel's log there)"
            )
        return None

    def tell_failure(self, why: str) -> None:
        """Leave word, before this rank ends alone, of why it does."""
        if self.active:
            with contextlib.suppress(RuntimeError):  # the store may have gone with the rank that holds it
                self._store.set(_FAILURE, why.encode("utf-8", "backslashreplace"))

    def _failure_of_another(self) -> str | None:
        try:
            return self._store.get(_FAILURE).decode() if self._store.check([_FAILURE]) else None
        except RuntimeError:
            return None

    def close(self, agreed: bool) -> None:
        """Leave. Ranks that end by agreement wait for each other, 5 s at most, and ignore SIGTERM from
        here to their exit: torchrun terminates the others as soon as one has gone."""
        if not self.active:
            return
        if agreed:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._wait_for_all()
            with contextlib.suppress(RuntimeError):  # a rank that has gone all the same
                for function in self._at_close:
                    function()
            if dist.is_initialized():
                dist.destroy_process_group()
        self._store = None

    def _wait_for_all(self) -> None:
        try:
            self._store.add("farewell", 1)
            deadline = time.monotonic() + FAREWELL_SECONDS
            while self._store.add("farewell", 0) < self.world_size and time.monotonic() < deadline:
                time.sleep(0.02)
            # Rank 0 may hold the store: it stays a moment longer, so that the others read the last count.
            if self.is_main:
                time.sleep(0.1)
        except (RuntimeError, dist.DistError):
            return
