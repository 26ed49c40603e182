-- The wrapper of foreign tables that Spark reads. It has no handler: PostgreSQL itself cannot read them, stream tables can.
-- Whoever may use it lets others read files with the rights of the server: nobody may until somebody grants it.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_foreign_data_wrapper WHERE fdwname = 'headwater_lake') THEN
        CREATE FOREIGN DATA WRAPPER headwater_lake;
    END IF;
END $$;
