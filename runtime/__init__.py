"""What a task is, and how its truth is kept: states, the store, the driver layer, handlers, effects."""
