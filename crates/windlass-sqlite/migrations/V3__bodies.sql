-- Large bodies: in rows of their own, each once for an owner.

-- `owner` is the key of the root run of a tree, or the digest of the name of a record (32 bytes). A row
-- that has a large body holds a reference instead: its encoding is json_ref or bytes_ref, and its bytes
-- are the digest and the size in decimal digits.
CREATE TABLE bodies (
    owner   BLOB NOT NULL,
    digest  BLOB NOT NULL,
    bytes   BLOB NOT NULL,
    PRIMARY KEY (owner, digest)
) STRICT;

CREATE TRIGGER bodies_update AFTER UPDATE ON bodies
BEGIN
    SELECT RAISE(ROLLBACK, 'a large body never changes');
END;

CREATE TRIGGER bodies_delete BEFORE DELETE ON bodies
WHEN EXISTS (SELECT 1 FROM runs WHERE run_key = OLD.owner)
BEGIN
    SELECT RAISE(ROLLBACK, 'a large body is deleted only after its root run');
END;

PRAGMA user_version = 3;
