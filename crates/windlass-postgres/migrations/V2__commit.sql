-- The commit of a batch: one call of one function over arrays of rows.
--
-- The caller has folded the batch, so that in it at most one commit guards or creates a run, names
-- a task or sends a given message; see crates/windlass-kernel/src/fold.rs. `idx` is the number of a
-- commit in the batch, from 1, and `op` whatever the caller wants to find again.

-- A run to lock. kind 0: only lock it; 2: held; 3: free.
CREATE TYPE @schema@.batch_run AS (
    idx int4, kind int2, run_key uuid, head bytea, next_ordinal int8, worker uuid, claim_no int8);
-- A task to lock. kind 0: only lock it; 1: guarded and leaves; 2: guarded and stays.
CREATE TYPE @schema@.batch_task AS (
    idx int4, kind int2, task_id uuid, worker uuid, claim_no int8);
CREATE TYPE @schema@.batch_create AS (
    idx int4, op int4, run_key uuid, namespace text, workflow text, model text, id text,
    generation int8, status text, input bytea, input_encoding text, input_hash bytea,
    output bytea, output_encoding text, error bytea, error_encoding text,
    state bytea, state_encoding text, head bytea, next_ordinal int8, cursor uuid, root uuid,
    parent uuid, fork text, labels text, trace text, headers text, on_end text, deadline_at int8, created_at int8,
    started_at int8, updated_at int8, ended_at int8, retention_until int8, queue text,
    priority int2, turn_ready bool, turn_due_at int8, turn_worker uuid, turn_claim_no int8,
    turn_reclaims int8, limit_key text, accepted int8, seen int8);
-- wake 0: keep the turn; 1: now; 2: at a time; 3: on a message; 4: never, the run ends. `worker` is
-- who has the turn if it is kept; `takes` whether the commit takes it; `was_…` is what the guard
-- expects. In the order of their keys.
CREATE TYPE @schema@.batch_set AS (
    idx int4, run_key uuid, head bytea, next_ordinal int8, cursor uuid, status text,
    output bytea, output_encoding text, error bytea, error_encoding text, state bytea,
    state_encoding text, deadline_at int8, started_at int8, ended_at int8, retention_until int8,
    updated_at int8, worker uuid, takes bool, wake int2, wake_at int8, seen int8,
    was_head bytea, was_ordinal int8, was_claim int8);
CREATE TYPE @schema@.batch_event AS (
    idx int4, run_key uuid, ordinal int8, event_id uuid, event_type text, version int2,
    caused_by bytea, payload bytea, created_at int8, hash bytea);
CREATE TYPE @schema@.batch_step AS (
    idx int4, op int4, run_key uuid, step_key text, name text, kind text, status text,
    position int8, attempt int8, attempts_max int8, input bytea, input_encoding text,
    result bytea, result_encoding text, error bytea, error_encoding text, timeout_us int8,
    due_at int8, wait_for text, created_at int8, updated_at int8);
CREATE TYPE @schema@.batch_label AS (
    idx int4, namespace text, key text, value text, run_key uuid);
-- `created`: the same commit creates the run; `guarded`: it guards the run, whose turn it then has.
CREATE TYPE @schema@.batch_message AS (
    idx int4, op int4, run_key uuid, message_id text, kind text, name text, body bytea,
    body_encoding text, caused_by bytea, sent_at int8, required bool, created bool,
    guarded bool);
CREATE TYPE @schema@.batch_consume AS (
    idx int4, op int4, run_key uuid, seq int8, consumed_by text, consumed_at int8);
CREATE TYPE @schema@.batch_enqueue AS (
    idx int4, task_id uuid, namespace text, run_key uuid, step_key text, kind text, queue text,
    name text, priority int2, ready bool, due_at int8, worker uuid, claim_no int8, attempt int8,
    reclaims int8, body bytea, body_encoding text, errors bytea, errors_encoding text,
    limit_key text, trace text, created_at int8);
CREATE TYPE @schema@.batch_reschedule AS (
    idx int4, task_id uuid, wake int2, wake_at int8, attempt int8, errors bytea,
    errors_encoding text, untried bool);
-- `run_key` is NULL for the guarded task; any other must be of that run.
CREATE TYPE @schema@.batch_settle AS (idx int4, task_id uuid, run_key uuid);
CREATE TYPE @schema@.batch_log AS (
    idx int4, run_key uuid, log_id uuid, step_key text, attempt int8, level text, category text,
    message text, data bytea, data_encoding text, replay bool, created_at int8);
CREATE TYPE @schema@.batch_dead_letter AS (
    idx int4, task_id uuid, namespace text, run_key uuid, step_key text, kind text, queue text,
    name text, attempt int8, body bytea, body_encoding text, errors bytea, errors_encoding text,
    reason text, dead_at int8, requeues int8, requeued_at int8);
CREATE TYPE @schema@.batch_requeue AS (idx int4, op int4, task_id uuid, requeued_at int8);
-- `namespace` is known if the same commit creates the run; else it is looked up by `run_key`.
CREATE TYPE @schema@.batch_cause AS (
    idx int4, op int4, run_key uuid, namespace text, is_run bool, cause uuid);
-- A step or a consumption that the commit itself has made impossible: kind 1 or 2.
CREATE TYPE @schema@.batch_doom AS (idx int4, kind int2, op int4);
-- The records of a batch, in the order of their keys. `expect` 0: absent; -1: present; else the
-- revision. kind 0: check; 1: put; 2: remove. `place` orders the decisions of one commit.
CREATE TYPE @schema@.batch_record AS (
    idx int4, op int4, place int4, kind int2, expect int8, namespace text, collection text, id text,
    write_id uuid, at int8, terms text, body bytea, body_encoding text, keep bool, digest bytea,
    actor text, caused_by bytea, revision int8);
