-- Large bodies: in rows of their own, each once for an owner. V2 writes them, V4 deletes those of trees.

-- `owner` is the key of the root run of a tree, or the digest of the name of a record (32 bytes). A row
-- that has a large body holds a reference instead: its encoding is json_ref or bytes_ref, and its bytes
-- are the digest and the size in decimal digits.
CREATE TABLE @schema@.bodies (
    owner   bytea NOT NULL,
    digest  bytea NOT NULL,
    bytes   bytea NOT NULL,
    PRIMARY KEY (owner, digest)
);

CREATE TRIGGER bodies_immutable AFTER UPDATE ON @schema@.bodies
    FOR EACH ROW EXECUTE FUNCTION @schema@.refuse('a large body never changes');

CREATE FUNCTION @schema@.refuse_while_root() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM @schema@.runs WHERE run_key = encode(OLD.owner, 'hex')::uuid) THEN
        RAISE EXCEPTION 'a large body is deleted only after its root run' USING ERRCODE = 'WL002';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER bodies_kept BEFORE DELETE ON @schema@.bodies FOR EACH ROW
    WHEN (octet_length(OLD.owner) = 16) EXECUTE FUNCTION @schema@.refuse_while_root();

-- Stores the bodies of commits that hold. They come in the order of their digests, so that two batches with
-- the same bodies do not wait for each other; sorting them here would copy the bytes. The batch has locked or created the runs and the records. A body of a
-- run that does not exist is left out.
CREATE FUNCTION @schema@.batch_bodies_write(p_bodies @schema@.batch_body[])
    RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO @schema@.bodies
    SELECT k.owner, x.digest, coalesce(x.bytes, s.bytes)
    FROM unnest(p_bodies) x
    LEFT JOIN @schema@.runs r ON r.run_key = x.run_key
    LEFT JOIN @schema@.runs f ON f.run_key = x.source AND f.namespace = r.namespace
    LEFT JOIN @schema@.bodies s ON s.owner = uuid_send(f.root) AND s.digest = x.digest
    CROSS JOIN LATERAL (SELECT coalesce(x.owner, uuid_send(r.root)) AS owner) k
    WHERE k.owner IS NOT NULL AND (x.bytes IS NOT NULL OR s.bytes IS NOT NULL)
    ON CONFLICT DO NOTHING;
END $$;

-- Deletes the bodies of records that neither their row nor a kept version names.
CREATE FUNCTION @schema@.forget_record_bodies(p_records @schema@.records[])
    RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM @schema@.bodies b USING unnest(p_records) x
    WHERE b.owner = sha256(convert_to(
            x.namespace || E'\x1f' || x.collection || E'\x1f' || x.id, 'UTF8'))
        AND NOT EXISTS (SELECT FROM @schema@.records r WHERE r.namespace = x.namespace
            AND r.collection = x.collection AND r.id = x.id
            AND r.body_encoding IN ('json_ref', 'bytes_ref')
            AND substring(r.body FROM 1 FOR 32) = b.digest)
        AND NOT EXISTS (SELECT FROM @schema@.record_versions v WHERE v.namespace = x.namespace
            AND v.collection = x.collection AND v.id = x.id AND v.digest = b.digest
            AND v.body_encoding IN ('json_ref', 'bytes_ref'));
END $$;
