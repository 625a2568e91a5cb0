-- The tables of the kernel. Names and columns are those of the PostgreSQL store.
--
-- Keys are 16-byte UUIDv7, hashes 32 bytes, times microseconds since 1970. Bodies stand last in
-- their rows: SQLite reads a row from the front, and when a row keeps its size it rewrites only
-- the pages that changed, so a large input costs nothing when only the turn moves.
--
-- Tables with bodies keep their rowid: rows then go to the right edge of one tree whatever their
-- keys, and keys to the right edges of small ones. Without it the load of three-step runs dirtied
-- a third more pages a batch.

CREATE TABLE runs (
    run_key          BLOB    NOT NULL PRIMARY KEY,
    namespace        TEXT    NOT NULL,
    workflow         TEXT    NOT NULL,
    queue            TEXT    NOT NULL,
    status           TEXT    NOT NULL,
    head             BLOB    NOT NULL,
    next_ordinal     INTEGER NOT NULL,
    cursor           BLOB    NOT NULL,
    priority         INTEGER NOT NULL,
    turn_ready       INTEGER NOT NULL,
    turn_due_at      INTEGER,
    turn_worker      BLOB,
    turn_claim_no    INTEGER NOT NULL,
    turn_claimed_at  INTEGER,
    turn_reclaims    INTEGER NOT NULL,
    turn_last        BLOB,
    limit_key        TEXT,
    accepted         INTEGER NOT NULL,
    seen             INTEGER NOT NULL,
    created_at       INTEGER NOT NULL,
    started_at       INTEGER,
    updated_at       INTEGER NOT NULL,
    ended_at         INTEGER,
    deadline_at      INTEGER,
    retention_until  INTEGER,
    model            TEXT    NOT NULL,
    id               TEXT    NOT NULL,
    generation       INTEGER NOT NULL,
    root             BLOB    NOT NULL,
    parent           BLOB,
    fork             TEXT,
    labels           TEXT,
    trace            TEXT,
    headers          TEXT,
    on_end           TEXT,
    input_hash       BLOB    NOT NULL,
    input_encoding   TEXT    NOT NULL,
    output_encoding  TEXT,
    error_encoding   TEXT,
    state_encoding   TEXT,
    input            BLOB    NOT NULL,
    state            BLOB,
    output           BLOB,
    error            BLOB
) STRICT;

CREATE UNIQUE INDEX runs_name ON runs (namespace, workflow, id, generation);
CREATE INDEX runs_workflow ON runs (namespace, workflow, status, run_key);
CREATE INDEX runs_status ON runs (namespace, status, run_key);
CREATE INDEX runs_root ON runs (root, run_key) WHERE root <> run_key;
-- A claim takes from one namespace after the other, and rows without a limit key never stand behind
-- those that have one.
CREATE INDEX runs_ready
    ON runs (queue, workflow, namespace, (limit_key IS NOT NULL), priority DESC,
             (started_at IS NULL), turn_due_at, run_key)
    WHERE turn_ready = 1;
CREATE INDEX runs_scheduled ON runs (turn_due_at, run_key)
    WHERE turn_ready = 0 AND turn_worker IS NULL AND turn_due_at IS NOT NULL
      AND status <> 'paused';
CREATE INDEX runs_held ON runs (turn_worker) WHERE turn_worker IS NOT NULL;
CREATE INDEX runs_limit ON runs (namespace, limit_key)
    WHERE turn_worker IS NOT NULL AND limit_key IS NOT NULL;
CREATE INDEX runs_limit_ready
    ON runs (namespace, limit_key, queue, workflow, priority DESC, (started_at IS NULL),
             turn_due_at, run_key)
    WHERE turn_ready = 1 AND limit_key IS NOT NULL;

CREATE TABLE steps (
    run_key          BLOB    NOT NULL,
    step_key         TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    kind             TEXT    NOT NULL,
    status           TEXT    NOT NULL,
    position         INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,
    attempts_max     INTEGER,
    timeout_us       INTEGER,
    due_at           INTEGER,
    wait_for         TEXT,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    input_encoding   TEXT,
    result_encoding  TEXT,
    error_encoding   TEXT,
    input            BLOB,
    result           BLOB,
    error            BLOB,
    PRIMARY KEY (run_key, step_key)
) STRICT;

CREATE TABLE events (
    run_key     BLOB    NOT NULL,
    ordinal     INTEGER NOT NULL,
    event_id    BLOB    NOT NULL,
    event_type  TEXT    NOT NULL,
    version     INTEGER NOT NULL,
    caused_by   TEXT    NOT NULL,
    payload     BLOB    NOT NULL,
    created_at  INTEGER NOT NULL,
    hash        BLOB    NOT NULL,
    PRIMARY KEY (run_key, ordinal)
) STRICT;

