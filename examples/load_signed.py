"""Loads a signed bundle. ``docs/concepts/signatures.md`` says how keys are made and rotated."""

import aot_runtime

# The bundle is refused unless this key signed it.
kernels = aot_runtime.load("dist/kernels", key="release.pub")

# Two keys, while one replaces the other.
kernels = aot_runtime.load("dist/kernels", key=["release-2026.pub", "release-2027.pub"])

# A key in source code.
RELEASE_KEY = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
