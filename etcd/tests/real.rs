//! The same calls against real etcd: from one member to two and back, with the refusals that come on the way. It runs for
//! each program of `programs`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod ports;
mod programs;

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use quorate_etcd::{
    Access, CallError, Endpoint, Listener, MemberClient, MemberId, MemberList, Pool, Refusal, Role, Sight, Vitals,
    look, peer, who_listens,
};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use self::ports::free_address;

/// How long a condition may take to come about. The slowest is etcd's own: five seconds of being connected.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a condition is looked at.
const PERIOD: Duration = Duration::from_millis(20);

/// One member: its folder, its addresses, and its process if it runs.
struct Member {
    name: &'static str,
    etcd: PathBuf,
    data: TempDir,
    client: SocketAddr,
    peer: SocketAddr,
    metrics: SocketAddr,
    /// One more flag: how many learners it admits, which 3.5 has no flag for.
    extra: Option<&'static str>,
    process: Option<Child>,
}

impl Member {
    fn new(name: &'static str, etcd: &Path) -> Self {
        let [client, peer, metrics] = [(); 3].map(|()| free_address());
        let data = tempfile::tempdir().unwrap();
        let usage = std::process::Command::new(etcd).arg("--help").output().unwrap();
        let known =
            [usage.stdout, usage.stderr].iter().any(|text| String::from_utf8_lossy(text).contains("max-learners"));
        let extra = known.then_some("--max-learners=2");
        Self { name, etcd: etcd.to_owned(), data, client, peer, metrics, extra, process: None }
    }

    fn peer_url(&self) -> String {
        format!("http://{}", self.peer)
    }

    fn listed(&self) -> String {
        format!("{}={}", self.name, self.peer_url())
    }

    /// Starts it; `bootstrap` is the initial cluster and its state, or nothing for one that resumes.
    fn start(&mut self, bootstrap: Option<(&[&Self], &str)>) {
        let client = format!("http://{}", self.client);
        let mut command = Command::new(&self.etcd);
        command
            .arg(format!("--name={}", self.name))
            .arg(format!("--data-dir={}", self.data.path().join("data").display()))
            .args([format!("--listen-client-urls={client}"), format!("--advertise-client-urls={client}")])
            .arg(format!("--listen-peer-urls={}", self.peer_url()))
            .arg(format!("--initial-advertise-peer-urls={}", self.peer_url()))
            .arg(format!("--listen-metrics-urls=http://{}", self.metrics))
            .args(self.extra)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        if let Some((members, state)) = bootstrap {
            let own = self.listed();
            let others = members.iter().map(|member| member.listed());
            let listed: Vec<_> = std::iter::once(own).chain(others).collect();
            command.arg(format!("--initial-cluster={}", listed.join(",")));
            command.arg(format!("--initial-cluster-state={state}"));
        }
        self.process = Some(command.spawn().unwrap());
    }

    /// What would come up on a copy of its folder, under its name and at its addresses: only while it does not run.
    fn twin(&self) -> Self {
        let Self { name, etcd, data: _, client, peer, metrics, extra, process: _ } = self;
        let (name, etcd, client, peer, metrics, extra) = (*name, etcd.clone(), *client, *peer, *metrics, *extra);
        let data = tempfile::tempdir().unwrap();
        let copied = std::process::Command::new("cp")
            .arg("-a")
            .args([self.data.path().join("data").as_path(), data.path()])
            .status();
        assert!(copied.unwrap().success());
        Self { name, etcd, data, client, peer, metrics, extra, process: None }
    }

    async fn kill(&mut self) {
        self.process.take().unwrap().kill().await.unwrap();
    }

    fn calls(&self, pool: &Pool) -> MemberClient {
        let endpoint = Endpoint { addr: self.client, host: "localhost".into() };
        pool.member(&Access::plaintext(), &endpoint).unwrap()
    }

    /// Looks until what is seen is as wanted.
    async fn until(&self, wanted: &str, holds: impl Fn(&Vitals) -> bool) -> Vitals {
        let begun = Instant::now();
        loop {
            let sight = look(self.metrics).await;
            match sight {
                Sight::Etcd(vitals) if holds(&vitals) => {
                    assert_eq!(who_listens(self.metrics).await, Listener::Etcd);
                    return vitals;
                }
                other if begun.elapsed() > PATIENCE => panic!("{} is not {wanted}: {other:?}", self.name),
                _ => sleep(PERIOD).await,
            }
        }
    }
}

