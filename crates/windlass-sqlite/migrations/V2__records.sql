-- Records: documents outside any run, with a revision that commits check.

-- A removed record keeps its row without a body, so that no revision is used twice. `terms` is the
-- same as the rows of record_terms: a JSON list of pairs, or NULL.
CREATE TABLE records (
    namespace      TEXT    NOT NULL,
    collection     TEXT    NOT NULL,
    id             TEXT    NOT NULL,
    revision       INTEGER NOT NULL,
    write_id       BLOB    NOT NULL,
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    terms          TEXT,
    body_encoding  TEXT,
    body           BLOB
) STRICT;

CREATE UNIQUE INDEX records_key ON records (namespace, collection, id);

-- Retention deletes the rows of removed records.
CREATE INDEX records_removed ON records (collection, namespace, id) WHERE body_encoding IS NULL;

CREATE TABLE record_versions (
    namespace      TEXT    NOT NULL,
    collection     TEXT    NOT NULL,
    id             TEXT    NOT NULL,
    revision       INTEGER NOT NULL,
    digest         BLOB    NOT NULL,
    actor          TEXT,
    caused_by      TEXT,
    created_at     INTEGER NOT NULL,
    body_encoding  TEXT    NOT NULL,
    body           BLOB    NOT NULL
) STRICT;

CREATE UNIQUE INDEX record_versions_key ON record_versions (namespace, collection, id, revision);

CREATE TABLE record_terms (
    namespace   TEXT NOT NULL,
    collection  TEXT NOT NULL,
    name        TEXT NOT NULL,
    value       TEXT NOT NULL,
    id          TEXT NOT NULL,
    PRIMARY KEY (namespace, collection, name, value, id)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER record_versions_update AFTER UPDATE ON record_versions
BEGIN
    SELECT RAISE(ROLLBACK, 'kept versions of a record never change');
END;

CREATE TRIGGER record_versions_delete BEFORE DELETE ON record_versions
WHEN EXISTS (SELECT 1 FROM records WHERE namespace = OLD.namespace
    AND collection = OLD.collection AND id = OLD.id)
BEGIN
    SELECT RAISE(ROLLBACK, 'kept versions are deleted only after their record');
END;

CREATE VIEW record_view AS
SELECT namespace, collection, id, revision, terms,
       CASE body_encoding WHEN 'json' THEN CAST(body AS TEXT) ELSE hex(body) END AS body,
       body_encoding IS NULL AS removed,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', updated_at / 1000000.0, 'unixepoch') AS updated_at
FROM records;

PRAGMA user_version = 2;
