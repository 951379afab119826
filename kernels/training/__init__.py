"""What a step of training needs beside gradients: the optimizer.

Build it with ``--family training``, or with ``--family all``.
"""