/// Repeats a call while etcd refuses it for this reason, which time mends.
async fn patiently<T>(reason: Refusal, call: impl AsyncFn() -> Result<T, CallError>) -> T {
    let begun = Instant::now();
    loop {
        match call().await {
            Ok(value) => return value,
            Err(error) if error.refusal() == Some(reason) && begun.elapsed() < PATIENCE => sleep(PERIOD).await,
            Err(error) => panic!("{error}: {:?}", error.refusal()),
        }
    }
}

fn refusal<T: std::fmt::Debug>(result: Result<T, CallError>) -> Refusal {
    result.unwrap_err().refusal().unwrap()
}

fn voters(list: &MemberList) -> BTreeSet<MemberId> {
    list.members.iter().filter(|member| !member.learner).map(|member| member.id).collect()
}

/// Members are added as learners, refused where etcd refuses, and taken out again.
async fn learners_come_and_go(seed: &MemberClient, first: &Member) -> MemberId {
    let url = "http://127.0.0.1:2";
    let learner = seed.add_learner(url).await.unwrap();
    assert!(learner.list.get(learner.id).unwrap().learner);
    // Within the same second the id is the same too, since etcd makes it of the URL and the second.
    let twice = refusal(seed.add_learner(url).await);
    assert!([Refusal::PeerUrlExists, Refusal::MemberExists].contains(&twice), "{twice:?}");
    fill(seed).await;
    assert_eq!(refusal(seed.add_learner("http://127.0.0.1:1").await), Refusal::TooManyLearners);
    assert_eq!(refusal(seed.promote(learner.id).await), Refusal::LearnerNotReady);
    assert_eq!(refusal(seed.promote(MemberId(7)).await), Refusal::NotFound);
    assert_eq!(refusal(seed.remove(MemberId(7)).await), Refusal::NotFound);
    assert_eq!(refusal(seed.move_leader(learner.id).await), Refusal::BadTransferee);
    for member in seed.member_list().await.unwrap().members.iter().filter(|member| member.learner) {
        seed.remove(member.id).await.unwrap();
    }
    let again = seed.add_learner(&first.peer_url()).await.unwrap();
    let list = seed.member_list().await.unwrap();
    assert_eq!((list.ids(), list.members.len()), (again.list.ids(), 2));
    assert_eq!(list.by_peer_url(&first.peer_url()).unwrap().id, again.id);
    again.id
}

/// Takes the other place for a learner, where there are two: from 3.6 on.
async fn fill(seed: &MemberClient) {
    if !seed.status().await.unwrap().version.starts_with("3.5.") {
        seed.add_learner("http://127.0.0.1:3").await.unwrap();
    }
}

/// Without a quorum the client port does not answer; the other two ports do.
async fn a_lost_quorum_is_seen(pool: &Pool, left: &Member, cluster: quorate_etcd::ClusterId) {
    let vitals = left.until("without a leader", |vitals| !vitals.has_leader).await;
    assert!(vitals.live, "a serializable read needs no quorum");
    let error = left.calls(pool).member_list().await.unwrap_err();
    assert!(error.outcome_unknown() && error.refusal().is_none(), "{error}");
    let hearsay = peer::members(left.peer).await.unwrap();
    assert_eq!((hearsay.cluster, hearsay.members.len()), (Some(cluster), 2));
    assert_eq!(Some(peer::version(left.peer).await.unwrap().server), vitals.version);
}

