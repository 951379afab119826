"""Disk caches of libraries, and the variables that turn them off: a cache would answer before anything is compiled."""

from __future__ import annotations

__all__ = ["NO_CACHES", "NO_CACHES_OF_SERVED"]

# SGLang's cache exports what it is given to a file, and fails if there is nothing to export, as of a served kernel.
NO_CACHES_OF_SERVED = {"SGLANG_CUTE_AOT_CACHE_DIR": ""}
NO_CACHES = {
    "QUACK_CACHE_ENABLED": "0",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "0",
    "FLASHINFER_CUTE_DSL_DISABLE_CACHE": "1",
    "B12X_COMPILE_DISK_CACHE": "0",
    "CUDNN_FRONTEND_DISABLE_COMPILED_CACHE": "1",
    **NO_CACHES_OF_SERVED,
}
