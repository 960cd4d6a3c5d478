-- name: client_submit
-- For `deadsure.submit` on the caller's own DB-API connection, hence the placeholders of its `format` paramstyle.
-- One row: the id. What it refuses is an error of the driver's, and the caller's transaction has failed.
select deadsure.submit(cast(%s as text), cast(%s as jsonb), cast(%s as text), cast(%s as text), cast(%s as integer),
                       cast(%s as timestamptz), cast(%s as integer), cast(%s as double precision));
