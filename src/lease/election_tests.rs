//! Tests of whole elections: real candidates at one API server in this process, over lines that fail. Who holds the
//! right to write is looked at whenever it can have changed: when a claim is told something, and when a term ends.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{CALL_DEADLINE, Claim, DURATION, Election, RENEW_DEADLINE, RENEW_EVERY, RETRY, Term};
use crate::api;
use crate::fake_api::{FakeApi, Fault};
use crate::metrics::Metrics;
use crate::stop::turned;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/quorate";
const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// By then somebody leads, if the API server answers at once.
const SOON: Duration = Duration::from_secs(3);
/// By then the Lease of a leader that is silent has been taken.
const AFTER_A_DEATH: Duration = Duration::from_secs(22);

const NONE: [bool; 2] = [false, false];
const FIRST: [bool; 2] = [true, false];
const SECOND_ONE: [bool; 2] = [false, true];
const BOTH: [bool; 2] = [true, true];

/// An operator, as far as it takes part.
struct Candidate {
    line: FakeApi,
    claim: Claim,
    metrics: Arc<Metrics>,
    stop: watch::Sender<bool>,
    run: JoinHandle<()>,
}

impl Candidate {
    fn joins(api: &FakeApi, name: &str) -> Self {
        let (line, metrics) = (api.another_line(), Arc::new(Metrics::new()));
        let (election, claim) = Election::new(line.client(), "ns", "quorate", name, metrics.clone());
        let (stop, stopping) = watch::channel(false);
        let run = tokio::spawn(election.run(turned(stopping)));
        Self { line, claim, metrics, stop, run }
    }

    fn shows_that_it_leads(&self) -> bool {
        self.metrics.render().unwrap().contains("\nquorate_leader 1\n")
    }
}

/// Two operators and what became of them: each change of who holds the right to write, and when.
struct Scene {
    api: FakeApi,
    candidates: [Candidate; 2],
    began: Instant,
    history: Vec<(Duration, [bool; 2])>,
}

impl Scene {
    /// Both join at once.
    fn at(api: FakeApi) -> Self {
        let candidates = ["a", "b"].map(|name| Candidate::joins(&api, name));
        Self { api, candidates, began: Instant::now(), history: Vec::new() }
    }

    /// The first leads, the second looks on.
    async fn with_a_leader() -> Self {
        let api = FakeApi::default();
        let first = Candidate::joins(&api, "a");
        sleep(MILLISECOND).await;
        let second = Candidate::joins(&api, "b");
        let candidates = [first, second];
        let mut scene = Self { api, candidates, began: Instant::now(), history: Vec::new() };
        scene.pass(MILLISECOND).await;
        assert_eq!(scene.holding(), FIRST);
        scene
    }

    fn holding(&self) -> [bool; 2] {
        self.candidates.each_ref().map(|candidate| candidate.claim.holds())
    }

    fn look(&mut self) {
        let holding = self.holding();
        if self.history.last().is_none_or(|(_, before)| *before != holding) {
            self.history.push((self.began.elapsed(), holding));
        }
    }

    /// Waits until the next moment at which who holds may change, or until `end`; then looks.
    async fn step(&mut self, end: Instant) {
        let mut claims = self.candidates.each_ref().map(|candidate| candidate.claim.0.clone());
        let terms = claims.each_mut().map(|claim| *claim.borrow_and_update());
        let ends = terms.into_iter().flatten().filter(|term| term.lasts()).map(|term| term.until);
        let [first, second] = claims;
        tokio::select! {
            () = news(first) => (),
            () = news(second) => (),
            () = sleep_until(ends.fold(end, Instant::min)) => (),
        }
        self.look();
    }

    /// Lets time pass, and looks all the while.
    async fn pass(&mut self, time: Duration) {
        let end = Instant::now() + time;
        self.look();
        while Instant::now() < end {
            self.step(end).await;
        }
    }

    /// Lets time pass until exactly these hold. Says how long that took.
    async fn until(&mut self, holding: [bool; 2], most: Duration) -> Duration {
        let begun = Instant::now();
        self.look();
        while self.holding() != holding {
            assert!(begun.elapsed() < most, "not within {most:?}: {:?}", self.history);
            self.step(begun + most).await;
        }
        begun.elapsed()
    }

    fn line(&self, which: usize) -> &FakeApi {
        &self.candidates[which].line
    }

    fn spec(&self) -> Value {
        self.api.object(LEASE)["spec"].clone()
    }