-- A large body, for the tree of `run_key` or for `owner`: `bytes`, or a copy from the tree of `source`.
CREATE TYPE @schema@.batch_body AS (
    idx int4, run_key uuid, owner bytea, digest bytea, bytes bytea, source uuid);
CREATE TYPE @schema@.batch_count AS (namespace text, workflow text, status text, delta int8);

-- What became of it. `code`:
--   0 the clock (n); 1 a run was changed (n accepted, m claim_no; queue, name, flag: its turn is
--   ready, due: it is scheduled); 2 a message was accepted (op, n seq); 3 a message was there (op,
--   n seq); 4 messages readied a turn (queue, name); 5 a task was rescheduled (queue, name, flag,
--   due);
--   10 run missing; 11 run hold (worker, n claim_no); 12 run head (n next_ordinal, hash); 13 run
--   exists (op, key, flag: same input; n accepted, worker, m claim_no); 14 task missing; 15 task
--   hold (worker, n claim_no); 16 record (op, n revision or NULL, flag: removed, key: its write id);
--   20 a required message's run is missing (op); 21 it has ended (op, name status); 22 a cause is
--   missing (op); 23 a step is settled (op); 24 a message is consumed (op); 25 the run whose free
--   turn is to be taken has ended (key, name status); 26 a dead letter is missing or requeued (op).
-- A commit about which nothing is said holds.
CREATE TYPE @schema@.batch_result AS (
    code int2, idx int4, op int4, key uuid, worker uuid, n int8, m int8, hash bytea, queue text,
    name text, flag bool, due int8);

-- Marks the commits that failed.
CREATE FUNCTION @schema@.batch_fail(
    p_ok bool[], p_size int4, p_failed @schema@.batch_result[]
) RETURNS bool[] LANGUAGE plpgsql AS $$
DECLARE
    v_ok bool[] := coalesce(p_ok, array_fill(true, ARRAY[p_size]));
    v_idx int4;
BEGIN
    FOR v_idx IN SELECT f.idx FROM unnest(p_failed) f LOOP
        v_ok[v_idx] := false;
    END LOOP;
    RETURN v_ok;
END $$;

