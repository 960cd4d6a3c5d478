"""The only code that executes the product's SQL.

Each module is one subject and takes a `db.Connection`. Rules that hold for all of them:

- A guarded write decides by the row it returns, never by a row read before.
- Locks are taken in one order: incarnation, slot (in id order), task. Nobody ever waits for a row of `ready` or
  `scheduled`: they are taken with SKIP LOCKED.
- A write whose answer was lost raises `errors.InDoubt`; what to do then stands beside the statement.
"""
