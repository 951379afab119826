"""What a kernel's code came from: files, modules, and whose they are. The cache compares them."""
