"""Stages of shared memory that a producer fills and consumers read, with an mbarrier for either direction.

A stage is *full* when all bytes that TMA was asked for have arrived, and *empty* when every consumer warp has released
it. A state counts stages: the index of the current one, and a phase that flips each time the index returns to zero.

What is guaranteed: a consumer that waited for a stage sees all of it, and a producer that acquired a stage overwrites
nothing that is still read. What is not: an mbarrier tells a phase from the one before it, no more. So nobody may wait for a
stage while others are more than one round of the stages ahead.
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass.pipeline import (
    Agent,
    CooperativeGroup,
    PipelineAsync,
    PipelineState,
    PipelineTmaAsync,
    PipelineUserType,
    make_pipeline_state,
    pipeline_init_arrive,
    pipeline_init_wait,
)

from .._versions import skip_stages as skip_stages


def tma_pipeline(
    barriers: cute.Pointer,
    stages: int,
    stage_bytes: int,
    consumer_warps: int,
    producers: int = 1,
    cluster: tuple[int, int] = (1, 1),
) -> PipelineTmaAsync:
    """A pipeline that TMA fills.

    ``barriers`` has room for two mbarriers per stage. ``producers`` arrivals and ``stage_bytes`` bytes make a stage full;
    ``consumer_warps`` warps, those of all blocks that receive a multicast tile, make it empty. ``cluster`` counts blocks
    along m and n: a warp reports to each block that has loaded a part of what it read.

    When a warp releases a stage, one lane for each of these blocks arrives, and does not wait for the other lanes. After
    ``warpgroup.wait_group`` that is right. If lanes have read the stage by themselves, ``sync_warp`` must come first.
    """
    return PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=stages,
        producer_group=CooperativeGroup(Agent.Thread, producers),
        consumer_group=CooperativeGroup(Agent.Thread, consumer_warps),
        tx_count=stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, *cluster, 1)),
        defer_sync=True,  # one `init_barriers` serves all pipelines of a kernel
    )


def thread_pipeline(barriers: cute.Pointer, stages: int, producers: int, consumers: int) -> PipelineAsync:
    """A pipeline that threads fill: ``producers`` arrivals make a stage full, ``consumers`` make it empty.

    Each thread that commits or releases arrives. To count warps, elect one of their threads.
    """
    return PipelineAsync.create(
        barrier_storage=barriers,
        num_stages=stages,
        producer_group=CooperativeGroup(Agent.Thread, producers),
        consumer_group=CooperativeGroup(Agent.Thread, consumers),
        defer_sync=True,
    )


def init_barriers(blocks: int = 1) -> None:
    """Make the mbarriers of all pipelines visible to the block, or to a cluster of ``blocks`` blocks.

    The fence orders the initialization before whatever others do with the mbarriers, TMA of another block too. The wait
    keeps every thread, of every block of the cluster, from arriving at an mbarrier that is not there yet. The arrival of a
    cluster may be relaxed, because nothing but the mbarriers must be visible, and the fence has seen to these.
    """
    pipeline_init_arrive(cluster_shape_mn=(blocks, 1), is_relaxed=True)
    pipeline_init_wait(cluster_shape_mn=(blocks, 1))


def producer_state(stages: int) -> PipelineState:
    """A state whose first acquire of each stage passes at once: they are empty to begin with."""
    return make_pipeline_state(PipelineUserType.Producer, stages)


def consumer_state(stages: int) -> PipelineState:
    return make_pipeline_state(PipelineUserType.Consumer, stages)


def state_at(step, stages: int, phase: int = 0) -> PipelineState:
    """The state after ``step`` stages, for warps that do not take all of them; a producer's ``phase`` starts with 1.

    An mbarrier that nobody arrived at is in phase 0, and a wait for phase 1 passes there: as if that phase had ended.
    """
    return PipelineState(stages, step, step % stages, (step // stages + phase) % 2)
