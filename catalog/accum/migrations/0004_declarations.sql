-- What a register is declared with is kept as it was written: types in their own spelling, columns in their order.

-- The list has the types as they were written, which jsonb can, and the names in order, which it cannot; NULL where only jsonb has
-- been given. Columns that another installation's dump leaves out have the defaults of register_create.
ALTER TABLE @extschema@._registers
    ADD COLUMN column_order text[],
    ALTER COLUMN kind SET DEFAULT 'balance',
    ALTER COLUMN totals_period SET DEFAULT 'day',
    ALTER COLUMN partition_by SET DEFAULT 'month',
    ALTER COLUMN high_write SET DEFAULT false,
    ALTER COLUMN recorder_type SET DEFAULT 'text';
