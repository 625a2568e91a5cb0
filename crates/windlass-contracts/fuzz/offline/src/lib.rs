//! A fuzzer that needs neither a download nor a nightly compiler. It stands in for `libfuzzer-sys`,
//! so that the same targets run with `cargo fuzz` and with `run.sh`.
//!
//! The compiler counts the edges of the code that an input reaches (SanitizerCoverage, counters of
//! eight bits). An input that reaches a new edge, or an old one much more often, joins the corpus,
//! and later inputs are changed copies of the corpus.

mod coverage;
mod mutate;

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use coverage::Coverage;
use mutate::Mutator;

/// An input that takes longer counts as a hang.
const HANG: Duration = Duration::from_secs(10);
const SEED: u64 = 1;
/// The longest input, in bytes.
const LENGTH_MAX: usize = 4096;
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// Inputs of the corpus; a new one replaces a random one after that, so that memory stays flat.
const CORPUS_MAX: usize = 20_000;

/// Defines the target: a closure over `&[u8]` or `&str`. Bytes that are not text are skipped.
#[macro_export]
macro_rules! fuzz_target {
    (|$text:ident: &str| $body:block) => {
        fn target(bytes: &[u8]) {
            let Ok($text) = std::str::from_utf8(bytes) else { return };
            $body
        }
        $crate::fuzz_target!(@main);
    };
    (|$bytes:ident: &[u8]| $body:block) => {
        fn target($bytes: &[u8]) $body
        $crate::fuzz_target!(@main);
    };
    (@main) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn main(_: i32, _: *const *const u8) -> i32 {
            $crate::run(target)
        }
    };
}

/// Settings, from the command line: `<seconds> <corpus> <failures> <dictionary>`.
struct Settings {
    seconds: u64,
    corpus: PathBuf,
    failures: PathBuf,
    words: Vec<Vec<u8>>,
}

impl Settings {
    fn read() -> Option<Self> {
        let mut words = std::env::args().skip(1);
        Some(Self {
            seconds: words.next()?.parse().ok()?,
            corpus: words.next()?.into(),
            failures: words.next()?.into(),
            words: mutate::dictionary(&std::fs::read_to_string(words.next()?).ok()?),
        })
    }
}

/// Runs a target until the time is over. The exit code is 1 if an input failed.
pub fn run(target: fn(&[u8])) -> i32 {
    let Some(settings) = Settings::read() else {
        println!("usage: <seconds> <folder of the corpus> <folder for failures> <dictionary>");
        return 2;
    };
    let mut coverage = Coverage::find();
    let mut mutator = Mutator::new(SEED, LENGTH_MAX, settings.words);
    let mut corpus: Vec<Vec<u8>> = stored(&settings.corpus);
    corpus.push(Vec::new());

    let begin = Instant::now();
    let (mut runs, mut reported) = (0_u64, begin);
    watch(begin);
    let mut waiting: Vec<Vec<u8>> = corpus.clone();
    println!("{} counters, {} inputs to begin with", coverage.len(), corpus.len());
    while begin.elapsed().as_secs() < settings.seconds {
        let input = waiting.pop().unwrap_or_else(|| mutator.next(&corpus));
        coverage.clear();
        STARTED.store(millis(begin) + 1, Ordering::Relaxed);
        let outcome = catch_unwind(AssertUnwindSafe(|| target(&input)));
        STARTED.store(0, Ordering::Relaxed);
        runs += 1;
        if outcome.is_err() {
            let path = settings.failures.join(format!("failure-{runs}"));
            let _ = std::fs::write(&path, &input);
            println!("run {runs} failed; its input is in {}", path.display());
            return 1;
        }
        if coverage.is_new() {
            if corpus.len() < CORPUS_MAX {
                corpus.push(input);
            } else {
                let at = mutator.below(corpus.len());
                corpus[at] = input;
            }
        }
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            report(begin, runs, &corpus, &coverage);
        }
    }
    report(begin, runs, &corpus, &coverage);
    for (at, input) in corpus.iter().enumerate() {
        let _ = std::fs::write(settings.corpus.join(format!("input-{at}")), input);
    }
    0
}

fn stored(folder: &std::path::Path) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().filter_map(|path| std::fs::read(path).ok()).collect()
}

fn report(begin: Instant, runs: u64, corpus: &[Vec<u8>], coverage: &Coverage) {
    let seconds = begin.elapsed().as_secs();
    println!(
        "{seconds} s: {runs} runs, {} a second, {} inputs, {} edges, {} KiB of memory",
        runs / seconds.max(1),
        corpus.len(),
        coverage.reached(),
        memory_kib(),
    );
    let _ = std::io::stdout().flush();
}

fn memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse().ok()).unwrap_or(0)
}

/// The start of the current run in milliseconds plus one, or 0 between runs.
static STARTED: AtomicU64 = AtomicU64::new(0);

fn millis(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// A thread that ends the process if one run takes too long.
fn watch(begin: Instant) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let started = STARTED.load(Ordering::Relaxed);
            let hang = u64::try_from(HANG.as_millis()).unwrap_or(u64::MAX);
            if started != 0 && millis(begin) > started + hang {
                println!("a run takes longer than {HANG:?}");
                std::process::abort();
            }
        }
    });
}
