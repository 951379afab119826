"""Matrix products: each file declares one and names the family that builds it. What Hopper's share is in ``sm90``.

``gemm`` and ``gemm_gated`` are built by default; ``gemm_f32``, ``gemm_fp8`` and those of experts with ``--family f32``, ``fp8``
or ``experts``, or with ``--family all``.
"""
