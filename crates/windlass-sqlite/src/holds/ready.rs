//! The ready rows in the order of a claim: namespaces take turns, each with its best rows first.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rusqlite::types::ToSqlOutput;
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};
use uuid::Uuid;
use windlass_kernel::{ClaimFilter, ClaimOrder, Route, Timestamp};

use crate::error::UnitError;
use crate::rows::number;

/// How many rows behind full limits a claim passes over in a namespace before it looks at each limit
/// key by itself.
const FULL_MAX: usize = 100;

/// The queries for ready rows of one kind.
pub(crate) struct ReadyQueries {
    /// By whether the rows have a limit key.
    by_limited: RankQueries,
    /// By their limit key.
    by_key: RankQueries,
    /// Whether any ready row has a limit key.
    any_limited: &'static str,
    /// The next namespace of a route.
    namespace: &'static str,
    /// The next limit key of a namespace.
    limit_key: &'static str,
    /// The next route and namespace with ready rows.
    route: &'static str,
}

/// The queries for the ready rows of a route and a namespace, of which ?4 selects a part.
struct RankQueries {
    /// In the order of a claim: rowid, priority, first turn, due, key.
    best: &'static str,
    /// The oldest rows of a priority, either first turns or others.
    oldest: &'static str,
    /// The next lower priority.
    priority: &'static str,
}

pub(crate) const TURNS: ReadyQueries = ReadyQueries {
    by_limited: RankQueries {
        best: "SELECT rowid, priority, started_at IS NULL, turn_due_at, run_key FROM runs INDEXED BY runs_ready \
               WHERE queue = ?1 AND workflow = ?2 AND namespace = ?3 AND (limit_key IS NOT NULL) = ?4 \
               AND turn_ready = 1 \
               ORDER BY priority DESC, (started_at IS NULL), turn_due_at, run_key LIMIT ?5 OFFSET ?6",
        oldest: "SELECT rowid, 0, 0, turn_due_at, run_key FROM runs INDEXED BY runs_ready \
               WHERE queue = ?1 AND workflow = ?2 AND namespace = ?3 AND (limit_key IS NOT NULL) = ?4 \
               AND turn_ready = 1 \
               AND priority = ?7 AND (started_at IS NULL) = ?8 ORDER BY turn_due_at, run_key LIMIT ?5 OFFSET ?6",
        priority: "SELECT priority FROM runs INDEXED BY runs_ready \
               WHERE queue = ?1 AND workflow = ?2 AND namespace = ?3 AND (limit_key IS NOT NULL) = ?4 \
               AND turn_ready = 1 \
               AND priority < ?5 ORDER BY priority DESC LIMIT 1",
    },
    by_key: RankQueries {
        best: "SELECT rowid, priority, started_at IS NULL, turn_due_at, run_key FROM runs INDEXED BY runs_limit_ready \
               WHERE queue = ?1 AND workflow = ?2 AND namespace = ?3 AND limit_key = ?4 AND limit_key IS NOT NULL \
               AND turn_ready = 1 \
               ORDER BY priority DESC, (started_at IS NULL), turn_due_at, run_key LIMIT ?5 OFFSET ?6",
        oldest: "SELECT rowid, 0, 0, turn_due_at, run_key FROM runs INDEXED BY runs_limit_ready \
               WHERE queue = ?1 AND workflow = ?2 AND namespace = ?3 AND limit_key = ?4 AND limit_key IS NOT NULL \
               AND turn_ready = 1 \
               AND priority = ?7 AND (started_at IS NULL) = ?8 ORDER BY turn_due_at, run_key LIMIT ?5 OFFSET ?6",
        priority: "SELECT priority FROM runs INDEXED BY runs_limit_ready \
               WHERE queue = ?1 AND workflow = ?2 AND namespace = ?3 AND limit_key = ?4 AND limit_key IS NOT NULL \
               AND turn_ready = 1 \
               AND priority < ?5 ORDER BY priority DESC LIMIT 1",
    },
    any_limited: "SELECT 1 FROM runs INDEXED BY runs_limit_ready \
                  WHERE turn_ready = 1 AND limit_key IS NOT NULL LIMIT 1",
    namespace: "SELECT namespace FROM runs INDEXED BY runs_ready \
                WHERE queue = ?1 AND workflow = ?2 AND turn_ready = 1 AND namespace > ?3 \
                ORDER BY namespace LIMIT 1",
    limit_key: "SELECT limit_key FROM runs INDEXED BY runs_limit_ready \
                WHERE namespace = ?1 AND turn_ready = 1 AND limit_key IS NOT NULL \
                AND limit_key > ?2 ORDER BY limit_key LIMIT 1",
    route: "SELECT queue, workflow, namespace FROM runs INDEXED BY runs_ready \
            WHERE turn_ready = 1 AND (queue, workflow, namespace) > (?1, ?2, ?3) \
            ORDER BY queue, workflow, namespace LIMIT 1",
};

