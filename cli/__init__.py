"""The command line: one file per command; config.py is the only reader of the environment."""
