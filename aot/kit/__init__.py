"""A folder that proves a bundle on a machine without a network: GPUs are usually behind such walls."""
