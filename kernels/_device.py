"""What the kernels share: how rows are read, written and reduced, and how elementwise kernels walk them.

A thread moves data in *chunks*: 16 bytes, the widest access, where addresses and extents allow it, else
one element. A kernel is compiled for either; nothing else differs between the two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu.common import CacheEvictionPriority
from cutlass.memory import SmemAllocator

import aot

ARCHS = ("sm_80", "sm_90a", "sm_100f")
DTYPES = ("f16", "bf16", "f32")

WARP = cute.arch.WARP_SIZE
VECTOR_BYTES = 16


def chunk_elements(dtype: str, vector: bool) -> int:
    """Elements in a chunk."""
    return VECTOR_BYTES // aot.Tensor(dtype, ()).element_bytes if vector else 1


# Launches.


def launched_early(target: aot.Target) -> bool:
    """Whether a kernel is launched before the one ahead of it in the stream has ended: see :func:`await_previous`."""
    return target.capability[0] in (9, 10)  # later ones could; there, others saw it fail in CUDA graphs


@cute.jit
def await_previous(early: cutlass.Constexpr):
    """Before the first access to memory: what the kernel ahead in the stream did is done, and can be seen.

    Blocks launched early take the places of those that have ended, and are here when the last one does. So the
    launch itself, about a microsecond, is over by then; it can be for the next kernel too, which awaits this one.
    """
    if cutlass.const_expr(early):
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()


# Rows: tensors of rank 1 whose elements follow each other. An index or extent is an Int32 or an Int64.


def fetch(row: cute.Tensor, index: Int64, size: int, cached: bool = True) -> cute.Tensor:
    """Chunk ``index`` of a row, in registers. ``cached=False`` goes past the L1 cache."""
    priority = CacheEvictionPriority.EVICT_NORMAL if cached else CacheEvictionPriority.NO_ALLOCATE
    chunk = cute.make_rmem_tensor(size, row.element_type)
    cute.autovec_copy(cute.local_tile(row, (size,), (index,)), chunk, l1c_evict_priority=priority)
    return chunk


def load(row: cute.Tensor, index: Int64, size: int, cached: bool = True) -> cute.Tensor:
    """As :func:`fetch`; past the end of the row, its last chunk. It must have one.

    So a load needs no branch: many are under way at once, and what they bring stays as narrow as it came.
    """
    return fetch(row, cutlass.min(index, cute.size(row) // size - 1), size, cached)


@cute.jit
def store(values: cute.TensorSSA, row: cute.Tensor, index: Int64, end: Int64, size: int):
    """Round values to the row's type and write them as its chunk ``index``; from ``end`` on, nothing."""
    chunk = cute.make_rmem_tensor(size, row.element_type)
    chunk.store(values.to(row.element_type))
    if index < end:
        cute.autovec_copy(chunk, cute.local_tile(row, (size,), (index,)))


# Elementwise kernels.


@dataclass(frozen=True)
class ElementwiseTiling:
    """A thread moves ``unroll`` chunks. In rows that lie apart, up to ``width`` threads work side by side."""

    threads: int
    unroll: int  # chunks per thread, all loaded before the first is used
    vector: bool
    width: int = WARP  # at most: what does not fill them at the end of a row is idle
    chunks: int | None = None  # of the largest problem it is for; None: of any

    @property
    def label(self) -> str:
        return "" if self.chunks is None else "small"

    @property
    def cached(self) -> bool:
        """Seen on an H200: small problems are over sooner past the L1 cache, large ones later."""
        return self.chunks is None

    def validate(self, target: aot.Target) -> None:
        if self.threads & (self.threads - 1) or not WARP <= self.threads <= target.max_threads:
            raise aot.DeclarationError(
                f"{self.threads} threads per block; "
                f"{target.arch} takes a power of two from {WARP} to {target.max_threads}"
            )
        if self.width & (self.width - 1) or self.width > self.threads:
            raise aot.DeclarationError(f"{self.width} threads side by side: not a power of two up to {self.threads}")


# By how elements are accessed; the first that a problem is small enough for.
ELEMENTWISE_TILINGS = {
    "vector": (
        ElementwiseTiling(threads=256, unroll=1, vector=True, width=256, chunks=1 << 19),
        ElementwiseTiling(threads=256, unroll=1, vector=True, width=256),
    ),
    "scalar": (ElementwiseTiling(threads=256, unroll=8, vector=False),),
}


