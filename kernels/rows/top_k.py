"""The ``k`` largest elements of each row, in descending order, and their indices; of equal elements the first ones.

A short row belongs to a warp. Its lanes hold the row, and ``k`` times the largest element that is left is taken.

A long row belongs to a block, which reads it twice. In the first pass each thread finds its largest element. The ``k``-th
largest of those is a lower bound: at least ``k`` elements reach it, and hardly more do, if the row is long. In the second
pass those elements are collected in shared memory, where each finds its rank by counting the larger ones. If more are
equal to the bound than fit there, the exact bound is searched for by halving an interval of values and indices. Each of
those steps reads the row.

Elements are ordered by integers (:func:`order_key`) and by their index, so a result does not depend on the order in which
threads run.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, Int64

import aot

from .._device import ARCHS, DTYPES, WARP, KernelObject, await_previous, launched_early, load, maximum
from .._rows import MIN_THREADS, RowKernel, RowTensors, RowTiling
from .._versions import SmemAllocator
from ..contracts.rows import top_k as contract
from ._order import LARGEST_KEY, NO_KEY, order_key

LAST = 0x7FFFFFFF  # no element has a larger index
ROWS = 4  # of a block, if a row belongs to a warp
HELD, GROUP = 16, 4  # elements of a row in a lane, and how many of them are skipped together if the row has none there
TILING = RowTiling(threads=1024, unroll=4, looped=True, counted=True)
OWN, OWN_ELEMENTS = 16, 8  # what a thread has of a row at least, in chunks and element by element
CANDIDATES = 2048  # elements in shared memory
LARGEST_K = 1024


class WarpTopK(KernelObject):
    """Rows of at most ``WARP * HELD`` elements, of which at most ``WARP`` are taken."""

    def __init__(self, target: aot.Target) -> None:
        self.early = launched_early(target)

    @cute.kernel
    def kernel(self, x: cute.Tensor, values: cute.Tensor, indices: cute.Tensor, k: Int32):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        rows, columns = x.shape
        lane, row = thread % WARP, block * ROWS + thread // WARP
        await_previous(self.early)
        source = x[cutlass.min(row, rows - 1), None]
        keys = cute.make_rmem_tensor(HELD, Int32)
        for i in cutlass.range_constexpr(HELD):
            index = i * WARP + lane
            key = order_key(source[cutlass.min(index, columns - 1)].to(Float32))
            keys[i] = key if index < columns else Int32(NO_KEY)
        taken = Int32(0)  # the index that this lane writes
        for turn in cutlass.range(k):
            index = self.largest(keys, columns, lane)
            taken = index if lane == turn else taken
            self.remove(keys, columns, lane, index)
        if row < rows and lane < k:
            values[row, lane] = source[taken]
            indices[row, lane] = Int64(taken)

    @cute.jit
    def largest(self, keys: cute.Tensor, columns: Int32, lane: Int32) -> Int32:
        """The index of the largest key that the lanes of a warp have, the first one of equal keys."""
        key, index = keys[0], lane
        for group in cutlass.range_constexpr(0, HELD, GROUP):
            if group * WARP < columns:
                for i in cutlass.range_constexpr(group, group + GROUP):
                    if keys[i] > key:
                        key, index = keys[i], i * WARP + lane
        top = cute.arch.warp_redux_sync(key, "max")
        return cute.arch.warp_redux_sync(index if key == top else Int32(LAST), "min")

    @cute.jit
    def remove(self, keys: cute.Tensor, columns: Int32, lane: Int32, index: Int32):
        for group in cutlass.range_constexpr(0, HELD, GROUP):
            if group * WARP < columns:
                for i in cutlass.range_constexpr(group, group + GROUP):
                    if i * WARP + lane == index:
                        keys[i] = Int32(NO_KEY)

    @cute.jit
    def __call__(self, x: cute.Tensor, values: cute.Tensor, indices: cute.Tensor, k: Int32, stream: CUstream):
        rows, _ = x.shape
        if rows > 0:  # CUDA refuses an empty grid
            self.kernel(x, values, indices, k).launch(
                grid=[cute.ceil_div(rows, ROWS), 1, 1], block=[WARP * ROWS, 1, 1], use_pdl=self.early, stream=stream
            )


class BlockTopK(RowKernel):
    """Elements have a *place* in the order of their row: a number that is larger for a larger key or a smaller index."""

    def __init__(self, target: aot.Target, chunk: int, dtype: str) -> None:
        super().__init__((TILING,), target, chunk)
        self.tiling, self.max_cluster = TILING, 1  # candidates are in the shared memory of one block
        self.shift = {"bf16": 16, "f16": 13, "f32": 0}[dtype]  # bits of a key that are the same for all values

    def key(self, value: Float32) -> Int32:
        return order_key(value) >> self.shift

    @cute.jit
    def block(self, columns: Int32, k: Int32) -> Int32:
        """As many threads as there are pieces of a row. Twice ``k`` are needed for a lower bound that is close."""
        own = OWN if self.chunk > 1 else OWN_ELEMENTS
        warps = cutlass.max(cute.ceil_div(columns, own * WARP), cute.ceil_div(2 * k, WARP))
        return cutlass.min(cutlass.max(warps * WARP, MIN_THREADS), TILING.threads)

    @cute.kernel
    def kernel(self, x: cute.Tensor, values: cute.Tensor, indices: cute.Tensor, k: Int32):
        row, lane, end = self.place(x)
        source = x[row, None]
        memory = SmemAllocator()
        counts = memory.allocate_tensor(Int32, cute.make_layout((TILING.threads // WARP, 2)))
        count = memory.allocate_tensor(Int32, cute.make_layout(1))
        candidates = memory.allocate_tensor(Int64, cute.make_layout(CANDIDATES))
        bound = Int64(self.lower_bound(source, k, counts, lane, end)) * cute.size(source)
        self.collect(source, bound, count, candidates, lane, end)
        while count[0] > CANDIDATES:  # once, because exactly k elements reach the exact bound
            bound = self.exact_bound(source, bound, k, counts, lane, end)
            self.collect(source, bound, count, candidates, lane, end)
        self.rank(source, count[0], candidates, values[row, None], indices[row, None], k, lane)

    @cute.jit
    def lower_bound(self, row: cute.Tensor, k: Int32, counts: cute.Tensor, lane: Int32, end: Int32) -> Int32:
        """The ``k``-th largest of the threads' largest keys; if there are fewer threads, a key below all others."""
        key = Int32(NO_KEY >> self.shift)
        for step in cutlass.range(self.steps(cute.size(row))):
            first = step * self.span() + lane
            for index, chunk in zip(self.indices(first), self.load(row, first), strict=True):
                # The last chunk, which is repeated past the end, must count once.
                if index < end:
                    key = cutlass.max(key, self.key(self.tree(maximum, chunk.load().to(Float32))))
        low, high = Int64(NO_KEY >> self.shift), Int64((LARGEST_KEY >> self.shift) + 1)
        slot = Int32(0)
        while high - low > 1:
            middle = (low + high) >> 1
            if self.over_block(Int32(1) if key >= Int32(middle) else Int32(0), counts, slot) >= k:
                low = middle
            else:
                high = middle
            slot = 1 - slot
        return Int32(low)

    @cute.jit
    def exact_bound(
        self, row: cute.Tensor, low: Int64, k: Int32, counts: cute.Tensor, lane: Int32, end: Int32
    ) -> Int64:
        """The place that exactly ``k`` elements reach. At least as many reach ``low``."""
        high = Int64((LARGEST_KEY >> self.shift) + 1) * cute.size(row)
        slot = Int32(0)
        while high - low > 1:
            middle = (low + high) >> 1
            if self.count_from(row, middle, counts, slot, lane, end) >= k:
                low = middle
            else:
                high = middle
            slot = 1 - slot
        return low

    @cute.jit
    def count_from(self, row: cute.Tensor, bound: Int64, counts: cute.Tensor, slot, lane, end) -> Int32:
        found = Int32(0)
        for index in cutlass.range(lane, end, self.threads()):
            values = load(row, index, self.chunk).load().to(Float32)
            for i in cutlass.range_constexpr(self.chunk):
                place = self.place_of(self.key(values[i]), index * self.chunk + i, row)
                found += Int32(1) if place >= bound else Int32(0)
        return self.over_block(found, counts, slot)

    def place_of(self, key: Int32, index: Int32, row: cute.Tensor) -> Int64:
        return Int64(key) * cute.size(row) + Int64(cute.size(row) - 1 - index)

    @cute.jit
    def over_block(self, value: Int32, counts: cute.Tensor, slot: Int32) -> Int32:
        """The sum over the threads of a block. Calls in turn use both slots, so one barrier in each will do."""
        thread, _, _ = cute.arch.thread_idx()
        lane, warps = thread % WARP, self.block_threads() // WARP
        value = cute.arch.warp_redux_sync(value, "add")
        if lane == 0:
            counts[thread // WARP, slot] = value
        cute.arch.sync_threads()
        value = counts[lane, slot] if lane < warps else Int32(0)
        return cute.arch.warp_redux_sync(value, "add")

    @cute.jit
    def collect(self, row: cute.Tensor, bound: Int64, count: cute.Tensor, candidates: cute.Tensor, lane, end):
        """Put what reaches the bound into shared memory, in any order. ``count`` is how many elements do."""
        cute.arch.sync_threads()  # what was collected before is no longer read
        if lane == 0:
            count[0] = Int32(0)
        cute.arch.sync_threads()  # nobody counts before it is zero
        for step in cutlass.range(self.steps(cute.size(row))):
            first = step * self.span() + lane
            for index, chunk in zip(self.indices(first), self.load(row, first), strict=True):
                key = self.key(self.tree(maximum, chunk.load().to(Float32)))
                if index < end and self.place_of(key, index * self.chunk, row) >= bound:
                    # Few chunks have a candidate: their elements are read again, which takes little code.
                    for i in cutlass.range(index * self.chunk, (index + 1) * self.chunk, unroll=1):
                        self.collect_one(row, i, bound, count, candidates)
        cute.arch.sync_threads()  # all candidates are there

    @cute.jit
    def collect_one(self, row: cute.Tensor, index: Int32, bound: Int64, count: cute.Tensor, candidates: cute.Tensor):
        key = self.key(row[index].to(Float32))
        if self.place_of(key, index, row) >= bound:
            slot = cute.arch.atomic_add(count.iterator, Int32(1), scope="cta")
            if slot < CANDIDATES:
                candidates[slot] = (Int64(key) << 32) + Int64(LAST - index)

    @cute.jit
    def rank(
        self, row: cute.Tensor, count, candidates: cute.Tensor, values: cute.Tensor, indices: cute.Tensor, k, lane
    ):
        for place in cutlass.range(lane, count, self.threads()):
            own, larger = candidates[place], Int32(0)
            for other in cutlass.range(count, unroll=8):
                larger += Int32(1) if candidates[other] > own else Int32(0)
            if larger < k:
                index = LAST - Int32(own & LAST)
                values[larger] = row[index]
                indices[larger] = Int64(index)

    @cute.jit
    def __call__(self, x: cute.Tensor, values: cute.Tensor, indices: cute.Tensor, k: Int32, stream: CUstream):
        rows, _ = x.shape
        if rows > 0:  # CUDA refuses an empty grid
            _, columns = x.shape
            self.kernel(x, values, indices, k).launch(
                grid=[rows, 1, 1],
                block=[self.block(columns, k), 1, 1],
                max_number_threads=[TILING.threads, 1, 1],
                use_pdl=self.early,
                preferred_smem_carveout=-1,  # the default; if it is left out, CuTe DSL asks the driver
                stream=stream,
            )


@aot.kernel(
    parameters=(
        aot.In("x"),
        aot.Out("values", shape="(x.shape[0], k)", dtype="x.dtype"),
        aot.Out("indices", shape="(x.shape[0], k)", dtype="i64"),
        aot.In("k", f"how many, from 1 to {LARGEST_K}, and at most as many as `x` has columns"),
    ),
    archs=ARCHS,
    axes={"dtype": DTYPES, "rows": ("short", "vector", "scalar")},
    contract=contract,
)
def top_k(target: aot.Target, dtype: str, rows: str) -> aot.Spec:
    """The ``k`` largest elements of every row of ``x``, largest first, and their indices; NaN is the largest."""
    matrix = RowTensors(dtype, rows == "vector")
    taken = [aot.Tensor(kind, ("m", "taken")) for kind in (dtype, "i64")]
    arguments = {
        "x": matrix.matrix, "values": taken[0], "indices": taken[1], "k": aot.Scalar("i32"), "stream": aot.Stream()
    }  # fmt: skip
    guards = ("taken == k", "k >= 1", "k <= n")
    if rows == "short":
        return aot.Spec(WarpTopK(target), arguments, (*guards, f"k <= {WARP}", f"n <= {WARP * HELD}"))
    return aot.Spec(BlockTopK(target, matrix.chunk, dtype), arguments, (*guards, f"k <= {LARGEST_K}"))