pub(crate) const TASKS: ReadyQueries = ReadyQueries {
    by_limited: RankQueries {
        best: "SELECT rowid, priority, 0, due_at, task_id FROM tasks INDEXED BY tasks_ready \
               WHERE queue = ?1 AND name = ?2 AND namespace = ?3 AND (limit_key IS NOT NULL) = ?4 \
               AND ready = 1 \
               ORDER BY priority DESC, due_at, task_id LIMIT ?5 OFFSET ?6",
        oldest: "SELECT rowid, 0, 0, due_at, task_id FROM tasks INDEXED BY tasks_ready \
               WHERE queue = ?1 AND name = ?2 AND namespace = ?3 AND (limit_key IS NOT NULL) = ?4 \
               AND ready = 1 \
               AND priority = ?7 AND ?8 = 0 ORDER BY due_at, task_id LIMIT ?5 OFFSET ?6",
        priority: "SELECT priority FROM tasks INDEXED BY tasks_ready \
               WHERE queue = ?1 AND name = ?2 AND namespace = ?3 AND (limit_key IS NOT NULL) = ?4 \
               AND ready = 1 \
               AND priority < ?5 ORDER BY priority DESC LIMIT 1",
    },
    by_key: RankQueries {
        best: "SELECT rowid, priority, 0, due_at, task_id FROM tasks INDEXED BY tasks_limit_ready \
               WHERE queue = ?1 AND name = ?2 AND namespace = ?3 AND limit_key = ?4 AND limit_key IS NOT NULL \
               AND ready = 1 \
               ORDER BY priority DESC, due_at, task_id LIMIT ?5 OFFSET ?6",
        oldest: "SELECT rowid, 0, 0, due_at, task_id FROM tasks INDEXED BY tasks_limit_ready \
               WHERE queue = ?1 AND name = ?2 AND namespace = ?3 AND limit_key = ?4 AND limit_key IS NOT NULL \
               AND ready = 1 \
               AND priority = ?7 AND ?8 = 0 ORDER BY due_at, task_id LIMIT ?5 OFFSET ?6",
        priority: "SELECT priority FROM tasks INDEXED BY tasks_limit_ready \
               WHERE queue = ?1 AND name = ?2 AND namespace = ?3 AND limit_key = ?4 AND limit_key IS NOT NULL \
               AND ready = 1 \
               AND priority < ?5 ORDER BY priority DESC LIMIT 1",
    },
    any_limited: "SELECT 1 FROM tasks INDEXED BY tasks_limit_ready \
                  WHERE ready = 1 AND limit_key IS NOT NULL LIMIT 1",
    namespace: "SELECT namespace FROM tasks INDEXED BY tasks_ready \
                WHERE queue = ?1 AND name = ?2 AND ready = 1 AND namespace > ?3 \
                ORDER BY namespace LIMIT 1",
    limit_key: "SELECT limit_key FROM tasks INDEXED BY tasks_limit_ready \
                WHERE namespace = ?1 AND ready = 1 AND limit_key IS NOT NULL \
                AND limit_key > ?2 ORDER BY limit_key LIMIT 1",
    route: "SELECT queue, name, namespace FROM tasks INDEXED BY tasks_ready \
            WHERE ready = 1 AND (queue, name, namespace) > (?1, ?2, ?3) \
            ORDER BY queue, name, namespace LIMIT 1",
};