/// A whole life of a small cluster.
async fn live(etcd: PathBuf) {
    let pool = Pool::default();
    let (mut a, mut b) = (Member::new("a", &etcd), Member::new("b", &etcd));
    a.start(Some((&[], "new")));
    let seen = a.until("leading", |vitals| vitals.role == Role::Leader && vitals.live).await;
    let calls = a.calls(&pool);
    // The client port opens a little later than the member leads.
    let list = loop {
        match a.calls(&pool).member_list().await {
            Ok(list) => break list,
            Err(error) => assert!(error.outcome_unknown(), "{error}"),
        }
    };
    assert_eq!((list.members.len(), seen.member), (1, Some(list.answered_by)));

    let learner = learners_come_and_go(&calls, &b).await;
    b.start(Some((&[&a], "existing")));
    b.until("a learner that lives", |vitals| vitals.role == Role::Learner && vitals.live).await;
    let list = patiently(Refusal::LearnerNotReady, async || calls.promote(learner).await).await;
    assert_eq!(voters(&list), BTreeSet::from([list.answered_by, learner]));
    assert_eq!(refusal(calls.promote(learner).await), Refusal::NotALearner);

    // Told to stand for election before it knows that it votes, it would not, and the leader waits for it in vain.
    b.until("a voter by its own account", |vitals| vitals.role == Role::Follower && vitals.has_leader).await;
    calls.move_leader(learner).await.unwrap();
    b.until("leading", |vitals| vitals.role == Role::Leader).await;
    a.until("following", |vitals| vitals.role == Role::Follower && vitals.has_leader).await;
    assert_eq!(refusal(calls.move_leader(learner).await), Refusal::NotLeader);
    let status = a.calls(&pool).status().await.unwrap();
    assert_eq!((status.leader, status.member), (Some(learner), list.answered_by));
    assert_eq!((Some(status.version), status.learner), (seen.version.clone(), false));

    a.kill().await;
    a_lost_quorum_is_seen(&pool, &b, list.cluster).await;
    a.start(None);
    let back = a.until("back", |vitals| vitals.has_leader && vitals.live).await;
    assert_eq!(back.member, seen.member);
    assert!(back.process_start > seen.process_start);

    let (survivor, leaver) = if back.role == Role::Leader { (&mut a, learner) } else { (&mut b, list.answered_by) };
    let calls = survivor.calls(&pool);
    patiently(Refusal::UnhealthyCluster, async || calls.remove(leaver).await).await;
    calls.persist_commit().await.unwrap();
    survives_a_kill_alone(survivor, leaver).await;
}

/// The last voter, killed with nothing written since the other one was removed, leads when it is back.
async fn survives_a_kill_alone(survivor: &mut Member, leaver: MemberId) {
    survivor.kill().await;
    survivor.start(None);
    survivor.until("leading alone", |vitals| vitals.role == Role::Leader && vitals.live).await;
    let left = survivor.calls(&Pool::default()).member_list().await.unwrap();
    assert_eq!((left.members.len(), left.get(leaver)), (1, None));
}

/// The version of a new cluster is known some seconds later.
async fn enables_downgrade_to_3_5(calls: &MemberClient) {
    let begun = Instant::now();
    while let Err(error) = calls.enable_downgrade("3.5.0").await {
        assert!(begun.elapsed() < PATIENCE, "{error}");
        sleep(PERIOD).await;
    }
}

/// On 3.5, after its own downgrade, a cluster says no more of it; and as long as it has a learner, which has no version, it never
/// ends it by itself (`isMatchedVersions` in `server/etcdserver/cluster_util.go`).
async fn a_downgrade_is_seen_where_no_status_tells(from: &Path, to: &Path) {
    let pool = Pool::default();
    let mut member = Member::new("a", from);
    member.start(Some((&[], "new")));
    member.until("leading", |vitals| vitals.role == Role::Leader && vitals.live).await;
    let calls = member.calls(&pool);
    let begun = Instant::now();
    enables_downgrade_to_3_5(&calls).await;
    while calls.status().await.unwrap().storage_version != "3.5.0" {
        assert!(begun.elapsed() < PATIENCE, "its database is not changed");
        sleep(PERIOD).await;
    }
    assert!(calls.status().await.unwrap().downgrade.is_some());
    member.kill().await;
    // Else it might end it in between by itself.
    (member.etcd, member.extra) = (to.to_owned(), Some("--experimental-downgrade-check-time=1h"));
    member.start(None);
    member.until("leading", |vitals| vitals.role == Role::Leader && vitals.live).await;
    let calls = member.calls(&pool);
    let learner = loop {
        match calls.add_learner("http://127.0.0.1:2").await {
            Ok(added) => break added.id,
            Err(error) if error.refusal() == Some(Refusal::PeerUrlExists) => {
                break calls.member_list().await.unwrap().by_peer_url("http://127.0.0.1:2").unwrap().id;
            }
            Err(error) => assert!(error.outcome_unknown() && begun.elapsed() < PATIENCE, "{error}"),
        }
    };
    assert_eq!(calls.status().await.unwrap().downgrade, None, "its status does not tell");
    assert!(calls.downgrade_is_enabled("3.4.0").await.unwrap());
    calls
        .cancel_downgrade("3.4.0")
        .await
        .expect("3.5 never answers, and it is found out that none is enabled any more");
    assert!(!calls.downgrade_is_enabled("3.4.0").await.unwrap(), "it has had its effect");
    assert_eq!(refusal(calls.cancel_downgrade("3.4.0").await), Refusal::NoDowngrade);
    calls.remove(learner).await.unwrap();
}

