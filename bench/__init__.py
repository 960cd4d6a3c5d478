"""`deadsure bench`: what this database and this machine can do, each figure beside its floor from the same run."""
