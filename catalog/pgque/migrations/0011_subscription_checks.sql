-- A subscription is updated twice for each batch, and PostgreSQL reads every CHECK from its text for each statement. Four of them were a fifth
-- of the time of a small batch. Roles, which hardly ever change, are checked by a trigger (guard_subscription_role); the rest is one CHECK.
ALTER TABLE pgque.subscription
    DROP CONSTRAINT IF EXISTS subscription_check,
    DROP CONSTRAINT IF EXISTS subscription_check1,
    DROP CONSTRAINT IF EXISTS subscription_check2,
    DROP CONSTRAINT IF EXISTS subscription_sub_role_check,
    ADD CONSTRAINT subscription_check
        CHECK ((sub_last_tick IS NOT NULL OR sub_main IS NOT NULL) AND (sub_batch IS NULL OR sub_role <> 'coop_main'));
