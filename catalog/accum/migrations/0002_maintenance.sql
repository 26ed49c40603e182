-- When the engine has last looked after all registers.

CREATE TABLE @extschema@._maintenance_runs (
    task text PRIMARY KEY,
    started_at timestamptz NOT NULL,
    finished_at timestamptz NOT NULL
);
GRANT SELECT ON @extschema@._maintenance_runs TO PUBLIC;
