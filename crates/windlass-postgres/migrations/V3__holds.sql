-- Who holds what and when it is due: claims, promotions, leases and reaping. Turns and tasks have
-- the same functions over their own tables; each states its own plain SQL.

-- A candidate of a claim.
CREATE TYPE @schema@.candidate AS (key uuid, namespace text, limit_key text, ord int8);

-- A limit that a claim has locked, and how many more may hold under it; NULL: there is no limit.
CREATE TYPE @schema@.limit_slots AS (namespace text, limit_key text, slots int8);

-- Locks the limits that the candidates fall under, in order, and counts their holders. The first
-- time in a transaction it waits; later ones, such as those of the tasks after the turns, are out
-- of order and could deadlock, so a limit that somebody else has locked then counts as full.
CREATE FUNCTION @schema@.lock_limits(
    p_seen @schema@.candidate[], p_known @schema@.limit_slots[], p_wait bool
) RETURNS @schema@.limit_slots[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_new    @schema@.limit_slots[];
    v_locked @schema@.limit_slots[];
BEGIN
    v_new := ARRAY(SELECT DISTINCT ROW(c.namespace, c.limit_key, NULL)::@schema@.limit_slots
        FROM unnest(p_seen) c
        WHERE c.limit_key IS NOT NULL AND NOT EXISTS (SELECT FROM unnest(p_known) k
            WHERE k.namespace = c.namespace AND k.limit_key = c.limit_key));
    IF cardinality(v_new) = 0 THEN
        RETURN v_new;
    END IF;
    IF p_wait AND current_setting('windlass.limits_locked', true) IS DISTINCT FROM 'yes' THEN
        v_locked := ARRAY(SELECT ROW(l.namespace, l.limit_key, l.slots)::@schema@.limit_slots
            FROM unnest(v_new) n JOIN @schema@.limits l
                ON l.namespace = n.namespace AND l.limit_key = n.limit_key
            ORDER BY l.namespace, l.limit_key FOR NO KEY UPDATE OF l);
        IF cardinality(v_locked) > 0 THEN
            -- It ends with the transaction.
            PERFORM set_config('windlass.limits_locked', 'yes', true);
        END IF;
    ELSE
        v_locked := ARRAY(SELECT ROW(l.namespace, l.limit_key, l.slots)::@schema@.limit_slots
            FROM unnest(v_new) n JOIN @schema@.limits l
                ON l.namespace = n.namespace AND l.limit_key = n.limit_key
            ORDER BY l.namespace, l.limit_key FOR NO KEY UPDATE OF l SKIP LOCKED);
    END IF;
    -- This statement has a snapshot of its own, taken after the lock: it sees every holder that an
    -- earlier owner of the lock has let in.
    RETURN ARRAY(SELECT ROW(n.namespace, n.limit_key, CASE
            WHEN l.limit_key IS NOT NULL THEN l.slots
                - (SELECT count(*) FROM @schema@.runs r WHERE r.turn_worker IS NOT NULL
                    AND r.namespace = n.namespace AND r.limit_key = n.limit_key)
                - (SELECT count(*) FROM @schema@.tasks t WHERE t.worker IS NOT NULL
                    AND t.namespace = n.namespace AND t.limit_key = n.limit_key)
            WHEN EXISTS (SELECT FROM @schema@.limits x
                WHERE x.namespace = n.namespace AND x.limit_key = n.limit_key) THEN 0
            END)::@schema@.limit_slots
        FROM unnest(v_new) n LEFT JOIN unnest(v_locked) l
            ON l.namespace = n.namespace AND l.limit_key = n.limit_key);
END $$;

-- What is left of the limits after some were taken.
CREATE FUNCTION @schema@.use_slots(
    p_known @schema@.limit_slots[], p_taken @schema@.candidate[]
) RETURNS @schema@.limit_slots[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN ARRAY(SELECT ROW(k.namespace, k.limit_key, k.slots - (SELECT count(*)
            FROM unnest(p_taken) t WHERE t.namespace = k.namespace AND t.limit_key = k.limit_key))
            ::@schema@.limit_slots
        FROM unnest(p_known) k);
END $$;

-- The distinct (route, namespace, limited or not, priority, first turn) among ready turns, found by probing the
-- index: `oldest` claims and health need the head of each.
CREATE FUNCTION @schema@.turn_segments(p_queues text[], p_names text[], p_spaces text[])
    RETURNS TABLE (queue text, name text, namespace text, limited int4, priority int2, first_turn bool)
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_limited  int4;
    v_priority int2;
    v_first    bool;
BEGIN
    FOR i IN 1..coalesce(cardinality(p_queues), 0) LOOP
        FOR v_limited IN 0..1 LOOP
            v_priority := NULL;
            LOOP
                IF v_priority IS NULL THEN
                    SELECT t.priority INTO v_priority FROM @schema@.runs t
                    WHERE t.turn_ready AND t.queue = p_queues[i] AND t.workflow = p_names[i]
                        AND t.namespace = p_spaces[i] AND ((t.limit_key IS NOT NULL)::int4) = v_limited
                    ORDER BY t.priority DESC LIMIT 1;
                ELSE
                    SELECT t.priority INTO v_priority FROM @schema@.runs t
                    WHERE t.turn_ready AND t.queue = p_queues[i] AND t.workflow = p_names[i]
                        AND t.namespace = p_spaces[i] AND ((t.limit_key IS NOT NULL)::int4) = v_limited
                        AND t.priority < v_priority
                    ORDER BY t.priority DESC LIMIT 1;
                END IF;
                EXIT WHEN v_priority IS NULL;
                    FOREACH v_first IN ARRAY ARRAY[false, true] LOOP
                        IF EXISTS (SELECT FROM @schema@.runs t WHERE t.turn_ready
                                AND t.queue = p_queues[i] AND t.workflow = p_names[i]
                                AND t.namespace = p_spaces[i] AND ((t.limit_key IS NOT NULL)::int4) = v_limited
                                AND t.priority = v_priority AND t.turn_first = v_first) THEN
                            queue := p_queues[i];
                            name := p_names[i];
                            namespace := p_spaces[i];
                            limited := v_limited;
                            priority := v_priority;
                            first_turn := v_first;
                            RETURN NEXT;
                        END IF;
                    END LOOP;
            END LOOP;
        END LOOP;
    END LOOP;
END $$;

-- The routes and namespaces that have ready turns.
CREATE FUNCTION @schema@.turn_routes()
    RETURNS TABLE (queue text, name text, namespace text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_queue text;
    v_name  text;
    v_space text;
BEGIN
    SELECT t.queue, t.workflow, t.namespace INTO v_queue, v_name, v_space
    FROM @schema@.runs t WHERE t.turn_ready ORDER BY t.queue, t.workflow, t.namespace LIMIT 1;
    WHILE v_queue IS NOT NULL LOOP
        queue := v_queue;
        name := v_name;
        namespace := v_space;
        RETURN NEXT;
        SELECT t.queue, t.workflow, t.namespace INTO v_queue, v_name, v_space
        FROM @schema@.runs t
        WHERE t.turn_ready AND (t.queue, t.workflow, t.namespace) > (v_queue, v_name, v_space)
        ORDER BY t.queue, t.workflow, t.namespace LIMIT 1;
    END LOOP;
END $$;

-- The namespaces with ready turns of some routes: at most `p_max`, those that come after `p_last`
-- when namespaces take turns and the one after `p_after` is the first.
CREATE FUNCTION @schema@.turn_spaces(
    p_queues text[], p_names text[], p_after text, p_last text, p_max int4
) RETURNS text[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_wrapped bool := p_last COLLATE "C" <= p_after;
    v_space   text := coalesce(p_last, p_after, '');
    v_found   text[] := '{}';
BEGIN
    WHILE cardinality(v_found) < p_max LOOP
        SELECT min(n.namespace) INTO v_space
        FROM unnest(p_queues, p_names) s (queue, name) CROSS JOIN LATERAL (
            SELECT t.namespace FROM @schema@.runs t
            WHERE t.turn_ready AND t.queue = s.queue AND t.workflow = s.name
                AND t.namespace > v_space
            ORDER BY t.namespace LIMIT 1) n;
        IF v_space IS NOT NULL AND (v_wrapped IS NOT TRUE OR v_space COLLATE "C" <= p_after) THEN
            v_found := v_found || v_space;
        ELSE
            EXIT WHEN v_wrapped OR p_after IS NULL;
            v_wrapped := true;
            v_space := '';
        END IF;
    END LOOP;
    RETURN v_found;
END $$;

-- The limit keys of a namespace that have ready turns and a free slot, with the number of slots.
-- It locks nothing: `lock_limits` decides.
CREATE FUNCTION @schema@.turn_keys(p_space text)
    RETURNS TABLE (limit_key text, slots int8) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_key   text := '';
    v_slots int8;
BEGIN
    LOOP
        SELECT t.limit_key INTO v_key FROM @schema@.runs t
        WHERE t.turn_ready AND t.namespace = p_space AND t.limit_key IS NOT NULL
            AND t.limit_key > v_key
        ORDER BY t.limit_key LIMIT 1;
        EXIT WHEN v_key IS NULL;
        SELECT l.slots - (SELECT count(*) FROM @schema@.runs r WHERE r.turn_worker IS NOT NULL
                AND r.namespace = p_space AND r.limit_key = v_key)
            - (SELECT count(*) FROM @schema@.tasks t WHERE t.worker IS NOT NULL
                AND t.namespace = p_space AND t.limit_key = v_key)
        INTO v_slots FROM @schema@.limits l WHERE l.namespace = p_space AND l.limit_key = v_key;
        IF v_slots IS NULL OR v_slots > 0 THEN
            limit_key := v_key;
            slots := v_slots;
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- The first ready turns of a namespace, without a lock. Passed over are those whose limit is full,
-- and what somebody else was seen to have locked, and what became
-- ready after `p_since` and was given back last by another worker.
-- Of turns with a limit key only the first ones are read; with `p_by_key` those of each key that has
-- a free slot, so that nothing behind a full limit is read.
CREATE FUNCTION @schema@.peek_turns(
    p_space text, p_queues text[], p_names text[], p_max int4, p_oldest bool, p_by_key bool,
    p_full text[], p_skipped uuid[], p_worker uuid, p_since int8
) RETURNS SETOF @schema@.candidate LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF p_oldest THEN
        RETURN QUERY
        SELECT c.key, p_space, c.limit_key, row_number() OVER (ORDER BY c.due, c.key) FROM (
        SELECT u.* FROM @schema@.turn_segments(p_queues, p_names,
            array_fill(p_space, ARRAY[cardinality(p_queues)])) s CROSS JOIN LATERAL (
            SELECT t.run_key AS key, t.limit_key, t.priority,
                t.turn_first AS first_turn, t.turn_due_at AS due
            FROM @schema@.runs t
            WHERE t.turn_ready AND t.queue = s.queue AND t.workflow = s.name
                AND t.namespace = p_space AND ((t.limit_key IS NOT NULL)::int4) = 0
                AND t.priority = s.priority AND t.turn_first = s.first_turn
                AND s.limited = 0
                AND NOT t.run_key = ANY (p_skipped)
                AND (t.turn_last IS NULL OR t.turn_last = p_worker OR t.turn_due_at <= p_since)
            ORDER BY t.turn_due_at, t.run_key LIMIT p_max) u
        UNION ALL
        SELECT w.key, w.limit_key, w.priority, w.first_turn, w.due
        FROM @schema@.turn_segments(p_queues, p_names,
            array_fill(p_space, ARRAY[cardinality(p_queues)])) s CROSS JOIN LATERAL (
            SELECT t.run_key AS key, t.limit_key, t.priority,
                t.turn_first AS first_turn, t.turn_due_at AS due, t.turn_last
            FROM @schema@.runs t
            WHERE t.turn_ready AND t.queue = s.queue AND t.workflow = s.name
                AND t.namespace = p_space AND ((t.limit_key IS NOT NULL)::int4) = 1
                AND t.priority = s.priority AND t.turn_first = s.first_turn
                AND s.limited = 1 AND NOT p_by_key
            ORDER BY t.turn_due_at, t.run_key LIMIT p_max + 100) w
        WHERE NOT w.key = ANY (p_skipped) AND NOT w.limit_key = ANY (p_full)
            AND (w.turn_last IS NULL OR w.turn_last = p_worker OR w.due <= p_since)
        UNION ALL
        SELECT k.* FROM @schema@.turn_keys(p_space) y
        CROSS JOIN @schema@.turn_segments(p_queues, p_names,
            array_fill(p_space, ARRAY[cardinality(p_queues)])) s CROSS JOIN LATERAL (
            SELECT t.run_key AS key, t.limit_key, t.priority,
                t.turn_first AS first_turn, t.turn_due_at AS due
            FROM @schema@.runs t
            WHERE t.turn_ready AND t.limit_key IS NOT NULL AND t.namespace = p_space
                AND t.limit_key = y.limit_key AND t.queue = s.queue AND t.workflow = s.name
                AND t.priority = s.priority AND t.turn_first = s.first_turn AND s.limited = 1
                AND NOT t.run_key = ANY (p_skipped)
                AND (t.turn_last IS NULL OR t.turn_last = p_worker OR t.turn_due_at <= p_since)
            ORDER BY t.turn_due_at, t.run_key LIMIT least(p_max, y.slots)) k
        WHERE p_by_key AND NOT y.limit_key = ANY (p_full)) c
        ORDER BY c.due, c.key LIMIT p_max;
    ELSE
        RETURN QUERY
        SELECT c.key, p_space, c.limit_key, row_number() OVER (ORDER BY c.priority DESC, c.first_turn, c.due, c.key) FROM (
        SELECT u.* FROM unnest(p_queues, p_names) s (queue, name) CROSS JOIN LATERAL (
            SELECT t.run_key AS key, t.limit_key, t.priority,
                t.turn_first AS first_turn, t.turn_due_at AS due
            FROM @schema@.runs t
            WHERE t.turn_ready AND t.queue = s.queue AND t.workflow = s.name
                AND t.namespace = p_space AND ((t.limit_key IS NOT NULL)::int4) = 0
                AND NOT t.run_key = ANY (p_skipped)
                AND (t.turn_last IS NULL OR t.turn_last = p_worker OR t.turn_due_at <= p_since)
            ORDER BY t.priority DESC, t.turn_first, t.turn_due_at, t.run_key LIMIT p_max) u
        UNION ALL
        SELECT w.key, w.limit_key, w.priority, w.first_turn, w.due
        FROM unnest(p_queues, p_names) s (queue, name) CROSS JOIN LATERAL (
            SELECT t.run_key AS key, t.limit_key, t.priority,
                t.turn_first AS first_turn, t.turn_due_at AS due, t.turn_last
            FROM @schema@.runs t
            WHERE t.turn_ready AND t.queue = s.queue AND t.workflow = s.name
                AND t.namespace = p_space AND ((t.limit_key IS NOT NULL)::int4) = 1 AND NOT p_by_key
            ORDER BY t.priority DESC, t.turn_first, t.turn_due_at, t.run_key LIMIT p_max + 100) w
        WHERE NOT w.key = ANY (p_skipped) AND NOT w.limit_key = ANY (p_full)
            AND (w.turn_last IS NULL OR w.turn_last = p_worker OR w.due <= p_since)
        UNION ALL
        SELECT k.* FROM @schema@.turn_keys(p_space) y
        CROSS JOIN unnest(p_queues, p_names) s (queue, name) CROSS JOIN LATERAL (
            SELECT t.run_key AS key, t.limit_key, t.priority,
                t.turn_first AS first_turn, t.turn_due_at AS due
            FROM @schema@.runs t
            WHERE t.turn_ready AND t.limit_key IS NOT NULL AND t.namespace = p_space
                AND t.limit_key = y.limit_key AND t.queue = s.queue AND t.workflow = s.name
                AND NOT t.run_key = ANY (p_skipped)
                AND (t.turn_last IS NULL OR t.turn_last = p_worker OR t.turn_due_at <= p_since)
            ORDER BY t.priority DESC, t.turn_first, t.turn_due_at, t.run_key LIMIT least(p_max, y.slots)) k
        WHERE p_by_key AND NOT y.limit_key = ANY (p_full)) c
        ORDER BY c.priority DESC, c.first_turn, c.due, c.key LIMIT p_max;
    END IF;
END $$;

-- Takes what is still ready and nobody has locked.
CREATE FUNCTION @schema@.take_turns(p_worker uuid, p_keys uuid[])
    RETURNS SETOF @schema@.runs LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now int8 := @schema@.clock_us();
BEGIN
    RETURN QUERY WITH picked AS MATERIALIZED (
        SELECT t.run_key AS key FROM unnest(p_keys) k (key)
        JOIN @schema@.runs t ON t.run_key = k.key WHERE t.turn_ready
        ORDER BY t.run_key FOR NO KEY UPDATE OF t SKIP LOCKED)
    UPDATE @schema@.runs t SET turn_ready = false, turn_worker = p_worker,
        turn_claim_no = t.turn_claim_no + 1, turn_claimed_at = v_now
    FROM picked WHERE t.run_key = picked.key RETURNING t.*;
END $$;

-- The usual case, one route of one namespace without limits: one walk along the index that locks what
-- it takes and steps over what others have locked. A locked row stays where it is, so the update finds
-- it by its place; it is a statement of its own, whose snapshot is not older than the lock.
CREATE FUNCTION @schema@.walk_turns(
    p_worker uuid, p_space text, p_queue text, p_name text, p_max int4, p_since int8
) RETURNS SETOF @schema@.runs LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now    int8 := @schema@.clock_us();
    v_places tid[];
BEGIN
    v_places := ARRAY(SELECT t.ctid FROM @schema@.runs t
        WHERE t.turn_ready AND t.queue = p_queue AND t.workflow = p_name
            AND t.namespace = p_space AND ((t.limit_key IS NOT NULL)::int4) = 0
            AND (t.turn_last IS NULL OR t.turn_last = p_worker OR t.turn_due_at <= p_since)
        ORDER BY t.priority DESC, t.turn_first, t.turn_due_at, t.run_key
        LIMIT p_max FOR NO KEY UPDATE OF t SKIP LOCKED);
    RETURN QUERY UPDATE @schema@.runs t SET turn_ready = false, turn_worker = p_worker,
        turn_claim_no = t.turn_claim_no + 1, turn_claimed_at = v_now
    WHERE t.ctid = ANY (v_places) RETURNING t.*;
END $$;

-- Claims turns of one namespace.
CREATE FUNCTION @schema@.claim_turns_in(
    p_worker uuid, p_space text, p_queues text[], p_names text[], p_max int4, p_oldest bool, p_since int8
) RETURNS SETOF @schema@.runs LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_queues   text[];
    v_names    text[];
    v_limited  bool;
    v_by_key   bool := false;
    v_left     int4 := p_max;
    v_seen     @schema@.candidate[];
    v_known    @schema@.limit_slots[] := '{}';
    v_full     text[] := '{}';
    v_skipped  uuid[] := '{}';
    v_keys     uuid[];
    v_taken    @schema@.runs[];
BEGIN
    SELECT array_agg(s.queue), array_agg(s.name), bool_or(r.limited = 1)
    INTO v_queues, v_names, v_limited
    FROM unnest(p_queues, p_names) s (queue, name) CROSS JOIN LATERAL (
        SELECT ((t.limit_key IS NOT NULL)::int4) AS limited FROM @schema@.runs t
        WHERE t.turn_ready AND t.queue = s.queue AND t.workflow = s.name AND t.namespace = p_space
        ORDER BY ((t.limit_key IS NOT NULL)::int4) DESC LIMIT 1) r;
    IF v_queues IS NULL THEN
        RETURN;
    END IF;
    IF cardinality(v_queues) = 1 AND NOT v_limited AND NOT p_oldest THEN
        RETURN QUERY SELECT * FROM @schema@.walk_turns(p_worker, p_space, v_queues[1], v_names[1],
            p_max, p_since);
        RETURN;
    END IF;
    -- Several routes, or limits: look, decide, take; and again while something was in the way.
    FOR v_round IN 1..1000 LOOP
        -- The rows of full limits may hide others that come before those without a limit.
        v_by_key := v_by_key OR cardinality(v_full) > 0 AND EXISTS (
            SELECT FROM unnest(v_queues, v_names) s (queue, name) CROSS JOIN LATERAL (
                SELECT count(*) AS seen, count(*) FILTER (WHERE NOT t.limit_key = ANY (v_full)) AS open
                FROM (SELECT t.limit_key FROM @schema@.runs t
                    WHERE t.turn_ready AND t.queue = s.queue AND t.workflow = s.name
                        AND t.namespace = p_space AND ((t.limit_key IS NOT NULL)::int4) = 1
                    ORDER BY t.priority DESC, t.turn_first, t.turn_due_at, t.run_key LIMIT v_left + 100) t) w
            WHERE w.seen = v_left + 100 AND w.open < v_left);
        v_seen := ARRAY(SELECT c FROM @schema@.peek_turns(p_space, v_queues, v_names, v_left,
            p_oldest, v_by_key, v_full, v_skipped, p_worker, p_since) c);
        IF cardinality(v_seen) = 0 THEN
            EXIT WHEN v_by_key OR NOT v_limited;
            v_by_key := true;
            CONTINUE;
        END IF;
        v_known := v_known || @schema@.lock_limits(v_seen, v_known, v_round = 1);
        v_keys := ARRAY(SELECT c.key FROM (
                SELECT c.key, c.ord, l.slots, l.limit_key,
                    row_number() OVER (PARTITION BY l.namespace, l.limit_key ORDER BY c.ord) AS place
                FROM unnest(v_seen) c LEFT JOIN unnest(v_known) l
                    ON l.namespace = c.namespace AND l.limit_key = c.limit_key) c
            WHERE c.slots IS NULL OR c.place <= c.slots ORDER BY c.ord);
        v_taken := ARRAY(SELECT t FROM @schema@.take_turns(p_worker, v_keys) t);
        RETURN QUERY SELECT * FROM unnest(v_taken);
        v_left := v_left - cardinality(v_taken);
        EXIT WHEN v_left = 0;
        v_skipped := v_skipped || ARRAY(SELECT k FROM unnest(v_keys) k
            EXCEPT SELECT t.run_key FROM unnest(v_taken) t);
        v_known := @schema@.use_slots(v_known, ARRAY(SELECT
            ROW(t.run_key, t.namespace, t.limit_key, 0)::@schema@.candidate
            FROM unnest(v_taken) t WHERE t.limit_key IS NOT NULL));
        v_full := ARRAY(SELECT l.limit_key FROM unnest(v_known) l WHERE l.slots <= 0);
        -- A row that was seen and neither taken nor passed over for a reason would come back.
        IF cardinality(v_keys) = cardinality(v_seen) AND cardinality(v_taken) = cardinality(v_keys) THEN
            EXIT WHEN v_by_key OR NOT v_limited;
            v_by_key := true;
        END IF;
    END LOOP;
END $$;

-- Claims turns: namespaces take turns, beginning with the one after `p_after`.
CREATE FUNCTION @schema@.claim_turns(
    p_worker uuid, p_queues text[], p_names text[], p_max int4, p_oldest bool, p_offer_us int8, p_after text
) RETURNS SETOF @schema@.runs LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_since  int8 := @schema@.clock_us() - p_offer_us;
    v_busy   int8;
    v_queue  text;
    v_name   text;
    v_first  text;
    v_last   text;
    v_left   int4 := p_max;
    v_lanes  text[] := '{}';
    v_new    text[];
    v_kept   text[];
    v_space  text;
    v_share  int4;
    v_count  int4;
BEGIN
    -- A worker asks for all routes that it serves, the engine's own among them, and mostly one of
    -- them has something, of one namespace. The oldest of it are its first if all have the same
    -- priority.
    SELECT count(*) + coalesce(sum(l.limited), 0), min(s.queue), min(s.name), min(f.namespace),
        max(l.namespace)
    INTO v_busy, v_queue, v_name, v_first, v_last
    FROM unnest(p_queues, p_names) s (queue, name) CROSS JOIN LATERAL (
        SELECT t.namespace FROM @schema@.runs t
        WHERE t.turn_ready AND t.queue = s.queue AND t.workflow = s.name
        ORDER BY t.namespace LIMIT 1) f
    CROSS JOIN LATERAL (
        SELECT t.namespace, ((t.limit_key IS NOT NULL)::int4) AS limited FROM @schema@.runs t
        WHERE t.turn_ready AND t.queue = s.queue AND t.workflow = s.name
        ORDER BY t.namespace DESC, ((t.limit_key IS NOT NULL)::int4) DESC LIMIT 1) l;
    IF v_busy = 0 THEN
        RETURN;
    END IF;
    IF v_busy = 1 AND v_first = v_last AND (NOT p_oldest OR 1 = (SELECT count(*)
            FROM @schema@.turn_segments(ARRAY[v_queue], ARRAY[v_name], ARRAY[v_first]))) THEN
        RETURN QUERY SELECT * FROM @schema@.walk_turns(p_worker, v_first, v_queue, v_name,
            p_max, v_since);
        RETURN;
    END IF;
    -- While there are more namespaces than rows to claim, one row of each.
    v_last := NULL;
    LOOP
        v_new := @schema@.turn_spaces(p_queues, p_names, p_after, v_last, v_left);
        EXIT WHEN v_last IS NULL AND cardinality(v_new) < v_left;
        EXIT WHEN cardinality(v_new) = 0;
        v_last := v_new[cardinality(v_new)];
        FOREACH v_space IN ARRAY v_new LOOP
            RETURN QUERY SELECT * FROM @schema@.claim_turns_in(p_worker, v_space, p_queues,
                p_names, 1, p_oldest, v_since);
            GET DIAGNOSTICS v_count = ROW_COUNT;
            v_left := v_left - v_count;
            IF v_count > 0 THEN
                v_lanes := v_lanes || v_space;
            END IF;
        END LOOP;
        IF v_left = 0 THEN
            RETURN;
        END IF;
    END LOOP;
    v_lanes := v_lanes || v_new;
    -- Then equal shares, until nothing is left to claim or to share.
    WHILE v_left > 0 AND cardinality(v_lanes) > 0 LOOP
        v_share := greatest(1, v_left / cardinality(v_lanes));
        v_kept := '{}';
        FOREACH v_space IN ARRAY v_lanes LOOP
            EXIT WHEN v_left = 0;
            RETURN QUERY SELECT * FROM @schema@.claim_turns_in(p_worker, v_space, p_queues,
                p_names, v_share, p_oldest, v_since);
            GET DIAGNOSTICS v_count = ROW_COUNT;
            v_left := v_left - v_count;
            IF v_count = v_share THEN
                v_kept := v_kept || v_space;
            END IF;
        END LOOP;
        v_lanes := v_kept;
    END LOOP;
END $$;

-- The distinct (route, namespace, limited or not, priority) among ready tasks, found by probing the
-- index: `oldest` claims and health need the head of each.
CREATE FUNCTION @schema@.task_segments(p_queues text[], p_names text[], p_spaces text[])
    RETURNS TABLE (queue text, name text, namespace text, limited int4, priority int2)
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_limited  int4;
    v_priority int2;
BEGIN
    FOR i IN 1..coalesce(cardinality(p_queues), 0) LOOP
        FOR v_limited IN 0..1 LOOP
            v_priority := NULL;
            LOOP
                IF v_priority IS NULL THEN
                    SELECT t.priority INTO v_priority FROM @schema@.tasks t
                    WHERE t.ready AND t.queue = p_queues[i] AND t.name = p_names[i]
                        AND t.namespace = p_spaces[i] AND ((t.limit_key IS NOT NULL)::int4) = v_limited
                    ORDER BY t.priority DESC LIMIT 1;
                ELSE
                    SELECT t.priority INTO v_priority FROM @schema@.tasks t
                    WHERE t.ready AND t.queue = p_queues[i] AND t.name = p_names[i]
                        AND t.namespace = p_spaces[i] AND ((t.limit_key IS NOT NULL)::int4) = v_limited
                        AND t.priority < v_priority
                    ORDER BY t.priority DESC LIMIT 1;
                END IF;
                EXIT WHEN v_priority IS NULL;
                    queue := p_queues[i];
                    name := p_names[i];
                    namespace := p_spaces[i];
                    limited := v_limited;
                    priority := v_priority;
                    RETURN NEXT;
            END LOOP;
        END LOOP;
    END LOOP;
END $$;

-- The routes and namespaces that have ready tasks.
CREATE FUNCTION @schema@.task_routes()
    RETURNS TABLE (queue text, name text, namespace text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_queue text;
    v_name  text;
    v_space text;
BEGIN
    SELECT t.queue, t.name, t.namespace INTO v_queue, v_name, v_space
    FROM @schema@.tasks t WHERE t.ready ORDER BY t.queue, t.name, t.namespace LIMIT 1;
    WHILE v_queue IS NOT NULL LOOP
        queue := v_queue;
        name := v_name;
        namespace := v_space;
        RETURN NEXT;
        SELECT t.queue, t.name, t.namespace INTO v_queue, v_name, v_space
        FROM @schema@.tasks t
        WHERE t.ready AND (t.queue, t.name, t.namespace) > (v_queue, v_name, v_space)
        ORDER BY t.queue, t.name, t.namespace LIMIT 1;
    END LOOP;
END $$;

-- The namespaces with ready tasks of some routes: at most `p_max`, those that come after `p_last`
-- when namespaces take turns and the one after `p_after` is the first.
CREATE FUNCTION @schema@.task_spaces(
    p_queues text[], p_names text[], p_after text, p_last text, p_max int4
) RETURNS text[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_wrapped bool := p_last COLLATE "C" <= p_after;
    v_space   text := coalesce(p_last, p_after, '');
    v_found   text[] := '{}';
BEGIN
    WHILE cardinality(v_found) < p_max LOOP
        SELECT min(n.namespace) INTO v_space
        FROM unnest(p_queues, p_names) s (queue, name) CROSS JOIN LATERAL (
            SELECT t.namespace FROM @schema@.tasks t
            WHERE t.ready AND t.queue = s.queue AND t.name = s.name
                AND t.namespace > v_space
            ORDER BY t.namespace LIMIT 1) n;
        IF v_space IS NOT NULL AND (v_wrapped IS NOT TRUE OR v_space COLLATE "C" <= p_after) THEN
            v_found := v_found || v_space;
        ELSE
            EXIT WHEN v_wrapped OR p_after IS NULL;
            v_wrapped := true;
            v_space := '';
        END IF;
    END LOOP;
    RETURN v_found;
END $$;

-- The limit keys of a namespace that have ready tasks and a free slot, with the number of slots.
-- It locks nothing: `lock_limits` decides.
CREATE FUNCTION @schema@.task_keys(p_space text)
    RETURNS TABLE (limit_key text, slots int8) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_key   text := '';
    v_slots int8;
BEGIN
    LOOP
        SELECT t.limit_key INTO v_key FROM @schema@.tasks t
        WHERE t.ready AND t.namespace = p_space AND t.limit_key IS NOT NULL
            AND t.limit_key > v_key
        ORDER BY t.limit_key LIMIT 1;
        EXIT WHEN v_key IS NULL;
        SELECT l.slots - (SELECT count(*) FROM @schema@.runs r WHERE r.turn_worker IS NOT NULL
                AND r.namespace = p_space AND r.limit_key = v_key)
            - (SELECT count(*) FROM @schema@.tasks t WHERE t.worker IS NOT NULL
                AND t.namespace = p_space AND t.limit_key = v_key)
        INTO v_slots FROM @schema@.limits l WHERE l.namespace = p_space AND l.limit_key = v_key;
        IF v_slots IS NULL OR v_slots > 0 THEN
            limit_key := v_key;
            slots := v_slots;
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- The first ready tasks of a namespace, without a lock. Passed over are those whose limit is full,
-- and what somebody else was seen to have locked.
-- Of tasks with a limit key only the first ones are read; with `p_by_key` those of each key that has
-- a free slot, so that nothing behind a full limit is read.
CREATE FUNCTION @schema@.peek_tasks(
    p_space text, p_queues text[], p_names text[], p_max int4, p_oldest bool, p_by_key bool,
    p_full text[], p_skipped uuid[]
) RETURNS SETOF @schema@.candidate LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF p_oldest THEN
        RETURN QUERY
        SELECT c.key, p_space, c.limit_key, row_number() OVER (ORDER BY c.due, c.key) FROM (
        SELECT u.* FROM @schema@.task_segments(p_queues, p_names,
            array_fill(p_space, ARRAY[cardinality(p_queues)])) s CROSS JOIN LATERAL (
            SELECT t.task_id AS key, t.limit_key, t.priority,
                false AS first_turn, t.due_at AS due
            FROM @schema@.tasks t
            WHERE t.ready AND t.queue = s.queue AND t.name = s.name
                AND t.namespace = p_space AND ((t.limit_key IS NOT NULL)::int4) = 0
                AND t.priority = s.priority
                AND s.limited = 0
                AND NOT t.task_id = ANY (p_skipped)
            ORDER BY t.due_at, t.task_id LIMIT p_max) u
        UNION ALL
        SELECT w.key, w.limit_key, w.priority, w.first_turn, w.due
        FROM @schema@.task_segments(p_queues, p_names,
            array_fill(p_space, ARRAY[cardinality(p_queues)])) s CROSS JOIN LATERAL (
            SELECT t.task_id AS key, t.limit_key, t.priority,
                false AS first_turn, t.due_at AS due
            FROM @schema@.tasks t
            WHERE t.ready AND t.queue = s.queue AND t.name = s.name
                AND t.namespace = p_space AND ((t.limit_key IS NOT NULL)::int4) = 1
                AND t.priority = s.priority
                AND s.limited = 1 AND NOT p_by_key
            ORDER BY t.due_at, t.task_id LIMIT p_max + 100) w
        WHERE NOT w.key = ANY (p_skipped) AND NOT w.limit_key = ANY (p_full)
        UNION ALL
        SELECT k.* FROM @schema@.task_keys(p_space) y
        CROSS JOIN @schema@.task_segments(p_queues, p_names,
            array_fill(p_space, ARRAY[cardinality(p_queues)])) s CROSS JOIN LATERAL (
            SELECT t.task_id AS key, t.limit_key, t.priority,
                false AS first_turn, t.due_at AS due
            FROM @schema@.tasks t
            WHERE t.ready AND t.limit_key IS NOT NULL AND t.namespace = p_space
                AND t.limit_key = y.limit_key AND t.queue = s.queue AND t.name = s.name
                AND t.priority = s.priority AND s.limited = 1
                AND NOT t.task_id = ANY (p_skipped)
            ORDER BY t.due_at, t.task_id LIMIT least(p_max, y.slots)) k
        WHERE p_by_key AND NOT y.limit_key = ANY (p_full)) c
        ORDER BY c.due, c.key LIMIT p_max;
    ELSE
        RETURN QUERY
        SELECT c.key, p_space, c.limit_key, row_number() OVER (ORDER BY c.priority DESC, c.first_turn, c.due, c.key) FROM (
        SELECT u.* FROM unnest(p_queues, p_names) s (queue, name) CROSS JOIN LATERAL (
            SELECT t.task_id AS key, t.limit_key, t.priority,
                false AS first_turn, t.due_at AS due
            FROM @schema@.tasks t
            WHERE t.ready AND t.queue = s.queue AND t.name = s.name
                AND t.namespace = p_space AND ((t.limit_key IS NOT NULL)::int4) = 0
                AND NOT t.task_id = ANY (p_skipped)
            ORDER BY t.priority DESC, t.due_at, t.task_id LIMIT p_max) u
        UNION ALL
        SELECT w.key, w.limit_key, w.priority, w.first_turn, w.due
        FROM unnest(p_queues, p_names) s (queue, name) CROSS JOIN LATERAL (
            SELECT t.task_id AS key, t.limit_key, t.priority,
                false AS first_turn, t.due_at AS due
            FROM @schema@.tasks t
            WHERE t.ready AND t.queue = s.queue AND t.name = s.name
                AND t.namespace = p_space AND ((t.limit_key IS NOT NULL)::int4) = 1 AND NOT p_by_key
            ORDER BY t.priority DESC, t.due_at, t.task_id LIMIT p_max + 100) w
        WHERE NOT w.key = ANY (p_skipped) AND NOT w.limit_key = ANY (p_full)
        UNION ALL
        SELECT k.* FROM @schema@.task_keys(p_space) y
        CROSS JOIN unnest(p_queues, p_names) s (queue, name) CROSS JOIN LATERAL (
            SELECT t.task_id AS key, t.limit_key, t.priority,
                false AS first_turn, t.due_at AS due
            FROM @schema@.tasks t
            WHERE t.ready AND t.limit_key IS NOT NULL AND t.namespace = p_space
                AND t.limit_key = y.limit_key AND t.queue = s.queue AND t.name = s.name
                AND NOT t.task_id = ANY (p_skipped)
            ORDER BY t.priority DESC, t.due_at, t.task_id LIMIT least(p_max, y.slots)) k
        WHERE p_by_key AND NOT y.limit_key = ANY (p_full)) c
        ORDER BY c.priority DESC, c.first_turn, c.due, c.key LIMIT p_max;
    END IF;
END $$;

-- Takes what is still ready and nobody has locked.
CREATE FUNCTION @schema@.take_tasks(p_worker uuid, p_keys uuid[])
    RETURNS SETOF @schema@.tasks LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now int8 := @schema@.clock_us();
BEGIN
    RETURN QUERY WITH picked AS MATERIALIZED (
        SELECT t.task_id AS key FROM unnest(p_keys) k (key)
        JOIN @schema@.tasks t ON t.task_id = k.key WHERE t.ready
        ORDER BY t.task_id FOR NO KEY UPDATE OF t SKIP LOCKED)
    UPDATE @schema@.tasks t SET ready = false, worker = p_worker,
        claim_no = t.claim_no + 1, claimed_at = v_now
    FROM picked WHERE t.task_id = picked.key RETURNING t.*;
END $$;

-- The usual case, one route of one namespace without limits: one walk along the index that locks what
-- it takes and steps over what others have locked. A locked row stays where it is, so the update finds
-- it by its place; it is a statement of its own, whose snapshot is not older than the lock.
CREATE FUNCTION @schema@.walk_tasks(
    p_worker uuid, p_space text, p_queue text, p_name text, p_max int4
) RETURNS SETOF @schema@.tasks LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now    int8 := @schema@.clock_us();
    v_places tid[];
BEGIN
    v_places := ARRAY(SELECT t.ctid FROM @schema@.tasks t
        WHERE t.ready AND t.queue = p_queue AND t.name = p_name
            AND t.namespace = p_space AND ((t.limit_key IS NOT NULL)::int4) = 0
        ORDER BY t.priority DESC, t.due_at, t.task_id
        LIMIT p_max FOR NO KEY UPDATE OF t SKIP LOCKED);
    RETURN QUERY UPDATE @schema@.tasks t SET ready = false, worker = p_worker,
        claim_no = t.claim_no + 1, claimed_at = v_now
    WHERE t.ctid = ANY (v_places) RETURNING t.*;
END $$;

-- Claims tasks of one namespace.
CREATE FUNCTION @schema@.claim_tasks_in(
    p_worker uuid, p_space text, p_queues text[], p_names text[], p_max int4, p_oldest bool
) RETURNS SETOF @schema@.tasks LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_queues   text[];
    v_names    text[];
    v_limited  bool;
    v_by_key   bool := false;
    v_left     int4 := p_max;
    v_seen     @schema@.candidate[];
    v_known    @schema@.limit_slots[] := '{}';
    v_full     text[] := '{}';
    v_skipped  uuid[] := '{}';
    v_keys     uuid[];
    v_taken    @schema@.tasks[];
BEGIN
    SELECT array_agg(s.queue), array_agg(s.name), bool_or(r.limited = 1)
    INTO v_queues, v_names, v_limited
    FROM unnest(p_queues, p_names) s (queue, name) CROSS JOIN LATERAL (
        SELECT ((t.limit_key IS NOT NULL)::int4) AS limited FROM @schema@.tasks t
        WHERE t.ready AND t.queue = s.queue AND t.name = s.name AND t.namespace = p_space
        ORDER BY ((t.limit_key IS NOT NULL)::int4) DESC LIMIT 1) r;
    IF v_queues IS NULL THEN
        RETURN;
    END IF;
    IF cardinality(v_queues) = 1 AND NOT v_limited AND NOT p_oldest THEN
        RETURN QUERY SELECT * FROM @schema@.walk_tasks(p_worker, p_space, v_queues[1], v_names[1],
            p_max);
        RETURN;
    END IF;
    -- Several routes, or limits: look, decide, take; and again while something was in the way.
    FOR v_round IN 1..1000 LOOP
        -- The rows of full limits may hide others that come before those without a limit.
        v_by_key := v_by_key OR cardinality(v_full) > 0 AND EXISTS (
            SELECT FROM unnest(v_queues, v_names) s (queue, name) CROSS JOIN LATERAL (
                SELECT count(*) AS seen, count(*) FILTER (WHERE NOT t.limit_key = ANY (v_full)) AS open
                FROM (SELECT t.limit_key FROM @schema@.tasks t
                    WHERE t.ready AND t.queue = s.queue AND t.name = s.name
                        AND t.namespace = p_space AND ((t.limit_key IS NOT NULL)::int4) = 1
                    ORDER BY t.priority DESC, t.due_at, t.task_id LIMIT v_left + 100) t) w
            WHERE w.seen = v_left + 100 AND w.open < v_left);
        v_seen := ARRAY(SELECT c FROM @schema@.peek_tasks(p_space, v_queues, v_names, v_left,
            p_oldest, v_by_key, v_full, v_skipped) c);
        IF cardinality(v_seen) = 0 THEN
            EXIT WHEN v_by_key OR NOT v_limited;
            v_by_key := true;
            CONTINUE;
        END IF;
        v_known := v_known || @schema@.lock_limits(v_seen, v_known, v_round = 1);
        v_keys := ARRAY(SELECT c.key FROM (
                SELECT c.key, c.ord, l.slots, l.limit_key,
                    row_number() OVER (PARTITION BY l.namespace, l.limit_key ORDER BY c.ord) AS place
                FROM unnest(v_seen) c LEFT JOIN unnest(v_known) l
                    ON l.namespace = c.namespace AND l.limit_key = c.limit_key) c
            WHERE c.slots IS NULL OR c.place <= c.slots ORDER BY c.ord);
        v_taken := ARRAY(SELECT t FROM @schema@.take_tasks(p_worker, v_keys) t);
        RETURN QUERY SELECT * FROM unnest(v_taken);
        v_left := v_left - cardinality(v_taken);
        EXIT WHEN v_left = 0;
        v_skipped := v_skipped || ARRAY(SELECT k FROM unnest(v_keys) k
            EXCEPT SELECT t.task_id FROM unnest(v_taken) t);
        v_known := @schema@.use_slots(v_known, ARRAY(SELECT
            ROW(t.task_id, t.namespace, t.limit_key, 0)::@schema@.candidate
            FROM unnest(v_taken) t WHERE t.limit_key IS NOT NULL));
        v_full := ARRAY(SELECT l.limit_key FROM unnest(v_known) l WHERE l.slots <= 0);
        -- A row that was seen and neither taken nor passed over for a reason would come back.
        IF cardinality(v_keys) = cardinality(v_seen) AND cardinality(v_taken) = cardinality(v_keys) THEN
            EXIT WHEN v_by_key OR NOT v_limited;
            v_by_key := true;
        END IF;
    END LOOP;
END $$;

-- Claims tasks: namespaces take turns, beginning with the one after `p_after`.
CREATE FUNCTION @schema@.claim_tasks(
    p_worker uuid, p_queues text[], p_names text[], p_max int4, p_oldest bool, p_after text
) RETURNS SETOF @schema@.tasks LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_busy   int8;
    v_queue  text;
    v_name   text;
    v_first  text;
    v_last   text;
    v_left   int4 := p_max;
    v_lanes  text[] := '{}';
    v_new    text[];
    v_kept   text[];
    v_space  text;
    v_share  int4;
    v_count  int4;
BEGIN
    -- A worker asks for all routes that it serves, the engine's own among them, and mostly one of
    -- them has something, of one namespace. The oldest of it are its first if all have the same
    -- priority.
    SELECT count(*) + coalesce(sum(l.limited), 0), min(s.queue), min(s.name), min(f.namespace),
        max(l.namespace)
    INTO v_busy, v_queue, v_name, v_first, v_last
    FROM unnest(p_queues, p_names) s (queue, name) CROSS JOIN LATERAL (
        SELECT t.namespace FROM @schema@.tasks t
        WHERE t.ready AND t.queue = s.queue AND t.name = s.name
        ORDER BY t.namespace LIMIT 1) f
    CROSS JOIN LATERAL (
        SELECT t.namespace, ((t.limit_key IS NOT NULL)::int4) AS limited FROM @schema@.tasks t
        WHERE t.ready AND t.queue = s.queue AND t.name = s.name
        ORDER BY t.namespace DESC, ((t.limit_key IS NOT NULL)::int4) DESC LIMIT 1) l;
    IF v_busy = 0 THEN
        RETURN;
    END IF;
    IF v_busy = 1 AND v_first = v_last AND (NOT p_oldest OR 1 = (SELECT count(*)
            FROM @schema@.task_segments(ARRAY[v_queue], ARRAY[v_name], ARRAY[v_first]))) THEN
        RETURN QUERY SELECT * FROM @schema@.walk_tasks(p_worker, v_first, v_queue, v_name,
            p_max);
        RETURN;
    END IF;
    -- While there are more namespaces than rows to claim, one row of each.
    v_last := NULL;
    LOOP
        v_new := @schema@.task_spaces(p_queues, p_names, p_after, v_last, v_left);
        EXIT WHEN v_last IS NULL AND cardinality(v_new) < v_left;
        EXIT WHEN cardinality(v_new) = 0;
        v_last := v_new[cardinality(v_new)];
        FOREACH v_space IN ARRAY v_new LOOP
            RETURN QUERY SELECT * FROM @schema@.claim_tasks_in(p_worker, v_space, p_queues,
                p_names, 1, p_oldest);
            GET DIAGNOSTICS v_count = ROW_COUNT;
            v_left := v_left - v_count;
            IF v_count > 0 THEN
                v_lanes := v_lanes || v_space;
            END IF;
        END LOOP;
        IF v_left = 0 THEN
            RETURN;
        END IF;
    END LOOP;
    v_lanes := v_lanes || v_new;
    -- Then equal shares, until nothing is left to claim or to share.
    WHILE v_left > 0 AND cardinality(v_lanes) > 0 LOOP
        v_share := greatest(1, v_left / cardinality(v_lanes));
        v_kept := '{}';
        FOREACH v_space IN ARRAY v_lanes LOOP
            EXIT WHEN v_left = 0;
            RETURN QUERY SELECT * FROM @schema@.claim_tasks_in(p_worker, v_space, p_queues,
                p_names, v_share, p_oldest);
            GET DIAGNOSTICS v_count = ROW_COUNT;
            v_left := v_left - v_count;
            IF v_count = v_share THEN
                v_kept := v_kept || v_space;
            END IF;
        END LOOP;
        v_lanes := v_kept;
    END LOOP;
END $$;

-------------------------------------------------------------------------- promotion and leases --

-- Readies what is due. Codes: 0 the clock; 4 a turn, 5 a task (queue, name); 6 the next due time.
CREATE FUNCTION @schema@.promote(p_limit int4) RETURNS SETOF @schema@.batch_result
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now    int8 := @schema@.clock_us();
    v_places tid[];
BEGIN
    RETURN NEXT ROW(0, NULL, NULL, NULL, NULL, v_now, NULL, NULL, NULL, NULL, NULL, NULL)
        ::@schema@.batch_result;
    v_places := ARRAY(SELECT r.ctid FROM @schema@.runs r
        WHERE NOT r.turn_ready AND r.turn_worker IS NULL AND r.turn_due_at IS NOT NULL
            AND r.status <> 'paused' AND r.turn_due_at <= v_now
        ORDER BY r.turn_due_at, r.run_key LIMIT p_limit FOR NO KEY UPDATE OF r SKIP LOCKED);
    RETURN QUERY UPDATE @schema@.runs r SET turn_ready = true WHERE r.ctid = ANY (v_places)
    RETURNING 4::int2, NULL::int4, NULL::int4, r.run_key, NULL::uuid, NULL::int8, NULL::int8,
        NULL::bytea, r.queue, r.workflow, true, r.turn_due_at;
    v_places := ARRAY(SELECT t.ctid FROM @schema@.tasks t
        WHERE NOT t.ready AND t.worker IS NULL AND t.due_at IS NOT NULL AND t.due_at <= v_now
        ORDER BY t.due_at, t.task_id LIMIT p_limit FOR NO KEY UPDATE OF t SKIP LOCKED);
    RETURN QUERY UPDATE @schema@.tasks t SET ready = true WHERE t.ctid = ANY (v_places)
    RETURNING 5::int2, NULL::int4, NULL::int4, t.task_id, NULL::uuid, NULL::int8, NULL::int8,
        NULL::bytea, t.queue, t.name, true, t.due_at;
    RETURN QUERY SELECT 6::int2, NULL::int4, NULL::int4, NULL::uuid, NULL::uuid, NULL::int8,
        NULL::int8, NULL::bytea, NULL, NULL, NULL::bool, least(
        (SELECT r.turn_due_at FROM @schema@.runs r
            WHERE NOT r.turn_ready AND r.turn_worker IS NULL AND r.turn_due_at IS NOT NULL
                AND r.status <> 'paused' ORDER BY r.turn_due_at LIMIT 1),
        (SELECT t.due_at FROM @schema@.tasks t
            WHERE NOT t.ready AND t.worker IS NULL AND t.due_at IS NOT NULL
            ORDER BY t.due_at LIMIT 1));
END $$;

-- Registers or renews a worker. Answers one row: n the clock, flag whether it had lapsed, and the
-- row as it is now is what the caller decides from (op: 1 if it may reap, and 2 more
-- if it was asked to drain).
CREATE FUNCTION @schema@.renew(
    p_worker uuid, p_name text, p_version text, p_status text, p_lease_us int8, p_turns text,
    p_tasks text, p_slots int8, p_note text, p_load int8, p_task_slots int8, p_task_load int8,
    p_accepting bool, p_group text, p_host text,
    p_tasks_completed int8, p_tasks_failed int8, p_tasks_took_us int8
) RETURNS SETOF @schema@.batch_result LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now    int8;
    v_lapsed bool := false;
    v_old    @schema@.workers;
    v_row    @schema@.workers;
BEGIN
    SELECT * INTO v_old FROM @schema@.workers w WHERE w.worker = p_worker FOR NO KEY UPDATE;
    v_now := @schema@.clock_us();
    IF v_old.worker IS NOT NULL THEN
        v_lapsed := v_now > v_old.renewed_at + v_old.lease_us;
    END IF;
    INSERT INTO @schema@.workers AS w VALUES (p_worker, p_name, p_version, p_status, p_lease_us,
        p_turns, p_tasks, p_slots, p_note, p_load, p_task_slots, p_task_load, p_accepting, p_group,
        p_host, p_tasks_completed, p_tasks_failed, p_tasks_took_us, v_now, v_now, v_now, false)
    ON CONFLICT (worker) DO UPDATE SET name = excluded.name, version = excluded.version,
        status = excluded.status, lease_us = excluded.lease_us, turns = excluded.turns,
        tasks = excluded.tasks, slots = excluded.slots, note = excluded.note,
        load = excluded.load, task_slots = excluded.task_slots, task_load = excluded.task_load,
        accepting = excluded.accepting, worker_group = excluded.worker_group,
        host = excluded.host, tasks_completed = excluded.tasks_completed,
        tasks_failed = excluded.tasks_failed, tasks_took_us = excluded.tasks_took_us,
        renewed_at = excluded.renewed_at,
        steady_since = CASE WHEN v_now > w.renewed_at + w.lease_us THEN v_now
            ELSE w.steady_since END
    RETURNING * INTO v_row;
    RETURN NEXT ROW(0, NULL, CASE WHEN v_row.status <> 'stopped'
            AND v_now >= v_row.steady_since + v_row.lease_us THEN 1 ELSE 0 END
            + CASE WHEN v_row.drain THEN 2 ELSE 0 END, NULL, NULL, v_now, NULL, NULL, NULL, NULL, v_lapsed, NULL)::@schema@.batch_result;
    RETURN QUERY SELECT 4::int2, NULL::int4, NULL::int4, r.run_key, NULL::uuid, NULL::int8,
        NULL::int8, NULL::bytea, NULL, NULL, NULL::bool, NULL::int8
    FROM @schema@.runs r
    WHERE r.turn_worker = p_worker AND EXISTS (SELECT FROM @schema@.messages m
        WHERE m.run_key = r.run_key AND m.kind = 'control' AND m.consumed_by IS NULL)
    ORDER BY r.run_key;
END $$;

-- Those among the holders that are not live. The distinct holders are found by probing the index
-- of held rows, so that many holds of few workers cost few steps.
CREATE FUNCTION @schema@.dead_holders(p_now int8) RETURNS SETOF uuid LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY WITH RECURSIVE turns AS (
        (SELECT r.turn_worker AS w FROM @schema@.runs r WHERE r.turn_worker IS NOT NULL
            ORDER BY r.turn_worker LIMIT 1)
        UNION ALL
        SELECT (SELECT r.turn_worker FROM @schema@.runs r
            WHERE r.turn_worker IS NOT NULL AND r.turn_worker > turns.w
            ORDER BY r.turn_worker LIMIT 1) FROM turns WHERE turns.w IS NOT NULL
    ), tasks AS (
        (SELECT t.worker AS w FROM @schema@.tasks t WHERE t.worker IS NOT NULL
            ORDER BY t.worker LIMIT 1)
        UNION ALL
        SELECT (SELECT t.worker FROM @schema@.tasks t
            WHERE t.worker IS NOT NULL AND t.worker > tasks.w
            ORDER BY t.worker LIMIT 1) FROM tasks WHERE tasks.w IS NOT NULL
    )
    SELECT h.w FROM (SELECT w FROM turns UNION SELECT w FROM tasks) h
    WHERE h.w IS NOT NULL AND NOT EXISTS (SELECT FROM @schema@.workers k WHERE k.worker = h.w
        AND k.status <> 'stopped' AND p_now <= k.renewed_at + k.lease_us);
END $$;

-- Frees what dead workers hold. Codes: 0 flag whether the worker may; 4 a turn, 5 a task (key, n
-- when it was claimed, queue, name, flag: it is ready).
CREATE FUNCTION @schema@.reap(p_worker uuid, p_limit int4) RETURNS SETOF @schema@.batch_result
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now  int8 := @schema@.clock_us();
    v_may  bool;
    v_dead uuid[];
BEGIN
    SELECT w.status <> 'stopped' AND v_now <= w.renewed_at + w.lease_us
        AND v_now >= w.steady_since + w.lease_us
    INTO v_may FROM @schema@.workers w WHERE w.worker = p_worker;
    v_may := coalesce(v_may, false);
    RETURN NEXT ROW(0, NULL, NULL, NULL, NULL, v_now, NULL, NULL, NULL, NULL, v_may, NULL)
        ::@schema@.batch_result;
    IF NOT v_may THEN
        RETURN;
    END IF;
    v_dead := ARRAY(SELECT @schema@.dead_holders(v_now));
    IF cardinality(v_dead) > 0 THEN
        RETURN QUERY WITH oldest AS MATERIALIZED (
            SELECT c.run_key, c.turn_claim_no
            FROM unnest(v_dead) d (worker) CROSS JOIN LATERAL (
                SELECT r.run_key, r.turn_claim_no, r.turn_claimed_at FROM @schema@.runs r
                WHERE r.turn_worker = d.worker
                ORDER BY r.turn_claimed_at, r.run_key LIMIT p_limit) c
            ORDER BY c.turn_claimed_at, c.run_key LIMIT p_limit
        ), picked AS MATERIALIZED (
            SELECT r.run_key, r.turn_claimed_at AS at FROM oldest o JOIN @schema@.runs r ON r.run_key = o.run_key
            WHERE r.turn_claim_no = o.turn_claim_no AND r.turn_worker IS NOT NULL
            ORDER BY r.run_key FOR NO KEY UPDATE OF r SKIP LOCKED)
        UPDATE @schema@.runs r SET turn_worker = NULL, turn_claimed_at = NULL,
            turn_claim_no = r.turn_claim_no + 1, turn_reclaims = r.turn_reclaims + 1,
            turn_first = r.started_at IS NULL, turn_last = NULL,
            turn_ready = r.status <> 'paused' OR r.accepted > r.seen,
            turn_due_at = CASE WHEN r.started_at IS NULL AND r.turn_due_at > v_now THEN r.turn_due_at
                WHEN r.status = 'paused' AND r.accepted <= r.seen THEN r.turn_due_at
                ELSE least(r.turn_due_at, v_now) END
        FROM picked WHERE r.run_key = picked.run_key
        RETURNING 4::int2, NULL::int4, NULL::int4, r.run_key, NULL::uuid, picked.at, NULL::int8,
            NULL::bytea, r.queue, r.workflow, r.turn_ready, NULL::int8;
        RETURN QUERY WITH oldest AS MATERIALIZED (
            SELECT c.task_id, c.claim_no FROM unnest(v_dead) d (worker) CROSS JOIN LATERAL (
                SELECT t.task_id, t.claim_no, t.claimed_at FROM @schema@.tasks t
                WHERE t.worker = d.worker ORDER BY t.claimed_at, t.task_id LIMIT p_limit) c
            ORDER BY c.claimed_at, c.task_id LIMIT p_limit
        ), picked AS MATERIALIZED (
            SELECT t.task_id, t.claimed_at AS at FROM oldest o JOIN @schema@.tasks t ON t.task_id = o.task_id
            WHERE t.claim_no = o.claim_no AND t.worker IS NOT NULL
            ORDER BY t.task_id FOR NO KEY UPDATE OF t SKIP LOCKED)
        UPDATE @schema@.tasks t SET worker = NULL, claimed_at = NULL, claim_no = t.claim_no + 1,
            reclaims = t.reclaims + 1, ready = true, due_at = least(t.due_at, v_now)
        FROM picked WHERE t.task_id = picked.task_id
        RETURNING 5::int2, NULL::int4, NULL::int4, t.task_id, NULL::uuid, picked.at, NULL::int8,
            NULL::bytea, t.queue, t.name, true, NULL::int8;
    END IF;
    DELETE FROM @schema@.workers w WHERE w.renewed_at < v_now - 86400000000
        AND (w.status = 'stopped' OR w.renewed_at + w.lease_us < v_now);
END $$;

-- Gives back holds without progress. Codes as for `reap`.
CREATE FUNCTION @schema@.release(
    p_runs uuid[], p_run_workers uuid[], p_run_claims int8[],
    p_tasks uuid[], p_task_workers uuid[], p_task_claims int8[]
) RETURNS SETOF @schema@.batch_result LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now int8 := @schema@.clock_us();
BEGIN
    RETURN QUERY WITH held AS MATERIALIZED (
        SELECT r.run_key FROM unnest(p_runs, p_run_workers, p_run_claims)
            h (run_key, worker, claim_no)
        JOIN @schema@.runs r ON r.run_key = h.run_key
        WHERE r.turn_worker = h.worker AND r.turn_claim_no = h.claim_no
        ORDER BY r.run_key FOR NO KEY UPDATE OF r)
    UPDATE @schema@.runs r SET turn_worker = NULL, turn_claimed_at = NULL,
        turn_claim_no = r.turn_claim_no + 1, turn_first = r.started_at IS NULL, turn_last = NULL,
        turn_ready = r.status <> 'paused' OR r.accepted > r.seen,
        turn_due_at = CASE WHEN r.started_at IS NULL AND r.turn_due_at > v_now THEN r.turn_due_at
            WHEN r.status = 'paused' AND r.accepted <= r.seen THEN r.turn_due_at
            ELSE least(r.turn_due_at, v_now) END
    FROM held WHERE r.run_key = held.run_key
    RETURNING 4::int2, NULL::int4, NULL::int4, r.run_key, NULL::uuid, NULL::int8, NULL::int8,
        NULL::bytea, r.queue, r.workflow, r.turn_ready, NULL::int8;
    RETURN QUERY WITH held AS MATERIALIZED (
        SELECT t.task_id FROM unnest(p_tasks, p_task_workers, p_task_claims)
            h (task_id, worker, claim_no)
        JOIN @schema@.tasks t ON t.task_id = h.task_id
        WHERE t.worker = h.worker AND t.claim_no = h.claim_no
        ORDER BY t.task_id FOR NO KEY UPDATE OF t)
    UPDATE @schema@.tasks t SET worker = NULL, claimed_at = NULL, claim_no = t.claim_no + 1,
        ready = true, due_at = least(t.due_at, v_now)
    FROM held WHERE t.task_id = held.task_id
    RETURNING 5::int2, NULL::int4, NULL::int4, t.task_id, NULL::uuid, NULL::int8, NULL::int8,
        NULL::bytea, t.queue, t.name, true, NULL::int8;
END $$;

-- Notes signs of life of tasks that are still held, and answers which are.
CREATE FUNCTION @schema@.beat(
    p_tasks uuid[], p_workers uuid[], p_claims int8[], p_beats bytea[], p_encodings text[]
) RETURNS SETOF uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY WITH held AS MATERIALIZED (
        SELECT t.task_id, h.beat, h.encoding
        FROM unnest(p_tasks, p_workers, p_claims, p_beats, p_encodings)
            h (task_id, worker, claim_no, beat, encoding)
        JOIN @schema@.tasks t ON t.task_id = h.task_id
        WHERE t.worker = h.worker AND t.claim_no = h.claim_no
        ORDER BY t.task_id FOR NO KEY UPDATE OF t)
    UPDATE @schema@.tasks t SET beat_at = @schema@.clock_us(),
        beat = coalesce(held.beat, t.beat),
        beat_encoding = coalesce(held.encoding, t.beat_encoding)
    FROM held WHERE t.task_id = held.task_id
    RETURNING t.task_id;
END $$;
