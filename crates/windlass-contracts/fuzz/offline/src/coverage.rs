//! The counters that the compiler adds to the code: `-Cpasses=sancov-module` calls
//! `__sanitizer_cov_8bit_counters_init` once for each object file.

use std::sync::Mutex;

/// Counters of one object file. They stay raw pointers, because instrumented code changes them
/// beside every reference.
struct Range {
    begin: *mut u8,
    len: usize,
}

// SAFETY: the counters are static memory of this process.
unsafe impl Send for Range {}

static RANGES: Mutex<Vec<Range>> = Mutex::new(Vec::new());

#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_8bit_counters_init(begin: *mut u8, end: *mut u8) {
    let len = (end as usize).saturating_sub(begin as usize);
    let mut ranges = RANGES.lock().expect("no thread panics with the lock");
    if len > 0 && ranges.iter().all(|known| known.begin != begin) {
        ranges.push(Range { begin, len });
    }
}

/// The coverage of all runs so far: for each counter, the sizes that were seen, one bit each.
pub struct Coverage {
    ranges: Vec<Range>,
    seen: Vec<Vec<u8>>,
}

impl Coverage {
    pub fn find() -> Self {
        let ranges = std::mem::take(&mut *RANGES.lock().expect("no thread panics with the lock"));
        let seen = ranges.iter().map(|range| vec![0; range.len]).collect();
        Self { ranges, seen }
    }

    pub fn len(&self) -> usize {
        self.ranges.iter().map(|range| range.len).sum()
    }

    pub fn reached(&self) -> usize {
        self.seen.iter().flatten().filter(|seen| **seen != 0).count()
    }

    pub fn clear(&self) {
        for range in &self.ranges {
            // SAFETY: the range is static memory that the compiler reserved for counters.
            unsafe { range.begin.write_bytes(0, range.len) };
        }
    }

    /// Whether the last run reached an edge, or a number of passages of one, for the first time.
    pub fn is_new(&mut self) -> bool {
        let mut new = false;
        for (range, seen) in self.ranges.iter().zip(&mut self.seen) {
            for (at, seen) in seen.chunks_mut(8).enumerate() {
                let mut word = [0; 8];
                // SAFETY: the chunk is inside the range, because `seen` is as long as the range.
                unsafe {
                    let chunk = range.begin.add(at * 8);
                    chunk.copy_to_nonoverlapping(word.as_mut_ptr(), seen.len());
                }
                if u64::from_ne_bytes(word) == 0 {
                    continue;
                }
                for (count, seen) in word.into_iter().zip(seen) {
                    let size = size(count);
                    new |= size & !*seen != 0;
                    *seen |= size;
                }
            }
        }
        new
    }
}

/// 1, 2, 3, 4–7, 8–15, 16–31, 32–127, and more: one bit each.
fn size(count: u8) -> u8 {
    match count {
        0 => 0,
        1 => 1,
        2 => 2,
        3 => 4,
        4..=7 => 8,
        8..=15 => 16,
        16..=31 => 32,
        32..=127 => 64,
        128.. => 128,
    }
}