CREATE UNIQUE INDEX events_id ON events (event_id);

CREATE TABLE messages (
    run_key        BLOB    NOT NULL,
    seq            INTEGER NOT NULL,
    message_id     TEXT    NOT NULL,
    kind           TEXT    NOT NULL,
    name           TEXT    NOT NULL,
    caused_by      TEXT,
    sent_at        INTEGER NOT NULL,
    consumed_by    TEXT,
    consumed_at    INTEGER,
    body_encoding  TEXT,
    body           BLOB,
    PRIMARY KEY (run_key, seq)
) STRICT;

CREATE UNIQUE INDEX messages_id ON messages (run_key, message_id);
CREATE INDEX messages_unread ON messages (run_key, seq) WHERE consumed_at IS NULL;
CREATE INDEX messages_control ON messages (run_key)
    WHERE kind = 'control' AND consumed_at IS NULL;

CREATE TABLE tasks (
    task_id          BLOB    NOT NULL PRIMARY KEY,
    namespace        TEXT    NOT NULL,
    run_key          BLOB,
    step_key         TEXT,
    kind             TEXT    NOT NULL,
    queue            TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    priority         INTEGER NOT NULL,
    ready            INTEGER NOT NULL,
    due_at           INTEGER,
    worker           BLOB,
    claim_no         INTEGER NOT NULL,
    claimed_at       INTEGER,
    attempt          INTEGER NOT NULL,
    reclaims         INTEGER NOT NULL,
    limit_key        TEXT,
    trace            TEXT,
    created_at       INTEGER NOT NULL,
    body_encoding    TEXT,
    errors_encoding  TEXT,
    errors           BLOB,
    beat_at          INTEGER,
    beat_encoding    TEXT,
    beat             BLOB,
    body             BLOB
) STRICT;

CREATE INDEX tasks_namespace ON tasks (namespace, task_id);
CREATE INDEX tasks_run ON tasks (run_key, task_id) WHERE run_key IS NOT NULL;
CREATE INDEX tasks_ready
    ON tasks (queue, name, namespace, (limit_key IS NOT NULL), priority DESC, due_at, task_id)
    WHERE ready = 1;
CREATE INDEX tasks_scheduled ON tasks (due_at, task_id)
    WHERE ready = 0 AND worker IS NULL AND due_at IS NOT NULL;
CREATE INDEX tasks_held ON tasks (worker) WHERE worker IS NOT NULL;
CREATE INDEX tasks_limit ON tasks (namespace, limit_key)
    WHERE worker IS NOT NULL AND limit_key IS NOT NULL;
CREATE INDEX tasks_limit_ready
    ON tasks (namespace, limit_key, queue, name, priority DESC, due_at, task_id)
    WHERE ready = 1 AND limit_key IS NOT NULL;

