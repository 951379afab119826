"""Products of rows that belong to experts. Build them with ``--family experts`` or ``--family all``."""
