"""Python imports this at its start in processes that shall use an altered copy of the project.

An editable install has a finder of its own, which goes before every path.
"""

import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "ScikitBuildRedirectingFinder"]