class Elementwise(ABC):
    """``out = apply(*inputs)`` over tensors of one shape, of rank 1 or 2, rows any distance apart.

    Subclasses define ``apply`` on the values of a chunk, and a ``__call__`` with named arguments.
    """

    def __init__(self, tiling: ElementwiseTiling, target: aot.Target, rank: int, dtype: str) -> None:
        self.tiling = tiling
        self.early = launched_early(target)
        self.chunk = chunk_elements(dtype, tiling.vector)
        self.rank = rank
        # A single row may end in part of a chunk; of several, the next would start misaligned.
        self.ragged = rank == 1 and tiling.vector
        columns = aot.Dim("n", divisible_by=1 if self.ragged else self.chunk, bits=64)
        shape = (columns,) if rank == 1 else (aot.Dim("m", bits=64), columns)
        self.tensor = aot.Tensor(dtype, shape, align=VECTOR_BYTES if tiling.vector else None)

    @abstractmethod
    def apply(self, *values: cute.TensorSSA) -> cute.TensorSSA: ...

    @cute.jit
    def launch(self, inputs: list[cute.Tensor], out: cute.Tensor, stream: CUstream):
        if cutlass.const_expr(self.rank == 1):
            self.launch_line(inputs, out, stream)
        else:
            rows, columns = extents(out)
            # Rows without gaps are one line, where a thread finds its place at once.
            gapless = rows > 0
            for tensor in (*inputs, out):
                gapless = gapless and tensor.stride[0] == columns
            if gapless:
                line = cute.make_layout(rows * columns)
                lines = [cute.make_tensor(tensor.iterator, line) for tensor in (*inputs, out)]
                self.launch_line(lines[:-1], lines[-1], stream)
            else:
                self.launch_rows(inputs, out, stream)

    @cute.jit
    def launch_line(self, inputs: list[cute.Tensor], out: cute.Tensor, stream: CUstream):
        chunks = _ceil_div(Int64(cute.size(out)), Int64(self.chunk))
        blocks = _ceil_div(chunks, Int64(self.tiling.threads * self.tiling.unroll))
        if blocks > 0:  # CUDA refuses an empty grid
            self.line_kernel(inputs, out).launch(**self.grid(blocks), stream=stream)

    @cute.kernel
    def line_kernel(self, inputs: list[cute.Tensor], out: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        size = Int64(cute.size(out))
        whole = size // self.chunk
        first = Int64(block) * (self.tiling.threads * self.tiling.unroll) + thread
        indices = [first + i * self.tiling.threads for i in range(self.tiling.unroll)]
        await_previous(self.early)
        self.move(inputs, out, indices, whole, self.chunk)
        if cutlass.const_expr(self.ragged):  # noqa: SIM102  decided when compiled: not joined by `and`
            if block == 0:
                self.move(inputs, out, [whole * self.chunk + thread], size, 1)

    @cute.jit
    def launch_rows(self, inputs: list[cute.Tensor], out: cute.Tensor, stream: CUstream):
        rows, columns = extents(out)
        chunks = columns // self.chunk
        # Threads side by side in a row: a power of two, so that each finds its place by shifts; as few as
        # leave every thread all its chunks.
        shift = Int32(0)
        while shift < self.tiling.width.bit_length() - 1 and (Int64(self.tiling.unroll) << shift) < chunks:
            shift += 1
        tiles_per_row = _ceil_div(chunks, Int64(self.tiling.unroll) << shift)
        blocks = _ceil_div(rows * tiles_per_row, Int64(self.tiling.threads) >> shift)
        if blocks > 0:  # CUDA refuses an empty grid
            self.rows_kernel(inputs, out, shift, Int32(tiles_per_row)).launch(**self.grid(blocks), stream=stream)

    @cute.kernel
    def rows_kernel(self, inputs: list[cute.Tensor], out: cute.Tensor, shift: Int32, tiles_per_row: Int32):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        rows, columns = extents(out)
        # A row's tiles go to neighbouring groups of threads. Rows of several tiles fill memory long before
        # their number exceeds 32 bits.
        row = Int64(block) * (self.tiling.threads >> shift) + (thread >> shift)
        tile = Int32(0)
        if tiles_per_row > 1:
            tile = Int32(row) % tiles_per_row
            row = Int64(Int32(row) // tiles_per_row)
        await_previous(self.early)
        if row < rows:
            lane = thread & ((1 << shift) - 1)
            first = Int64(tile) * (self.tiling.unroll << shift) + lane
            indices = [first + (i << shift) for i in range(self.tiling.unroll)]
            self.move([x[row, None] for x in inputs], out[row, None], indices, columns // self.chunk, self.chunk)

    def grid(self, blocks: Int64) -> dict:
        """Where and how to launch: arguments of ``launch``."""
        return {"grid": [Int32(blocks), 1, 1], "block": [self.tiling.threads, 1, 1], "use_pdl": self.early}

    @cute.jit
    def move(self, sources: list[cute.Tensor], target: cute.Tensor, indices: list[Int64], end, size):
        """Compute the chunks of these ascending indices, as far as they lie before ``end``."""
        if indices[0] < end:
            get = fetch if len(indices) == 1 else load
            loaded = [[get(source, index, size, self.tiling.cached) for source in sources] for index in indices]
            for index, chunks in zip(indices, loaded, strict=True):
                store(self.apply(*[chunk.load() for chunk in chunks]), target, index, end, size)


def elementwise_specs(target: aot.Target, tilings: tuple[ElementwiseTiling, ...], make, arguments, *guards: str):
    """A spec per tiling; ``make`` takes it, ``arguments`` what that made. The last tiling takes what is left."""
    specs = []
    for tiling in tilings:
        tiling.validate(target)
        function = make(tiling)
        elements = "n" if len(function.tensor.shape) == 1 else "m * n"
        fits = () if tiling.chunks is None else (f"{elements} <= {tiling.chunks * function.chunk}",)
        specs.append(aot.Spec(function, arguments(function), (*guards, *fits), tiling.label))
    return specs


def extents(tensor: cute.Tensor) -> tuple[Int64, Int64]:
    # tensor.shape cuts extents of 64 bits to 32; cute.size does not.
    return Int64(cute.size(tensor, mode=[0])), Int64(cute.size(tensor, mode=[1]))


def _ceil_div(dividend: Int64, divisor: Int64) -> Int64:
    # cute.ceil_div takes no run-time divisor of 64 bits.
    return (dividend + divisor - 1) // divisor


# Kernels that need something of a whole row before they can write it.


@dataclass(frozen=True)
class RowTiling:
    """A block works on ``rows``, with ``threads`` on each; a thread holds ``unroll`` chunks at a time."""

    threads: int
    unroll: int
    rows: int = 1
    looped: bool = False  # over rows longer than the threads can hold
    blocks: int = 0  # for so many on a multiprocessor registers must do; 0: for as many as it turns out

    @property
    def label(self) -> str:
        return f"looped{self.threads}" if self.looped else f"threads{self.threads}"

    @property
    def chunks(self) -> int:
        return self.threads * self.unroll

    def validate(self, target: aot.Target) -> None:
        block = self.threads * self.rows
        if block % WARP or block > target.max_threads:
            raise aot.DeclarationError(
                f"{self.rows} rows of {self.threads} threads make a block of {block}; "
                f"{target.arch} takes whole warps, up to {target.max_threads} threads"
            )
        if self.threads & (self.threads - 1) or (self.rows > 1 and self.threads > WARP):
            raise aot.DeclarationError(
                f"{self.threads} threads cannot add up a row: must be a power of two, "
                f"and a whole block if more than {WARP}, not one of {self.rows} rows"
            )


# By how a row is accessed: a row gets as many threads as can hold it; the last tiling takes what is longer.
ROW_TILINGS = {
    "vector": (
        RowTiling(threads=8, unroll=4, rows=16),
        RowTiling(threads=32, unroll=4, rows=4),
        RowTiling(threads=128, unroll=4),
        RowTiling(threads=256, unroll=4),
        RowTiling(threads=512, unroll=4),
        RowTiling(threads=512, unroll=4, looped=True),
    ),
    "scalar": (
        RowTiling(threads=32, unroll=16, rows=4),
        RowTiling(threads=256, unroll=8, looped=True),
    ),
}


class RowKernel:
    """Rows of a matrix, each by a group of threads: what kernels that reduce rows have in common.

    Subclasses define the kernel; ``reductions`` says how often it reduces over the threads of a row.
    """

    reductions = 1

    def __init__(self, tiling: RowTiling, target: aot.Target, chunk: int) -> None:
        self.tiling = tiling
        self.early = launched_early(target)
        self.chunk = chunk  # elements

    @cute.jit
    def place(self, x: cute.Tensor) -> tuple[Int32, Int32, Int32]:
        """The row of this thread, its first chunk there, and where the chunks that it may write end.

        Threads past the last row work on it too, since warps reduce together; they have nothing to write.
        """
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        rows, columns = x.shape
        row = block * self.tiling.rows + thread // self.tiling.threads
        end = columns // self.chunk if row < rows else 0
        await_previous(self.early)
        return cutlass.min(row, rows - 1), thread % self.tiling.threads, end

    def indices(self, first: Int32) -> list[Int32]:
        """The chunks a thread holds, from its first on. Neighbouring threads hold neighbouring chunks."""
        return [first + i * self.tiling.threads for i in range(self.tiling.unroll)]

    def load(self, row: cute.Tensor, first: Int32, cached: bool = True) -> list[cute.Tensor]:
        """The chunks a thread holds; those past the end of the row are its last one again."""
        return [load(row, index, self.chunk, cached) for index in self.indices(first)]

    def full(self, value: float) -> cute.TensorSSA:
        """An accumulator: a chunk of f32."""
        return cute.full(self.chunk, value, Float32)

    def steps(self, columns: Int32) -> Int32:
        """How often the threads of a looped tiling must load to see all of a row."""
        return cute.ceil_div(columns // self.chunk, self.tiling.chunks)

    def scratch(self) -> cute.Tensor | None:
        """Shared memory for the reductions of a block; to be called once in a kernel."""
        if self.tiling.threads <= WARP:
            return None
        layout = cute.make_layout((self.tiling.threads // WARP, self.reductions))
        return SmemAllocator().allocate_tensor(Float32, layout)

    @cute.jit
    def over_row(self, combine, value: Float32, scratch, use: int) -> Float32:
        """A value combined over the threads of a row, and known to each of them.

        Every thread of the block must come here, once for each ``use``, a number below ``reductions``.
        """
        threads = self.tiling.threads
        value = cute.arch.warp_reduction(value, combine, threads_in_group=min(threads, WARP))
        if cutlass.const_expr(threads > WARP):
            thread, _, _ = cute.arch.thread_idx()
            warps = threads // WARP
            if thread % WARP == 0:
                scratch[thread // WARP, use] = value
            cute.arch.sync_threads()
            value = cute.arch.warp_reduction(scratch[thread % warps, use], combine, threads_in_group=warps)
        return value

    def sum_over_row(self, values: cute.TensorSSA, scratch, use: int = 0) -> Float32:
        return self.over_row(add, values.reduce(cute.ReductionOp.ADD, Float32(0), 0), scratch, use)

    def grid(self, rows: Int32) -> dict:
        """Where and how to launch: arguments of ``launch``."""
        return {
            "grid": [cute.ceil_div(rows, self.tiling.rows), 1, 1],
            "block": [self.tiling.threads * self.tiling.rows, 1, 1],
            "use_pdl": self.early,
            "min_blocks_per_mp": self.tiling.blocks,
            "preferred_smem_carveout": -1,  # the default: without a word on it, CuTe DSL would ask a driver
        }


def add(left: Float32, right: Float32) -> Float32:
    return left + right


def maximum(left: Float32, right: Float32) -> Float32:
    """The larger; NaN where one is."""
    return cute.arch.fmax(left, right, nan=True)


@dataclass(frozen=True)
class RowTensors:
    """The arguments of kernels over rows: a matrix of ``m`` rows of ``n`` columns, and a vector as long as a row."""

    dtype: str
    vector: bool  # whole chunks, aligned

    @property
    def chunk(self) -> int:
        return chunk_elements(self.dtype, self.vector)

    @property
    def columns(self) -> aot.Dim:
        return aot.Dim("n", divisible_by=self.chunk)

    @property
    def matrix(self) -> aot.Tensor:
        return self._tensor("m", self.columns)

    @property
    def row(self) -> aot.Tensor:
        return self._tensor(self.columns)

    def _tensor(self, *shape: str | aot.Dim) -> aot.Tensor:
        return aot.Tensor(self.dtype, shape, align=VECTOR_BYTES if self.vector else None)


def row_specs(
    target: aot.Target, tilings: tuple[RowTiling, ...], chunk: int, make, arguments: dict, guards: tuple[str, ...] = ()
) -> list[aot.Spec]:
    """A spec per tiling of a kernel over rows of ``n`` columns; ``make`` takes it, the target, and a chunk's elements."""
    specs = []
    for tiling in tilings:
        tiling.validate(target)
        fits = () if tiling.looped else (f"n <= {tiling.chunks * chunk}",)
        specs.append(aot.Spec(make(tiling, target, chunk), arguments, (*guards, *fits), tiling.label))
    return specs
