"""Activations on the host: the same bits, memory that does not grow with depth, and nothing left behind."""

from __future__ import annotations

import gc
import mmap
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from workbench.engine import OffloadEngine
from workbench.engine.blocks import activation_offload
from workbench.engine.blocks.activation_offload import ActivationOffload
from workbench.engine.devices.device import CpuDevice, Event
from workbench.timeline import Lane

WIDTH = 64
ROWS = 32
INPUT_BYTES = ROWS * WIDTH * 4


class CopiesAtTheLastMoment(CpuDevice):
    """A copy is carried out when somebody waits for it, with those before it on its lane, and not a moment sooner.

    Memories of their own, and host memory that is not torch's: the allocator's events are those of the device.

    A copy fails that touches memory which nobody kept for it, or host memory that was given back.
    """

    def __init__(self) -> None:
        super().__init__(shared_memory=False)
        self._host: dict[int, mmap.mmap] = {}
        self.begun = dict.fromkeys(Lane, 0)
        self.copied = dict.fromkeys(Lane, 0)
        self.fail_after: int | None = None
        self._waiting: dict[Lane, list[Callable[[], None]]] = {Lane.DOWNLOAD: [], Lane.UPLOAD: []}

    @property
    def host_bytes(self) -> int:
        return sum(len(memory) for memory in self._host.values())

    def pinned_zeros(self, elements: int, dtype: torch.dtype) -> Tensor:
        memory = mmap.mmap(-1, elements * dtype.itemsize)
        tensor = torch.frombuffer(memory, dtype=dtype, count=elements)
        self._host[tensor.data_ptr()] = memory
        return tensor

    def release_host(self, tensor: Tensor) -> None:
        del self._host[tensor.data_ptr()]

    def begin(self, lane: Lane, destination: Tensor, source: Tensor) -> Callable[[], None]:
        """What carries the copy out."""
        if self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after < 0:
                raise OSError("the link is down")
        self.begun[lane] += 1
        held = [t.untyped_storage() for t in (destination, source)]
        starts = [t.storage_offset() * t.element_size() for t in (destination, source)]
        host = (destination if lane is Lane.DOWNLOAD else source).data_ptr()
        nbytes = source.nbytes

        def run() -> None:
            for storage in held:
                # This list has one reference and somebody else another, or the allocator would have it back by now.
                assert torch._C._storage_Use_Count(storage._cdata) > 1, "memory went away under a copy"
            assert host in self._host, "host memory was given back under a copy"
            to, of = (
                torch.empty(0, dtype=torch.uint8).set_(storage, start, (nbytes,))  # type: ignore[call-overload]
                for storage, start in zip(held, starts, strict=True)
            )
            to.copy_(of)
            self.copied[lane] += nbytes

        return run

    def copy_async(self, lane: Lane, destination: Tensor, source: Tensor, after: Event) -> Event:
        run = self.begin(lane, destination, source)
        self._waiting[lane].append(run)
        return lane, run

    def wait_event(self, mark: Event) -> None:
        if mark is not None:
            lane, run = mark
            while run in self._waiting[lane]:
                self._waiting[lane].pop(0)()

    def synchronize(self) -> None:
        for waiting in self._waiting.values():
            while waiting:
                waiting.pop(0)()

    def close(self) -> None:
        self.synchronize()
        super().close()


@pytest.fixture(autouse=True)
def _small_inputs_move_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation_offload, "SMALLEST_BYTES", 1024)


@pytest.fixture
def device() -> Iterator[CopiesAtTheLastMoment]:
    device = CopiesAtTheLastMoment()
    yield device
    device.close()


@pytest.fixture
def offload(device: CopiesAtTheLastMoment) -> Iterator[ActivationOffload]:
    """Closed at the end, when all host memory must have been given back."""
    offload = ActivationOffload(device)
    yield offload
    offload.close()
    assert offload.host_bytes == device.host_bytes == 0


