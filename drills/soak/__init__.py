"""A soak: random harm to pools under traffic, a history of all that was said and done, and a judge of both."""