CREATE TABLE workers (
    worker        BLOB    NOT NULL PRIMARY KEY,
    name          TEXT    NOT NULL,
    version       TEXT    NOT NULL,
    status        TEXT    NOT NULL,
    lease_us      INTEGER NOT NULL,
    turns         TEXT    NOT NULL,
    tasks         TEXT    NOT NULL,
    slots         INTEGER NOT NULL,
    note          TEXT,
    load          INTEGER NOT NULL,
    task_slots    INTEGER NOT NULL,
    task_load     INTEGER NOT NULL,
    accepting     INTEGER NOT NULL,
    worker_group  TEXT    NOT NULL,
    host          TEXT    NOT NULL,
    tasks_completed INTEGER NOT NULL,
    tasks_failed  INTEGER NOT NULL,
    tasks_took_us INTEGER NOT NULL,
    started_at    INTEGER NOT NULL,
    renewed_at    INTEGER NOT NULL,
    steady_since  INTEGER NOT NULL,
    drain         INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE logs (
    run_key        BLOB    NOT NULL,
    log_id         BLOB    NOT NULL,
    step_key       TEXT,
    attempt        INTEGER,
    level          TEXT    NOT NULL,
    category       TEXT    NOT NULL,
    message        TEXT    NOT NULL,
    replay         INTEGER NOT NULL,
    created_at     INTEGER NOT NULL,
    data_encoding  TEXT,
    data           BLOB,
    PRIMARY KEY (run_key, log_id)
) STRICT;

CREATE TABLE labels (
    namespace  TEXT NOT NULL,
    key        TEXT NOT NULL,
    value      TEXT NOT NULL,
    run_key    BLOB NOT NULL,
    PRIMARY KEY (namespace, key, value, run_key)
) STRICT, WITHOUT ROWID;

CREATE TABLE limits (
    namespace  TEXT    NOT NULL,
    limit_key  TEXT    NOT NULL,
    slots      INTEGER NOT NULL,
    PRIMARY KEY (namespace, limit_key)
) STRICT, WITHOUT ROWID;

-- Circuit breakers. The kernel decides; a swap holds only for whoever read the last version.
CREATE TABLE breakers (
    namespace      TEXT    NOT NULL,
    breaker_key    TEXT    NOT NULL,
    status         TEXT    NOT NULL,
    retry_at       INTEGER,
    data_encoding  TEXT    NOT NULL,
    data           BLOB    NOT NULL,
    version        INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    PRIMARY KEY (namespace, breaker_key)
) STRICT, WITHOUT ROWID;

CREATE INDEX breakers_open ON breakers (namespace, breaker_key) WHERE status <> 'closed';

-- Rates. The kernel decides; a swap holds only for whoever read the last version.
CREATE TABLE rates (
    namespace     TEXT    NOT NULL,
    rate_key      TEXT    NOT NULL,
    interval_us   INTEGER NOT NULL,
    burst         INTEGER NOT NULL,
    spent_until   INTEGER NOT NULL,
    queued_until  INTEGER NOT NULL,
    version       INTEGER NOT NULL,
    PRIMARY KEY (namespace, rate_key)
) STRICT, WITHOUT ROWID;

-- Small values that outlive a process: retention policies, keys.
CREATE TABLE settings (
    kind            TEXT    NOT NULL,
    name            TEXT    NOT NULL,
    value_encoding  TEXT    NOT NULL,
    value           BLOB    NOT NULL,
    updated_at      INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE dead_letters (
    task_id          BLOB    NOT NULL PRIMARY KEY,
    namespace        TEXT    NOT NULL,
    run_key          BLOB,
    step_key         TEXT,
    kind             TEXT    NOT NULL,
    queue            TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    attempt          INTEGER NOT NULL,
    reason           TEXT    NOT NULL,
    dead_at          INTEGER NOT NULL,
    requeues         INTEGER NOT NULL,
    requeued_at      INTEGER,
    body_encoding    TEXT,
    errors_encoding  TEXT,
    body             BLOB,
    errors           BLOB
) STRICT;

CREATE INDEX dead_letters_namespace ON dead_letters (namespace, task_id);
CREATE INDEX dead_letters_open ON dead_letters (namespace, task_id) WHERE requeued_at IS NULL;
CREATE INDEX dead_letters_run ON dead_letters (run_key, task_id) WHERE run_key IS NOT NULL;

-- Counts of runs, kept by the writer: one row changes for many commits of a batch.
CREATE TABLE counters (
    name       TEXT    NOT NULL,
    namespace  TEXT    NOT NULL,
    workflow   TEXT    NOT NULL,
    status     TEXT    NOT NULL,
    shard      INTEGER NOT NULL,
    value      INTEGER NOT NULL,
    PRIMARY KEY (name, namespace, workflow, status, shard)
) STRICT, WITHOUT ROWID;

-- What was done in each of the last minutes; the kernel knows what the fields are.
CREATE TABLE tallies (
    namespace  TEXT    NOT NULL,
    minute     INTEGER NOT NULL,
    name       TEXT    NOT NULL,
    field      INTEGER NOT NULL,
    value      INTEGER NOT NULL,
    PRIMARY KEY (namespace, minute, name, field)
) STRICT, WITHOUT ROWID;

CREATE INDEX tallies_minute ON tallies (minute);

-- What the store itself remembers: `clock` is the time of the last commit.
CREATE TABLE meta (
    name   TEXT    NOT NULL PRIMARY KEY,
    value  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO meta (name, value) VALUES ('clock', 0);

-- What must never happen, said where no program can forget it. It ends the whole transaction, not
-- the statement alone: for that SQLite would keep an undo log of every statement that a trigger
-- could stop, and the writer's are millions. After and not before, because before a change SQLite
-- has to look its row up twice. No IN lists, because SQLite makes a table of one at every change.

CREATE TRIGGER events_update AFTER UPDATE ON events
BEGIN
    SELECT RAISE(ROLLBACK, 'events never change');
END;

CREATE TRIGGER events_delete BEFORE DELETE ON events
WHEN EXISTS (SELECT 1 FROM runs WHERE run_key = OLD.run_key)
BEGIN
    SELECT RAISE(ROLLBACK, 'events are deleted only after their run');
END;

CREATE TRIGGER runs_delete BEFORE DELETE ON runs
WHEN OLD.status NOT IN ('complete', 'errored', 'terminated')
BEGIN
    SELECT RAISE(ROLLBACK, 'a run is deleted only when it has ended');
END;

CREATE TRIGGER runs_ended AFTER UPDATE OF
    status, head, next_ordinal, cursor, queue, priority, turn_ready, turn_due_at, turn_worker,
    turn_claim_no, turn_claimed_at, turn_reclaims, turn_last, limit_key, accepted, seen, started_at,
    updated_at, ended_at, deadline_at, output_encoding, error_encoding, state_encoding, state,
    output, error
ON runs
WHEN OLD.status = 'complete' OR OLD.status = 'errored' OR OLD.status = 'terminated'
BEGIN
    SELECT RAISE(ROLLBACK, 'an ended run never changes');
END;

CREATE TRIGGER runs_identity AFTER UPDATE OF
    run_key, namespace, workflow, model, id, generation, root, parent, fork, labels, trace,
    headers, on_end, created_at, input, input_encoding, input_hash
ON runs
BEGIN
    SELECT RAISE(ROLLBACK, 'what identifies a run never changes');
END;

CREATE TRIGGER steps_settled AFTER UPDATE ON steps
WHEN OLD.status = 'completed' OR OLD.status = 'errored' OR OLD.status = 'skipped'
  OR OLD.status = 'cancelled'
BEGIN
    SELECT RAISE(ROLLBACK, 'a settled step never changes');
END;

CREATE TRIGGER steps_delete BEFORE DELETE ON steps
WHEN EXISTS (SELECT 1 FROM runs WHERE run_key = OLD.run_key)
BEGIN
    SELECT RAISE(ROLLBACK, 'steps are deleted only after their run');
END;

CREATE TRIGGER steps_identity AFTER UPDATE OF
    run_key, step_key, name, kind, position, created_at
ON steps
BEGIN
    SELECT RAISE(ROLLBACK, 'what identifies a step never changes');
END;

-- For people with a SQL prompt: keys and hashes in hex, times as text, JSON bodies as text.

CREATE VIEW run_view AS
SELECT lower(hex(run_key)) AS run_key, namespace, workflow, model, id, generation, status,
       CASE input_encoding WHEN 'json' THEN CAST(input AS TEXT) ELSE hex(input) END AS input,
       CASE output_encoding WHEN 'json' THEN CAST(output AS TEXT) ELSE hex(output) END AS output,
       CASE error_encoding WHEN 'json' THEN CAST(error AS TEXT) ELSE hex(error) END AS error,
       CASE state_encoding WHEN 'json' THEN CAST(state AS TEXT) ELSE hex(state) END AS state,
       next_ordinal, lower(hex(head)) AS head, lower(hex(root)) AS root,
       lower(hex(parent)) AS parent, fork, labels, headers, on_end,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', started_at / 1000000.0, 'unixepoch') AS started_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', updated_at / 1000000.0, 'unixepoch') AS updated_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', ended_at / 1000000.0, 'unixepoch') AS ended_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', deadline_at / 1000000.0, 'unixepoch') AS deadline_at,
       queue, priority, turn_ready,
       strftime('%Y-%m-%dT%H:%M:%fZ', turn_due_at / 1000000.0, 'unixepoch') AS turn_due_at,
       lower(hex(turn_worker)) AS turn_worker, turn_claim_no, turn_reclaims, accepted, seen
FROM runs;

CREATE VIEW step_view AS
SELECT lower(hex(run_key)) AS run_key, step_key, name, kind, status, position, attempt,
       attempts_max,
       CASE input_encoding WHEN 'json' THEN CAST(input AS TEXT) ELSE hex(input) END AS input,
       CASE result_encoding WHEN 'json' THEN CAST(result AS TEXT) ELSE hex(result) END AS result,
       CASE error_encoding WHEN 'json' THEN CAST(error AS TEXT) ELSE hex(error) END AS error,
       timeout_us / 1000000.0 AS timeout_s,
       strftime('%Y-%m-%dT%H:%M:%fZ', due_at / 1000000.0, 'unixepoch') AS due_at, wait_for,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', updated_at / 1000000.0, 'unixepoch') AS updated_at
FROM steps;

CREATE VIEW event_view AS
SELECT lower(hex(run_key)) AS run_key, ordinal, lower(hex(event_id)) AS event_id, event_type,
       version, caused_by, CAST(payload AS TEXT) AS payload,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000000.0, 'unixepoch') AS created_at,
       lower(hex(hash)) AS hash
FROM events;

PRAGMA application_id = 1464747084;
PRAGMA user_version = 1;
