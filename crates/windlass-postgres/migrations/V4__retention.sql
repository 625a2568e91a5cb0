-- Deleting runs whose time is over.

-- Deletes whole trees, each only if all its runs ended by `p_ended_by` and are held by nothing else:
-- no task works for them, `retention_until` is past, and the root is the oldest generation that is
-- kept. Answers the roots that are gone, with how many runs each had.
--
-- The runs are locked in the order in which commits lock them. A run that has ended changes no more,
-- so nothing that was decided here can become wrong; a tree that grows meanwhile by a new generation
-- of a child keeps that one run.
CREATE FUNCTION @schema@.delete_trees(
    p_roots uuid[], p_ended_for_us int8, p_keep_ledger bool, p_keep_for_newer bool)
    RETURNS TABLE (root uuid, runs int8) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now  int8 := @schema@.clock_us();
    v_keys uuid[];
    v_gone uuid[];
    v_root uuid;
BEGIN
    FOREACH v_root IN ARRAY p_roots LOOP
        v_keys := ARRAY(SELECT r.run_key FROM @schema@.runs r
            WHERE r.run_key = v_root AND r.root = v_root
            UNION ALL SELECT r.run_key FROM @schema@.runs r
            WHERE r.root = v_root AND r.root <> r.run_key);
        CONTINUE WHEN cardinality(v_keys) = 0;
        PERFORM 1 FROM @schema@.runs r WHERE r.run_key = ANY (v_keys)
            ORDER BY r.run_key FOR UPDATE;
        CONTINUE WHEN EXISTS (SELECT FROM @schema@.runs r WHERE r.run_key = ANY (v_keys)
                AND (r.ended_at IS NULL OR r.ended_at > v_now - p_ended_for_us
                    OR r.retention_until > v_now))
            OR EXISTS (SELECT FROM @schema@.tasks t WHERE t.run_key = ANY (v_keys))
            OR EXISTS (SELECT FROM @schema@.runs r JOIN @schema@.runs e
                ON e.namespace || '' = r.namespace AND e.workflow = r.workflow AND e.id = r.id
                    AND e.generation < r.generation
                WHERE r.run_key = v_root);
        -- A commit that creates a newer generation locks the run that it follows (`commit_batch`, causes),
        -- so it is seen here, or it does not find that run any more.
        CONTINUE WHEN p_keep_for_newer AND EXISTS (SELECT FROM @schema@.runs r
            JOIN @schema@.runs n ON n.namespace || '' = r.namespace AND n.workflow = r.workflow
                AND n.id = r.id AND n.generation > r.generation
            WHERE r.run_key = v_root AND (n.ended_at IS NULL
                OR n.ended_at > v_now - p_ended_for_us OR n.retention_until > v_now
                OR EXISTS (SELECT FROM @schema@.runs m
                    WHERE m.root = n.run_key AND m.root <> m.run_key AND (m.ended_at IS NULL
                        OR m.ended_at > v_now - p_ended_for_us OR m.retention_until > v_now))));
        -- The runs first: their steps and events may go only when they are gone.
        WITH gone AS (
            DELETE FROM @schema@.runs r WHERE r.run_key = ANY (v_keys)
            RETURNING r.run_key, r.namespace, r.workflow, r.status, r.labels
        ), unlabelled AS (
            DELETE FROM @schema@.labels l USING gone g
                CROSS JOIN LATERAL jsonb_each_text(coalesce(g.labels::jsonb, '{}')) x (key, value)
            WHERE l.namespace = g.namespace AND l.key = x.key AND l.value = x.value
                AND l.run_key = g.run_key
        ), counted AS (
            INSERT INTO @schema@.counters AS c
            SELECT 'runs', g.namespace, g.workflow, g.status, pg_backend_pid() & 63, -count(*)
            FROM gone g GROUP BY g.namespace, g.workflow, g.status
            ORDER BY g.namespace COLLATE "C", g.workflow COLLATE "C", g.status COLLATE "C"
            ON CONFLICT (name, namespace, workflow, status, shard)
                DO UPDATE SET value = c.value + excluded.value
        )
        SELECT array_agg(g.run_key) INTO v_gone FROM gone g;
        CONTINUE WHEN v_gone IS NULL;
        DELETE FROM @schema@.bodies b WHERE b.owner = uuid_send(v_root)
            AND NOT EXISTS (SELECT FROM @schema@.runs r WHERE r.root = v_root AND r.root <> r.run_key);
        DELETE FROM @schema@.steps s WHERE s.run_key = ANY (v_gone);
        DELETE FROM @schema@.messages m WHERE m.run_key = ANY (v_gone);
        DELETE FROM @schema@.logs l WHERE l.run_key = ANY (v_gone);
        DELETE FROM @schema@.dead_letters d WHERE d.run_key = ANY (v_gone);
        IF NOT p_keep_ledger THEN
            DELETE FROM @schema@.events e WHERE e.run_key = ANY (v_gone);
        END IF;
        root := v_root;
        runs := cardinality(v_gone);
        RETURN NEXT;
    END LOOP;
END $$;