-- The creates whose run exists, by key or by name; rows of this very transaction do not count.
CREATE FUNCTION @schema@.batch_existing(p_creates @schema@.batch_create[])
    RETURNS @schema@.batch_result[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(SELECT DISTINCT ON (c.idx)
        ROW(13, c.idx, c.op, r.run_key, r.turn_worker, r.accepted, r.turn_claim_no, NULL,
            NULL, NULL, r.input_hash = c.input_hash, NULL)::@schema@.batch_result
    FROM unnest(p_creates) c CROSS JOIN LATERAL (
        SELECT k.run_key, k.turn_worker, k.accepted, k.turn_claim_no, k.input_hash, k.xmin AS made
        FROM @schema@.runs k WHERE k.run_key = c.run_key
        UNION ALL
        SELECT k.run_key, k.turn_worker, k.accepted, k.turn_claim_no, k.input_hash, k.xmin
        FROM @schema@.runs k WHERE k.workflow = c.workflow AND k.id = c.id
            AND k.generation = c.generation AND k.namespace || '' = c.namespace) r
    WHERE r.made <> pg_current_xact_id()::xid
    ORDER BY c.idx, c.op, r.run_key <> c.run_key);
END $$;

-- Commits that settle the task that they guard and do nothing else, in the order of the tasks: each row
-- is found once, and goes if it is held as its commit says, which is decided from the row as it is when
-- it is locked. If one is not, nothing is written, and `commit_batch` tells who is to blame.
--
-- The holders are not compared by `=`: that would let the planner take an index of held tasks, which in a
-- table without statistics it prefers to the primary key, and walk all that is held for each row.
CREATE FUNCTION @schema@.settle_batch(p_tasks uuid[], p_workers uuid[], p_claims int8[])
    RETURNS SETOF @schema@.batch_result LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_n int8;
BEGIN
    DELETE FROM @schema@.tasks t USING unnest(p_tasks, p_workers, p_claims) x (task_id, worker, claim_no)
    WHERE t.task_id = x.task_id AND t.worker IS NOT DISTINCT FROM x.worker
        AND t.claim_no = x.claim_no;
    GET DIAGNOSTICS v_n = ROW_COUNT;
    IF v_n <> cardinality(p_tasks) THEN
        RAISE EXCEPTION 'a task is not held' USING ERRCODE = 'WL001';
    END IF;
    RETURN NEXT ROW(0, NULL, NULL, NULL, NULL, @schema@.clock_us(), NULL, NULL, NULL, NULL, NULL, NULL)
        ::@schema@.batch_result;
END $$;

-- p_mode 0: write, and raise WL001, or break a key, where only the careful way can tell who is to
-- blame; 3: the same, but expect runs that exist; 1: look before writing; 2: decide only. p_status:
-- some change of a run names a status. p_steps are steps that are new as far as their writer knows,
-- p_puts may replace others.
--
-- A quick batch that sends nothing and names no task may come without p_runs: then its changes of
-- runs check their guards themselves, in the order of the keys, and spare the look-up of each row.
CREATE FUNCTION @schema@.commit_batch(
    p_mode int2, p_size int4, p_status bool,
    p_runs @schema@.batch_run[], p_tasks @schema@.batch_task[],
    p_creates @schema@.batch_create[], p_sets @schema@.batch_set[],
    p_events @schema@.batch_event[], p_steps @schema@.batch_step[],
    p_labels @schema@.batch_label[], p_messages @schema@.batch_message[],
    p_consumes @schema@.batch_consume[], p_enqueues @schema@.batch_enqueue[],
    p_reschedules @schema@.batch_reschedule[], p_settles @schema@.batch_settle[],
    p_logs @schema@.batch_log[], p_dead_letters @schema@.batch_dead_letter[],
    p_causes @schema@.batch_cause[], p_dooms @schema@.batch_doom[],
    p_puts @schema@.batch_step[], p_requeues @schema@.batch_requeue[],
    p_records @schema@.batch_record[], p_bodies @schema@.batch_body[]
) RETURNS SETOF @schema@.batch_result LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_careful bool := p_mode IN (1, 2);
    v_now     int8;
    v_ok      bool[];          -- by commit; NULL while all hold
    v_good    bool;
    v_tasks_good bool;
    v_ended   bool := false;
    v_n       int8;
    v_probed  bool := false;
    v_failed  @schema@.batch_result[];
    v_counts  @schema@.batch_count[];
BEGIN
    IF v_careful AND p_steps IS NOT NULL THEN
        p_puts := coalesce(p_puts, '{}') || p_steps;
        p_steps := NULL;
    END IF;
    -- 1. Lock everything named, in the order of the keys: LockRows sits above the sort. The guard
    -- is decided from the locked row itself, so a wait for a lock cannot leave an old answer.
    IF p_runs IS NOT NULL THEN
        SELECT count(*), coalesce(bool_and(good), true), coalesce(bool_or(ended), false)
        INTO v_n, v_good, v_ended FROM (
            SELECT g.kind = 3 AND r.status IN ('complete', 'errored', 'terminated') AS ended,
                CASE g.kind
                WHEN 0 THEN true
                WHEN 2 THEN r.turn_worker IS NOT DISTINCT FROM g.worker
                    AND r.turn_claim_no = g.claim_no
                    AND r.next_ordinal = g.next_ordinal AND r.head = g.head
                ELSE r.turn_worker IS NULL
                    AND r.status NOT IN ('complete', 'errored', 'terminated')
                    AND r.next_ordinal = g.next_ordinal AND r.head = g.head
            END AS good
            FROM unnest(p_runs) g JOIN @schema@.runs r ON r.run_key = g.run_key
            ORDER BY r.run_key FOR NO KEY UPDATE OF r) locked;
    END IF;
    IF p_tasks IS NOT NULL THEN
        SELECT count(*) = cardinality(p_tasks) AND coalesce(bool_and(good), true)
        INTO v_tasks_good FROM (
            SELECT g.kind = 0 OR t.worker IS NOT DISTINCT FROM g.worker
                AND t.claim_no = g.claim_no AS good
            FROM unnest(p_tasks) g JOIN @schema@.tasks t ON t.task_id = g.task_id
            ORDER BY t.task_id FOR UPDATE OF t) locked;
    END IF;
    v_now := @schema@.clock_us();
    RETURN NEXT ROW(0, NULL, NULL, NULL, NULL, v_now, NULL, NULL, NULL, NULL, NULL, NULL)
        ::@schema@.batch_result;

    -- 2. Decide the guards: the run's, the creates', the task's, the records'.
    IF p_runs IS NOT NULL AND (v_n <> cardinality(p_runs) OR NOT v_good) THEN
        v_failed := ARRAY(SELECT ROW(
                CASE WHEN missing THEN 10 WHEN hold THEN 11 ELSE 12 END, idx, NULL, run_key,
                turn_worker, CASE WHEN hold THEN turn_claim_no ELSE next_ordinal END, NULL, head,
                NULL, NULL, NULL, NULL)::@schema@.batch_result
            FROM (SELECT g.idx, g.run_key, r.run_key IS NULL AS missing, r.turn_worker,
                    r.turn_claim_no, r.next_ordinal, r.head,
                    CASE WHEN g.kind = 2 THEN r.turn_worker IS DISTINCT FROM g.worker
                            OR r.turn_claim_no <> g.claim_no
                        ELSE r.turn_worker IS NOT NULL END AS hold,
                    r.next_ordinal <> g.next_ordinal OR r.head <> g.head AS moved
                FROM unnest(p_runs) g LEFT JOIN @schema@.runs r ON r.run_key = g.run_key
                WHERE g.kind <> 0) guarded
            WHERE missing OR hold OR moved);
        IF cardinality(v_failed) > 0 THEN
            v_ok := @schema@.batch_fail(v_ok, p_size, v_failed);
            RETURN QUERY SELECT * FROM unnest(v_failed);
        END IF;
    END IF;
    -- A create that fails must fail before anything less than a guard is looked at, or a commit
    -- that is sent again would be refused for what it did itself.
    IF p_creates IS NOT NULL AND (v_careful OR p_tasks IS NOT NULL OR p_messages IS NOT NULL
            OR p_causes IS NOT NULL OR p_records IS NOT NULL) THEN
        v_probed := true;
        v_failed := ARRAY(SELECT f FROM unnest(@schema@.batch_existing(p_creates)) f
            WHERE v_ok IS NULL OR v_ok[f.idx]);
        IF cardinality(v_failed) > 0 THEN
            v_ok := @schema@.batch_fail(v_ok, p_size, v_failed);
            RETURN QUERY SELECT * FROM unnest(v_failed);
        END IF;
    END IF;
    IF p_tasks IS NOT NULL AND v_tasks_good IS DISTINCT FROM true THEN
        v_failed := ARRAY(SELECT ROW(CASE WHEN t.task_id IS NULL THEN 14 ELSE 15 END, g.idx, NULL,
                g.task_id, t.worker, t.claim_no, NULL, NULL, NULL, NULL, NULL, NULL)
                ::@schema@.batch_result
            FROM unnest(p_tasks) g LEFT JOIN @schema@.tasks t ON t.task_id = g.task_id
            WHERE g.kind <> 0 AND (v_ok IS NULL OR v_ok[g.idx]) AND (t.task_id IS NULL
                OR t.worker IS DISTINCT FROM g.worker OR t.claim_no <> g.claim_no));
        IF cardinality(v_failed) > 0 THEN
            v_ok := @schema@.batch_fail(v_ok, p_size, v_failed);
            RETURN QUERY SELECT * FROM unnest(v_failed);
        END IF;
    END IF;

    IF p_records IS NOT NULL THEN
        v_failed := @schema@.batch_records_failed(p_records, v_ok);
        IF cardinality(v_failed) > 0 THEN
            v_ok := @schema@.batch_fail(v_ok, p_size, v_failed);
            RETURN QUERY SELECT * FROM unnest(v_failed);
        END IF;
    END IF;

    -- 3. Decide the refusals: ended runs, required messages, causes, settled steps, consumed messages.
    -- Nobody holds the turn of an ended run, so a commit that takes it passes the guards.
    IF p_runs IS NOT NULL AND NOT v_good THEN
        v_failed := ARRAY(SELECT ROW(25, g.idx, NULL, g.run_key, NULL, NULL, NULL, NULL, NULL,
                r.status, NULL, NULL)::@schema@.batch_result
            FROM unnest(p_runs) g JOIN @schema@.runs r ON r.run_key = g.run_key
            WHERE g.kind = 3 AND (v_ok IS NULL OR v_ok[g.idx])
                AND r.status IN ('complete', 'errored', 'terminated'));
        IF cardinality(v_failed) > 0 THEN
            v_ok := @schema@.batch_fail(v_ok, p_size, v_failed);
            RETURN QUERY SELECT * FROM unnest(v_failed);
        END IF;
    END IF;
    IF p_messages IS NOT NULL THEN
        v_failed := ARRAY(SELECT DISTINCT ON (m.idx)
                ROW(CASE WHEN r.run_key IS NULL THEN 20 ELSE 21 END, m.idx, m.op, m.run_key, NULL,
                    NULL, NULL, NULL, NULL, r.status, NULL, NULL)::@schema@.batch_result
            FROM unnest(p_messages) m LEFT JOIN @schema@.runs r ON r.run_key = m.run_key
            WHERE m.required AND NOT m.created AND (v_ok IS NULL OR v_ok[m.idx])
                AND (r.run_key IS NULL OR r.status IN ('complete', 'errored', 'terminated'))
                AND NOT EXISTS (SELECT FROM @schema@.messages d
                    WHERE d.run_key = m.run_key AND d.message_id = m.message_id)
            ORDER BY m.idx, m.op);
        IF cardinality(v_failed) > 0 THEN
            v_ok := @schema@.batch_fail(v_ok, p_size, v_failed);
            RETURN QUERY SELECT * FROM unnest(v_failed);
        END IF;
    END IF;
    IF p_causes IS NOT NULL THEN
        -- A run with a cause stays until this commit is written: retention may delete it otherwise, and this
        -- commit may create a run that reads its rows.
        v_failed := ARRAY(SELECT DISTINCT ON (c.idx) ROW(22, c.idx, c.op, c.cause, NULL, NULL, NULL,
                NULL, NULL, NULL, NULL, NULL)::@schema@.batch_result
            FROM unnest(p_causes) c
            WHERE (v_ok IS NULL OR v_ok[c.idx])
                AND coalesce(c.namespace,
                        (SELECT r.namespace FROM @schema@.runs r WHERE r.run_key = c.run_key))
                    IS DISTINCT FROM CASE WHEN c.is_run
                        THEN (SELECT r.namespace FROM @schema@.runs r WHERE r.run_key = c.cause
                            FOR KEY SHARE)
                        ELSE (SELECT r.namespace FROM @schema@.events e
                            JOIN @schema@.runs r ON r.run_key = e.run_key
                            WHERE e.event_id = c.cause LIMIT 1 FOR KEY SHARE OF r) END
            ORDER BY c.idx, c.op);
        IF cardinality(v_failed) > 0 THEN
            v_ok := @schema@.batch_fail(v_ok, p_size, v_failed);
            RETURN QUERY SELECT * FROM unnest(v_failed);
        END IF;
    END IF;
    IF v_careful THEN
        v_failed := ARRAY(SELECT DISTINCT ON (x.idx) ROW(23, x.idx, x.op, NULL, NULL, NULL, NULL,
                NULL, NULL, NULL, NULL, NULL)::@schema@.batch_result
            FROM (SELECT s.idx, s.op FROM unnest(p_puts) s JOIN @schema@.steps t
                    ON t.run_key = s.run_key AND t.step_key = s.step_key
                WHERE t.status IN ('completed', 'errored', 'skipped', 'cancelled')
                UNION ALL SELECT d.idx, d.op FROM unnest(p_dooms) d WHERE d.kind = 1) x
            WHERE v_ok IS NULL OR v_ok[x.idx] ORDER BY x.idx, x.op);
        IF cardinality(v_failed) > 0 THEN
            v_ok := @schema@.batch_fail(v_ok, p_size, v_failed);
            RETURN QUERY SELECT * FROM unnest(v_failed);
        END IF;
        v_failed := ARRAY(SELECT DISTINCT ON (x.idx) ROW(24, x.idx, x.op, NULL, NULL, NULL, NULL,
                NULL, NULL, NULL, NULL, NULL)::@schema@.batch_result
            FROM (SELECT c.idx, c.op FROM unnest(p_consumes) c LEFT JOIN @schema@.messages m
                    ON m.run_key = c.run_key AND m.seq = c.seq
                WHERE m.run_key IS NULL OR m.consumed_by IS NOT NULL
                UNION ALL SELECT d.idx, d.op FROM unnest(p_dooms) d WHERE d.kind = 2) x
            WHERE v_ok IS NULL OR v_ok[x.idx] ORDER BY x.idx, x.op);
        IF cardinality(v_failed) > 0 THEN
            v_ok := @schema@.batch_fail(v_ok, p_size, v_failed);
            RETURN QUERY SELECT * FROM unnest(v_failed);
        END IF;
    END IF;
    IF p_requeues IS NOT NULL THEN
        PERFORM FROM (SELECT FROM unnest(p_requeues) q
            JOIN @schema@.dead_letters d ON d.task_id = q.task_id
            ORDER BY d.task_id FOR UPDATE OF d) locked;
        v_failed := ARRAY(SELECT DISTINCT ON (q.idx) ROW(26, q.idx, q.op, q.task_id, NULL, NULL, NULL,
                NULL, NULL, NULL, NULL, NULL)::@schema@.batch_result
            FROM unnest(p_requeues) q LEFT JOIN @schema@.dead_letters d ON d.task_id = q.task_id
            WHERE (v_ok IS NULL OR v_ok[q.idx])
                AND (d.task_id IS NULL OR d.requeued_at IS NOT NULL)
            ORDER BY q.idx, q.op);
        IF cardinality(v_failed) > 0 THEN
            v_ok := @schema@.batch_fail(v_ok, p_size, v_failed);
            RETURN QUERY SELECT * FROM unnest(v_failed);
        END IF;
    END IF;
    IF p_mode = 2 THEN
        RETURN;
    END IF;

    -- 4. New runs. Who finds its run there fails, and nothing of it has been written yet, unless it
    -- creates several: then the careful way must find out before it writes.
    IF p_creates IS NOT NULL THEN
        IF v_ok IS NOT NULL THEN
            p_creates := ARRAY(SELECT c FROM unnest(p_creates) c WHERE v_ok[c.idx]);
        END IF;
        IF p_mode = 0 THEN
            INSERT INTO @schema@.runs
            SELECT c.run_key, c.namespace, c.workflow, c.model, c.id, c.generation, c.status, c.input,
                c.input_encoding, c.input_hash, c.output, c.output_encoding, c.error,
                c.error_encoding, c.state, c.state_encoding, c.head, c.next_ordinal, c.cursor, c.root,
                c.parent, c.fork, c.labels, c.trace, c.headers, c.on_end, c.deadline_at, c.created_at,
                c.started_at, c.updated_at, c.ended_at, c.retention_until, c.queue, c.priority,
                CASE WHEN c.turn_worker IS NOT NULL THEN false
                    WHEN c.turn_due_at IS NULL THEN c.turn_ready ELSE c.turn_due_at <= v_now END,
                CASE WHEN c.turn_worker IS NULL AND c.turn_ready AND c.turn_due_at IS NULL THEN v_now
                    ELSE c.turn_due_at END,
                c.turn_worker, c.turn_claim_no,
                CASE WHEN c.turn_worker IS NOT NULL THEN v_now END,
                c.turn_reclaims, c.limit_key, c.accepted, c.seen, c.started_at IS NULL, NULL
            FROM unnest(p_creates) c;
        ELSE
            INSERT INTO @schema@.runs
            SELECT c.run_key, c.namespace, c.workflow, c.model, c.id, c.generation, c.status, c.input,
                c.input_encoding, c.input_hash, c.output, c.output_encoding, c.error,
                c.error_encoding, c.state, c.state_encoding, c.head, c.next_ordinal, c.cursor, c.root,
                c.parent, c.fork, c.labels, c.trace, c.headers, c.on_end, c.deadline_at, c.created_at,
                c.started_at, c.updated_at, c.ended_at, c.retention_until, c.queue, c.priority,
                CASE WHEN c.turn_worker IS NOT NULL THEN false
                    WHEN c.turn_due_at IS NULL THEN c.turn_ready ELSE c.turn_due_at <= v_now END,
                CASE WHEN c.turn_worker IS NULL AND c.turn_ready AND c.turn_due_at IS NULL THEN v_now
                    ELSE c.turn_due_at END,
                c.turn_worker, c.turn_claim_no,
                CASE WHEN c.turn_worker IS NOT NULL THEN v_now END,
                c.turn_reclaims, c.limit_key, c.accepted, c.seen, c.started_at IS NULL, NULL
            FROM unnest(p_creates) c
            ON CONFLICT DO NOTHING;
        END IF;
        GET DIAGNOSTICS v_n = ROW_COUNT;
        IF v_n <> cardinality(p_creates) THEN
            v_failed := @schema@.batch_existing(p_creates);
            IF v_probed OR cardinality(v_failed) + v_n <> cardinality(p_creates) OR EXISTS (
                    SELECT FROM unnest(p_creates) c JOIN unnest(v_failed) f USING (idx)
                    WHERE c.op <> f.op) THEN
                RAISE EXCEPTION 'a run was created meanwhile' USING ERRCODE = 'WL001';
            END IF;
            v_ok := @schema@.batch_fail(v_ok, p_size, v_failed);
            RETURN QUERY SELECT * FROM unnest(v_failed);
            p_creates := ARRAY(SELECT c FROM unnest(p_creates) c WHERE v_ok[c.idx]);
        END IF;
    END IF;

    -- 5. From here on only what holds is left, and everything is written unfiltered.
    IF v_ok IS NOT NULL THEN
        p_tasks := ARRAY(SELECT x FROM unnest(p_tasks) x WHERE v_ok[x.idx]);
        p_sets := ARRAY(SELECT x FROM unnest(p_sets) x WHERE v_ok[x.idx]);
        p_events := ARRAY(SELECT x FROM unnest(p_events) x WHERE v_ok[x.idx]);
        p_steps := ARRAY(SELECT x FROM unnest(p_steps) x WHERE v_ok[x.idx]);
        p_puts := ARRAY(SELECT x FROM unnest(p_puts) x WHERE v_ok[x.idx]);
        p_labels := ARRAY(SELECT x FROM unnest(p_labels) x WHERE v_ok[x.idx]);
        p_messages := ARRAY(SELECT x FROM unnest(p_messages) x WHERE v_ok[x.idx]);
        p_consumes := ARRAY(SELECT x FROM unnest(p_consumes) x WHERE v_ok[x.idx]);
        p_enqueues := ARRAY(SELECT x FROM unnest(p_enqueues) x WHERE v_ok[x.idx]);
        p_reschedules := ARRAY(SELECT x FROM unnest(p_reschedules) x WHERE v_ok[x.idx]);
        p_settles := ARRAY(SELECT x FROM unnest(p_settles) x WHERE v_ok[x.idx]);
        p_logs := ARRAY(SELECT x FROM unnest(p_logs) x WHERE v_ok[x.idx]);
        p_dead_letters := ARRAY(SELECT x FROM unnest(p_dead_letters) x WHERE v_ok[x.idx]);
        p_requeues := ARRAY(SELECT x FROM unnest(p_requeues) x WHERE v_ok[x.idx]);
        p_records := ARRAY(SELECT x FROM unnest(p_records) x WHERE v_ok[x.idx]);
        p_bodies := ARRAY(SELECT x FROM unnest(p_bodies) x WHERE v_ok[x.idx]);
    END IF;
    IF p_bodies IS NOT NULL THEN
        PERFORM @schema@.batch_bodies_write(p_bodies);
    END IF;
    IF p_labels IS NOT NULL THEN
        INSERT INTO @schema@.labels
        SELECT x.namespace, x.key, x.value, x.run_key FROM unnest(p_labels) x;
    END IF;

    -- Messages before the changes of runs, so that a release sees what it was sent itself.
    IF p_messages IS NOT NULL THEN
        RETURN QUERY SELECT 3::int2, x.idx, x.op, NULL::uuid, NULL::uuid, d.seq, NULL::int8,
            NULL::bytea, NULL, NULL, NULL::bool, NULL::int8
        FROM unnest(p_messages) x JOIN @schema@.messages d
            ON d.run_key = x.run_key AND d.message_id = x.message_id;
        RETURN QUERY WITH taken AS MATERIALIZED (
            SELECT x.*,
                r.accepted + row_number() OVER (PARTITION BY x.run_key ORDER BY x.idx, x.op) AS seq,
                r.turn_ready AS was_ready, r.turn_due_at AS was_due
            FROM unnest(p_messages) x JOIN @schema@.runs r ON r.run_key = x.run_key
            WHERE r.status NOT IN ('complete', 'errored', 'terminated')
                AND NOT EXISTS (SELECT FROM @schema@.messages d
                    WHERE d.run_key = x.run_key AND d.message_id = x.message_id)
        ), kept AS (
            INSERT INTO @schema@.messages (run_key, seq, message_id, kind, name, body,
                body_encoding, caused_by, sent_at)
            SELECT run_key, seq, message_id, kind, name, body, body_encoding, caused_by, sent_at
            FROM taken
        ), counted AS (
            -- Whether it wakes the turn is decided from the row that is updated. A commit that
            -- guards the run has its turn, and says itself when it is ready. The due time of a run
            -- that has not started is the time of its start: it stays.
            UPDATE @schema@.runs r SET accepted = c.accepted,
                turn_ready = r.turn_ready
                    OR r.turn_worker IS NULL AND (c.orders OR c.calls AND r.status <> 'paused'
                        AND NOT (r.turn_first AND coalesce(r.turn_due_at, v_now) > v_now)),
                turn_due_at = CASE WHEN r.turn_worker IS NULL AND NOT r.turn_ready
                    AND (c.orders OR c.calls AND r.status <> 'paused')
                    AND NOT (r.turn_first AND coalesce(r.turn_due_at, v_now) > v_now)
                    THEN v_now ELSE r.turn_due_at END
            FROM (SELECT run_key, max(seq) AS accepted, bool_or(NOT guarded) AS calls,
                    bool_or(NOT guarded AND kind = 'control') AS orders,
                    bool_and(was_ready) AS was_ready, max(was_due) AS was_due FROM taken
                GROUP BY run_key) c
            WHERE r.run_key = c.run_key
            RETURNING r.turn_ready AND (NOT c.was_ready OR r.turn_due_at IS DISTINCT FROM c.was_due)
                AS wakes, r.queue, r.workflow
        )
        SELECT 2::int2, idx, op, NULL::uuid, NULL::uuid, seq, NULL::int8, NULL::bytea, NULL, NULL,
            NULL::bool, NULL::int8 FROM taken
        UNION ALL
        SELECT 4::int2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, queue, workflow, true, NULL
        FROM counted WHERE wakes;
    END IF;

    -- Changes of runs. `accepted > seen` reads the row that is updated, never another snapshot.
    IF p_sets IS NOT NULL THEN
        IF p_status THEN
            -- Without a lock, which would be out of order: the guard says that nobody but its
            -- holder has changed the row, and what a holder sends again comes the careful way.
            v_counts := ARRAY(SELECT ROW(r.namespace, r.workflow, w.status, w.delta)
                    ::@schema@.batch_count
                FROM unnest(p_sets) u JOIN @schema@.runs r ON r.run_key = u.run_key
                CROSS JOIN LATERAL (VALUES (r.status, -1::int8), (u.status, 1::int8))
                    w (status, delta)
                WHERE u.status IS NOT NULL AND u.status <> r.status);
        END IF;
        RETURN QUERY UPDATE @schema@.runs r SET
            head = u.head, next_ordinal = u.next_ordinal, cursor = u.cursor,
            status = coalesce(u.status, r.status),
            output = coalesce(u.output, r.output),
            output_encoding = coalesce(u.output_encoding, r.output_encoding),
            error = coalesce(u.error, r.error),
            error_encoding = coalesce(u.error_encoding, r.error_encoding),
            state = coalesce(u.state, r.state),
            state_encoding = coalesce(u.state_encoding, r.state_encoding),
            deadline_at = coalesce(u.deadline_at, r.deadline_at),
            started_at = coalesce(u.started_at, r.started_at),
            ended_at = coalesce(u.ended_at, r.ended_at),
            retention_until = coalesce(u.retention_until, r.retention_until),
            updated_at = u.updated_at,
            turn_reclaims = 0,
            seen = coalesce(u.seen, r.seen),
            turn_worker = CASE WHEN u.wake = 0 THEN u.worker END,
            turn_claimed_at = CASE WHEN u.wake <> 0 THEN NULL
                WHEN u.takes THEN v_now ELSE r.turn_claimed_at END,
            turn_claim_no = r.turn_claim_no + CASE WHEN u.takes THEN 1 ELSE 0 END
                + CASE WHEN u.wake <> 0 THEN 1 ELSE 0 END,
            turn_last = CASE WHEN u.wake = 0 THEN r.turn_last WHEN u.wake = 4 THEN NULL
                WHEN u.wake = 2 AND u.wake_at > v_now
                    AND coalesce(u.started_at, r.started_at) IS NULL THEN NULL
                ELSE u.worker END,
            turn_first = CASE WHEN u.wake = 0 THEN r.turn_first
                ELSE coalesce(u.started_at, r.started_at) IS NULL END,
            turn_ready = CASE
                WHEN u.wake IN (0, 4) THEN false
                WHEN r.accepted > u.seen THEN true
                WHEN coalesce(u.status, r.status) = 'paused' THEN false
                WHEN u.wake = 1 THEN true
                WHEN u.wake = 2 THEN u.wake_at <= v_now
                ELSE false END,
            turn_due_at = CASE
                WHEN u.wake = 0 THEN r.turn_due_at
                WHEN u.wake = 4 THEN NULL
                WHEN u.wake = 2 AND u.wake_at > v_now
                    AND coalesce(u.started_at, r.started_at) IS NULL THEN u.wake_at
                WHEN r.accepted > u.seen OR u.wake = 1 THEN v_now
                WHEN u.wake = 2 THEN u.wake_at END
        FROM unnest(p_sets) u
        WHERE r.run_key = u.run_key AND r.next_ordinal = u.was_ordinal AND r.head = u.was_head
            AND CASE WHEN u.takes THEN r.turn_worker IS NULL
                ELSE r.turn_worker = u.worker AND r.turn_claim_no = u.was_claim END
        RETURNING 1::int2, u.idx, NULL::int4, NULL::uuid, NULL::uuid, r.accepted, r.turn_claim_no,
            NULL::bytea, CASE WHEN r.turn_ready THEN r.queue END,
            CASE WHEN r.turn_ready THEN r.workflow END, r.turn_ready,
            CASE WHEN u.wake <> 0 AND NOT r.turn_ready AND r.status <> 'paused'
                THEN r.turn_due_at END;
        GET DIAGNOSTICS v_n = ROW_COUNT;
        IF v_n <> cardinality(p_sets) THEN
            RAISE EXCEPTION 'a guard failed' USING ERRCODE = 'WL001';
        END IF;
    END IF;
    IF p_events IS NOT NULL THEN
        INSERT INTO @schema@.events
        SELECT x.run_key, x.ordinal, x.event_id, x.event_type, x.version, x.caused_by, x.payload,
            x.created_at, x.hash
        FROM unnest(p_events) x;
    END IF;
    IF p_steps IS NOT NULL THEN
        INSERT INTO @schema@.steps
        SELECT x.run_key, x.step_key, x.name, x.kind, x.status, x.position, x.attempt,
            x.attempts_max, x.input, x.input_encoding, x.result, x.result_encoding, x.error,
            x.error_encoding, x.timeout_us, x.due_at, x.wait_for, x.created_at, x.updated_at
        FROM unnest(p_steps) x;
    END IF;
    IF p_puts IS NOT NULL THEN
        INSERT INTO @schema@.steps AS t
        SELECT x.run_key, x.step_key, x.name, x.kind, x.status, x.position, x.attempt,
            x.attempts_max, x.input, x.input_encoding, x.result, x.result_encoding, x.error,
            x.error_encoding, x.timeout_us, x.due_at, x.wait_for, x.created_at, x.updated_at
        FROM unnest(p_puts) x
        ON CONFLICT (run_key, step_key) DO UPDATE SET
            status = excluded.status, attempt = excluded.attempt,
            attempts_max = excluded.attempts_max, input = excluded.input,
            input_encoding = excluded.input_encoding, result = excluded.result,
            result_encoding = excluded.result_encoding, error = excluded.error,
            error_encoding = excluded.error_encoding, timeout_us = excluded.timeout_us,
            due_at = excluded.due_at, wait_for = excluded.wait_for,
            updated_at = excluded.updated_at
        WHERE t.status NOT IN ('completed', 'errored', 'skipped', 'cancelled');
        GET DIAGNOSTICS v_n = ROW_COUNT;
        IF v_n <> cardinality(p_puts) THEN
            RAISE EXCEPTION 'a step is settled' USING ERRCODE = 'WL001';
        END IF;
    END IF;
    IF p_consumes IS NOT NULL THEN
        UPDATE @schema@.messages m SET consumed_by = x.consumed_by, consumed_at = x.consumed_at
        FROM unnest(p_consumes) x
        WHERE m.run_key = x.run_key AND m.seq = x.seq AND m.consumed_by IS NULL;
        GET DIAGNOSTICS v_n = ROW_COUNT;
        IF v_n <> cardinality(p_consumes) THEN
            RAISE EXCEPTION 'a message is consumed' USING ERRCODE = 'WL001';
        END IF;
    END IF;

    -- Tasks.
    IF p_tasks IS NOT NULL THEN
        UPDATE @schema@.tasks t SET reclaims = 0 FROM unnest(p_tasks) x
        WHERE t.task_id = x.task_id AND x.kind = 2 AND t.reclaims <> 0;
    END IF;
    IF p_settles IS NOT NULL THEN
        DELETE FROM @schema@.tasks t USING unnest(p_settles) x
        WHERE t.task_id = x.task_id AND (x.run_key IS NULL OR t.run_key = x.run_key);
    END IF;
    IF p_reschedules IS NOT NULL THEN
        RETURN QUERY UPDATE @schema@.tasks t SET
            worker = NULL, claimed_at = NULL, claim_no = t.claim_no + 1, attempt = x.attempt,
            reclaims = CASE WHEN x.untried THEN t.reclaims ELSE 0 END,
            errors = coalesce(x.errors, t.errors),
            errors_encoding = coalesce(x.errors_encoding, t.errors_encoding),
            ready = x.wake <> 2 OR x.wake_at <= v_now,
            due_at = CASE x.wake WHEN 2 THEN x.wake_at ELSE v_now END
        FROM unnest(p_reschedules) x WHERE t.task_id = x.task_id
        RETURNING 5::int2, x.idx, NULL::int4, NULL::uuid, NULL::uuid, NULL::int8, NULL::int8,
            NULL::bytea, t.queue, t.name, t.ready, t.due_at;
    END IF;
    IF p_enqueues IS NOT NULL THEN
        INSERT INTO @schema@.tasks
        SELECT x.task_id, x.namespace, x.run_key, x.step_key, x.kind, x.queue, x.name, x.priority,
            CASE WHEN x.worker IS NOT NULL THEN false
                WHEN x.due_at IS NULL THEN x.ready ELSE x.due_at <= v_now END,
            CASE WHEN x.worker IS NULL AND x.ready AND x.due_at IS NULL THEN v_now
                ELSE x.due_at END,
            x.worker, x.claim_no, CASE WHEN x.worker IS NOT NULL THEN v_now END, x.attempt,
            x.reclaims, x.body, x.body_encoding, x.errors, x.errors_encoding, x.limit_key,
            x.trace, x.created_at
        FROM unnest(p_enqueues) x;
    END IF;
    IF p_logs IS NOT NULL THEN
        INSERT INTO @schema@.logs
        SELECT x.run_key, x.log_id, x.step_key, x.attempt, x.level, x.category, x.message, x.data,
            x.data_encoding, x.replay, x.created_at
        FROM unnest(p_logs) x;
    END IF;
    IF p_dead_letters IS NOT NULL THEN
        -- One that was requeued since it was given up last is replaced, and keeps its count.
        INSERT INTO @schema@.dead_letters AS d
        SELECT x.task_id, x.namespace, x.run_key, x.step_key, x.kind, x.queue, x.name, x.attempt,
            x.body, x.body_encoding, x.errors, x.errors_encoding, x.reason, x.dead_at, x.requeues,
            x.requeued_at
        FROM unnest(p_dead_letters) x
        ON CONFLICT (task_id) DO UPDATE SET
            namespace = excluded.namespace, run_key = excluded.run_key,
            step_key = excluded.step_key, kind = excluded.kind, queue = excluded.queue,
            name = excluded.name, attempt = excluded.attempt, body = excluded.body,
            body_encoding = excluded.body_encoding, errors = excluded.errors,
            errors_encoding = excluded.errors_encoding, reason = excluded.reason,
            dead_at = excluded.dead_at, requeued_at = NULL
        WHERE d.requeued_at IS NOT NULL;
        GET DIAGNOSTICS v_n = ROW_COUNT;
        IF v_n <> cardinality(p_dead_letters) THEN
            RAISE EXCEPTION 'a dead letter is there' USING ERRCODE = '23505';
        END IF;
    END IF;
    IF p_requeues IS NOT NULL THEN
        UPDATE @schema@.dead_letters d
        SET requeues = d.requeues + 1, requeued_at = x.requeued_at
        FROM unnest(p_requeues) x WHERE d.task_id = x.task_id;
    END IF;

    IF p_records IS NOT NULL THEN
        PERFORM @schema@.batch_records_write(p_records);
    END IF;

    -- The counters last and in order: nobody who holds one of them waits for anything else.
    IF p_creates IS NOT NULL OR cardinality(v_counts) > 0 THEN
        INSERT INTO @schema@.counters AS c
        SELECT 'runs', x.namespace, x.workflow, x.status, pg_backend_pid() & 63, sum(x.delta)
        FROM (SELECT k.namespace, k.workflow, k.status, 1::int8 AS delta FROM unnest(p_creates) k
            UNION ALL SELECT * FROM unnest(v_counts)) x
        GROUP BY x.namespace, x.workflow, x.status HAVING sum(x.delta) <> 0
        ORDER BY x.namespace COLLATE "C", x.workflow COLLATE "C", x.status COLLATE "C"
        ON CONFLICT (name, namespace, workflow, status, shard)
            DO UPDATE SET value = c.value + excluded.value;
    END IF;
END $$;
