-- A subscription is updated twice for each batch. An index of sub_batch, which each of these changes, had PostgreSQL make new entries in every
-- index of the table, and read the CHECK from its text: together that was a sixth of the time of a small batch. Who finishes a batch looks where
-- the session has got one before, else through the table, which is small (finish_batch); what a subscription may be is checked by a trigger
-- (guard_subscription_batch).
ALTER TABLE pgque.subscription
    DROP CONSTRAINT IF EXISTS subscription_check,
    DROP CONSTRAINT IF EXISTS subscription_sub_batch_key;
