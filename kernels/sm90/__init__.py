"""The parts that Hopper kernels are made of. No kernel is declared here.

* ``hardware``: constants, named barriers, the register split, which thread has which accumulator
* ``pipeline``: stages between a producer and consumers, with their mbarriers
* ``tiling``: the shape of a tile, pingpong or cooperative, multicast in a cluster, split-K, operands swapped
* ``scheduler``: the tile scheduler of persistent blocks; the swizzle of its order is in ``kernels/_scheduler.py``
* ``mainloop``: the producer warp and the consumer warp groups, with or without promotion of sums
* ``split_k``: the sums of the blocks of a split-K cluster
* ``epilogue``: what becomes of the sums, and TMA stores; ``accumulate`` is one
* ``product``: the kernel that these make together
* ``softmax``: wgmma on either side of a softmax, for attention
"""
