-- Systems that somebody has taken out of the database: a server does not install them by itself.
CREATE TABLE pgtrickle.pgt_uninstalled (
    extension      text        NOT NULL PRIMARY KEY,
    uninstalled_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
REVOKE ALL ON pgtrickle.pgt_uninstalled FROM PUBLIC;
GRANT SELECT ON pgtrickle.pgt_uninstalled TO PUBLIC;
