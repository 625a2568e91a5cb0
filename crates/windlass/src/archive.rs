//! An archive in files: trees of runs as JSON Lines, before retention deletes them.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use windlass_engine::Archive;
use windlass_kernel::{BoxFuture, Error, ErrorCode, ErrorKind, Query, Run, RunKey, Store};

use crate::admin::transfer::export_run;

/// How many runs of a tree are listed at once.
const PAGE: u32 = 500;

/// A folder with a file for each workflow, `<namespace>.<workflow>.jsonl`, to which runs are appended
/// (characters that file names cannot have, `/` among them, are written as `%` and two hex digits)
/// as lines of [`crate::admin::transfer`]. They are on the disk before anything is deleted. A run whose
/// process died in between can stand there twice, both lines the same.
pub struct FileArchive {
    folder: PathBuf,
    // Lines of two trees must not mix.
    writing: Mutex<()>,
}

impl FileArchive {
    /// An archive in a folder, which is made if it is missing.
    ///
    /// ```
    /// # fn example() -> windlass::Result<()> {
    /// let archive = windlass::admin::FileArchive::new("archive")?;
    /// let builder = windlass::Engine::builder().archive(archive);
    /// # drop(builder);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ArchiveUnavailable`] if the folder cannot be made.
    pub fn new(folder: impl Into<PathBuf>) -> Result<Arc<Self>, Error> {
        let folder = folder.into();
        fs::create_dir_all(&folder).map_err(|error| failed(&folder, &error))?;
        Ok(Arc::new(Self { folder, writing: Mutex::new(()) }))
    }

    // A tree is a few writes and one sync: short beside the lease of the thread that waits for it.
    fn append(&self, root: &Run, lines: &str) -> Result<(), Error> {
        let name = file_name(&format!("{}.{}", root.namespace, root.workflow));
        let path = self.folder.join(name);
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let write = || {
            let mut file = File::options().create(true).append(true).open(&path)?;
            file.write_all(lines.as_bytes())?;
            file.sync_all()?;
            // A new file is there only when its folder says so.
            File::open(&self.folder)?.sync_all()
        };
        write().map_err(|error| failed(&path, &error))
    }
}

impl Archive for FileArchive {
    fn take<'a>(
        &'a self,
        store: &'a Arc<dyn Store>,
        root: RunKey,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let (mut top, mut lines, mut after) = (None, String::new(), None);
            loop {
                let tree = Query::Tree { root, after, limit: PAGE };
                let page = store.list(tree).await?.runs()?;
                let last = page.len() < PAGE as usize;
                for run in page {
                    after = Some(run.run_key);
                    if let Some(export) = export_run(&**store, run.run_key).await? {
                        lines.push_str(&export.to_line()?);
                        lines.push('\n');
                    }
                    if run.run_key == root {
                        top = Some(run);
                    }
                }
                if last {
                    break;
                }
            }
            top.map_or(Ok(()), |top| self.append(&top, &lines))
        })
    }
}

// Bytes that some file system refuses in names are escaped. `%` is too, so that no two workflows share
// a file.
fn file_name(name: &str) -> String {
    let mut escaped = String::new();
    for c in name.chars() {
        match c {
            '/' | '\\' | ':' | '%' | '*' | '?' | '"' | '<' | '>' | '|' => {
                escaped.push_str(&format!("%{:02X}", c as u32));
            }
            c if c.is_control() => escaped.push_str(&format!("%{:02X}", c as u32)),
            c => escaped.push(c),
        }
    }
    escaped + ".jsonl"
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    let message = format!("the archive {} cannot be written: {error}", path.display());
    Error::new(ErrorKind::Unavailable, ErrorCode::ArchiveUnavailable, message)
}