    /// Never two at once, and between two leaders the time that the last write of the first may take.
    fn is_safe(&self) {
        assert_eq!(overlap(&self.history), None, "{:?}", self.history);
        let least = gaps(&self.history).min();
        assert!(least.is_none_or(|least| least >= api::DEADLINE), "{least:?} in {:?}", self.history);
    }
}

/// Resolves when a claim is told something; never once its election has ended.
async fn news(mut claim: watch::Receiver<Option<Term>>) {
    if claim.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// When two held the right to write at once, if they ever did.
fn overlap(history: &[(Duration, [bool; 2])]) -> Option<Duration> {
    history.iter().find(|(_, holding)| *holding == BOTH).map(|(when, _)| *when)
}

/// How long nobody held it each time that it went from one to the other.
fn gaps(history: &[(Duration, [bool; 2])]) -> impl Iterator<Item = Duration> {
    let mut ended: Option<([bool; 2], Duration)> = None;
    history.windows(2).filter_map(move |pair| {
        let ((_, before), (when, holding)) = (pair[0], pair[1]);
        if before != NONE {
            ended = Some((before, when));
        }
        ended.filter(|(last, _)| holding != NONE && *last != holding).map(|(_, since)| when.checked_sub(since).unwrap())
    })
}

fn lag(there: Duration, back: Duration) -> Fault {
    Fault::Lag { there, back }
}

#[tokio::test(start_paused = true)]
async fn of_two_that_begin_at_once_exactly_one_leads_and_goes_on_to() {
    let mut scene = Scene::at(FakeApi::default());
    scene.pass(SOON).await;
    let leading = scene.holding();
    assert!(leading == FIRST || leading == SECOND_ONE, "{leading:?}");
    scene.pass(Duration::from_mins(2)).await;
    assert_eq!(scene.history.len(), 2, "it never loses the lead: {:?}", scene.history);
    assert_eq!(scene.spec()["leaseTransitions"], 0);
    scene.is_safe();
    for candidate in &scene.candidates {
        assert_eq!(candidate.shows_that_it_leads(), candidate.claim.holds());
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_stops_hands_over_at_once() {
    let mut scene = Scene::with_a_leader().await;
    // The API server has done what it was asked before it says so: nobody may lead in between.
    scene.line(0).disturb("PUT", lag(Duration::ZERO, 3 * SECOND));
    scene.candidates[0].stop.send_replace(true);
    let took = scene.until(SECOND_ONE, SOON).await;
    assert!(took <= RETRY + MILLISECOND, "{took:?}");
    assert_eq!((&scene.spec()["holderIdentity"], &scene.spec()["leaseTransitions"]), (&json!("b"), &json!(1)));
    scene.pass(AFTER_A_DEATH).await;
    assert!(scene.candidates[0].run.is_finished() && !scene.candidates[0].shows_that_it_leads());
    assert_eq!(scene.holding(), SECOND_ONE);
    assert_eq!(overlap(&scene.history), None, "{:?}", scene.history);
}

#[tokio::test(start_paused = true)]
async fn one_that_does_not_lead_leaves_the_lease_alone_when_it_stops() {
    let mut scene = Scene::with_a_leader().await;
    scene.candidates[1].stop.send_replace(true);
    scene.pass(RETRY).await;
    assert!(scene.candidates[1].run.is_finished());
    assert_eq!(scene.spec()["holderIdentity"], "a");
    assert_eq!(scene.holding(), FIRST);
}

/// How a leader may fall silent.
fn silences() -> [(&'static str, Fault); 5] {
    [
        ("", Fault::Lose),
        ("PUT", Fault::Lose),
        ("", Fault::Refuse(StatusCode::INTERNAL_SERVER_ERROR)),
        ("PUT", Fault::Refuse(StatusCode::FORBIDDEN)),
        ("", lag(CALL_DEADLINE + SECOND, Duration::ZERO)),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_silent_leader_stops_in_time_and_the_other_takes_over_only_then() {
    for (calls, fault) in silences() {
        let mut scene = Scene::with_a_leader().await;
        scene.line(0).disturb(calls, fault);
        let stopped = scene.until(NONE, AFTER_A_DEATH).await;
        assert!(stopped <= RENEW_DEADLINE, "{fault:?}: {stopped:?}");
        let taken = scene.until(SECOND_ONE, AFTER_A_DEATH).await;
        assert!(stopped + taken + MILLISECOND >= DURATION && stopped + taken <= AFTER_A_DEATH, "{fault:?}: {taken:?}");
        // It comes back, and waits like any other.
        scene.line(0).mend();
        scene.pass(AFTER_A_DEATH).await;
        assert_eq!(scene.holding(), SECOND_ONE);
        scene.is_safe();
    }
}

/// What a candidate reads may have been written while it asked: it counts from when it knew.
#[tokio::test(start_paused = true)]
async fn wherever_in_the_rounds_of_the_other_a_leader_dies_its_last_write_ends_before() {
    for step in 0..12 {
        let mut scene = Scene::with_a_leader().await;
        scene.line(1).disturb("GET", lag(CALL_DEADLINE * 9 / 10, Duration::ZERO));
        scene.pass(RENEW_EVERY * 4 + SECOND / 2 * step).await;
        assert_eq!(scene.holding(), FIRST);
        scene.line(0).disturb("", Fault::Lose);
        // The other has seen the last renewal by then, and takes over without a delay.
        scene.pass(CALL_DEADLINE + RETRY).await;
        scene.line(1).mend();
        scene.until(SECOND_ONE, AFTER_A_DEATH).await;
        scene.is_safe();
    }
}

#[tokio::test(start_paused = true)]
async fn who_loses_the_race_for_a_free_lease_goes_on_as_a_candidate() {
    let mut scene = Scene::at(free_and_raced_for());
    scene.pass(SOON).await;
    assert_ne!(scene.holding(), NONE);
    assert_eq!(scene.spec()["leaseTransitions"], 8, "it was taken once");
    let (leader, other) = if scene.holding() == FIRST { (0, 1) } else { (1, 0) };
    scene.candidates[leader].stop.send_replace(true);
    scene.pass(SOON).await;
    assert!(scene.candidates[other].claim.holds());
    assert_eq!(overlap(&scene.history), None, "{:?}", scene.history);
}

/// A Lease that was released, at which both look before either writes.
fn free_and_raced_for() -> FakeApi {
    let api = FakeApi::default();
    api.put(
        LEASE,
        json!({ "metadata": { "name": "quorate" }, "spec": { "holderIdentity": "", "leaseTransitions": 7 } }),
    );
    api
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_record_somebody_edits_leads_again() {
    let mut scene = Scene::with_a_leader().await;
    // It has read, and has not yet written.
    scene.line(0).disturb("PUT", lag(SECOND, Duration::ZERO));
    scene.pass(RENEW_EVERY + SECOND / 2).await;
    let mut edited = scene.api.object(LEASE);
    edited["metadata"]["labels"] = json!({ "seen": "by-me" });
    scene.api.put(LEASE, edited);
    scene.until(NONE, SOON).await;
    scene.until(FIRST, SOON * 2).await;
    assert_eq!(scene.api.object(LEASE)["metadata"]["labels"]["seen"], "by-me");
    scene.is_safe();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_deleted_under_its_leader_stays_its_own() {
    for step in 0..10 {
        let mut scene = Scene::with_a_leader().await;
        scene.pass(RENEW_EVERY * 2 + SECOND / 2 * step).await;
        scene.api.remove(LEASE);
        scene.pass(AFTER_A_DEATH).await;
        assert_eq!((scene.holding(), &scene.spec()["holderIdentity"]), (FIRST, &json!("a")));
        scene.is_safe();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_deleted_after_its_leader_died_is_made_anew() {
    let mut scene = Scene::with_a_leader().await;
    scene.line(0).disturb("", Fault::Lose);
    scene.api.remove(LEASE);
    let took = scene.until(NONE, AFTER_A_DEATH).await + scene.until(SECOND_ONE, AFTER_A_DEATH).await;
    assert!(took <= AFTER_A_DEATH, "{took:?}");
    scene.is_safe();
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_fails_both_for_a_while_finds_one_leader_afterwards() {
    let faults = [
        Fault::Refuse(StatusCode::INTERNAL_SERVER_ERROR),
        Fault::Refuse(StatusCode::CONFLICT),
        Fault::Refuse(StatusCode::TOO_MANY_REQUESTS),
        Fault::Lose,
        // What was sent is done long after whoever sent it has given up.
        lag(12 * SECOND, 12 * SECOND),
    ];
    for fault in faults {
        let mut scene = Scene::with_a_leader().await;
        scene.line(0).disturb("", fault);
        scene.line(1).disturb("", fault);
        scene.pass(RENEW_DEADLINE).await;
        assert_eq!(scene.holding(), NONE, "{fault:?}");
        scene.pass(Duration::from_mins(1)).await;
        assert_eq!(scene.holding(), NONE, "{fault:?}");
        scene.line(0).mend();
        scene.line(1).mend();
        // What is still on its way may get between once more.
        scene.pass(AFTER_A_DEATH).await;
        assert_ne!(scene.holding(), NONE, "{fault:?}: {:?}", scene.history);
        scene.is_safe();
    }
}

#[tokio::test(start_paused = true)]
async fn one_renewal_may_fail_without_a_loss() {
    for calls in ["GET", "PUT"] {
        for fault in [Fault::Lose, Fault::Refuse(StatusCode::INTERNAL_SERVER_ERROR)] {
            let mut scene = Scene::with_a_leader().await;
            scene.line(0).disturb(calls, fault);
            // One renewal begins within that time, and has not ended.
            scene.pass(RENEW_EVERY + SECOND / 2).await;
            scene.line(0).mend();
            scene.pass(Duration::from_mins(1)).await;
            assert_eq!(scene.history.len(), 1, "{calls} {fault:?}: {:?}", scene.history);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_stops_within_its_deadlines_though_nobody_answers() {
    let scene = Scene::with_a_leader().await;
    scene.line(0).disturb("", Fault::Lose);
    sleep(RENEW_EVERY).await;
    let [leader, _] = scene.candidates;
    leader.stop.send_replace(true);
    timeout(CALL_DEADLINE * 2, leader.run).await.expect("a call under way, and one to release").unwrap();
    assert!(!leader.claim.holds());
}

/// What is wrong with a line next.
fn any_fault(random: &mut Rng) -> Option<Fault> {
    let mut up_to = |most: u64| Duration::from_millis(random.u64(0..most));
    let (little, much) = (lag(up_to(2000), up_to(2000)), lag(up_to(20_000), up_to(20_000)));
    let codes = [StatusCode::INTERNAL_SERVER_ERROR, StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS];
    let code = codes[random.usize(0..codes.len())];
    [None, Some(Fault::Lose), Some(Fault::Refuse(code)), Some(little), Some(much)][random.usize(0..5)]
}

/// Lines that are now good, now bad, each in its own way, for many minutes.
#[tokio::test(start_paused = true)]
async fn whatever_the_lines_do_there_are_never_two_at_once() {
    let mut handed_over = 0;
    for seed in 0..50 {
        let mut random = Rng::with_seed(seed);
        let mut scene = Scene::at(FakeApi::default());
        for _ in 0..30 {
            let which = random.usize(0..2);
            let calls = ["", "GET", "PUT"][random.usize(0..3)];
            scene.line(which).mend();
            if let Some(fault) = any_fault(&mut random) {
                scene.line(which).disturb(calls, fault);
            }
            if random.u8(0..10) == 0 {
                scene.api.remove(LEASE);
            }
            scene.pass(Duration::from_millis(random.u64(1..20_000))).await;
        }
        for which in [0, 1] {
            scene.line(which).mend();
        }
        scene.pass(AFTER_A_DEATH * 2).await;
        assert_ne!(scene.holding(), NONE, "seed {seed}: {:?}", scene.history);
        scene.is_safe();
        handed_over += gaps(&scene.history).count();
    }
    assert!(handed_over > 100, "the lead went to and fro: {handed_over}");
}

/// The look would notice: an API server without compare-and-swap makes two leaders of a race.
#[tokio::test(start_paused = true)]
async fn without_compare_and_swap_two_would_lead_and_that_is_seen() {
    let api = free_and_raced_for();
    api.forget_versions();
    let mut scene = Scene::at(api);
    scene.pass(SOON).await;
    assert!(overlap(&scene.history).is_some(), "{:?}", scene.history);
}

/// It would notice wrong times as well: a record that promises less than its holder may write.
#[tokio::test(start_paused = true)]
async fn with_a_lease_that_runs_out_too_early_two_would_lead_and_that_is_seen() {
    let mut scene = Scene::with_a_leader().await;
    let mut shortened = scene.api.object(LEASE);
    shortened["spec"]["leaseDurationSeconds"] = json!(4);
    scene.line(0).disturb("", Fault::Lose);
    scene.api.put(LEASE, shortened);
    scene.pass(AFTER_A_DEATH).await;
    assert!(overlap(&scene.history).is_some(), "{:?}", scene.history);
}
