-- What a differential refresh hands on to the next one: what aggregates inside the query are made of.

-- Valid while the stream table has this frontier. For nobody to read: values of the sources are in it.
CREATE TABLE pgtrickle.pgt_memory (
    pgt_id   bigint NOT NULL PRIMARY KEY REFERENCES pgtrickle.pgt_stream_tables ON DELETE CASCADE,
    frontier jsonb  NOT NULL,
    memory   jsonb  NOT NULL
);