class Chain(nn.Module):
    """Blocks with dropout, each in a checkpoint of its own.

    `change` makes of an input what the block is given. With `branches`, blocks return something more, which the loss
    does not depend on.
    """

    def __init__(
        self, depth: int = 6, change: Callable[[Tensor], Tensor] = lambda x: x, branches: bool = False
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.blocks: Any = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.2))
            for _ in range(depth)
        )
        self.change = change
        self.branches = branches

    def forward(self, x: Tensor, offload: ActivationOffload | None) -> Tensor:
        x = self.inner(x)
        kept = []
        for index, block in enumerate(self.blocks):

            def call(given: Tensor, block: nn.Module = block) -> tuple[Tensor, ...]:
                made = block(given)
                return (made, made.mean().exp()) if self.branches else (made,)

            given = self.change(x)
            with nullcontext() if offload is None else offload.around_block(index):
                made = checkpoint(call, given, use_reentrant=False)
            x = given + made[0]
            kept.append(made[1:])
        loss = x.square().mean()
        loss.kept = kept  # type: ignore[attr-defined]
        return loss

    def gradients(self) -> list[Tensor]:
        """Copies of those that there are."""
        return [p.grad.clone() for p in self.parameters() if p.grad is not None]


def gradients(
    model: Chain, offload: ActivationOffload | None, micro_batches: int = 3, rows: Sequence[int] = (ROWS,)
) -> list[Tensor]:
    model.zero_grad()
    torch.manual_seed(1)
    for number in range(micro_batches):
        loss = model(torch.randn(rows[number % len(rows)], WIDTH), offload)
        if offload is not None:
            offload.begin_backward()
        loss.backward()
        if offload is not None:
            offload.end_micro_batch()
    return model.gradients()