/// The sort key of a ready row.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    priority: Reverse<i64>,
    is_first: bool,
    pub(super) due_at: Option<i64>,
    pub(super) key: Uuid,
    pub(super) rowid: i64,
}

impl Candidate {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            rowid: row.get(0)?,
            priority: Reverse(row.get(1)?),
            is_first: row.get(2)?,
            due_at: row.get(3)?,
            key: row.get(4)?,
        })
    }
}

/// The decision of a claim about a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Taken,
    /// Not for this claim.
    PassedOver,
    /// Its limit is full.
    Full,
}

/// Decides which rows a claim takes.
pub(super) trait Taker {
    fn take(&mut self, candidate: &Candidate) -> Result<Verdict, UnitError>;
    /// Whether the limit of a key has a free slot, or there is no limit.
    fn has_slot(&mut self, namespace: &str, limit_key: &str) -> Result<bool, UnitError>;
}

/// Passes ready rows to `taker`, one of each namespace in turn, until it has taken `filter.max` rows.
pub(super) fn pick(
    conn: &Connection,
    ready: &ReadyQueries,
    filter: &ClaimFilter,
    order: ClaimOrder,
    taker: &mut dyn Taker,
) -> Result<(), UnitError> {
    let max = filter.max as usize;
    if max == 0 {
        return Ok(());
    }
    let mut routes: Vec<&Route> = filter.routes.iter().collect();
    routes.sort();
    routes.dedup();
    let mut namespaces = Namespaces::new(conn, ready, &routes, filter);
    let mut first: VecDeque<(String, Vec<usize>)> = VecDeque::new();
    while first.len() < max
        && let Some(found) = namespaces.next()?
    {
        first.push_back(found);
    }
    if first.is_empty() {
        return Ok(());
    }
    let any_limited = conn.prepare_cached(ready.any_limited)?.exists([])?;
    // If there are many streams, few rows of each are likely to be needed.
    let streams: usize = first.iter().map(|(_, routes)| routes.len()).sum();
    let piece = (2 * max / streams.max(1)).clamp(16, max.max(16));
    let plan = Plan { conn, ready, order, any_limited, piece };
    let mut tenants = Vec::new();
    let mut taken = 0;
    while taken < max {
        let found = match first.pop_front() {
            Some(found) => found,
            None => match namespaces.next()? {
                Some(found) => found,
                None => break,
            },
        };
        let own_routes: Vec<&Route> = found.1.iter().map(|index| routes[*index]).collect();
        let mut rows = ReadyRows::open(&plan, found.0, own_routes)?;
        if rows.take_one(&plan, taker)? {
            taken += 1;
            tenants.push(rows);
        }
    }
    while taken < max && !tenants.is_empty() {
        let mut left = Vec::with_capacity(tenants.len());
        for mut rows in tenants {
            if taken < max && rows.take_one(&plan, taker)? {
                taken += 1;
                left.push(rows);
            }
        }
        tenants = left;
    }
    Ok(())
}

/// The namespaces with ready rows of some routes, beginning after the one that was served last. Each
/// takes one lookup in the index for each route that has it.
struct Namespaces<'a> {
    conn: &'a Connection,
    sql: &'static str,
    routes: &'a [&'a Route],
    after: Option<&'a str>,
    // The next namespace of each route.
    ahead: Vec<Option<String>>,
    // The routes to look up, and the namespace after which.
    stale: Vec<usize>,
    at: String,
    is_wrapped: bool,
}

