-- Messages in English where the server reads them, whatever language the session has.
ALTER FUNCTION pgtrickle._context_in_english() SET lc_messages = 'C';
