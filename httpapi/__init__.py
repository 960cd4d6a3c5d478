"""The HTTP door: routes, wire types, problems, and the server that runs in its own child process."""
