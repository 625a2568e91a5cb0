//! The store: every call of the trait, handed to the writer or to a reader.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::Connection;
use windlass_kernel::{
    Beat, Body, BoxFuture, BreakerRow, Census, ClaimRequest, ClaimedTurn, Claims, Commit,
    CommitError, CommitResults, DeleteTrees, Deleted, Error, Fact, Health, HeldItem, LimitKey,
    Limits, Loaded, Looked, Namespace, Promoted, Query, RateRow, Reaped, Renewed, Rows, Run, RunId,
    RunKey, SettingName, Store, Tally, TaskId, Timestamp, WakeSink, WorkerInfo, WorkerKey,
    WorkflowName,
};

use crate::apply::Writer;
use crate::committer::{Committer, StoreClock};
use crate::error::{self, Fail};
use crate::load::{Near, Readers, RunName};
use crate::options::Options;
use crate::wake::Bell;
use crate::{census, health, holds, list, load, retention, schema, workers};

/// A store in one SQLite file, for one process.
pub struct SqliteStore {
    committer: Committer,
    readers: Readers,
    near: Near,
    bell: Bell,
    clock: Arc<StoreClock>,
    limits: Limits,
    closed: AtomicBool,
    // Joined by `close` on the writer, so that the lock is free when it answers.
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl SqliteStore {
    /// Opens a database file, and makes it if there is none. Frees everything that was held: only
    /// one process at a time can have it open. With [`Options::inspect`] nothing is changed.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Arc<SqliteStore>, Error> {
        let opened = schema::open(path.as_ref(), &options)?;
        let readers = Readers::start(&opened.path, options.readers)?;
        let near = Near::open(&opened.path)?;
        let clock = Arc::new(StoreClock::new(options.clock.clone(), opened.clock));
        // The thread ends with the last bell, and has nothing to finish.
        let (bell, _) = Bell::start()?;
        let (committer, writer) = match options.inspect {
            true => Committer::idle(opened)?,
            false => Committer::start(opened, &options, clock.clone(), bell.clone(), near.clone())?,
        };
        Ok(Arc::new(Self {
            committer,
            readers,
            near,
            bell,
            clock,
            limits: options.limits,
            closed: AtomicBool::new(false),
            writer: Mutex::new(Some(writer)),
        }))
    }

    fn close_readers(&self) {
        self.near.close();
        self.readers.close();
    }

    fn join(&self) {
        let thread = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    async fn write<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Writer<'_>) -> Result<T, Fail> + Send + 'static,
    ) -> Result<T, Error> {
        let answer = self.committer.call(work)?;
        answer.await.map_err(|_| error::lost())?
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        if self.closed.load(Ordering::Acquire) || self.committer.is_closed() {
            return Err(error::closed());
        }
        self.readers.read(work).await
    }

    /// The connections for short reads, while the store is open.
    fn near(&self) -> Option<&Near> {
        let closed = self.closed.load(Ordering::Acquire) || self.committer.is_closed();
        (!closed).then_some(&self.near)
    }
}

// The lock is free when the store is gone, whether or not somebody closed it.
impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.close_readers();
        let _ = self.committer.close();
        self.join();
    }
}

