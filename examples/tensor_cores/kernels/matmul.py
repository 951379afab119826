"""``out = a @ b.T`` with tensor cores: a tile of the output for each block, its operands in shared memory."""

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32
from cutlass.cute.nvgpu import warp
from cutlass.utils import SmemAllocator

import aot

from .contracts import matmul as contract

TILE_M, TILE_N, TILE_K = 64, 64, 32  # of the output, and of one step along k
WARPS = (2, 2)  # along m and n: each warp computes 32 x 32 of the tile
THREADS = 128
INSTRUCTION = (16, 8, 16)  # what one mma instruction of a warp multiplies: m, n, k


def tiled_mma(dtype):
    """The instruction, repeated over the warps of a block; sums are in f32."""
    operation = warp.MmaF16BF16Op(dtype, Float32, INSTRUCTION)
    return cute.make_tiled_mma(operation, cute.make_layout((*WARPS, 1)))


def make_tile(dtype, rows):
    # A row is eight elements longer than it needs to be, so that eight rows begin in different banks.
    layout = cute.make_layout((rows, TILE_K), stride=(TILE_K + 8, 1))
    return SmemAllocator().allocate_tensor(dtype, layout, 16)


@cute.jit
def copy_tile(matrix: cute.Tensor, tile: cute.Tensor, row, step):
    """All threads copy one tile; what lies outside of the matrix is zero, so that it adds nothing."""
    thread, _, _ = cute.arch.thread_idx()
    for index in cutlass.range_constexpr(cute.size(tile) // THREADS):
        element = thread + index * THREADS
        y, x = element // TILE_K, element % TILE_K
        i, j = row + y, step * TILE_K + x
        tile[y, x] = matrix.element_type(0)
        if i < matrix.shape[0] and j < matrix.shape[1]:
            tile[y, x] = matrix[i, j]


@cute.kernel
def multiply(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, mma: cute.TiledMma):
    thread, _, _ = cute.arch.thread_idx()
    column, row, _ = cute.arch.block_idx()
    tile_a, tile_b = make_tile(a.element_type, TILE_M), make_tile(b.element_type, TILE_N)

    mine = mma.get_slice(thread)  # what this thread holds of each operand and of the sums
    values_a = mma.make_fragment_A(mine.partition_A(tile_a))
    values_b = mma.make_fragment_B(mine.partition_B(tile_b))
    sums = cute.make_rmem_tensor(mma.partition_shape_C((TILE_M, TILE_N)), Float32)
    sums.fill(0.0)

    for step in cutlass.range(cute.ceil_div(a.shape[1], TILE_K)):
        copy_tile(a, tile_a, row * TILE_M, step)
        copy_tile(b, tile_b, column * TILE_N, step)
        cute.arch.sync_threads()  # both tiles are complete
        cute.autovec_copy(mine.partition_A(tile_a), values_a)
        cute.autovec_copy(mine.partition_B(tile_b), values_b)
        cute.gemm(mma, sums, values_a, values_b, sums)
        cute.arch.sync_threads()  # no thread reads the tiles any more

    places = cute.local_tile(cute.make_identity_tensor(out.shape), (TILE_M, TILE_N), (row, column))
    places = mine.partition_C(places)
    for index in cutlass.range_constexpr(cute.size(sums)):
        i, j = places[index]
        if i < out.shape[0] and j < out.shape[1]:
            out[i, j] = sums[index].to(out.element_type)


@cute.jit
def launch(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, stream: CUstream):
    rows, columns = out.shape
    if rows > 0 and columns > 0:  # CUDA refuses an empty grid
        grid = [cute.ceil_div(columns, TILE_N), cute.ceil_div(rows, TILE_M), 1]
        multiply(a, b, out, tiled_mma(a.element_type)).launch(grid=grid, block=[THREADS, 1, 1], stream=stream)


@aot.kernel(
    parameters=(
        aot.In("a", "m rows of k"),
        aot.In("b", "n rows of k"),
        aot.Out("out", "the products of all pairs of rows", shape="(a.shape[0], b.shape[0])", dtype="a.dtype"),
    ),
    archs=("sm_80", "sm_90a"),
    axes={"dtype": ("f16", "bf16")},
    contract=contract,
)
def matmul(target: aot.Target, dtype: str) -> aot.Spec:
    """``out = a @ b.T``, summed in f32."""
    arguments = {
        "a": aot.Tensor(dtype, ("m", "k")),
        "b": aot.Tensor(dtype, ("n", "k")),
        "out": aot.Tensor(dtype, ("m", "n")),
        "stream": aot.Stream(),
    }
    return aot.Spec(launch, arguments, guards=("m <= 4194240",))  # a grid has at most 65,535 blocks along y
