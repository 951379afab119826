"""What code reads beside its arguments while a kernel is traced: noted, so that a served call can be compared."""
