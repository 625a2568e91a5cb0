-- What other roles may see and do. The engine's role owns the tables, mixes tenants in a batch and is not
-- restricted. Every other role sees nothing without a grant, and with one only the rows of the namespace
-- in its setting windlass.namespace.

DO $$
DECLARE
    v_table text;
BEGIN
    FOR v_table IN
        SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = trim(both '"' from '@schema@') AND c.relkind IN ('r', 'p')
            AND c.relname <> 'refinery_schema_history'
    LOOP
        EXECUTE format('ALTER TABLE @schema@.%I ENABLE ROW LEVEL SECURITY', v_table);
        EXECUTE format('REVOKE ALL ON @schema@.%I FROM PUBLIC', v_table);
    END LOOP;
    FOREACH v_table IN ARRAY ARRAY['runs', 'tasks', 'dead_letters', 'records', 'record_versions',
            'record_terms']
    LOOP
        EXECUTE format('CREATE POLICY of_namespace ON @schema@.%I FOR SELECT
            USING (namespace = current_setting(''windlass.namespace'', true))', v_table);
    END LOOP;
    -- Rows without a namespace belong to a run, and the policy of runs decides.
    FOREACH v_table IN ARRAY ARRAY['steps', 'events', 'messages', 'logs']
    LOOP
        EXECUTE format('CREATE POLICY of_run ON @schema@.%1$I FOR SELECT
            USING (EXISTS (SELECT FROM @schema@.runs r WHERE r.run_key = %1$I.run_key))', v_table);
    END LOOP;
    -- A view runs as its owner and would show all rows, unless it runs as its reader.
    IF current_setting('server_version_num')::int4 >= 150000 THEN
        FOREACH v_table IN ARRAY ARRAY['run_view', 'step_view', 'event_view', 'record_view'] LOOP
            EXECUTE format('ALTER VIEW @schema@.%I SET (security_invoker = true)', v_table);
        END LOOP;
    END IF;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA @schema@ FROM PUBLIC;

-- Lets a role read the rows of the namespace in its setting windlass.namespace. Only the owner can call it.
-- Large bodies stay unreadable, because their rows name no namespace. Views need PostgreSQL 15.
CREATE FUNCTION @schema@.allow_reader(p_role text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_name text;
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA @schema@ TO %I', p_role);
    FOREACH v_name IN ARRAY ARRAY['runs', 'steps', 'events', 'messages', 'logs', 'tasks',
            'dead_letters', 'records', 'record_versions', 'record_terms']
    LOOP
        EXECUTE format('GRANT SELECT ON @schema@.%I TO %I', v_name, p_role);
    END LOOP;
    EXECUTE format('GRANT EXECUTE ON FUNCTION @schema@.shown(bytea, text) TO %I', p_role);
    IF current_setting('server_version_num')::int4 >= 150000 THEN
        FOREACH v_name IN ARRAY ARRAY['run_view', 'step_view', 'event_view', 'record_view'] LOOP
            EXECUTE format('GRANT SELECT ON @schema@.%I TO %I', v_name, p_role);
        END LOOP;
    END IF;
END $$;
REVOKE ALL ON FUNCTION @schema@.allow_reader(text) FROM PUBLIC;

-- TRUNCATE fires no row trigger.
CREATE TRIGGER runs_not_emptied BEFORE TRUNCATE ON @schema@.runs
    EXECUTE FUNCTION @schema@.refuse('runs are never emptied');
CREATE TRIGGER steps_not_emptied BEFORE TRUNCATE ON @schema@.steps
    EXECUTE FUNCTION @schema@.refuse('steps are never emptied');
CREATE TRIGGER steps_default_not_emptied BEFORE TRUNCATE ON @schema@.steps_default
    EXECUTE FUNCTION @schema@.refuse('steps are never emptied');
CREATE TRIGGER events_not_emptied BEFORE TRUNCATE ON @schema@.events
    EXECUTE FUNCTION @schema@.refuse('the ledger is never emptied');
CREATE TRIGGER events_default_not_emptied BEFORE TRUNCATE ON @schema@.events_default
    EXECUTE FUNCTION @schema@.refuse('the ledger is never emptied');
CREATE TRIGGER records_not_emptied BEFORE TRUNCATE ON @schema@.records
    EXECUTE FUNCTION @schema@.refuse('records are never emptied');
CREATE TRIGGER record_versions_not_emptied BEFORE TRUNCATE ON @schema@.record_versions
    EXECUTE FUNCTION @schema@.refuse('kept versions are never emptied');
CREATE TRIGGER bodies_not_emptied BEFORE TRUNCATE ON @schema@.bodies
    EXECUTE FUNCTION @schema@.refuse('large bodies are never emptied');