impl Store for SqliteStore {
    fn commit(&self, commits: Vec<Commit>) -> BoxFuture<'_, CommitResults> {
        // Checked here and not by the writer, of which there is only one.
        let mut refused: Vec<(usize, CommitError)> = Vec::new();
        let mut good = commits;
        let mut place = 0;
        good.retain(|commit| {
            let check = commit.validate(&self.limits);
            let is_good = check.is_ok();
            refused.extend(check.err().map(|error| (place, error)));
            place += 1;
            is_good
        });
        let sent = good.len();
        let answer = self.committer.commit(good);
        Box::pin(async move {
            let written = match answer {
                Ok(answer) => answer.await.map_err(|_| error::lost()),
                Err(error) => Err(error),
            };
            let mut results = written.unwrap_or_else(|error| {
                (0..sent).map(|_| Err(error::commit_error(error::again(&error)))).collect()
            });
            // From the first to the last, each comes to stand where it was.
            for (place, error) in refused {
                results.insert(place, Err(error));
            }
            results
        })
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        Box::pin(async move {
            if self.closed.load(Ordering::Acquire) || self.committer.is_closed() {
                return Err(error::closed());
            }
            Ok(self.clock.now())
        })
    }

    fn claim(&self, request: ClaimRequest) -> BoxFuture<'_, Result<Claims, Error>> {
        let limits = self.limits.clone();
        Box::pin(self.write(move |writer| holds::claim(writer, &request, &limits)))
    }

    fn release(&self, held: Vec<HeldItem>) -> BoxFuture<'_, Result<u32, Error>> {
        Box::pin(self.write(move |writer| holds::release(writer, &held)))
    }

    fn beat(&self, beats: Vec<Beat>) -> BoxFuture<'_, Result<Vec<bool>, Error>> {
        Box::pin(async move {
            Beat::validate(&beats, &self.limits)?;
            self.write(move |writer| holds::beat(writer, &beats)).await
        })
    }

    fn revoke(
        &self,
        run_key: RunKey,
        worker: WorkerKey,
    ) -> BoxFuture<'_, Result<Option<ClaimedTurn>, Error>> {
        Box::pin(self.write(move |writer| holds::revoke(writer, run_key, worker)))
    }

    fn promote(&self, limit: u32) -> BoxFuture<'_, Result<Promoted, Error>> {
        Box::pin(self.write(move |writer| holds::promote(writer, limit)))
    }

    fn renew(&self, info: WorkerInfo) -> BoxFuture<'_, Result<Renewed, Error>> {
        Box::pin(self.write(move |writer| workers::renew(writer, &info)))
    }

    fn drain_worker(&self, worker: WorkerKey) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(self.write(move |writer| workers::drain(writer, worker)))
    }

    fn reap(&self, worker: WorkerKey, limit: u32) -> BoxFuture<'_, Result<Reaped, Error>> {
        Box::pin(self.write(move |writer| workers::reap(writer, worker, limit)))
    }

    // Asked of the writer: a claim whose answer was lost may still be in its queue.
    fn held(&self, worker: WorkerKey) -> BoxFuture<'_, Result<Vec<HeldItem>, Error>> {
        Box::pin(self.write(move |writer| workers::held(writer.conn, worker)))
    }

    fn load(&self, run_keys: Vec<RunKey>) -> BoxFuture<'_, Result<Vec<Loaded>, Error>> {
        Box::pin(async move {
            if let [run_key] = run_keys[..]
                && let Some(near) = self.near()
                && let Some(loaded) = near.read(|conn| load::load_short(conn, run_key))
            {
                return Ok(loaded);
            }
            self.read(move |conn| load::load(conn, &run_keys)).await
        })
    }

    fn find(
        &self,
        namespace: Namespace,
        workflow: WorkflowName,
        id: RunId,
    ) -> BoxFuture<'_, Result<Option<Run>, Error>> {
        let name = RunName { namespace, workflow, id };
        Box::pin(async move {
            if let Some(near) = self.near()
                && let Some(found) = near.read(|conn| load::find(conn, &name).map(Some))
            {
                return Ok(found);
            }
            self.read(move |conn| load::find(conn, &name)).await
        })
    }

    fn look(
        &self,
        namespace: Namespace,
        workflow: WorkflowName,
        id: RunId,
    ) -> BoxFuture<'_, Result<Option<Looked>, Error>> {
        let name = RunName { namespace, workflow, id };
        Box::pin(async move {
            if let Some(near) = self.near()
                && let Some(looked) = near.glance(|conn| load::look(conn, &name, true))
            {
                return Ok(looked);
            }
            Ok(self.read(move |conn| load::look(conn, &name, false)).await?.flatten())
        })
    }

    fn look_at(&self, run_key: RunKey) -> BoxFuture<'_, Result<Option<Looked>, Error>> {
        Box::pin(async move {
            if let Some(near) = self.near()
                && let Some(looked) = near.read(|conn| load::look_at(conn, run_key, true))
            {
                return Ok(looked);
            }
            Ok(self.read(move |conn| load::look_at(conn, run_key, false)).await?.flatten())
        })
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Rows, Error>> {
        let now = self.clock.now();
        Box::pin(async move {
            query.validate(&self.limits)?;
            self.read(move |conn| list::list(conn, &query, now)).await
        })
    }

    fn health(&self) -> BoxFuture<'_, Result<Health, Error>> {
        let now = self.clock.now();
        Box::pin(self.read(move |conn| health::health(conn, now)))
    }

    fn census(&self, namespace: Namespace) -> BoxFuture<'_, Result<Census, Error>> {
        let now = self.clock.now();
        Box::pin(self.read(move |conn| census::census(conn, &namespace, now)))
    }

    fn tally(&self, tallies: Vec<Tally>) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            Tally::validate(&tallies, &self.limits)?;
            self.write(move |writer| census::tally(writer, &tallies)).await
        })
    }

    fn tallied(&self, namespace: Namespace) -> BoxFuture<'_, Result<Vec<Tally>, Error>> {
        let now = self.clock.now();
        Box::pin(self.read(move |conn| census::tallied(conn, &namespace, now)))
    }

    fn set_limit(
        &self,
        namespace: Namespace,
        key: LimitKey,
        slots: Option<u32>,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.write(move |writer| holds::set_limit(writer, &namespace, &key, slots)))
    }

    fn breaker(
        &self,
        namespace: Namespace,
        key: LimitKey,
    ) -> BoxFuture<'_, Result<(Option<BreakerRow>, Timestamp), Error>> {
        let now = self.clock.now();
        Box::pin(self.read(move |conn| Ok((list::breaker(conn, &namespace, &key)?, now))))
    }

    fn swap_breaker(&self, row: BreakerRow) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(self.write(move |writer| holds::swap_breaker(writer, &row)))
    }

    fn rate(
        &self,
        namespace: Namespace,
        key: LimitKey,
    ) -> BoxFuture<'_, Result<(Option<RateRow>, Timestamp), Error>> {
        // Through the writer: what it has answered before is there.
        let read = move |w: &mut Writer<'_>| Ok((list::rate(w.conn, &namespace, &key)?, w.now));
        Box::pin(self.write(read))
    }

    fn swap_rate(&self, row: RateRow, tell: bool) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(self.write(move |writer| workers::swap_rate(writer, &row, tell)))
    }

    fn put_setting(
        &self,
        name: SettingName,
        value: Option<Body>,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            name.validate(value.as_ref(), &self.limits)?;
            self.write(move |writer| retention::put_setting(writer, &name, value.as_ref())).await
        })
    }

    fn delete_dead_letters(
        &self,
        namespace: Namespace,
        task_ids: Vec<TaskId>,
    ) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(
            self.write(move |writer| retention::delete_dead_letters(writer, &namespace, &task_ids)),
        )
    }

    fn delete_trees(&self, request: DeleteTrees) -> BoxFuture<'_, Result<Deleted, Error>> {
        Box::pin(async move {
            request.validate(&self.limits)?;
            self.write(move |writer| retention::delete_trees(writer, &request)).await
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        Box::pin(self.read(health::check))
    }

    fn facts(&self) -> BoxFuture<'_, Result<Vec<Fact>, Error>> {
        Box::pin(self.read(health::facts))
    }

    fn listen(&self, sink: WakeSink) {
        self.bell.listen(sink);
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.closed.store(true, Ordering::Release);
        Box::pin(async move {
            // Readers first: only the last connection can tidy the log away, and a reader may not.
            self.close_readers();
            let done = self.committer.close();
            if let Some(done) = done {
                let _ = done.await;
            }
            self.join();
            Ok(())
        })
    }
}
