-- The kernel's tables, the rules that the database itself enforces, and the functions that the
-- store calls. `@schema@` is replaced by the quoted schema name. Times are microseconds since 1970.
-- Text that is compared or ordered has the collation "C", so that all stores order alike.

-- The store's clock. Every statement asks this function and nothing else, so that a test can put
-- another clock into its own schema.
CREATE FUNCTION @schema@.clock_us() RETURNS int8 LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8 $$;

---------------------------------------------------------------------------------------- tables --

-- Commits that keep the turn change only columns that no index names, not even in its condition;
-- the free space of a page lets them be heap-only updates, and pruning gives it back before vacuum
-- comes by. `turn_first` is for that: while nobody holds the turn it says whether `started_at` is
-- empty, and unlike `started_at` it does not change when the holder writes its first step.
CREATE TABLE @schema@.runs (
    run_key          uuid PRIMARY KEY,
    namespace        text COLLATE "C" NOT NULL,
    workflow         text COLLATE "C" NOT NULL,
    model            text COLLATE "C" NOT NULL,
    id               text COLLATE "C" NOT NULL,
    generation       int8 NOT NULL,
    status           text COLLATE "C" NOT NULL,
    input            bytea NOT NULL,
    input_encoding   text COLLATE "C" NOT NULL,
    input_hash       bytea NOT NULL,
    output           bytea,
    output_encoding  text COLLATE "C",
    error            bytea,
    error_encoding   text COLLATE "C",
    state            bytea,
    state_encoding   text COLLATE "C",
    head             bytea NOT NULL,
    next_ordinal     int8 NOT NULL,
    cursor           uuid NOT NULL,
    root             uuid NOT NULL,
    parent           uuid,
    fork             text COLLATE "C",
    labels           text COLLATE "C",
    trace            text COLLATE "C",
    headers          text COLLATE "C",
    on_end           text COLLATE "C",
    deadline_at      int8,
    created_at       int8 NOT NULL,
    started_at       int8,
    updated_at       int8 NOT NULL,
    ended_at         int8,
    retention_until  int8,
    queue            text COLLATE "C" NOT NULL,
    priority         int2 NOT NULL,
    turn_ready       bool NOT NULL,
    turn_due_at      int8,
    turn_worker      uuid,
    turn_claim_no    int8 NOT NULL,
    turn_claimed_at  int8,
    turn_reclaims    int8 NOT NULL,
    limit_key        text COLLATE "C",
    accepted         int8 NOT NULL,
    seen             int8 NOT NULL,
    turn_first       bool NOT NULL,
    turn_last        uuid,
    -- The namespace last: whoever looks a run up by its name says `namespace || ''`, so that no
    -- planner that knows nothing of the table yet takes an index of listings for it.
    CONSTRAINT runs_name UNIQUE (workflow, id, generation, namespace)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 1,
        autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX runs_by_workflow ON @schema@.runs (namespace, workflow, status, run_key);
CREATE INDEX runs_by_status ON @schema@.runs (namespace, status, run_key);
CREATE INDEX runs_by_root ON @schema@.runs (root, run_key) WHERE root <> run_key;
-- A claim takes from one namespace after the other, and rows without a limit key never stand behind
-- those that have one. A number, because the planner rewrites conditions on truth values.
CREATE INDEX runs_ready ON @schema@.runs (queue, workflow, namespace,
    ((limit_key IS NOT NULL)::int4), priority DESC, turn_first, turn_due_at, run_key)
    WHERE turn_ready;
CREATE INDEX runs_scheduled ON @schema@.runs (turn_due_at, run_key)
    WHERE NOT turn_ready AND turn_worker IS NULL AND turn_due_at IS NOT NULL AND status <> 'paused';
CREATE INDEX runs_held ON @schema@.runs (turn_worker, turn_claimed_at, run_key)
    WHERE turn_worker IS NOT NULL;
CREATE INDEX runs_limited ON @schema@.runs (namespace, limit_key)
    WHERE turn_worker IS NOT NULL AND limit_key IS NOT NULL;
CREATE INDEX runs_limited_ready ON @schema@.runs (namespace, limit_key, queue, workflow,
    priority DESC, turn_first, turn_due_at, run_key)
    WHERE turn_ready AND limit_key IS NOT NULL;

CREATE TABLE @schema@.steps (
    run_key          uuid NOT NULL,
    step_key         text COLLATE "C" NOT NULL,
    name             text COLLATE "C" NOT NULL,
    kind             text COLLATE "C" NOT NULL,
    status           text COLLATE "C" NOT NULL,
    position         int8 NOT NULL,
    attempt          int8 NOT NULL,
    attempts_max     int8,
    input            bytea,
    input_encoding   text COLLATE "C",
    result           bytea,
    result_encoding  text COLLATE "C",
    error            bytea,
    error_encoding   text COLLATE "C",
    timeout_us       int8,
    due_at           int8,
    wait_for         text COLLATE "C",
    created_at       int8 NOT NULL,
    updated_at       int8 NOT NULL,
    PRIMARY KEY (run_key, step_key)
) PARTITION BY RANGE (run_key);
CREATE TABLE @schema@.steps_default PARTITION OF @schema@.steps DEFAULT;

CREATE TABLE @schema@.events (
    run_key     uuid NOT NULL,
    ordinal     int8 NOT NULL,
    event_id    uuid NOT NULL,
    event_type  text COLLATE "C" NOT NULL,
    version     int2 NOT NULL,
    caused_by   bytea NOT NULL,
    payload     bytea NOT NULL,
    created_at  int8 NOT NULL,
    hash        bytea NOT NULL,
    PRIMARY KEY (run_key, ordinal)
) PARTITION BY RANGE (run_key);
CREATE TABLE @schema@.events_default PARTITION OF @schema@.events DEFAULT;
-- On each partition: a unique index on the whole table would have to include the run's key.
CREATE UNIQUE INDEX events_default_by_id ON @schema@.events_default (event_id);

CREATE TABLE @schema@.messages (
    run_key        uuid NOT NULL,
    seq            int8 NOT NULL,
    message_id     text COLLATE "C" NOT NULL,
    kind           text COLLATE "C" NOT NULL,
    name           text COLLATE "C" NOT NULL,
    body           bytea,
    body_encoding  text COLLATE "C",
    caused_by      bytea,
    sent_at        int8 NOT NULL,
    consumed_by    text COLLATE "C",
    consumed_at    int8,
    PRIMARY KEY (run_key, seq),
    CONSTRAINT messages_id UNIQUE (run_key, message_id)
) WITH (fillfactor = 85);
CREATE INDEX messages_control ON @schema@.messages (run_key, seq)
    WHERE kind = 'control' AND consumed_by IS NULL;

CREATE TABLE @schema@.tasks (
    task_id          uuid PRIMARY KEY,
    namespace        text COLLATE "C" NOT NULL,
    run_key          uuid,
    step_key         text COLLATE "C",
    kind             text COLLATE "C" NOT NULL,
    queue            text COLLATE "C" NOT NULL,
    name             text COLLATE "C" NOT NULL,
    priority         int2 NOT NULL,
    ready            bool NOT NULL,
    due_at           int8,
    worker           uuid,
    claim_no         int8 NOT NULL,
    claimed_at       int8,
    attempt          int8 NOT NULL,
    reclaims         int8 NOT NULL,
    body             bytea,
    body_encoding    text COLLATE "C",
    errors           bytea,
    errors_encoding  text COLLATE "C",
    limit_key        text COLLATE "C",
    trace            text COLLATE "C",
    created_at       int8 NOT NULL,
    beat_at          int8,
    beat             bytea,
    beat_encoding    text COLLATE "C"
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 1,
        autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX tasks_by_run ON @schema@.tasks (run_key, task_id) WHERE run_key IS NOT NULL;
CREATE INDEX tasks_ready ON @schema@.tasks (queue, name, namespace,
    ((limit_key IS NOT NULL)::int4), priority DESC, due_at, task_id) WHERE ready;
CREATE INDEX tasks_scheduled ON @schema@.tasks (due_at, task_id)
    WHERE NOT ready AND worker IS NULL AND due_at IS NOT NULL;
CREATE INDEX tasks_held ON @schema@.tasks (worker, claimed_at, task_id) WHERE worker IS NOT NULL;
-- For listings, one for each state: a claim then enters what it takes into an index of held tasks
-- alone, which stays low whatever sleeps.
CREATE INDEX tasks_ready_listed ON @schema@.tasks (namespace, task_id) WHERE ready;
CREATE INDEX tasks_scheduled_listed ON @schema@.tasks (namespace, task_id)
    WHERE NOT ready AND worker IS NULL;
CREATE INDEX tasks_held_listed ON @schema@.tasks (namespace, task_id) WHERE worker IS NOT NULL;
CREATE INDEX tasks_limited ON @schema@.tasks (namespace, limit_key)
    WHERE worker IS NOT NULL AND limit_key IS NOT NULL;
CREATE INDEX tasks_limited_ready ON @schema@.tasks (namespace, limit_key, queue, name,
    priority DESC, due_at, task_id)
    WHERE ready AND limit_key IS NOT NULL;

CREATE TABLE @schema@.workers (
    worker        uuid PRIMARY KEY,
    name          text COLLATE "C" NOT NULL,
    version       text COLLATE "C" NOT NULL,
    status        text COLLATE "C" NOT NULL,
    lease_us      int8 NOT NULL,
    turns         text COLLATE "C" NOT NULL,
    tasks         text COLLATE "C" NOT NULL,
    slots         int8 NOT NULL,
    note          text COLLATE "C",
    load          int8 NOT NULL,
    task_slots    int8 NOT NULL,
    task_load     int8 NOT NULL,
    accepting     bool NOT NULL,
    worker_group  text COLLATE "C" NOT NULL,
    host          text COLLATE "C" NOT NULL,
    tasks_completed int8 NOT NULL,
    tasks_failed  int8 NOT NULL,
    tasks_took_us int8 NOT NULL,
    started_at    int8 NOT NULL,
    renewed_at    int8 NOT NULL,
    steady_since  int8 NOT NULL,
    drain         bool NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE @schema@.logs (
    run_key        uuid NOT NULL,
    log_id         uuid NOT NULL,
    step_key       text COLLATE "C",
    attempt        int8,
    level          text COLLATE "C" NOT NULL,
    category       text COLLATE "C" NOT NULL,
    message        text COLLATE "C" NOT NULL,
    data           bytea,
    data_encoding  text COLLATE "C",
    replay         bool NOT NULL,
    created_at     int8 NOT NULL,
    PRIMARY KEY (run_key, log_id)
);

CREATE TABLE @schema@.labels (
    namespace  text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    value      text COLLATE "C" NOT NULL,
    run_key    uuid NOT NULL,
    PRIMARY KEY (namespace, key, value, run_key)
);

CREATE TABLE @schema@.limits (
    namespace  text COLLATE "C" NOT NULL,
    limit_key  text COLLATE "C" NOT NULL,
    slots      int8 NOT NULL,
    PRIMARY KEY (namespace, limit_key)
);

-- Circuit breakers. The kernel decides; a swap holds only for whoever read the last version.
CREATE TABLE @schema@.breakers (
    namespace      text COLLATE "C" NOT NULL,
    breaker_key    text COLLATE "C" NOT NULL,
    status         text COLLATE "C" NOT NULL,
    retry_at       int8,
    data           bytea NOT NULL,
    data_encoding  text COLLATE "C" NOT NULL,
    version        int8 NOT NULL,
    updated_at     int8 NOT NULL,
    PRIMARY KEY (namespace, breaker_key)
) WITH (fillfactor = 50);
CREATE INDEX breakers_open ON @schema@.breakers (namespace, breaker_key) WHERE status <> 'closed';

-- What was done in each of the last minutes; the kernel knows what the fields are.
CREATE TABLE @schema@.tallies (
    namespace  text COLLATE "C" NOT NULL,
    minute     int8 NOT NULL,
    name       text COLLATE "C" NOT NULL,
    field      int4 NOT NULL,
    value      int8 NOT NULL,
    PRIMARY KEY (namespace, minute, name, field)
) WITH (fillfactor = 50);
CREATE INDEX tallies_by_minute ON @schema@.tallies (minute);

-- Rates. The kernel decides; a swap holds only for whoever read the last version.
CREATE TABLE @schema@.rates (
    namespace     text COLLATE "C" NOT NULL,
    rate_key      text COLLATE "C" NOT NULL,
    interval_us   int8 NOT NULL,
    burst         int8 NOT NULL,
    spent_until   int8 NOT NULL,
    queued_until  int8 NOT NULL,
    version       int8 NOT NULL,
    PRIMARY KEY (namespace, rate_key)
) WITH (fillfactor = 50);

-- Small values that all processes share: retention policies, keys.
CREATE TABLE @schema@.settings (
    kind            text COLLATE "C" NOT NULL,
    name            text COLLATE "C" NOT NULL,
    value           bytea NOT NULL,
    value_encoding  text COLLATE "C" NOT NULL,
    updated_at      int8 NOT NULL,
    PRIMARY KEY (kind, name)
);

CREATE TABLE @schema@.dead_letters (
    task_id          uuid PRIMARY KEY,
    namespace        text COLLATE "C" NOT NULL,
    run_key          uuid,
    step_key         text COLLATE "C",
    kind             text COLLATE "C" NOT NULL,
    queue            text COLLATE "C" NOT NULL,
    name             text COLLATE "C" NOT NULL,
    attempt          int8 NOT NULL,
    body             bytea,
    body_encoding    text COLLATE "C",
    errors           bytea,
    errors_encoding  text COLLATE "C",
    reason           text COLLATE "C" NOT NULL,
    dead_at          int8 NOT NULL,
    requeues         int8 NOT NULL,
    requeued_at      int8
);
CREATE INDEX dead_letters_by_namespace ON @schema@.dead_letters (namespace, task_id);
CREATE INDEX dead_letters_open ON @schema@.dead_letters (namespace, task_id)
    WHERE requeued_at IS NULL;
CREATE INDEX dead_letters_by_run ON @schema@.dead_letters (run_key, task_id)
    WHERE run_key IS NOT NULL;

-- How many runs are where. A committer adds to the rows of its own shard, so committers do not
-- wait for each other; a row is updated at every batch, hence the free space.
CREATE TABLE @schema@.counters (
    name       text COLLATE "C" NOT NULL,
    namespace  text COLLATE "C" NOT NULL,
    workflow   text COLLATE "C" NOT NULL,
    status     text COLLATE "C" NOT NULL,
    shard      int4 NOT NULL,
    value      int8 NOT NULL,
    PRIMARY KEY (name, namespace, workflow, status, shard)
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

----------------------------------------------------------------------------------------- rules --

CREATE FUNCTION @schema@.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% in %.%', TG_ARGV[0], TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'WL002';
END $$;

-- The triggers on updates fire after the row was written: one that fires before it would lock each
-- row once more. What they refuse is undone with the statement.
CREATE TRIGGER events_immutable AFTER UPDATE ON @schema@.events
    FOR EACH ROW EXECUTE FUNCTION @schema@.refuse('an event is never changed');

CREATE FUNCTION @schema@.refuse_while_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM @schema@.runs WHERE run_key = OLD.run_key) THEN
        RAISE EXCEPTION '% only when its run is gone', TG_ARGV[0] USING ERRCODE = 'WL002';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER events_kept BEFORE DELETE ON @schema@.events FOR EACH ROW
    EXECUTE FUNCTION @schema@.refuse_while_run('an event is deleted');

CREATE TRIGGER runs_kept BEFORE DELETE ON @schema@.runs FOR EACH ROW
    WHEN (OLD.status NOT IN ('complete', 'errored', 'terminated'))
    EXECUTE FUNCTION @schema@.refuse('a run is deleted only when it has ended');
-- A trigger on columns costs an update nothing that does not name them.
CREATE TRIGGER runs_identity AFTER UPDATE OF run_key, namespace, workflow, model, id, generation,
        input, input_encoding, input_hash, root, parent, fork, labels, headers, on_end,
        created_at
    ON @schema@.runs FOR EACH ROW
    EXECUTE FUNCTION @schema@.refuse('the identity of a run never changes');

CREATE FUNCTION @schema@.refuse_after_end() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_old @schema@.runs := OLD;
BEGIN
    v_old.retention_until := NEW.retention_until;
    IF v_old IS DISTINCT FROM NEW THEN
        RAISE EXCEPTION 'run % is % and changes no more', OLD.run_key, OLD.status
            USING ERRCODE = 'WL002';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER runs_final AFTER UPDATE ON @schema@.runs FOR EACH ROW
    WHEN (OLD.status IN ('complete', 'errored', 'terminated'))
    EXECUTE FUNCTION @schema@.refuse_after_end();

CREATE TRIGGER steps_settled AFTER UPDATE ON @schema@.steps FOR EACH ROW
    WHEN (OLD.status IN ('completed', 'errored', 'skipped', 'cancelled'))
    EXECUTE FUNCTION @schema@.refuse('a settled step never changes');
CREATE TRIGGER steps_kept BEFORE DELETE ON @schema@.steps FOR EACH ROW
    WHEN (OLD.status IN ('completed', 'errored', 'skipped', 'cancelled'))
    EXECUTE FUNCTION @schema@.refuse_while_run('a settled step is deleted');
CREATE TRIGGER steps_identity AFTER UPDATE OF run_key, step_key, name, kind, position, created_at
    ON @schema@.steps FOR EACH ROW
    EXECUTE FUNCTION @schema@.refuse('the identity of a step never changes');

------------------------------------------------------------------------------------ partitions --

-- Attaches the partitions of this month and the next ones. Never called by a commit. A month whose
-- rows are in the default partition already, or that is busy, is left to the default partition.
-- Answers until when partitions exist.
CREATE FUNCTION @schema@.ensure_partitions(p_months int4) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
    v_month  timestamp := date_trunc('month', to_timestamp(@schema@.clock_us() / 1000000.0)
                                              AT TIME ZONE 'UTC');
    v_parent text;
    v_name   text;
    v_low    uuid;
    v_high   uuid;
BEGIN
    PERFORM set_config('lock_timeout', '3s', true);
    FOR i IN 0..p_months LOOP
        v_low := (lpad(to_hex((extract(epoch FROM v_month) * 1000)::int8), 12, '0')
            || repeat('0', 20))::uuid;
        v_high := (lpad(to_hex((extract(epoch FROM v_month + interval '1 month') * 1000)::int8),
            12, '0') || repeat('0', 20))::uuid;
        FOREACH v_parent IN ARRAY ARRAY['steps', 'events'] LOOP
            v_name := v_parent || to_char(v_month, '"_"YYYY"_"MM');
            CONTINUE WHEN EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = @schema_literal@ AND c.relname = v_name);
            BEGIN
                EXECUTE format('CREATE TABLE @schema@.%I (LIKE @schema@.%I INCLUDING ALL)',
                    v_name, v_parent);
                IF v_parent = 'events' THEN
                    EXECUTE format('CREATE UNIQUE INDEX %I ON @schema@.%I (event_id)',
                        v_name || '_by_id', v_name);
                END IF;
                EXECUTE format('ALTER TABLE @schema@.%I ATTACH PARTITION @schema@.%I '
                    'FOR VALUES FROM (%L) TO (%L)', v_parent, v_name, v_low, v_high);
            EXCEPTION WHEN check_violation OR lock_not_available THEN
                RAISE NOTICE 'partition % is left to the default partition: %', v_name, SQLERRM;
            END;
        END LOOP;
        v_month := v_month + interval '1 month';
    END LOOP;
    RETURN (extract(epoch FROM v_month) * 1000000)::int8;
END $$;

----------------------------------------------------------------------------------------- views --

CREATE FUNCTION @schema@.shown(p_body bytea, p_encoding text) RETURNS text
    LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE p_encoding WHEN 'json' THEN convert_from(p_body, 'UTF8')
                          ELSE encode(p_body, 'base64') END $$;

CREATE VIEW @schema@.run_view AS
SELECT run_key, namespace, workflow, model, id, generation, status,
    @schema@.shown(input, input_encoding) AS input,
    @schema@.shown(output, output_encoding) AS output,
    @schema@.shown(error, error_encoding) AS error,
    @schema@.shown(state, state_encoding) AS state,
    encode(head, 'hex') AS head, next_ordinal, cursor, root, parent, fork, labels, trace, headers, on_end,
    to_timestamp(deadline_at / 1000000.0) AS deadline_at,
    to_timestamp(created_at / 1000000.0) AS created_at,
    to_timestamp(started_at / 1000000.0) AS started_at,
    to_timestamp(updated_at / 1000000.0) AS updated_at,
    to_timestamp(ended_at / 1000000.0) AS ended_at,
    to_timestamp(retention_until / 1000000.0) AS retention_until,
    queue, priority, turn_ready, to_timestamp(turn_due_at / 1000000.0) AS turn_due_at,
    turn_worker, turn_claim_no, to_timestamp(turn_claimed_at / 1000000.0) AS turn_claimed_at,
    turn_reclaims, limit_key, accepted, seen
FROM @schema@.runs;

CREATE VIEW @schema@.step_view AS
SELECT run_key, step_key, name, kind, status, position, attempt, attempts_max,
    @schema@.shown(input, input_encoding) AS input,
    @schema@.shown(result, result_encoding) AS result,
    @schema@.shown(error, error_encoding) AS error,
    timeout_us, to_timestamp(due_at / 1000000.0) AS due_at, wait_for,
    to_timestamp(created_at / 1000000.0) AS created_at,
    to_timestamp(updated_at / 1000000.0) AS updated_at
FROM @schema@.steps;

CREATE VIEW @schema@.event_view AS
SELECT run_key, ordinal, event_id, event_type, version,
    convert_from(caused_by, 'UTF8') AS caused_by, convert_from(payload, 'UTF8') AS payload,
    to_timestamp(created_at / 1000000.0) AS created_at, encode(hash, 'hex') AS hash
FROM @schema@.events;
