"""One description of the tile that a block of a Hopper product computes.

Every schedule is a combination of these fields, and every product takes any of them that its operands allow:

* **pingpong**: the consumer warp groups compute alternate tiles. While one stores its tile, the other multiplies the next, so the
  tensor cores do not wait for an epilogue. **cooperative**: they share each tile, half and half. So a tile can be twice as
  large, and a block that gets only one tile uses both.
* **clusters**: blocks one above the other need the same tile of ``b``, blocks side by side the same tile of ``a``. Each loads
  a share of it and multicasts it to the others.
* **split-K**: the blocks of a cluster sum parts of ``k`` of the same tile, then add up these partial sums.
* **swapped**: rows of the tile are rows of ``b``. The height of a tile is a multiple of 64, its width a multiple of 8 or 16.
  So a product with few rows of ``a`` makes them columns of the tile, and computes less padding.

A tiling guarantees nothing until :meth:`Tiling.validate` has accepted it for a target.
"""

from __future__ import annotations

from dataclasses import dataclass

from cutlass import Float32

import aot

from . import hardware as hw

STORED_COLUMNS = 16  # the fewest that one store writes
# If `a` and `b` are swapped, columns of a tile are rows of the output, and a store can write any multiple of 8 of them: at
# least 24, so that there are few stores, and at most 104, so that they leave room for stages.
TALL_STORES = range(24, 105, 8)
PREFETCHED_BYTES = 65536  # of the weights, by each block; on an H200, more made small products slower
FLOAT_BYTES = Float32.width // 8


