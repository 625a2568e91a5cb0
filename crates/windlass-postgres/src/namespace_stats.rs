//! Counts of one namespace: the current rows, and the attempts of the last hour.

use std::collections::BTreeMap;

use windlass_kernel::{
    Capped, DeadLetterCount, Error, LimitKey, Namespace, NamespaceStats, QueueName, RouteName,
    RunCount, RunStatus, TaskCount, TaskStat, Timestamp, WorkflowName,
};

use crate::rows::Cells;
use crate::store::Shared;

// All in one snapshot. Each count reads at most one row more than the bound of `Capped`. New runs
// have the largest keys, so the runs that have not started are searched from that end.
const NAMESPACE_STATS: &str = "SELECT 0::int2, '', '', 0::int2, 0::int8, @schema@.clock_us() \
    UNION ALL SELECT 1::int2, workflow, status, 0::int2, sum(value)::int8, NULL::int8 \
        FROM @schema@.counters WHERE name = 'runs' AND namespace = $1 \
        GROUP BY workflow, status HAVING sum(value) > 0 \
    UNION ALL SELECT 2::int2, workflow, '', 0::int2, count(*), NULL::int8 \
        FROM (SELECT workflow, started_at FROM @schema@.runs \
            WHERE namespace = $1 AND status = 'active' ORDER BY run_key DESC LIMIT 10001) r \
        WHERE started_at IS NULL GROUP BY workflow \
    UNION ALL SELECT 3::int2, queue, name, priority, count(*), min(due_at) \
        FROM (SELECT queue, name, priority, due_at FROM @schema@.tasks \
            WHERE namespace = $1 AND ready ORDER BY task_id LIMIT 10001) t \
        GROUP BY queue, name, priority \
    UNION ALL SELECT 4::int2, queue, name, priority, count(*), NULL::int8 \
        FROM (SELECT queue, name, priority FROM @schema@.tasks \
            WHERE namespace = $1 AND NOT ready AND worker IS NULL ORDER BY task_id LIMIT 10001) t \
        GROUP BY queue, name, priority \
    UNION ALL SELECT 5::int2, queue, name, priority, count(*), NULL::int8 \
        FROM (SELECT queue, name, priority FROM @schema@.tasks \
            WHERE namespace = $1 AND worker IS NOT NULL ORDER BY task_id LIMIT 10001) t \
        GROUP BY queue, name, priority \
    UNION ALL SELECT 6::int2, queue, name, 0::int2, count(*), NULL::int8 \
        FROM (SELECT queue, name FROM @schema@.dead_letters \
            WHERE namespace = $1 ORDER BY task_id LIMIT 10001) d GROUP BY queue, name \
    UNION ALL SELECT 7::int2, '', '', 0::int2, count(*), NULL::int8 \
        FROM (SELECT FROM @schema@.dead_letters \
            WHERE namespace = $1 AND requeued_at IS NULL LIMIT 10001) d \
    UNION ALL SELECT 8::int2, '', '', 0::int2, count(*), NULL::int8 \
        FROM (SELECT FROM @schema@.breakers WHERE namespace = $1 LIMIT 10001) b \
    UNION ALL SELECT 9::int2, breaker_key, '', 0::int2, 0::int8, NULL::int8 \
        FROM (SELECT breaker_key FROM @schema@.breakers \
            WHERE namespace = $1 AND status <> 'closed' ORDER BY breaker_key LIMIT $2) b";

// Locks rows in key order, so that two processes cannot deadlock.
const ADD_STATS: &str = "INSERT INTO @schema@.tallies AS t (minute, namespace, name, field, value) \
    SELECT minute, namespace, name, field, sum(value)::int8 \
        FROM unnest($1::int8[], $2::text[], $3::text[], $4::int4[], $5::int8[]) \
            AS u (minute, namespace, name, field, value) \
        GROUP BY namespace, minute, name, field ORDER BY namespace, minute, name, field \
    ON CONFLICT (namespace, minute, name, field) DO UPDATE SET value = t.value + excluded.value";
const DELETE_OLD_STATS: &str = "DELETE FROM @schema@.tallies \
    WHERE minute <= @schema@.clock_us() / 60000000 - $1";
const TASK_STATS: &str = "SELECT c.minute, t.name, t.field, sum(t.value)::int8 \
    FROM (SELECT @schema@.clock_us() / 60000000 AS minute) c, @schema@.tallies t \
    WHERE t.namespace = $1 AND t.minute > c.minute - $2 \
    GROUP BY c.minute, t.name, t.field ORDER BY t.name, t.field";

