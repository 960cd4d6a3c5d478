"""What the tests are made of: a PostgreSQL, the store without processes, a pool of real processes, waiting."""
