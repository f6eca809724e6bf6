//! Looks again and again at how far members have come in the raft log, by what they say of themselves on their metrics
//! listener: at the leader, and at all who don't vote or began to only now. It shares nothing with the operator, and judges
//! nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};

use super::book::Book;
use super::clock::{Clock, Moment};
use super::history::{MemberId, Standing};
use super::looks::{Latest, Looks};
use crate::scene::metrics::{self, gauge};

/// The pause between two questions to one member. What a learner catches up between its promotion and the next answer is
/// not seen; and an answer costs etcd some milliseconds, which is why the voters that follow are not asked.
const PAUSE: Duration = Duration::from_millis(100);
/// How long an answer may take: a later one says nothing any more.
const DEADLINE: Duration = Duration::from_secs(1);
/// For how long a member is asked after it was last known not to vote: the look that sees it vote may come before the
/// first answer after its promotion.
const NEW_FOR: Duration = Duration::from_secs(3);

/// The eyes of a run for the raft log.
#[derive(Debug)]
pub struct Standings {
    book: Book,
    looks: Looks,
    clock: Clock,
}

impl Standings {
    /// Eyes for the members in this book. Who leads and who votes is what these looks saw last.
    pub fn new(book: &Book, looks: &Looks, clock: Clock) -> Self {
        Self { book: book.clone(), looks: looks.clone(), clock }
    }

    /// Looks until it is told to stop.
    pub async fn look_until(self, stop: Arc<AtomicBool>) -> Vec<Standing> {
        let mut newcomers = Newcomers::default();
        let due = || {
            let places = self.book.places();
            let due = newcomers.due(places.keys(), &self.looks.latest(), self.clock.now());
            let due = places.iter().filter(|(name, _)| due.contains(*name));
            due.map(|(name, place)| (name.clone(), place.door.address.clone())).collect()
        };
        let clock = self.clock;
        gather(&stop, due, |address| ask(address, clock)).await
    }
}

/// Asks whoever is due, by name and address, again and again until it is told to stop. One that does not answer holds up
/// nobody else.
async fn gather<Answer: Future<Output = Option<Standing>>>(
    stop: &AtomicBool,
    mut due: impl FnMut() -> Vec<(String, String)>,
    ask: impl Fn(String) -> Answer,
) -> Vec<Standing> {
    let (mut seen, mut asked, mut answers) = (Vec::new(), BTreeSet::new(), FuturesUnordered::new());
    while !stop.load(Ordering::Relaxed) {
        for (name, address) in due() {
            if asked.insert(name.clone()) {
                answers.push(ask(address).map(|standing| (name, standing)));
            }
        }
        let mut pause = std::pin::pin!(tokio::time::sleep(PAUSE));
        loop {
            tokio::select! {
                () = &mut pause => break,
                Some((name, standing)) = answers.next() => {
                    asked.remove(&name);
                    seen.extend(standing);
                }
            }
        }
    }
    seen
}

/// What is told at this address, unless it is nothing, or comes too late.
async fn ask(address: String, clock: Clock) -> Option<Standing> {
    let asked = clock.now();
    let answer = tokio::time::timeout(DEADLINE, metrics::ask(&address, "/metrics")).await;
    let answered = clock.now();
    let Told { member, start, committed, applied } = Told::read(&answer.ok()?.ok()?.1)?;
    // Before the clock is read: a process that seems younger than it is leaves a promotion unjudged, and one that seems older
    // might have it judged wrongly.
    let age = Machine::look()?.age(start)?;
    let started = clock.now().earlier_by(age);
    Some(Standing { asked, answered, member, started, committed, applied })
}

/// When each member was last known not to vote.
#[derive(Debug, Default)]
struct Newcomers(BTreeMap<String, Moment>);

impl Newcomers {
    /// Who of these is to be asked now.
    fn due<'a>(&mut self, names: impl Iterator<Item = &'a String>, latest: &Latest, now: Moment) -> BTreeSet<String> {
        let mut due = BTreeSet::new();
        for name in names {
            if !latest.voters.contains(name) {
                self.0.insert(name.clone(), now);
            }
            let is_new = self.0.get(name).is_some_and(|last| now.since(*last) < NEW_FOR);
            if is_new || latest.leader.as_ref() == Some(name) {
                due.insert(name.clone());
            }
        }
        due
    }
}

/// What a member's metrics say.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Told {
    member: MemberId,
    /// When its process was started, in seconds since 1970, as the kernel tells it.
    start: f64,
    committed: u64,
    applied: u64,
}

impl Told {
    /// Nothing where any of it is missing: so it is while etcd starts, and of a launcher.
    fn read(text: &str) -> Option<Self> {
        let id = text.lines().find_map(|line| line.strip_prefix("etcd_server_id{server_id=\""))?;
        let id = u64::from_str_radix(id.split_once('"')?.0, 16).ok()?;
        // For all their names, these are raft indexes.
        let index = |name| whole(gauge(text, name)?);
        Some(Self {
            member: MemberId(id),
            start: gauge(text, "process_start_time_seconds")?,
            committed: index("etcd_server_proposals_committed_total")?,
            applied: index("etcd_server_proposals_applied_total")?,
        })
    }
}