@dataclass(frozen=True)
class Tiling:
    """A block computes a tile of ``m`` x ``n``. Each step multiplies ``lines`` x 128 bytes of every row along ``k``."""

    m: int
    n: int
    lines: int = 1  # lines of 128 bytes along ``k`` in one step
    cluster_m: int = 1  # blocks, one above the other, among which tiles of ``b`` are multicast
    cluster_n: int = 1  # blocks, side by side, among which tiles of ``a`` are multicast
    split_k: int = 1  # blocks that each sum a part of ``k`` for the same tile
    cooperative: bool = False  # whether both warp groups share each tile; else pingpong
    side_by_side: bool = False  # whether the halves of a cooperative tile are; those of 64 rows always are
    rows: int | None = None  # if ``a`` never has more rows than this, only these rows of its tile are loaded
    swapped: bool = False  # whether rows of the tile are rows of ``b``: ``m`` and ``n`` are then swapped, too
    gated: bool = False  # whether a tile has as many rows of one matrix of ``b`` as of another that gates it
    promoted: int = 0  # steps after which sums of the tensor cores are added up in f32 registers; 0: never
    operand_bytes: int = 2
    out_bytes: int = 2
    buffers: int = 2  # of the output in shared memory; with two, one is filled while the other is stored
    tall_stores: bool = True  # if swapped: whether a store may write any multiple of 8 rows of the output
    own_partials: bool = False  # if split-K: whether partial sums have memory beside the stages, instead of theirs
    swizzle: int = 4  # rows of clusters that are computed together: see ``scheduler``

    @property
    def label(self) -> str:
        """``tile128x256_cooperative_cluster2x1``: rows and columns of the output, of a block and of a cluster."""
        rows, columns = (self.n, self.m) if self.swapped else (self.loaded_rows, self.n)
        down, across = self._turned(self.cluster_m, self.cluster_n)
        marks = (
            (f"k{self.k}", self.lines > 1),
            ("swapped", self.swapped),
            ("cooperative", self.cooperative),
            (f"cluster{down}x{across}", down * across > 1),
            (f"splitk{self.split_k}", self.split_k > 1),
        )
        return "_".join((f"tile{rows}x{columns}", *(mark for mark, has in marks if has)))

    def _turned(self, m: int, n: int) -> tuple[int, int]:
        """Rows and columns of a tile, as rows and columns of the output."""
        return (n, m) if self.swapped else (m, n)

    def work(self, passes: int = 1) -> aot.Work:
        """The terms of the model that predicts its time. The tensor cores multiply the loaded operands ``passes`` times."""
        down, across = self._turned(self.loaded_rows * self.cluster_m, self.n * self.cluster_n)
        multiplied = passes * self.m * self.n * self.k * self.operand_bytes
        return aot.Work(
            tile={"m": down, "n": across},
            step={"k": self.k * self.split_k},
            bytes=f"{self.operand_bytes} * (m * k + n * k) + {self.out_bytes} * m * n",
            blocks=self.blocks,
            cycles=multiplied // hw.CYCLE_BYTES,
        )

    # What a block loads.

    @property
    def k(self) -> int:
        """Elements along ``k`` of one step."""
        return self.lines * hw.LINE_BYTES // self.operand_bytes

    @property
    def least_k(self) -> int:
        """The smallest ``k`` that leaves no block of a split-K cluster without a part of the sum."""
        return (self.split_k - 1) * max(self.promoted, 1) * self.k + 1

    @property
    def guards(self) -> tuple[str, ...]:
        """Conditions on a product: at most :attr:`rows` rows, if no others are loaded, and at least :attr:`least_k`."""
        rows = (f"m <= {self.rows}",) if self.rows else ()
        return (*rows, f"k >= {self.least_k}") if self.split_k > 1 else rows

    @property
    def loaded_rows(self) -> int:
        return self.rows or self.m

    @property
    def stage_bytes(self) -> int:
        return (self.m + self.n) * self.lines * hw.LINE_BYTES

    @property
    def loaded_bytes(self) -> int:
        """Bytes of a stage that TMA writes; rows that are not loaded are left out."""
        return (self.loaded_rows + self.n) * self.lines * hw.LINE_BYTES

    @property
    def b_tile(self):
        """The rows of ``b`` in a tile; if it is gated, those of either matrix."""
        return (self.columns, 2) if self.gated else self.n

    @property
    def b_shares(self) -> int:
        """Parts into which the blocks of a column of the cluster divide the tile of ``b``. Each loads and multicasts one.

        If the tile cannot be divided evenly, the blocks take turns: each loads and multicasts whole tiles.
        """
        return self.cluster_m if self.n % (hw.SWIZZLED_ROWS * self.cluster_m) == 0 else 1

    @property
    def prefetched_steps(self) -> int:
        """Steps of which a block prefetches its share of the weights into the L2 cache."""
        rows = self.m // self.cluster_n if self.swapped else self.n // self.cluster_m
        return max(1, PREFETCHED_BYTES // (rows * self.lines * hw.LINE_BYTES))

    # Who computes what.

    @property
    def blocks(self) -> int:
        """Blocks of a cluster."""
        return self.cluster_m * self.cluster_n * self.split_k

    @property
    def groups(self) -> int:
        """Warp groups that compute a tile together."""
        return hw.CONSUMERS if self.cooperative else 1

    @property
    def reading_warps(self) -> int:
        """Warps that read each stage of a block."""
        return self.groups * hw.GROUP_WARPS

    @property
    def sides(self) -> int:
        """Warp groups that are side by side at a tile."""
        return hw.CONSUMERS if self.cooperative and (self.side_by_side or self.m == hw.WGMMA_ROWS) else 1

    @property
    def own_rows(self) -> int:
        """Rows of a tile that one warp group computes."""
        return self.m * self.sides // self.groups

    @property
    def own_columns(self) -> int:
        """Columns of a tile that one warp group computes."""
        return self.n // self.sides

    @property
    def parts(self) -> int:
        """Blocks of 64 rows that a warp group computes, each with one instruction."""
        return self.own_rows // hw.WGMMA_ROWS

    @property
    def accumulators(self) -> int:
        """Registers of a thread for the sums of a tile."""
        return self.own_rows * self.own_columns // hw.WARP_GROUP

    # What is stored.

    @property
    def columns(self) -> int:
        """Columns of the output that a tile has."""
        return self.n // 2 if self.gated else self.n

    @property
    def least_columns(self) -> int:
        return hw.SWIZZLED_ROWS if self.swapped and self.tall_stores else STORED_COLUMNS

    @property
    def owners(self) -> int:
        """Blocks of a split-K cluster that store a part of the tile's columns each."""
        fitting = [n for n in range(1, self.split_k + 1) if self.own_columns % (self.least_columns * n) == 0]
        return max(fitting, default=1)

    @property
    def written_columns(self) -> int:
        """Columns of the output that one warp group stores of a tile."""
        return self.columns // self.sides // self.owners

    @property
    def slice_columns(self) -> int:
        """Columns that one store writes."""
        if self.swapped and self.tall_stores:
            fitting = (width for width in TALL_STORES if self.written_columns % width == 0)
            return max(fitting, default=self.written_columns)
        return next(
            size // self.out_bytes for size in hw.STORE_BYTES if self.written_columns * self.out_bytes % size == 0
        )

    @property
    def slices(self) -> int:
        """Stores for each block of 64 rows."""
        return self.written_columns // self.slice_columns

    @property
    def store_stages(self) -> int:
        """Slices that a warp group has in shared memory."""
        return min(self.buffers, self.parts * self.slices)

    @property
    def store_bytes(self) -> int:
        return hw.CONSUMERS * hw.WGMMA_ROWS * self.slice_columns * self.store_stages * self.out_bytes

    @property
    def partial_sums(self) -> int:
        """Partial sums that a storing block receives, from all blocks of its split-K cluster."""
        return self.split_k * self.groups * hw.WARP_GROUP * self.accumulators // self.owners if self.split_k > 1 else 0

    @property
    def partial_bytes(self) -> int:
        """Memory beside the stages for partial sums."""
        return self.partial_sums * FLOAT_BYTES if self.own_partials else 0

    def validate(self, target: aot.Target) -> None:
        """Raise :class:`aot.DeclarationError` unless the hardware can do it."""
        self._check_accumulators()
        self._check_cluster(target)
        if self.lines not in (1, 2):
            raise aot.DeclarationError(f"{self.lines} lines of {hw.LINE_BYTES} bytes in a step", hint="one or two")
        if self.rows is not None and (
            self.rows % hw.SWIZZLED_ROWS or self.rows > self.m or self.cluster_m > 1 or self.swapped
        ):
            raise aot.DeclarationError(
                f"{self.rows} rows of {self.m}, in clusters of {self.blocks}",
                hint="rows is a multiple of 8 up to m; the blocks of a cluster are side by side, and `a` and `b` not swapped",
            )
        if self.loaded_rows % (hw.SWIZZLED_ROWS * self.cluster_n):
            raise aot.DeclarationError(
                f"{self.cluster_n} blocks load parts of {self.loaded_rows} rows",
                hint=f"each block of a cluster loads a multiple of {hw.SWIZZLED_ROWS} rows of the tile of `a` that they share",
            )

    def _check_accumulators(self) -> None:
        rows, columns, least = self.own_rows, self.own_columns, self.least_columns
        if (
            self.m % hw.WGMMA_ROWS
            or rows % hw.WGMMA_ROWS
            or columns % least
            or not STORED_COLUMNS <= columns <= hw.MOST_COLUMNS
        ):
            raise aot.DeclarationError(
                f"{rows} x {columns} of a tile of {self.m} x {self.n} for one warp group",
                hint=f"multiples of {hw.WGMMA_ROWS} rows and of {least} columns, from {STORED_COLUMNS} to {hw.MOST_COLUMNS} columns",
            )
        registers = self.accumulators + (self.accumulators // self.parts if self.promoted else 0)
        if registers > hw.MOST_ACCUMULATORS:
            raise aot.DeclarationError(
                f"{registers} registers of a thread for {rows} x {columns} sums of one warp group",
                hint=f"there is room for {hw.MOST_ACCUMULATORS}",
            )

    def _check_cluster(self, target: aot.Target) -> None:
        if not 1 <= self.blocks <= target.max_cluster:
            raise aot.DeclarationError(f"clusters of {self.blocks}; {target.arch} takes up to {target.max_cluster}")
        split = self.split_k > 1
        if split and (self.cluster_m * self.cluster_n > 1 or self.gated or self.own_columns % self.least_columns):
            raise aot.DeclarationError(
                f"{self.split_k} blocks that sum parts of {self.own_columns} columns, in clusters of {self.blocks}",
                hint="split-K goes with neither multicast nor gating",
            )
