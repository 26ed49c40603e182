-- Which cluster the transaction ids in a queue's ticks and events belong to: see functions/35_clusters.sql.

ALTER TABLE pgque.queue ADD COLUMN queue_cluster bigint;
UPDATE pgque.queue SET queue_cluster = (SELECT system_identifier FROM pg_catalog.pg_control_system());
