"""The page ``docs/gallery.md`` and its plots: every shipped kernel, and its speed beside the best contender."""
