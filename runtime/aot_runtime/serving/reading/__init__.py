"""What tracing read beside the arguments of a call, found in the live process and compared."""
