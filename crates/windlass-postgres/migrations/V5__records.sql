-- Records: documents outside any run, with a revision that commits check. V2 writes them.

-- A removed record keeps its row without a body, so that no revision is used twice. `terms` is the
-- same as the rows of record_terms: a JSON list of pairs, or NULL.
CREATE TABLE @schema@.records (
    namespace      text COLLATE "C" NOT NULL,
    collection     text COLLATE "C" NOT NULL,
    id             text COLLATE "C" NOT NULL,
    revision       int8 NOT NULL,
    write_id       uuid NOT NULL,
    created_at     int8 NOT NULL,
    updated_at     int8 NOT NULL,
    terms          text COLLATE "C",
    body           bytea,
    body_encoding  text COLLATE "C",
    PRIMARY KEY (namespace, collection, id)
) WITH (fillfactor = 80);

-- Retention deletes the rows of removed records. The index has no column that a put changes, so that a put
-- stays within its page.
CREATE INDEX records_removed ON @schema@.records (collection, namespace, id) WHERE body_encoding IS NULL;

CREATE TABLE @schema@.record_versions (
    namespace      text COLLATE "C" NOT NULL,
    collection     text COLLATE "C" NOT NULL,
    id             text COLLATE "C" NOT NULL,
    revision       int8 NOT NULL,
    digest         bytea NOT NULL,
    actor          text COLLATE "C",
    caused_by      bytea,
    created_at     int8 NOT NULL,
    body           bytea NOT NULL,
    body_encoding  text COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, collection, id, revision)
);

CREATE TABLE @schema@.record_terms (
    namespace   text COLLATE "C" NOT NULL,
    collection  text COLLATE "C" NOT NULL,
    name        text COLLATE "C" NOT NULL,
    value       text COLLATE "C" NOT NULL,
    id          text COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, collection, name, value, id)
);

CREATE TRIGGER record_versions_immutable AFTER UPDATE ON @schema@.record_versions
    FOR EACH ROW EXECUTE FUNCTION @schema@.refuse('a kept version of a record never changes');

CREATE FUNCTION @schema@.refuse_while_record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM @schema@.records r WHERE r.namespace = OLD.namespace
            AND r.collection = OLD.collection AND r.id = OLD.id) THEN
        RAISE EXCEPTION 'a kept version is deleted only after its record' USING ERRCODE = 'WL002';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER record_versions_kept BEFORE DELETE ON @schema@.record_versions FOR EACH ROW
    EXECUTE FUNCTION @schema@.refuse_while_record();

CREATE VIEW @schema@.record_view AS
SELECT namespace, collection, id, revision, terms,
    CASE WHEN body_encoding = 'json' THEN convert_from(body, 'UTF8') ELSE encode(body, 'hex') END
        AS body,
    body_encoding IS NULL AS removed,
    to_timestamp(created_at / 1000000.0) AS created_at,
    to_timestamp(updated_at / 1000000.0) AS updated_at
FROM @schema@.records;

-- Locks the records of a batch in the order of their keys, and answers the first of each commit that
-- is not as expected (code 16: n revision, flag: it is removed, key: the id of its last write). A
-- record that does not exist cannot be locked: a batch that checks an absence therefore excludes
-- batches that create records with the same hash, of which there are 64.
CREATE FUNCTION @schema@.batch_records_failed(p_records @schema@.batch_record[], p_ok bool[])
    RETURNS @schema@.batch_result[] LANGUAGE plpgsql AS $$
DECLARE
    v_lock record;
BEGIN
    FOR v_lock IN
        SELECT hashtext(g.namespace || '/' || g.collection || '/' || g.id) & 63 AS bucket,
            bool_or(g.kind = 0) AS checked
        FROM unnest(p_records) g WHERE g.expect = 0 GROUP BY 1 ORDER BY 1
    LOOP
        IF v_lock.checked THEN
            PERFORM pg_advisory_xact_lock(hashtext('@schema@.records'), v_lock.bucket);
        ELSE
            PERFORM pg_advisory_xact_lock_shared(hashtext('@schema@.records'), v_lock.bucket);
        END IF;
    END LOOP;
    PERFORM FROM (SELECT FROM unnest(p_records) g JOIN @schema@.records r
            ON r.namespace = g.namespace AND r.collection = g.collection AND r.id = g.id
        ORDER BY r.namespace, r.collection, r.id FOR NO KEY UPDATE OF r) locked;
    RETURN ARRAY(SELECT DISTINCT ON (g.idx) ROW(16, g.idx, g.op, r.write_id, NULL, r.revision, NULL, NULL,
            NULL, NULL, r.body_encoding IS NULL, NULL)::@schema@.batch_result
        FROM unnest(p_records) g LEFT JOIN @schema@.records r
            ON r.namespace = g.namespace AND r.collection = g.collection AND r.id = g.id
        WHERE (p_ok IS NULL OR p_ok[g.idx]) AND NOT CASE
            WHEN r.revision IS NULL THEN g.expect = 0
            WHEN r.body_encoding IS NULL THEN
                g.kind = 0 AND g.expect = 0 OR g.kind = 1 AND g.expect = r.revision
            ELSE g.expect = -1 OR g.expect = r.revision END
        ORDER BY g.idx, g.place);
