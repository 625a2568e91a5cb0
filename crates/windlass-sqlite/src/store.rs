//! The `Store` trait: passes each call to the writer or to a reader.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use rusqlite::Connection;
use windlass_kernel::{
    Body, BodyKey, BoxFuture, BreakerRow, ClaimRequest, ClaimedTurn, Claims, Commit, CommitError,
    CommitResults, DeleteRemovedRecords, DeleteTrees, Deleted, DeletedRecords, Error, Fact, Health,
    Heartbeat, HeldItem, LimitKey, Limits, LoadSteps, Loaded, Namespace, NamespaceStats, Promoted,
    Query, RateRow, Reaped, Record, RecordKey, Renewed, Rows, Run, RunId, RunKey, RunOverview,
    SettingName, Store, TaskId, TaskStat, Timestamp, UnreadableRows, WakeSink, WorkerInfo,
    WorkerKey, WorkflowName,
};

use crate::apply::Writer;
use crate::clock::StoreClock;
use crate::committer::Committer;
use crate::error::{self, UnitError};
use crate::load::{LocalReader, Readers, RunName};
use crate::options::Options;
use crate::wake::WakeNotifier;
use crate::{
    bodies, health, holds, list, load, namespace_stats, records, retention, schema, workers,
};

/// A store in one SQLite file, for one process.
pub struct SqliteStore {
    committer: Committer,
    readers: Readers,
    local_reader: LocalReader,
    notifier: WakeNotifier,
    clock: Arc<StoreClock>,
    limits: Limits,
    unreadable: Arc<UnreadableRows>,
    closed: AtomicBool,
    // `close` joins this thread, so that the file lock is free when it returns.
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl SqliteStore {
    /// Opens a database file, or creates it. Releases all holds, because only one process at a time
    /// can have it open. With [`Options::inspect`] nothing is changed.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Arc<SqliteStore>, Error> {
        let opened = schema::open(path.as_ref(), &options)?;
        let readers = Readers::start(&opened.path, options.readers, options.waiting_max)?;
        let local_reader = LocalReader::open(&opened.path)?;
        let clock = StoreClock::new(&options, opened.clock);
        // The thread ends when the last notifier is dropped; nothing needs to join it.
        let (notifier, _) = WakeNotifier::start()?;
        let (committer, writer) = match options.inspect {
            true => Committer::start_read_only(opened)?,
            false => Committer::start(
                opened,
                &options,
                clock.clone(),
                notifier.clone(),
                local_reader.clone(),
            )?,
        };
        Ok(Arc::new(Self {
            committer,
            readers,
            local_reader,
            notifier,
            clock,
            limits: options.limits,
            unreadable: Arc::default(),
            closed: AtomicBool::new(false),
            writer: Mutex::new(Some(writer)),
        }))
    }

    fn close_readers(&self) {
        self.local_reader.close();
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
        work: impl FnMut(&mut Writer<'_>) -> Result<T, UnitError> + Send + 'static,
    ) -> Result<T, Error> {
        let answer = self.committer.call(work)?;
        answer.await.map_err(|_| error::no_answer())?
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

    /// The connections for short reads, if the store is open.
    fn local_reader(&self) -> Option<&LocalReader> {
        let closed = self.closed.load(Ordering::Acquire) || self.committer.is_closed();
        (!closed).then_some(&self.local_reader)
    }
}

// The file lock must be free when the store is dropped, even if nobody closed it.
impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.close_readers();
        let _ = self.committer.close();
        self.join();
    }
}