impl<'a> Namespaces<'a> {
    fn new(
        conn: &'a Connection,
        ready: &ReadyQueries,
        routes: &'a [&'a Route],
        filter: &'a ClaimFilter,
    ) -> Self {
        let after = filter.after.as_ref().map(|after| after.as_str());
        Self {
            conn,
            sql: ready.namespace,
            routes,
            after,
            ahead: vec![None; routes.len()],
            stale: (0..routes.len()).collect(),
            at: after.unwrap_or("").to_owned(),
            is_wrapped: false,
        }
    }

    // The next namespace and the routes that have rows in it.
    fn next(&mut self) -> Result<Option<(String, Vec<usize>)>, UnitError> {
        loop {
            let mut select = self.conn.prepare_cached(self.sql)?;
            for index in std::mem::take(&mut self.stale) {
                let Route { queue, name } = self.routes[index];
                let place = params![queue.as_str(), name.as_str(), self.at];
                self.ahead[index] = select.query_row(place, |row| row.get(0)).optional()?;
            }
            let next = self.ahead.iter().flatten().min();
            let is_past = |next: &&String| {
                self.is_wrapped && self.after.is_some_and(|after| next.as_str() > after)
            };
            if let Some(next) = next.filter(|next| !is_past(next)).cloned() {
                let has = |index: &usize| self.ahead[*index].as_ref() == Some(&next);
                self.stale = (0..self.routes.len()).filter(has).collect();
                self.at.clone_from(&next);
                return Ok(Some((next, self.stale.clone())));
            }
            if self.is_wrapped || self.after.is_none() {
                return Ok(None);
            }
            self.is_wrapped = true;
            self.at.clear();
            self.stale = (0..self.routes.len()).collect();
        }
    }
}

/// The connection, queries and limits that all streams of one claim use.
struct Plan<'a> {
    conn: &'a Connection,
    ready: &'a ReadyQueries,
    order: ClaimOrder,
    any_limited: bool,
    piece: usize,
}

/// The ready rows of one namespace, best first.
struct ReadyRows<'s> {
    namespace: String,
    routes: Vec<&'s Route>,
    streams: Vec<Stream<'s>>,
    heads: BinaryHeap<Reverse<(Candidate, usize)>>,
    full: usize,
    is_by_key: bool,
}

impl<'s> ReadyRows<'s> {
    fn open(plan: &Plan<'_>, namespace: String, routes: Vec<&'s Route>) -> Result<Self, UnitError> {
        let (streams, heads) = (Vec::new(), BinaryHeap::new());
        let mut rows = Self { namespace, routes, streams, heads, full: 0, is_by_key: false };
        let parts: &[bool] = if plan.any_limited { &[false, true] } else { &[false] };
        for index in 0..rows.routes.len() {
            for part in parts {
                rows.add(plan, rows.routes[index], &Part::Limited(*part), None)?;
            }
        }
        Ok(rows)
    }

    // Adds the streams of a part of a route, which begin after the given row.
    fn add(
        &mut self,
        plan: &Plan<'_>,
        route: &'s Route,
        part: &Part,
        after: Option<&Candidate>,
    ) -> Result<(), UnitError> {
        let queries = part.queries(plan.ready);
        let mut groups = vec![None];
        if plan.order == ClaimOrder::Oldest {
            let found = priorities(plan.conn, queries, route, &self.namespace, part)?;
            groups = found.into_iter().flat_map(|p| [Some((p, false)), Some((p, true))]).collect();
        }
        for group in groups {
            let sql = if group.is_some() { queries.oldest } else { queries.best };
            let (ahead, read, is_over) = (VecDeque::new(), 0, false);
            let (part, piece) = (part.clone(), plan.piece);
            let mut stream = Stream { sql, route, part, group, ahead, read, piece, is_over };
            let mut head = stream.next(plan.conn, &self.namespace)?;
            while head.as_ref().is_some_and(|head| after.is_some_and(|after| head <= after)) {
                head = stream.next(plan.conn, &self.namespace)?;
            }
            self.heads.extend(head.map(|head| Reverse((head, self.streams.len()))));
            self.streams.push(stream);
        }
        Ok(())
    }

