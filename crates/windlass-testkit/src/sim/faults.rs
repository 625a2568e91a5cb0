//! The faults of a simulated world, and the bugs that can be planted to see whether a check finds them.

use super::rng::Rng;

/// The rate of each fault, of 1,000. A seed switches some of them on (swarm testing): with all of them
/// always on, the most frequent ones would hide the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A call is refused; nothing is written.
    pub refused: u32,
    /// The answer is lost and nothing was written.
    pub lost_before: u32,
    /// The answer is lost and the call was written.
    pub lost_after: u32,
    /// The answer is lost first, and the call arrives later.
    pub late: u32,
    /// A call or its answer takes up to several leases.
    pub slow: u32,
    /// A wake-up is lost.
    pub wake_dropped: u32,
    /// A wake-up comes twice.
    pub wake_doubled: u32,
    /// A wake-up comes late, and so out of order.
    pub wake_slow: u32,
    /// Between calls: a worker is killed and another one starts.
    pub crash: u32,
    /// A worker is killed at a commit that it sent, before or after the commit is written.
    pub crash_at_commit: u32,
    /// Between calls: a worker stalls and comes back.
    pub freeze: u32,
    /// A worker stalls in the middle of its work and comes back.
    pub stall_at_work: u32,
    /// Between calls: the store's clock jumps forward.
    pub clock_forward: u32,
    /// Between calls: the store's clock jumps back.
    pub clock_back: u32,
    /// The user's code takes longer than a lease.
    pub slow_body: u32,
}

impl Faults {
    /// No faults.
    pub fn none() -> Self {
        Self::default()
    }

    /// A random choice of faults at random rates.
    pub fn swarm(rng: &mut Rng) -> Self {
        let mut rate = |max: u64| {
            let on = rng.chance(550);
            let rate = rng.range(5, max) as u32;
            if on { rate } else { 0 }
        };
        Self {
            refused: rate(120),
            lost_before: rate(120),
            lost_after: rate(200),
            late: rate(100),
            slow: rate(100),
            wake_dropped: rate(900),
            wake_doubled: rate(400),
            wake_slow: rate(400),
            crash: rate(600),
            crash_at_commit: rate(60),
            freeze: rate(700),
            stall_at_work: rate(120),
            clock_forward: rate(300),
            clock_back: rate(300),
            slow_body: rate(150),
        }
    }
}

macro_rules! bugs {
    ($($(#[$doc:meta])* $bug:ident),+ $(,)?) => {
        /// A bug that can be planted in the store, the workers or the workflows. Each must be caught.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum PlantedBug {
            $($(#[$doc])* $bug,)+
        }

        impl PlantedBug {
            /// All of them.
            pub const ALL: &'static [PlantedBug] = &[$(PlantedBug::$bug),+];
        }
    };
}

bugs!(
    /// Store: the head a commit was decided from is not compared.
    SkipHeadCheck,
    /// Store: the hold of a turn is not compared.
    SkipHoldCheck,
    /// Store: a claim by an earlier holder gets its old number again.
    ClaimNumberReused,
    /// Store: a turn that a worker holds is claimed by another worker.
    ClaimGivenTwice,
    /// Store: a release ignores messages after `seen`.
    ReleaseIgnoresAccepted,
    /// Store: some timers are not written.
    ForgetTimer,
    /// Store: a message that is sent again is accepted again.
    MessageAcceptedTwice,
    /// Store: every worker may reap.
    HastyReaper,
    /// Store: reaping frees live holders too.
    ReapsTheLiving,
    /// Store: a commit that was written is refused when it is sent again.
    KeyIgnored,
    /// Store: a commit that was written is written once more when it is sent again.
    ResendAppliedTwice,
    /// Store: the hold of a task is not compared.
    SettleUnguarded,
    /// Store: limits are stored and not enforced.
    LimitIgnored,
    /// Store: some commits are written in part.
    HalfCommit,
    /// Store: a commit that conflicts still sends its messages.
    ConflictLeaks,
    /// Store: the end of a run is acknowledged and not kept.
    EndForgotten,
    /// Store: some commits are acknowledged and not written.
    AckWithoutWrite,
    /// Store: a run of another tenant is found under the same name.
    NamespaceMixed,
    /// Store: an event's bytes change after it was written.
    EventRewritten,
    /// Store: some loads leave out the step that was settled last.
    StaleLoad,
    /// Store: the revision that a write of a record expects is not compared.
    SkipRecordCheck,
    /// Store: a record that a commit checks and does not write is not compared.
    SkipCheckedRecord,
    /// Worker: its clock runs twice as fast as the store's.
    FastClock,
    /// Workflow: its code asks for other steps in another process.
    UnstableCode,
    /// Workflow: the probe of a durable tool says that nothing was done.
    BlindProbe,
);

impl PlantedBug {
    /// Whether it is this one that is planted.
    pub fn is(self, planted: Option<PlantedBug>) -> bool {
        planted == Some(self)
    }
}
