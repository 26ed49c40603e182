-- The catalog of registers: what each register accumulates, and by what.
--
-- Everything else of a register is its own: the tables `<name>_movements`, `_totals_day`, `_totals_month`,
-- `_totals_year`, `_balance_cache` and `_movements_audit`, and the functions that are generated for it. They belong to
-- the role that created the register, which grants on them as on any table. The functions of this schema have their
-- caller's rights.

CREATE SCHEMA IF NOT EXISTS @extschema@;
GRANT USAGE ON SCHEMA @extschema@ TO PUBLIC;

CREATE TABLE @extschema@._schema_version (
    version text PRIMARY KEY,
    description text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
GRANT SELECT ON @extschema@._schema_version TO PUBLIC;

CREATE TABLE @extschema@._registers (
    name text PRIMARY KEY,
    kind text NOT NULL CHECK (kind IN ('balance', 'turnover')),
    dimensions jsonb NOT NULL,
    resources jsonb NOT NULL,
    totals_period text NOT NULL CHECK (totals_period IN ('day', 'month', 'year')),
    partition_by text NOT NULL CHECK (partition_by IN ('day', 'month', 'quarter', 'year')),
    high_write boolean NOT NULL,
    recorder_type text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- Who may create a table here may write down a register of it. What is written is never trusted: names are quoted and
-- types looked up whenever code is made from them, and such code runs with no more than the rights of whoever calls it.
CREATE FUNCTION @extschema@._owns(register text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_has_role(coalesce(
        (SELECT c.relowner FROM pg_class c
          WHERE c.relnamespace = '@extschema@'::regnamespace AND c.relname = register || '_movements'),
        (SELECT n.nspowner FROM pg_namespace n WHERE n.oid = '@extschema@'::regnamespace)), 'USAGE')
$$;

ALTER TABLE @extschema@._registers ENABLE ROW LEVEL SECURITY;
CREATE POLICY everybody_sees ON @extschema@._registers FOR SELECT USING (true);
CREATE POLICY owners_insert ON @extschema@._registers FOR INSERT WITH CHECK (@extschema@._owns(name));
CREATE POLICY owners_update ON @extschema@._registers FOR UPDATE USING (@extschema@._owns(name));
CREATE POLICY owners_delete ON @extschema@._registers FOR DELETE USING (@extschema@._owns(name));
GRANT SELECT, INSERT, UPDATE, DELETE ON @extschema@._registers TO PUBLIC;