END $$;

-- Writes the records of commits that hold.
CREATE FUNCTION @schema@.batch_records_write(p_records @schema@.batch_record[])
    RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_new int8;
    v_old int8;
    v_n   int8;
    v_large @schema@.records[];
BEGIN
    SELECT count(*) FILTER (WHERE expect = 0), count(*) FILTER (WHERE expect <> 0)
    INTO v_new, v_old FROM unnest(p_records) WHERE kind <> 0;
    IF v_old > 0 THEN
        DELETE FROM @schema@.record_terms t USING (
            SELECT r.namespace, r.collection, r.id, e.term ->> 0 AS name, e.term ->> 1 AS value
            FROM unnest(p_records) x JOIN @schema@.records r
                ON r.namespace = x.namespace AND r.collection = x.collection AND r.id = x.id
            CROSS JOIN LATERAL jsonb_array_elements(r.terms::jsonb) e (term)
            WHERE x.kind <> 0 AND x.expect <> 0 AND r.terms IS DISTINCT FROM x.terms) o
        WHERE t.namespace = o.namespace AND t.collection = o.collection AND t.name = o.name
            AND t.value = o.value AND t.id = o.id;
    END IF;
    IF v_new > 0 THEN
        INSERT INTO @schema@.records
        SELECT x.namespace, x.collection, x.id, coalesce(x.revision, 1), x.write_id, x.at, x.at, x.terms, x.body,
            x.body_encoding
        FROM unnest(p_records) x WHERE x.kind <> 0 AND x.expect = 0
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS v_n = ROW_COUNT;
        IF v_n <> v_new THEN
            RAISE EXCEPTION 'a record was created meanwhile' USING ERRCODE = 'WL001';
        END IF;
    END IF;
    IF v_old > 0 THEN
        v_large := ARRAY(SELECT r FROM unnest(p_records) x JOIN @schema@.records r
                ON r.namespace = x.namespace AND r.collection = x.collection AND r.id = x.id
            WHERE x.kind <> 0 AND x.expect <> 0 AND r.body_encoding IN ('json_ref', 'bytes_ref'));
        UPDATE @schema@.records r SET revision = coalesce(x.revision, r.revision + 1), write_id = x.write_id,
            updated_at = x.at, terms = x.terms, body = x.body, body_encoding = x.body_encoding
        FROM unnest(p_records) x
        WHERE r.namespace = x.namespace AND r.collection = x.collection AND r.id = x.id
            AND x.kind <> 0 AND x.expect <> 0;
        GET DIAGNOSTICS v_n = ROW_COUNT;
        IF v_n <> v_old THEN
            RAISE EXCEPTION 'a record is gone' USING ERRCODE = 'WL001';
        END IF;
    END IF;
    -- After the records, so that a writer that lost the creation fails there.
    INSERT INTO @schema@.record_versions
    SELECT x.namespace, x.collection, x.id, r.revision, x.digest, x.actor, x.caused_by, x.at, x.body,
        x.body_encoding
    FROM unnest(p_records) x JOIN @schema@.records r
        ON r.namespace = x.namespace AND r.collection = x.collection AND r.id = x.id
    WHERE x.keep;
    INSERT INTO @schema@.record_terms
    SELECT x.namespace, x.collection, e.term ->> 0, e.term ->> 1, x.id
    FROM unnest(p_records) x CROSS JOIN LATERAL jsonb_array_elements(x.terms::jsonb) e (term)
    WHERE x.kind = 1 AND x.terms IS NOT NULL
    ON CONFLICT DO NOTHING;
    -- The earlier revision may have been the only one that named its large body.
    IF cardinality(v_large) > 0 THEN
        PERFORM @schema@.forget_record_bodies(v_large);
    END IF;
END $$;
