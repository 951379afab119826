"""Attention of prompts: problems and tiles, the producer of keys and values, the mainloop, and the kernels of sm_80 and sm_90."""