impl Store for SqliteStore {
    fn commit(&self, commits: Vec<Commit>) -> BoxFuture<'_, CommitResults> {
        // Validate here and not in the writer, because there is only one writer thread.
        let mut refused: Vec<(usize, CommitError)> = Vec::new();
        let mut valid = commits;
        let mut index = 0;
        valid.retain(|commit| {
            let check = commit.validate(&self.limits);
            let is_valid = check.is_ok();
            refused.extend(check.err().map(|error| (index, error)));
            index += 1;
            is_valid
        });
        let sent = valid.len();
        let answer = self.committer.commit(valid);
        Box::pin(async move {
            let written = match answer {
                Ok(answer) => answer.await.map_err(|_| error::no_answer()),
                Err(error) => Err(error),
            };
            let mut results = written.unwrap_or_else(|error| {
                (0..sent).map(|_| Err(error::commit_error(error::copy(&error)))).collect()
            });
            // In ascending order, each insertion restores the original index.
            for (index, error) in refused {
                results.insert(index, Err(error));
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

    fn heartbeat(&self, heartbeats: Vec<Heartbeat>) -> BoxFuture<'_, Result<Vec<bool>, Error>> {
        Box::pin(async move {
            Heartbeat::validate(&heartbeats, &self.limits)?;
            self.write(move |writer| holds::heartbeat(writer, &heartbeats)).await
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

    // Goes through the writer, because a claim whose answer was lost may still be in its queue.
    fn held(&self, worker: WorkerKey) -> BoxFuture<'_, Result<Vec<HeldItem>, Error>> {
        Box::pin(self.write(move |writer| workers::held(writer.conn, worker)))
    }

    fn load_rows(
        &self,
        run_keys: Vec<RunKey>,
        steps: LoadSteps,
    ) -> BoxFuture<'_, Result<Vec<Loaded>, Error>> {
        Box::pin(async move {
            if let [run_key] = run_keys[..]
                && let Some(local_reader) = self.local_reader()
                && let Some(loaded) =
                    local_reader.read(|conn| load::load_short(conn, run_key, &steps))
            {
                return Ok(loaded);
            }
            self.read(move |conn| load::load(conn, &run_keys, &steps)).await
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
            if let Some(local_reader) = self.local_reader()
                && let Some(found) = local_reader.read(|conn| load::find(conn, &name).map(Some))
            {
                return Ok(found);
            }
            self.read(move |conn| load::find(conn, &name)).await
        })
    }

    fn run_overview(
        &self,
        namespace: Namespace,
        workflow: WorkflowName,
        id: RunId,
    ) -> BoxFuture<'_, Result<Option<RunOverview>, Error>> {
        let name = RunName { namespace, workflow, id };
        Box::pin(async move {
            if let Some(local_reader) = self.local_reader()
                && let Some(overview) =
                    local_reader.cached_read(|conn| load::run_overview(conn, &name, true))
            {
                return Ok(overview);
            }
            Ok(self.read(move |conn| load::run_overview(conn, &name, false)).await?.flatten())
        })
    }

    fn run_overview_by_key(
        &self,
        run_key: RunKey,
    ) -> BoxFuture<'_, Result<Option<RunOverview>, Error>> {
        Box::pin(async move {
            if let Some(local_reader) = self.local_reader()
                && let Some(overview) =
                    local_reader.read(|conn| load::run_overview_by_key(conn, run_key, true))
            {
                return Ok(overview);
            }
            Ok(self
                .read(move |conn| load::run_overview_by_key(conn, run_key, false))
                .await?
                .flatten())
        })
    }

    fn bodies(&self, keys: Vec<BodyKey>) -> BoxFuture<'_, Result<Vec<Option<Bytes>>, Error>> {
        Box::pin(async move {
            BodyKey::validate(&keys)?;
            self.read(move |conn| bodies::get(conn, &keys)).await
        })
    }

    fn record_rows(
        &self,
        keys: Vec<RecordKey>,
    ) -> BoxFuture<'_, Result<Vec<Option<Record>>, Error>> {
        Box::pin(async move {
            RecordKey::validate(&keys, &self.limits)?;
            if let [_] = keys[..]
                && let Some(local_reader) = self.local_reader()
                && let Some(found) = local_reader.read(|conn| records::get_short(conn, &keys[0]))
            {
                return Ok(found);
            }
            self.read(move |conn| records::get(conn, &keys)).await
        })
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Rows, Error>> {
        let now = self.clock.now();
        Box::pin(async move {
            query.validate(&self.limits)?;
            let unreadable = Arc::clone(&self.unreadable);
            self.read(move |conn| list::list(conn, &query, now, &unreadable)).await
        })
    }

