"""From compiled launchers to the libraries of a bundle, for any host from any host.

``llvm_ir`` makes a launcher portable, ``toolchain`` runs zig, ``nvidia`` finds the static libraries
of the target host, ``libraries`` links what a bundle consists of.
"""