    // Offers rows until one is taken. Returns whether one was.
    fn take_one(&mut self, plan: &Plan<'_>, taker: &mut dyn Taker) -> Result<bool, UnitError> {
        while let Some(Reverse((candidate, index))) = self.heads.pop() {
            let verdict = taker.take(&candidate)?;
            let next = self.streams[index].next(plan.conn, &self.namespace)?;
            self.heads.extend(next.map(|next| Reverse((next, index))));
            match verdict {
                Verdict::Taken => return Ok(true),
                Verdict::PassedOver => {}
                Verdict::Full => {
                    self.full += 1;
                    if self.full >= FULL_MAX && !self.is_by_key {
                        self.split_by_key(plan, &candidate, taker)?;
                    }
                }
            }
        }
        Ok(false)
    }

    // Replaces the streams of all rows with a limit key by one for each key that has a free slot, so
    // that no row behind a full limit is read any more.
    fn split_by_key(
        &mut self,
        plan: &Plan<'_>,
        last: &Candidate,
        taker: &mut dyn Taker,
    ) -> Result<(), UnitError> {
        self.is_by_key = true;
        let streams = &self.streams;
        self.heads.retain(|Reverse((_, index))| streams[*index].part == Part::Limited(false));
        let mut next = plan.conn.prepare_cached(plan.ready.limit_key)?;
        let mut at = String::new();
        while let Some(key) =
            next.query_row(params![self.namespace, at], |row| row.get::<_, String>(0)).optional()?
        {
            at.clone_from(&key);
            if taker.has_slot(&self.namespace, &key)? {
                let part = Part::Key(key);
                for index in 0..self.routes.len() {
                    self.add(plan, self.routes[index], &part, Some(last))?;
                }
            }
        }
        Ok(())
    }
}

/// A part of the rows of a route and a namespace.
#[derive(Clone, PartialEq, Eq)]
enum Part {
    /// Those with or without a limit key.
    Limited(bool),
    /// Those with this limit key.
    Key(String),
}

impl Part {
    fn queries<'q>(&self, ready: &'q ReadyQueries) -> &'q RankQueries {
        match self {
            Self::Limited(_) => &ready.by_limited,
            Self::Key(_) => &ready.by_key,
        }
    }
}

impl ToSql for Part {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Limited(is_limited) => Ok(ToSqlOutput::from(*is_limited)),
            Self::Key(key) => key.to_sql(),
        }
    }
}

/// The ready rows of one part, read in pieces of growing size.
struct Stream<'s> {
    sql: &'static str,
    route: &'s Route,
    part: Part,
    // For a stream by age: the priority, and whether the rows are first turns.
    group: Option<(i64, bool)>,
    ahead: VecDeque<Candidate>,
    read: usize,
    piece: usize,
    is_over: bool,
}

impl Stream<'_> {
    fn next(&mut self, conn: &Connection, namespace: &str) -> Result<Option<Candidate>, UnitError> {
        if self.ahead.is_empty() && !self.is_over {
            let (queue, name) = (self.route.queue.as_str(), self.route.name.as_str());
            let (limit, offset) = (number(self.piece as u64), number(self.read as u64));
            let part = &self.part;
            let mut select = conn.prepare_cached(self.sql)?;
            let mut found = match self.group {
                None => select.query(params![queue, name, namespace, part, limit, offset])?,
                Some((priority, is_first)) => select.query(params![
                    queue, name, namespace, part, limit, offset, priority, is_first
                ])?,
            };
            while let Some(row) = found.next()? {
                self.ahead.push_back(Candidate::read(row)?);
            }
            self.is_over = self.ahead.len() < self.piece;
            self.read += self.ahead.len();
            self.piece *= 4;
        }
        Ok(self.ahead.pop_front())
    }
}

// The priorities of a part. Each takes one lookup in the index.
fn priorities(
    conn: &Connection,
    queries: &RankQueries,
    route: &Route,
    namespace: &str,
    part: &Part,
) -> Result<Vec<i64>, UnitError> {
    let mut next = conn.prepare_cached(queries.priority)?;
    let mut found = Vec::new();
    let mut below = i64::from(i16::MAX) + 1;
    let (queue, name) = (route.queue.as_str(), route.name.as_str());
    while let Some(priority) =
        next.query_row(params![queue, name, namespace, part, below], |row| row.get(0)).optional()?
    {
        found.push(priority);
        below = priority;
    }
    Ok(found)
}