    fn unreadable_rows(&self) -> u64 {
        self.unreadable.count()
    }

    fn health(&self) -> BoxFuture<'_, Result<Health, Error>> {
        let now = self.clock.now();
        Box::pin(self.read(move |conn| health::health(conn, now)))
    }

    fn namespace_stats(
        &self,
        namespace: Namespace,
    ) -> BoxFuture<'_, Result<NamespaceStats, Error>> {
        let now = self.clock.now();
        Box::pin(self.read(move |conn| namespace_stats::namespace_stats(conn, &namespace, now)))
    }

    fn add_task_stats(&self, stats: Vec<TaskStat>) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            TaskStat::validate(&stats, &self.limits)?;
            self.write(move |writer| namespace_stats::add_task_stats(writer, &stats)).await
        })
    }

    fn task_stats(&self, namespace: Namespace) -> BoxFuture<'_, Result<Vec<TaskStat>, Error>> {
        let now = self.clock.now();
        Box::pin(self.read(move |conn| namespace_stats::task_stats(conn, &namespace, now)))
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
        // Goes through the writer, so that it sees all earlier swaps.
        let read = move |w: &mut Writer<'_>| Ok((list::rate(w.conn, &namespace, &key)?, w.now));
        Box::pin(self.write(read))
    }

    fn swap_rate(&self, row: RateRow, notify: bool) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(self.write(move |writer| workers::swap_rate(writer, &row, notify)))
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

    fn delete_removed_records(
        &self,
        request: DeleteRemovedRecords,
    ) -> BoxFuture<'_, Result<DeletedRecords, Error>> {
        Box::pin(async move {
            request.validate(&self.limits)?;
            self.write(move |writer| records::delete_removed(writer, &request)).await
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        Box::pin(self.read(health::check))
    }

    fn facts(&self) -> BoxFuture<'_, Result<Vec<Fact>, Error>> {
        let panics = self.committer.panics();
        Box::pin(self.read(move |conn| health::facts(conn, panics)))
    }

    fn ready_counts(&self, max: u64) -> BoxFuture<'_, Result<(u64, u64), Error>> {
        Box::pin(self.read(move |conn| health::ready_counts(conn, max)))
    }

    fn limits(&self) -> Option<&Limits> {
        Some(&self.limits)
    }

    fn listen(&self, sink: WakeSink) {
        self.notifier.listen(sink);
    }

    fn closed(&self) -> BoxFuture<'_, Error> {
        Box::pin(self.committer.failed())
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.closed.store(true, Ordering::Release);
        Box::pin(async move {
            // Readers first: only the last connection removes the log, and a read-only one cannot.
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

#[cfg(test)]
mod tests {
    use futures::channel::oneshot::Receiver;
    use windlass_kernel::ErrorCode;

    use super::*;

    fn wait(mut answer: Receiver<Result<(), Error>>) {
        while answer.try_recv().unwrap().map(Result::unwrap).is_none() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn calls_above_the_limit_are_refused_while_the_writer_is_busy() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { waiting_max: 2, ..Options::default() };
        let store = SqliteStore::open(folder.path().join("test.db"), options).unwrap();
        let (begun, begins) = std::sync::mpsc::channel();
        let (go, goes) = std::sync::mpsc::channel::<()>();
        // The writer is in this call until `go` is dropped.
        let busy = store.committer.call(move |_| {
            let _ = begun.send(());
            let _ = goes.recv();
            Ok(())
        });
        begins.recv().unwrap();
        let waiting: Vec<_> = (0..2).map(|_| store.committer.call(|_| Ok(())).unwrap()).collect();
        let refused = store.committer.call(|_| Ok(())).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::StoreUnavailable);
        assert!(refused.message().contains("waiting_max 2"), "{refused}");
        drop(go);
        for answer in waiting.into_iter().chain([busy.unwrap()]) {
            wait(answer);
        }
        wait(store.committer.call(|_| Ok(())).unwrap());
    }
}
