"""Values, functions and modules in a form that is the same in every process."""