/// Why logs are cut before 3.7: what a cluster of 3.5 has written of itself, without any client, 3.7 ends over ("unmarshal
/// should never fail", `server/etcdserver/apply`) until a snapshot is taken after it, as every member does when the cluster's
/// version is lowered (`ForceSnapshot`).
async fn a_log_of_3_5_stops_3_7_until_it_is_cut([from, between, to]: [&Path; 3]) {
    let pool = Pool::default();
    let mut member = Member::new("a", from);
    member.start(Some((&[], "new")));
    member.until("leading", |vitals| vitals.role == Role::Leader && vitals.live).await;
    member.kill().await;
    let runs_at =
        |wanted: &'static str| move |vitals: &Vitals| vitals.live && vitals.cluster_version.as_deref() == Some(wanted);
    (member.etcd, member.extra) = (between.to_owned(), None);
    member.start(None);
    member.until("at 3.6", runs_at("3.6")).await;
    member.kill().await;

    let mut uncut = member.twin();
    uncut.etcd = to.to_owned();
    uncut.start(None);
    let ended = timeout(PATIENCE, uncut.process.as_mut().unwrap().wait()).await;
    assert!(!ended.expect("3.7 goes on with the log of 3.5").unwrap().success());

    member.start(None);
    member.until("at 3.6", runs_at("3.6")).await;
    let calls = member.calls(&pool);
    enables_downgrade_to_3_5(&calls).await;
    member.until("at 3.5", runs_at("3.5")).await;
    calls.cancel_downgrade("3.4.0").await.unwrap();
    member.until("at 3.6 again", runs_at("3.6")).await;
    member.kill().await;
    member.etcd = to.to_owned();
    member.start(None);
    member.until("at 3.7", runs_at("3.7")).await;
}

/// The programs of these minors, if all of them are there.
fn of_minors<const N: usize>(minors: [&str; N]) -> Option<[PathBuf; N]> {
    let programs = programs::all();
    let found = minors.map(|minor| {
        let is = |etcd: &PathBuf| {
            let said = std::process::Command::new(etcd).arg("--version").output().unwrap().stdout;
            String::from_utf8_lossy(&said).contains(&format!("etcd Version: {minor}."))
        };
        programs.iter().find(|etcd| is(etcd)).cloned()
    });
    if found.contains(&None) {
        programs::without(&format!("QUORATE_ETCD_BIN has not all of {minors:?}"));
        return None;
    }
    Some(found.map(Option::unwrap))
}

#[tokio::test]
async fn a_downgrade_to_3_5_is_known_after_it() {
    if let Some([from, to]) = of_minors(["3.6", "3.5"]) {
        a_downgrade_is_seen_where_no_status_tells(&from, &to).await;
    }
}

#[tokio::test]
async fn logs_of_3_5_have_to_be_cut_before_3_7() {
    if let Some([from, between, to]) = of_minors(["3.5", "3.6", "3.7"]) {
        a_log_of_3_5_stops_3_7_until_it_is_cut([&from, &between, &to]).await;
    }
}

#[tokio::test]
async fn a_small_cluster_lives_on_each_line_of_etcd() {
    let mut lives = tokio::task::JoinSet::new();
    let here = tokio::task::LocalSet::new();
    for etcd in programs::all() {
        lives.spawn_local_on(live(etcd), &here);
    }
    here.run_until(async {
        while let Some(life) = lives.join_next().await {
            life.unwrap();
        }
    })
    .await;
}
