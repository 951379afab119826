"""Wheels out of bundles: a package that needs apache-tvm-ffi, and neither CuTe DSL nor a compiler."""
