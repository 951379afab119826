"""``out = x.T``, through a tile in shared memory."""

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass.utils import SmemAllocator

import aot

from .contracts import transpose as contract

TILE = 32  # rows and columns of a tile; a warp has as many threads
ROWS = 8  # rows of a tile that a block copies at once


@cute.kernel
def transpose_tiles(x: cute.Tensor, out: cute.Tensor):
    column, row, _ = cute.arch.thread_idx()
    tile_column, tile_row, _ = cute.arch.block_idx()
    # A row of the tile is one element longer than it needs to be, so that a column lies in 32 different banks.
    layout = cute.make_layout((TILE, TILE), stride=(TILE + 1, 1))
    tile = SmemAllocator().allocate_tensor(x.element_type, layout, 16)

    for step in cutlass.range_constexpr(TILE // ROWS):
        y = row + step * ROWS
        i, j = tile_row * TILE + y, tile_column * TILE + column
        if i < x.shape[0] and j < x.shape[1]:
            tile[y, column] = x[i, j]
    cute.arch.sync_threads()

    for step in cutlass.range_constexpr(TILE // ROWS):
        y = row + step * ROWS
        i, j = tile_column * TILE + y, tile_row * TILE + column
        if i < out.shape[0] and j < out.shape[1]:
            out[i, j] = tile[column, y]


@cute.jit
def launch(x: cute.Tensor, out: cute.Tensor, stream: CUstream):
    rows, columns = x.shape
    if rows > 0 and columns > 0:  # CUDA refuses an empty grid
        grid = [cute.ceil_div(columns, TILE), cute.ceil_div(rows, TILE), 1]
        transpose_tiles(x, out).launch(grid=grid, block=[TILE, ROWS, 1], stream=stream)


@aot.kernel(
    parameters=(
        aot.In("x", "a matrix"),
        aot.Out("out", "its transpose", shape="(x.shape[1], x.shape[0])", dtype="x.dtype"),
    ),
    archs=("sm_80", "sm_90a"),
    axes={"dtype": ("f16", "f32")},
    contract=contract,
)
def transpose(target: aot.Target, dtype: str) -> aot.Spec:
    """``out = x.T``, for matrices of up to 2,097,120 rows."""
    arguments = {
        "x": aot.Tensor(dtype, ("rows", "columns")),
        "out": aot.Tensor(dtype, ("columns", "rows")),
        "stream": aot.Stream(),
    }
    return aot.Spec(launch, arguments, guards=("rows <= 2097120",))  # a grid has at most 65,535 blocks along y
