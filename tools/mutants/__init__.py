"""Whether tests and fuzzers would notice: mistakes put into the code one by one. See ``docs/dev/nets.md``."""