pub(crate) fn statements() -> Vec<(String, String)> {
    [
        ("namespace_stats", NAMESPACE_STATS),
        ("add task_stats", ADD_STATS),
        ("delete old task_stats", DELETE_OLD_STATS),
        ("task_stats", TASK_STATS),
    ]
    .map(|(name, text)| (name.to_owned(), text.to_owned()))
    .to_vec()
}

/// Reads the counts of a namespace.
pub(crate) async fn namespace_stats(
    shared: &Shared,
    namespace: Namespace,
) -> Result<NamespaceStats, Error> {
    let breakers_max = i64::from(NamespaceStats::BREAKERS_MAX);
    let rows = shared.read(NAMESPACE_STATS, &[&namespace.as_str(), &breakers_max]).await?;
    let mut namespace_stats = NamespaceStats {
        runs: Vec::new(),
        runs_new: Vec::new(),
        tasks: Vec::new(),
        letters: Vec::new(),
        letters_open: Capped::default(),
        breakers: Capped::default(),
        breakers_open: Vec::new(),
        now: Timestamp::ZERO,
    };
    let mut tasks: BTreeMap<_, TaskCount> = BTreeMap::new();
    for row in &rows {
        let c = &mut Cells::of(row);
        let what: i16 = c.take()?;
        let (first, second) = (c.text()?, c.text()?);
        let priority: i16 = c.take()?;
        let count = c.count()?;
        let at = c.time_opt()?;
        let (queue, name) = (QueueName::from_stored(first), RouteName::from_stored(second));
        match what {
            0 => namespace_stats.now = at.unwrap_or(Timestamp::ZERO),
            1 => namespace_stats.runs.push(RunCount {
                namespace: namespace.clone(),
                workflow: WorkflowName::from_stored(first),
                status: RunStatus::parse(second)?,
                count,
            }),
            2 => namespace_stats.runs_new.push((WorkflowName::from_stored(first), count)),
            3..=5 => {
                let key = (queue.clone(), name.clone(), priority);
                let group = tasks.entry(key).or_insert(TaskCount {
                    queue,
                    name,
                    priority,
                    ready: 0,
                    scheduled: 0,
                    held: 0,
                    ready_oldest: None,
                });
                match what {
                    3 => (group.ready, group.ready_oldest) = (count, at),
                    4 => group.scheduled = count,
                    _ => group.held = count,
                }
            }
            6 => namespace_stats.letters.push(DeadLetterCount { queue, name, count }),
            7 => namespace_stats.letters_open = Capped::new(count),
            8 => namespace_stats.breakers = Capped::new(count),
            _ => namespace_stats.breakers_open.push(LimitKey::from_stored(first)),
        }
    }
    // The kernel orders statuses by declaration, not by name.
    namespace_stats.runs.sort();
    namespace_stats.runs_new.sort();
    namespace_stats.letters.sort();
    namespace_stats.breakers_open.sort();
    namespace_stats.tasks = tasks.into_values().collect();
    Ok(namespace_stats)
}

/// Adds figures to their minutes and deletes old minutes.
pub(crate) async fn add_task_stats(shared: &Shared, stats: Vec<TaskStat>) -> Result<(), Error> {
    TaskStat::validate(&stats, &shared.options.limits)?;
    let minutes: Vec<i64> = stats.iter().map(|stat| stat.minute).collect();
    let namespaces: Vec<&str> = stats.iter().map(|stat| stat.namespace.as_str()).collect();
    let names: Vec<&str> = stats.iter().map(|stat| stat.name.as_str()).collect();
    let fields: Vec<i32> = stats.iter().map(|stat| stat.field.into()).collect();
    let value = |stat: &TaskStat| i64::try_from(stat.value).unwrap_or(i64::MAX / 4);
    let values: Vec<i64> = stats.iter().map(value).collect();
    shared.query(ADD_STATS, &[&minutes, &namespaces, &names, &fields, &values]).await?;
    shared.query(DELETE_OLD_STATS, &[&TaskStat::MINUTES]).await?;
    Ok(())
}

/// Reads the figures of the last hour.
pub(crate) async fn task_stats(
    shared: &Shared,
    namespace: Namespace,
) -> Result<Vec<TaskStat>, Error> {
    let rows = shared.read(TASK_STATS, &[&namespace.as_str(), &TaskStat::MINUTES]).await?;
    crate::rows::all(&rows, |row| {
        let c = &mut Cells::of(row);
        let minute: i64 = c.take()?;
        let name = RouteName::from_stored(c.text()?);
        let field: i32 = c.take()?;
        let field = u16::try_from(field)
            .map_err(|_| Error::corrupt(format!("{field} is not a field of task statistics")))?;
        Ok(TaskStat { minute, namespace: namespace.clone(), name, field, value: c.count()? })
    })
}