/// A number that is written as a float, and is none.
fn whole(value: f64) -> Option<u64> {
    format!("{value:.0}").parse().ok()
}

/// By what processes tell when they were started: the second in which the machine was, cut off, and ticks since then.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Machine {
    /// In whole seconds since 1970.
    booted: f64,
    /// For how many seconds it has run.
    up: f64,
}

impl Machine {
    fn look() -> Option<Self> {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        Self::read(&read("/proc/stat")?, &read("/proc/uptime")?)
    }

    fn read(stat: &str, uptime: &str) -> Option<Self> {
        let up = uptime.split_whitespace().next()?.parse().ok()?;
        Some(Self { booted: gauge(stat, "btime")?, up })
    }

    /// How long ago a process was started that tells this second.
    fn age(self, start: f64) -> Option<Duration> {
        Duration::try_from_secs_f64((self.up - (start - self.booted)).max(0.0)).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As etcd 3.5 has it.
    const TEXT: &str = "# TYPE etcd_server_id gauge\netcd_server_id{server_id=\"51cee02397c3dfed\"} 1\n\
        etcd_server_proposals_applied_total 1.234567e+06\netcd_server_proposals_committed_total 1.234568e+06\n\
        process_start_time_seconds 1.79573888856e+09\n";

    #[test]
    fn a_member_says_who_it_is_and_how_far_it_has_come() {
        let told = Told {
            member: MemberId(0x51ce_e023_97c3_dfed),
            start: 1_795_738_888.56,
            committed: 1_234_568,
            applied: 1_234_567,
        };
        assert_eq!(Told::read(TEXT), Some(told));
        for line in TEXT.lines().skip(1) {
            assert_eq!(Told::read(&TEXT.replace(line, "")), None, "{line}");
        }
        assert_eq!(Told::read(&TEXT.replace("1.234567e+06", "-1")), None);
        assert_eq!(Told::read(&TEXT.replace("1.234567e+06", "NaN")), None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_does_not_answer_holds_up_nobody_else() {
        let stop = AtomicBool::new(false);
        let due = || vec![("db-0".to_owned(), "1".to_owned()), ("db-3".to_owned(), "3".to_owned())];
        let ask = async |address: String| {
            if address == "3" {
                tokio::time::sleep(DEADLINE).await;
            }
            let member = MemberId(address.parse().unwrap());
            Some(Standing {
                asked: Moment(0),
                answered: Moment(0),
                member,
                started: Moment(0),
                committed: 1,
                applied: 1,
            })
        };
        let over = async {
            tokio::time::sleep(PAUSE * 30).await;
            stop.store(true, Ordering::Relaxed);
        };
        let (seen, ()) = tokio::join!(gather(&stop, due, ask), over);
        let of = |id: u64| seen.iter().filter(|standing| standing.member == MemberId(id)).count();
        assert!((29..=31).contains(&of(1)) && (2..=3).contains(&of(3)), "{} and {}", of(1), of(3));
    }

    #[test]
    fn a_process_is_as_old_as_the_ticks_since_the_machine_was_started_say() {
        let machine = Machine::read("cpu 1 2\nbtime 1795712399\nprocesses 9\n", "26493.73 12563.50\n").unwrap();
        let age = machine.age(Told::read(TEXT).unwrap().start).unwrap();
        assert!(age.abs_diff(Duration::from_millis(4170)) < Duration::from_millis(1), "{age:?}");
        assert_eq!(machine.age(f64::MAX), Some(Duration::ZERO), "it has yet to be started");
        assert_eq!(machine.age(f64::NEG_INFINITY), None);
        assert_eq!(Machine::read("cpu 1 2\n", "1.00 1.00\n"), None);
    }

    #[test]
    fn the_leader_is_asked_and_who_does_not_vote_or_did_not_just_now() {
        let names = ["db-0", "db-1", "db-3"].map(str::to_owned);
        let latest = |voters: &[&str]| Latest {
            voters: voters.iter().copied().map(str::to_owned).collect(),
            leader: Some("db-1".into()),
        };
        let mut newcomers = Newcomers::default();
        let mut due = |voters: &[&str], second: u64| {
            let due = newcomers.due(names.iter(), &latest(voters), Moment(second * 1_000_000));
            due.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(due(&["db-0", "db-1"], 10), ["db-1", "db-3"]);
        assert_eq!(due(&["db-0", "db-1", "db-3"], 12), ["db-1", "db-3"]);
        assert_eq!(due(&["db-0", "db-1", "db-3"], 13), ["db-1"]);
        assert_eq!(due(&[], 14), names, "nobody knows who votes");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_left_without_a_panic(text in ".{0,200}", number in any::<f64>()) {
            let _ = Told::read(&text);
            let _ = Told::read(&format!("etcd_server_id{{server_id=\"{text}"));
            let _ = Machine::read(&text, &text);
            let _ = Machine { booted: 1.0, up: number }.age(number);
            let _ = whole(number);
        }
    }
}
