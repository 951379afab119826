"""The gradients of attention, in one dtype and one width."""

import dataclasses

from kernels.attention import attention_backward as shipped

ONE = {"dtype": {"bf16": "bf16"}, "layout": {"batch": "batch", "ragged": "ragged"}, "dims": {"dim64": (64, 64)}}
ONE["sinks"] = {"no_sinks": False}
attention_backward = dataclasses.replace(shipped.attention_backward, axes=ONE)
