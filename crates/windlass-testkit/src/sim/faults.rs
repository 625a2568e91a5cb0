//! What can go wrong in a run, and the bugs that can be planted to see whether it is noticed.

use super::rng::Rng;

/// How often, of 1,000 times, each fault strikes. A seed switches some on (swarm testing): with
/// all of them always on, most would hide behind the loudest.
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
    /// A call takes up to several leases, on its way or on its way back.
    pub slow: u32,
    /// A wake-up is lost.
    pub wake_dropped: u32,
    /// A wake-up comes twice.
    pub wake_doubled: u32,
    /// A wake-up comes late, and so out of order.
    pub wake_slow: u32,
    /// Of the acts of chaos: a worker is killed and another one starts.
    pub crash: u32,
    /// A worker is killed at the very commit that it sent, before or after it is written.
    pub crash_at_commit: u32,
    /// Of the acts of chaos: a worker stalls and comes back.
    pub freeze: u32,
    /// A worker stalls in the middle of its work and comes back.
    pub stall_at_work: u32,
    /// Of the acts of chaos: the store's clock jumps forward.
    pub clock_forward: u32,
    /// Of the acts of chaos: the store's clock jumps back.
    pub clock_back: u32,
    /// The user's code takes longer than a lease.
    pub slow_body: u32,
}

impl Faults {
    /// A world in which everything works.
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
        /// A bug that the faulty store or the driver can be given. Each must be caught.
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
    /// Store: a turn that somebody holds is handed out again.
    ClaimGivenTwice,
    /// Store: a release does not look for messages beyond `seen`.
    ReleaseIgnoresAccepted,
    /// Store: some timers are not written.
    ForgetTimer,
    /// Store: a message that is sent again is accepted again.
    MessageAcceptedTwice,
    /// Store: whoever asks may reap.
    HastyReaper,
    /// Store: reaping frees live holders too.
    ReapsTheLiving,
    /// Store: a commit that was written is refused when it is sent again.
    KeyIgnored,
    /// Store: a commit that was written is written once more when it is sent again.
    ResendAppliedTwice,
    /// Store: whoever holds a task, anybody can settle it.
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
    /// Driver: policies are not asked when a step fails.
    RetriesForever,
    /// Driver: the newest message is consumed first.
    NewestFirst,
    /// Driver: a child tells its parent twice.
    ChildTellsTwice,
    /// Driver: what was claimed under a lost answer is never found again.
    NeverAdopts,
    /// Driver: an effect is run before the commit that asks for it.
    EffectBeforeCommit,
    /// Driver: timers are compared with the worker's own clock.
    TimerOnOwnClock,
    /// Driver: a step whose commit has an unknown outcome is run again.
    RunsAgainAfterUnknown,
    /// Driver: terminating a parent leaves its children alone.
    CancelStopsAtParent,
    /// Driver: `seen` is the counter of the last commit, not of what was read.
    SeenIsGuessed,
);

impl PlantedBug {
    /// Whether it is this one that is planted.
    pub fn is(self, planted: Option<PlantedBug>) -> bool {
        planted == Some(self)
    }
}
