-- Names that go into statements follow from the queue's number, whoever may change the row.

ALTER TABLE pgque.queue
    ADD CHECK (queue_data_pfx = 'pgque.event_' || queue_id),
    ADD CHECK (queue_event_seq = 'pgque.event_' || queue_id || '_id_seq'),
    ADD CHECK (queue_tick_seq = 'pgque.event_' || queue_id || '_tick_seq'),
    ADD CHECK (queue_ntables = 3 AND queue_cur_table BETWEEN 0 AND 2);