def assert_equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> None:
    assert len(one) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_gradients_have_the_same_bits_however_late_the_copies_are(
    device: CopiesAtTheLastMoment, offload: ActivationOffload
) -> None:
    model = Chain()
    assert_equal(gradients(model, offload), gradients(model, None))
    device.synchronize()
    # All but the last blocks' inputs went down and came up once in each micro-batch.
    assert device.copied[Lane.DOWNLOAD] == 3 * 6 * INPUT_BYTES
    assert device.copied[Lane.UPLOAD] == 3 * 4 * INPUT_BYTES


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "a transposed one": lambda x: (2 * x).t().contiguous().t(),
    "rows of a longer one": lambda x: torch.cat([x, x])[3 : 3 + len(x)],
    "a broadcast one": lambda x: (2 * x)[:1].expand(len(x), WIDTH),
    "one at an odd address": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(-1, WIDTH),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_comes_back_with_its_shape_strides_and_alignment(
    device: CopiesAtTheLastMoment, offload: ActivationOffload, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(activation_offload, "SMALLEST_BYTES", 1)
    seen: list[tuple[Any, ...]] = []
    model = Chain(depth=4, change=VIEWS[name])
    model.blocks[0].register_forward_pre_hook(
        lambda block, args: seen.append((args[0].shape, args[0].stride(), args[0].data_ptr() % 64))
    )
    assert_equal(gradients(model, offload, 1), gradients(model, None, 1))
    assert seen[0] == seen[1]
    assert device.copied[Lane.UPLOAD] > 0


def test_a_view_of_scattered_parts_stays_where_it_is(
    device: CopiesAtTheLastMoment, offload: ActivationOffload
) -> None:
    model = Chain(change=lambda x: torch.cat([x, x, x], dim=1)[:, WIDTH + 1 : 2 * WIDTH + 1])
    assert_equal(gradients(model, offload), gradients(model, None))
    assert not any(device.copied.values())


def test_what_is_small_or_has_no_gradient_stays_where_it_is(
    device: CopiesAtTheLastMoment, offload: ActivationOffload
) -> None:
    mask = torch.ones(ROWS, WIDTH)
    integers = torch.ones(ROWS, WIDTH, dtype=torch.int64)
    weight = torch.ones(ROWS, WIDTH, requires_grad=True)
    small = weight[:1].clone()
    with offload.around_block(0):
        made = checkpoint(
            lambda *args: sum(a.float() for a in args), mask, integers, weight, small, use_reentrant=False
        )
    made.sum().backward()
    device.synchronize()
    assert not any(device.copied.values())


def test_what_several_blocks_read_is_copied_once_and_stays_on_the_device(
    device: CopiesAtTheLastMoment, offload: ActivationOffload
) -> None:
    depth = 6
    leaf = torch.randn(ROWS, WIDTH, requires_grad=True)
    common = leaf * 2

    def run(offload: ActivationOffload | None) -> Tensor:
        x = leaf * 3
        for index in range(depth):
            with nullcontext() if offload is None else offload.around_block(index):
                x = checkpoint(lambda a, b, c: (a * b * c).sin(), x, common, common[1:2], use_reentrant=False)
        leaf.grad = None
        x.sum().backward(retain_graph=True)
        assert leaf.grad is not None
        return leaf.grad

    assert_equal([run(offload)], [run(None)])
    device.synchronize()
    assert device.copied[Lane.DOWNLOAD] == (depth + 1) * INPUT_BYTES
    assert device.copied[Lane.UPLOAD] == (depth - 2) * INPUT_BYTES


def peak_bytes(run: Callable[[], object]) -> int:
    """The most that was allocated at once while `run` ran, above what was before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        run()
    assert watched.profiler is not None and watched.profiler.kineto_results is not None
    events = [e for e in watched.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize("branches", [False, True])
def test_peak_device_memory_of_inputs_does_not_grow_with_depth(branches: bool) -> None:
    rows = 32 * ROWS
    one_input = rows * WIDTH * 4  # beside which the state of the random generator, 5 kB a block, is little

    def run(model: Chain, offload: ActivationOffload | None) -> None:
        loss = model(torch.randn(rows, WIDTH, requires_grad=True), offload)
        if offload is not None:
            offload.begin_backward()
        loss.backward()

    def peak(depth: int, offloads: bool) -> int:
        model, device = Chain(depth, branches=branches).requires_grad_(False), CopiesAtTheLastMoment()
        offload = ActivationOffload(device) if offloads else None
        peak = peak_bytes(lambda: run(model, offload))
        if offload is not None:
            offload.close()
        device.close()
        return peak

    assert peak(24, offloads=False) - peak(12, offloads=False) > 11 * one_input
    assert peak(24, offloads=True) - peak(12, offloads=True) < one_input / 2


def test_an_input_comes_up_one_block_before_its_recompute_and_is_freed_after_its_backward(
    device: CopiesAtTheLastMoment, offload: ActivationOffload
) -> None:
    """Else the inputs would gather on the device during backward."""
    model = Chain(depth=6)
    begun: list[int] = []
    inputs: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def note(block: nn.Module, args: Any) -> None:
        begun.append(device.begun[Lane.UPLOAD])
        inputs.append(weakref.ref(args[0]))
        alive.append(sum(ref() is not None for ref in inputs))

    for block in model.blocks:
        block.register_forward_pre_hook(note)
    gradients(model, offload, 1)
    # Two inputs were still there; when the second of these is used, the first to come up is on its way.
    assert begun == [0] * 6 + [0, 1, 2, 3, 4, 4]
    assert max(alive) <= 2


def test_host_buffers_are_used_again_and_grow_with_the_longest_input(
    device: CopiesAtTheLastMoment, offload: ActivationOffload
) -> None:
    model = Chain()
    for micro_batches in (1, 3):
        gradients(model, offload, micro_batches)
        assert offload.host_bytes == device.host_bytes == 6 * INPUT_BYTES
    gradients(model, offload, 4, rows=(ROWS, 2 * ROWS, ROWS // 2, ROWS + 1))
    assert offload.host_bytes == device.host_bytes == 12 * INPUT_BYTES


def test_a_forward_without_a_backward_leaves_nothing_behind(offload: ActivationOffload) -> None:
    model = Chain()
    expected = gradients(model, None)
    for _ in range(3):
        model(torch.randn(ROWS, WIDTH), offload)
    assert_equal(gradients(model, offload), expected)
    assert offload.host_bytes == 6 * INPUT_BYTES


def test_two_forwards_may_wait_for_their_backwards_in_any_order(offload: ActivationOffload) -> None:
    model = Chain()
    inputs = [torch.randn(ROWS, WIDTH) for _ in range(2)]
    for order in ((0, 1), (1, 0)):
        found = []
        for used in (offload, None):
            model.zero_grad()
            torch.manual_seed(3)
            losses = [model(x, used) for x in inputs]
            for number in order:
                losses[number].backward()
            found.append(model.gradients())
        assert_equal(*found)


def test_a_graph_that_is_kept_can_be_run_backward_again(offload: ActivationOffload) -> None:
    model = Chain()
    loss = model(torch.randn(ROWS, WIDTH), offload)
    loss.backward(retain_graph=True)
    once = model.gradients()
    model.zero_grad()
    loss.backward()
    assert_equal(model.gradients(), once)


def test_an_input_changed_in_place_while_it_travels_is_refused(offload: ActivationOffload) -> None:
    x = torch.randn(ROWS, WIDTH, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="input of block 0 was changed in place"):
        for index in range(4):
            with offload.around_block(index):
                made = checkpoint(torch.sin, x, use_reentrant=False)
            x.add_(1)
            x = made


class BlockError(RuntimeError):
    pass


@pytest.mark.parametrize("when", ["forward", "recompute", "backward"])
def test_an_error_in_a_block_leaves_nothing_behind(offload: ActivationOffload, when: str) -> None:
    model = Chain()
    expected = gradients(model, None)
    runs = []

    def fail(module: nn.Module, args: Any) -> None:
        runs.append(1)
        if len(runs) == (2 if when == "recompute" else 1) and when != "backward":
            raise BlockError

    handle = model.blocks[3][1].register_forward_pre_hook(fail)
    x = torch.randn(ROWS, WIDTH)
    with pytest.raises(BlockError):
        loss = model(x, offload)
        if when == "backward":
            model.blocks[2][0].weight.register_hook(lambda gradient: (_ for _ in ()).throw(BlockError()))
        loss.backward()
    handle.remove()
    loss = None
    model.blocks[2][0].weight._backward_hooks = None
    gc.collect()  # the error's frames and the error hold each other, and the graph
    torch.zeros(
        1, requires_grad=True
    ).sum().backward()  # autograd holds what it had not come to until it runs
    assert_equal(gradients(model, offload), expected)
    assert offload.host_bytes == 6 * INPUT_BYTES


@pytest.mark.parametrize("healthy", [0, 3, 7])
def test_a_copy_that_cannot_begin_reaches_the_caller(
    device: CopiesAtTheLastMoment, offload: ActivationOffload, healthy: int
) -> None:
    device.fail_after = healthy
    with pytest.raises(OSError, match="the link is down"):
        gradients(Chain(), offload, 1)
    device.fail_after = None


def test_a_backward_after_closing_is_refused_in_words(offload: ActivationOffload) -> None:
    loss = Chain()(torch.randn(ROWS, WIDTH), offload)
    offload.close()
    with pytest.raises(RuntimeError, match="engine is closed"):
        loss.backward()


def test_a_shared_memory_copies_nothing_and_keeps_nothing() -> None:
    device = CpuDevice()
    model, offload = Chain(), ActivationOffload(device)
    assert_equal(gradients(model, offload), gradients(model, None))
    assert offload.host_bytes == 0
    offload.close()
    device.close()


class KeywordChain(nn.Module):
    """Blocks that are given their input by keyword."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)

        def forward(self, *, hidden: Tensor, scale: float) -> Tensor:
            return hidden + self.inner(hidden).relu() * scale

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(KeywordChain.Block() for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(scale=2.0, hidden=x)
        return x


def test_an_input_given_by_keyword_moves_too() -> None:
    outcomes = []
    for activations in ("device", "host"):
        model, device = KeywordChain(), CopiesAtTheLastMoment()
        with OffloadEngine(model, device=device, activations=activations, state="device") as engine:  # type: ignore[arg-type]
            torch.manual_seed(3)
            engine.backward(model(torch.randn(ROWS, WIDTH, requires_grad=True) * 1.0).square().mean())
            engine.step()
            engine.wait()
        outcomes.append([p.detach().clone() for p in model.parameters()])
        assert device.copied[Lane.DOWNLOAD] == (5 * INPUT_BYTES if activations == "host" else 0)
    assert_equal(*outcomes)