/// The due time of the oldest ready row. It takes one lookup in the index for each route, namespace,
/// priority, and kind of turn.
pub(crate) fn ready_oldest(
    conn: &Connection,
    ready: &ReadyQueries,
) -> Result<Option<Timestamp>, UnitError> {
    let mut next = conn.prepare_cached(ready.route)?;
    let mut at = (String::new(), String::new(), String::new());
    let mut oldest: Option<i64> = None;
    let queries = &ready.by_limited;
    loop {
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let found = next.query_row(params![at.0, at.1, at.2], read).optional()?;
        let Some(found) = found else { break };
        at = found;
        let route = Route {
            queue: windlass_kernel::QueueName::from_stored(at.0.as_str()),
            name: windlass_kernel::RouteName::from_stored(at.1.as_str()),
        };
        for part in [Part::Limited(false), Part::Limited(true)] {
            for priority in priorities(conn, queries, &route, &at.2, &part)? {
                for is_first in [false, true] {
                    let place = params![at.0, at.1, at.2, part, 1, 0, priority, is_first];
                    let due: Option<Option<i64>> = conn
                        .prepare_cached(queries.oldest)?
                        .query_row(place, |row| row.get(3))
                        .optional()?;
                    oldest = [oldest, due.flatten()].into_iter().flatten().min();
                }
            }
        }
    }
    Ok(oldest.map(Timestamp::from_micros))
}

#[cfg(test)]
mod tests {
    use windlass_kernel::{QueueName, RouteName};

    use super::*;

    /// Takes all tasks but those whose limit is full, and counts the rows that it is offered.
    struct Counting<'c> {
        conn: &'c Connection,
        offered: usize,
        taken: usize,
    }

    impl Taker for Counting<'_> {
        fn take(&mut self, candidate: &Candidate) -> Result<Verdict, UnitError> {
            self.offered += 1;
            let sql = "SELECT limit_key FROM tasks WHERE rowid = ?1";
            let key: Option<String> =
                self.conn.query_row(sql, params![candidate.rowid], |row| row.get(0))?;
            if key.is_some_and(|key| key.starts_with("full")) {
                return Ok(Verdict::Full);
            }
            self.taken += 1;
            Ok(Verdict::Taken)
        }

        fn has_slot(&mut self, _: &str, limit_key: &str) -> Result<bool, UnitError> {
            Ok(!limit_key.starts_with("full"))
        }
    }

    // Rows of a full limit before two others, one with a limit and one without.
    fn offered(behind: usize, order: ClaimOrder) -> usize {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(include_str!("../../migrations/V1__kernel.sql")).unwrap();
        let sql = "INSERT INTO tasks (task_id, namespace, kind, queue, name, priority, ready, due_at, \
                   claim_no, attempt, reclaims, limit_key, created_at) \
                   VALUES (?1, 'n', 'k', 'q', 't', ?2, 1, ?3, 0, 1, 0, ?4, 0)";
        for n in 0..behind + 2 {
            let key = Uuid::from_u128(n as u128);
            let limit = match n.checked_sub(behind) {
                None => Some(format!("full-{}", n % 3)),
                Some(0) => Some("open".to_owned()),
                Some(_) => None,
            };
            conn.execute(sql, params![key, (n % 2) as i64, n as i64, limit]).unwrap();
        }
        let route = Route { queue: QueueName::from_stored("q"), name: RouteName::from_stored("t") };
        let filter = ClaimFilter { routes: vec![route], max: 10, after: None };
        let mut taker = Counting { conn: &conn, offered: 0, taken: 0 };
        pick(&conn, &TASKS, &filter, order, &mut taker).unwrap();
        assert_eq!(taker.taken, 2, "{behind} {order:?}");
        taker.offered
    }

    #[test]
    fn a_claim_does_not_read_the_rows_behind_full_limits() {
        for order in [ClaimOrder::Priority, ClaimOrder::Oldest] {
            assert_eq!(offered(500, order), FULL_MAX + 2);
            assert_eq!(offered(5_000, order), FULL_MAX + 2);
        }
    }
}
