"""Selection, as the builder prepares it: what each variant requires, and the tree that decides.

``requirements`` derives intervals from the declared arguments, ``decision`` arranges them into a tree,
``tables`` writes both as C for ``runtime/src`` to follow. All three are pure.
"""
