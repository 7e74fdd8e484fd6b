"""Training run of a worker: its loop over steps, and what happens at the end of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from presage.errors import ElasticError
from presage.training.data_set_grouping import Cursor, DataSet, Indices, check_batch, shard_bounds
from presage.training.generation import TRAIN, Generation
from presage.training.gpu_expansion import enter_generation
from presage.training.job_folder import LEFT
from presage.training.memory_share import MemoryShare
from presage.training.report import Report
from presage.training.synchronous_accumulation import Flags, Ring, RingClosedError
from presage.training.wire import ConnectionLostError
from presage.training.worker.announcements import SessionOverError
from presage.training.worker.checkpoint import Checkpoint
from presage.training.worker.gradient_buffer import GradientBuffer
from presage.training.worker.progress_reports import ProgressReports
from presage.training.worker.random_numbers import seed_step
from presage.training.worker.session import Session
from presage.training.worker.single_worker import SingleWorkerSession
from presage.training.worker.training_state import TrainingState

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class SizeSettings:
    """Settings for a number of workers, as returned by ``on_resize``.

    Attributes
    ----------
    batch : int or None
        Number of samples of a step over all workers; None for the batch of the job. If it is less
        than the number of workers, the surplus workers have no sample and add zeros to the sum.
    learning_rate_factor : float
        Factor of the learning rates that optimizer and scheduler have.

    Raises
    ------
    ElasticError
        The batch is less than 1.
    """

    batch: int | None = None
    learning_rate_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.batch is not None:
            check_batch(self.batch, 1)


OnResize = Callable[[int], SizeSettings]


@dataclass(frozen=True, slots=True)
class Step:
    """Part of a step that this worker computes.

    Attributes
    ----------
    number : int
        Number of the step, from 0.
    epoch : int
        Number of the epoch, from 0.
    indices : ndarray of shape (n,)
        Samples to take, at least one.
    is_last_of_epoch : bool
        Whether the epoch ends with this step.
    """

    number: int
    epoch: int
    indices: Indices
    is_last_of_epoch: bool


class Run:
    """Training run of one worker; created by :func:`presage.training.elastic.begin`.

    Attributes
    ----------
    rank, size : int
        Place of this worker in the current generation, and number of workers.
    generation : int
        Number of the current generation.
    entry : {"train", "breakpoint"}
        Where the current generation entered the training loop.
    loss : float
        Mean loss of the last step over all workers, if losses are given to :meth:`apply`.
    """

    def __init__(
        self,
        state: TrainingState,
        data_set: DataSet,
        session: Session | SingleWorkerSession,
        *,
        batch: int,
        virtual_shards: int,
        on_resize: OnResize | None,
        checkpoint: Checkpoint,
        has_checkpoint: bool,
    ) -> None:
        self.rank, self.size, self.generation, self.entry = 0, 1, 0, TRAIN
        self.loss = float("nan")
        self._state, self._data_set, self._session = state, data_set, session
        self._job_batch = self._batch = batch
        self._virtual_shards, self._on_resize = virtual_shards, on_resize
        self._checkpoint, self._has_checkpoint = checkpoint, has_checkpoint
        self._reports = ProgressReports(session, checkpoint, data_set.samples, 0)
        self._gradients = GradientBuffer(state.model, virtual_shards or 1)
        self._settings = SizeSettings()
        self._ring: Ring | None = None
        self._is_paused = True
        self._is_started = self._is_stopping = False
        self._memory_share = MemoryShare()
        self._epochs = 0
        self._shards: list[tuple[int, int, int]] = []  # number, start, end: left of this step
        self._is_waiting_for_apply = False
        self._not_finite = self._has_state = False
        self._samples: Indices = data_set.order(0)[:0]

    @property
    def cursor(self) -> Cursor:
        """Position up to which steps are committed."""
        return self._state.cursor

    def steps(self, epochs: int = 1) -> Iterator[Step]:
        """Yield the steps of this worker, until all epochs are done or the worker leaves.

        Parameters
        ----------
        epochs : int
            Number of epochs of the whole job.

        Raises
        ------
        SystemExit
            This worker leaves the job before its end, because of a resize, SIGTERM or SIGUSR1. Its
            connections are closed, and its exit status is 75. Code after the loop runs only if the
            job is done.
        ElasticError
            A step was not applied, or the job failed.
        """
        if self._is_started:
            raise ElasticError("steps() was called before; call it once, with all epochs")
        self._start(epochs)
        try:
            while True:
                self._enter()
                while not self._is_paused:
                    yield from self._step()
        except SessionOverError as over:
            if over.is_leaving:
                raise SystemExit(LEFT) from None
            return
        finally:
            self._close_ring()
            self._session.close()

    def apply(self, loss: Tensor | float = float("nan")) -> bool:
        """Sum the gradients over workers and update the model; call it once in each iteration.

        Parameters
        ----------
        loss : Tensor or float, optional
            Loss of this part of the step, to be averaged into :attr:`loss`.

        Returns
        -------
        bool
            Whether the model was updated. It is not if a gradient is not finite, or if a worker
            died; the remaining workers then repeat the step.

        Raises
        ------
        ElasticError
            This iteration was applied already.
        """
        if not self._is_waiting_for_apply:
            raise ElasticError("apply() was called twice in one iteration, or outside of steps()")
        self._is_waiting_for_apply = False
        number, start, end = self._shards.pop(0)
        row = number if self._virtual_shards else 0
        weight = (end - start) / len(self._samples)
        value = float(loss if isinstance(loss, float) else loss.detach())
        is_finite = self._gradients.collect(row, weight, value)
        self._not_finite |= not is_finite
        return True if self._shards else self._commit()

    def stop(self) -> None:
        """End the training on all workers, after the current step."""
        self._is_stopping = True

    def follow_memory_share(self) -> None:
        """Apply the share of its GPU's memory that this worker has now; :meth:`apply` does that."""
        self._memory_share.follow(self._session.memory_bytes)

    def _start(self, epochs: int) -> None:
        """Report that this worker is ready for its first generation."""
        self._is_started, self._epochs = True, epochs
        self._state.specification["epochs"] = epochs
        self._reports = ProgressReports(
            self._session, self._checkpoint, self._data_set.samples, epochs
        )
        if self._has_checkpoint:
            self._reports.restored(self.cursor)
        self._session.report(Report(0, "ready", self.cursor, self._has_checkpoint))

    def _enter(self) -> None:
        """Wait for the next generation and enter it, or report that one of its workers ended."""
        generation = None
        while generation is None:
            if self._session.take_removed():
                self.generation, self._has_state = 0, False
                self._session.report(Report(0, "ready"))
            if self._session.take_checkpoint_request():
                self._reports.save_for_leader(self._state)
            generation = self._session.wait(self.generation)
        self.generation, self.entry = generation.number, generation.entry
        self._has_state |= generation.source.worker_id == self._session.worker_id
        try:
            if isinstance(self._session, Session) and generation.size > 1:
                self._ring = enter_generation(generation, self._session, self._state)
        except ConnectionLostError as error:
            self._pause(is_broken=True, unreachable=error.peer)
        else:
            self._adopt(generation)

    def _adopt(self, generation: Generation) -> None:
        self.rank, self.size = generation.rank_of(self._session.worker_id), generation.size
        self._has_state, self._is_paused = True, False
        self._session.attach(self._ring)
        self._session.report(Report(generation.number, "running", self.cursor, has_state=True))
        self._reports.committed(self.cursor)
        if self._on_resize is not None:
            self._settings = self._on_resize(self.size)
        self._batch = self._settings.batch or self._job_batch
        if self._batch < self.size and self.rank == 0:
            self._session.note(
                f"on_resize returned batch={self._batch} for {self.size} workers: "
                f"{self.size - self._batch} of them have no sample"
            )

    def _step(self) -> Iterator[Step]:
        cursor = self.cursor
        if cursor.epoch >= self._epochs or self._state.is_stopped:
            self._pause(is_finished=True)
            return
        self._samples = self._data_set.batch(cursor, self._batch)
        self._shards = self._own_shards(len(self._samples))
        self._not_finite = False
        self._gradients.begin(clear=self._virtual_shards > 0 or not self._shards)
        is_last = self._data_set.after(cursor, self._batch).epoch > cursor.epoch
        if not self._shards:
            self._commit()
        while self._shards:
            number, start, end = self._shards[0]
            seed_step(self._data_set.seed, cursor.step, number)
            self._is_waiting_for_apply = True
            yield Step(cursor.step, cursor.epoch, self._samples[start:end], is_last)
            if self._is_waiting_for_apply:
                raise ElasticError(
                    f"step {cursor.step} was not applied; call run.apply() once in each iteration"
                )

    def _own_shards(self, count: int) -> list[tuple[int, int, int]]:
        """Return number and bounds of this worker's shards that have samples."""
        bounds = shard_bounds(count, self._virtual_shards or self.size)
        first, last = self.rank, self.rank + 1
        if self._virtual_shards:
            first, last = shard_bounds(self._virtual_shards, self.size)[self.rank]
        return [(i, *bounds[i]) for i in range(first, last) if bounds[i][0] < bounds[i][1]]

    def _commit(self) -> bool:
        """Sum the step over workers and, if all gradients are finite, update the model."""
        try:
            flags = self._sum()
        except RingClosedError:
            self._pause(is_broken=True)
            return False
        number = self.cursor.step
        if flags.not_finite:
            self._gradients.discard()
            self._note_not_finite(number, flags)
        else:
            self.loss = self._gradients.apply()
            self._update()
        self._state.cursor = self._data_set.after(self.cursor, self._batch)
        self._state.is_stopped = flags.stop
        self._reports.committed(self.cursor)
        if self.rank == 0:
            self._reports.save_if_due(self._state)
        self.follow_memory_share()
        if flags.pause and not flags.stop:
            self._pause()
        return not flags.not_finite

    def _sum(self) -> Flags:
        flags = Flags(
            self._session.is_pause_requested(self.generation),
            self._is_stopping,
            int(self._not_finite) << self.rank,
        )
        if self._ring is not None:
            return self._ring.all_reduce(self._gradients.array, self.cursor.step, flags)
        if self._session.is_ended(self.generation):
            raise RingClosedError("the generation ended")
        return flags

    def _update(self) -> None:
        groups = self._state.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        if self._settings.learning_rate_factor != 1:
            for group in groups:
                group["lr"] = group["lr"] * self._settings.learning_rate_factor
        self._state.optimizer.step()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        self._gradients.discard()
        if self._state.scheduler is not None:
            self._state.scheduler.step()

    def _note_not_finite(self, number: int, flags: Flags) -> None:
        if self.rank == 0:
            ranks = [str(i) for i in range(self.size) if flags.not_finite >> i & 1]
            self._session.note(
                f"step {number}: gradient of rank {', '.join(ranks)} is not finite; the step is "
                "not applied"
            )

    def _pause(
        self, *, is_broken: bool = False, is_finished: bool = False, unreachable: str = ""
    ) -> None:
        """Leave the ring and report the position of this worker."""
        self._is_paused = True
        self._shards = []
        self._close_ring()
        self._gradients.discard()
        position = (self.generation, "paused", self.cursor, self._has_state)
        self._session.report(Report(*position, is_broken, is_finished, unreachable))

    def _close_ring(self) -> None:
        if self._ring is not None:
            self._ring.close()
            self._session.attach(None)
            self._ring = None
