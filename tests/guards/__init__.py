"""Every guard of the product, what takes it out, and which test then fails.

The guards stand in the `.toml` files beside this one, one file per subject. `make guards` takes each out of a copy of
the tree and shows the test that notices (`python -m guards`). `tests/test_guards.py` keeps table and sources in step.
"""
