//! What is done for each row, by hand for the floor and with Quorate for the value. Times come from the stopwatch.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use rustix::process::Signal;

use super::looks;
use super::raw::Raw;
use super::report::Measured;
use super::stopwatch::{Members, Up, alternately, in_turn, moment_of, pods, uids, until, until_up};
use crate::faults::operator::Operator;
use crate::faults::{pods as pod_faults, processes};
use crate::lab::Lab;
use crate::scene::{Cluster, Membership, Scene, Wish, etcd_processes, operator_writes};

/// How long a cluster rests before its size is changed. etcd refuses to change the members of one whose peers have not
/// been connected for 5 s (`HealthInterval` in etcd's server); what is measured is a cluster at rest.
const REST: Duration = Duration::from_secs(7);

/// The labels of Quorate's pods of a cluster; a trial of another version has only the first.
pub fn label(db: &Cluster) -> String {
    format!("quorate.dev/cluster={},app.kubernetes.io/name=etcd", db.name())
}

async fn is_up(db: &Cluster, started: Instant, count: usize, old: &BTreeSet<String>, up: Up) -> Result<f64> {
    until_up((db.scene(), &label(db)), started, count, old, up).await
}

/// Creates the object directly, as the floor creates its objects: kubectl's own start is nobody's time.
pub async fn create_wish(scene: &Scene, wish: &Wish) -> Result<Cluster> {
    let db = scene.cluster(wish.name());
    let object = serde_json::from_value(wish.object())?;
    db.objects().create(&PostParams::default(), &object).await.context("failed to create the cluster")?;
    Ok(db)
}

async fn create(scene: &Scene, name: &str) -> Result<Cluster> {
    create_wish(scene, &Wish::new(name, 3)).await
}

/// A hand-written cluster and one of Quorate's, both of three and at rest.
async fn both(scene: &Scene) -> Result<(Raw, Cluster)> {
    let raw = Raw::new(scene, "raw", 3);
    raw.create().await?;
    let db = create(scene, "db").await?;
    db.settles(3).await?;
    Ok((raw, db))
}

/// The name of a member that does not lead, another one each run.
fn follower(members: &Membership, run: u32) -> Result<String> {
    let leader = members.leader()?;
    let followers: Vec<&String> = members.members.keys().filter(|name| *name != leader).collect();
    let number = usize::try_from(run)? % followers.len().max(1);
    followers.get(number).map(|name| (*name).clone()).context("there is no follower")
}

/// From nothing to three; with `restart` the leading operator loses its pod once the seed runs.
pub async fn bootstrap(scene: &Scene, runs: u32, restart: bool) -> Result<Measured> {
    let operator = Operator::new(scene.client());
    let floor = async |run: u32| {
        let raw = Raw::new(scene, &format!("raw{run}"), 3);
        let took = raw.create().await?;
        raw.delete().await?;
        Ok(took)
    };
    let value = async |run: u32| {
        let leader = operator.leader().await?.metadata.name.context("a pod without a name")?;
        let started = Instant::now();
        let db = create(scene, &format!("db{run}")).await?;
        if restart {
            until("the seed's process", started, async || {
                ensure!(!etcd_processes(scene.namespace()).is_empty(), "no etcd runs");
                Ok(())
            })
            .await?;
            operator.delete_pod(&leader).await?;
        }
        let took = is_up(&db, started, 3, &BTreeSet::new(), Up::Ready).await?;
        operator.is_ready().await?;
        db.settles(3).await?;
        delete(&db).await?;
        Ok(took)
    };
    in_turn(runs, floor, value).await
}

/// Deletes the cluster, and waits until nothing of it is left that would take time from the next run.
pub async fn delete(db: &Cluster) -> Result<()> {
    db.delete().await?;
    until("pods and claims to be gone", Instant::now(), async || {
        let all = kube::api::ListParams::default().labels(&label(db));
        let left = (db.pods().list(&all).await?.items.len(), db.claims().list(&all).await?.items.len());
        ensure!(left == (0, 0), "{left:?} pods and claims are there");
        Ok(())
    })
    .await
    .map(drop)
}

pub async fn pod_deleted(scene: &Scene, runs: u32) -> Result<Measured> {
    let (raw, db) = both(scene).await?;
    let floor = async |run: u32| {
        let name = follower(&raw.membership().await?, run)?;
        looks::moment_between(scene, &name, run).await?;
        raw.renew(std::slice::from_ref(&name)).await
    };
    let value = async |run: u32| {
        let name = follower(&db.answers().await?, run)?;
        let old = uids(&pods(scene, &label(&db)).await?);
        looks::moment_between(scene, &name, run).await?;
        let started = Instant::now();
        pod_faults::delete_by_force(&db, &[&name]).await?;
        let took = is_up(&db, started, 1, &old, Up::Ready).await?;
        db.settles(3).await?;
        Ok(took)
    };
    alternately(runs, floor, value).await
}

/// A fresh pod each run: the kubelet delays the second restart of a container.
pub async fn process_killed(scene: &Scene, runs: u32) -> Result<Measured> {
    let (raw, db) = both(scene).await?;
    let floor = async |run: u32| {
        let name = follower(&raw.membership().await?, run)?;
        raw.renew(std::slice::from_ref(&name)).await?;
        killed(scene, &name, &raw.label(), run).await
    };
    let value = async |run: u32| {
        let name = follower(&db.answers().await?, run)?;
        pod_faults::delete_by_force(&db, &[&name]).await?;
        db.settles(3).await?;
        let took = killed(scene, &name, &label(&db), run).await?;
        db.settles(3).await?;
        Ok(took)
    };
    alternately(runs, floor, value).await
}

/// Kills a member's etcd; the seconds until another process of it is a healthy voter.
async fn killed(scene: &Scene, name: &str, label: &str, run: u32) -> Result<f64> {
    let of_member = || etcd_processes(scene.namespace()).into_iter().filter(|process| process.member() == name);
    // The pod before was deleted by force: its process may take a moment to end.
    until("one process of the member", Instant::now(), async || {
        ensure!(of_member().count() == 1, "{} run", of_member().count());
        Ok(())
    })
    .await?;
    let process = of_member().next().context("it does not run")?;
    let mut members = Members::open((scene, label), 3, &BTreeSet::new(), Up::Voting).await?;
    looks::moment_between(scene, name, run).await?;
    let started = Instant::now();
    processes::signal(process.pid, Signal::KILL)?;
    until("the member's next process", started, async || {
        ensure!(of_member().any(|now| now.pid != process.pid), "it does not run");
        members.are_up().await
    })
    .await
}

pub async fn volume_lost(scene: &Scene, runs: u32) -> Result<Measured> {
    let db = create(scene, "db").await?;
    db.settles(3).await?;
    let floor = async |run: u32| {
        let raw = Raw::new(scene, &format!("raw{run}"), 1);
        let took = raw.create().await?;
        raw.delete().await?;
        Ok(took)
    };
    let value = async |run: u32| {
        tokio::time::sleep(REST).await;
        let name = follower(&db.answers().await?, run)?;
        let view = db.view().await?;
        let lost = view.pods.get(&name).and_then(|pod| pod.metadata.uid.clone());
        let started = Instant::now();
        let (claims, params) = (db.claims(), kube::api::DeleteParams::default());
        let names = [name.as_str()];
        let (claim, pod) = tokio::join!(claims.delete(&name, &params), pod_faults::delete_by_force(&db, &names));
        claim.context("failed to delete the claim")?;
        pod?;
        let took = is_up(&db, started, 3, &lost.into_iter().collect(), Up::Voting).await?;
        let members = db.settles(3).await?;
        ensure!(!members.members.contains_key(&name), "{name} was not replaced");
        Ok(took)
    };
    in_turn(runs, floor, value).await
}

pub async fn all_pods_deleted(scene: &Scene, runs: u32) -> Result<Measured> {
    let (raw, db) = both(scene).await?;
    let floor = async |_| raw.renew(&raw.names()).await;
    let value = async |_| {
        let view = db.view().await?;
        let names: Vec<&str> = view.pods.keys().map(String::as_str).collect();
        let old = view.pods.values().filter_map(|pod| pod.metadata.uid.clone()).collect();
        let started = Instant::now();
        pod_faults::delete_by_force(&db, &names).await?;
        let took = is_up(&db, started, 3, &old, Up::Ready).await?;
        db.settles(3).await?;
        Ok(took)
    };
    in_turn(runs, floor, value).await
}

/// The floor of both: two hand-written pods with their volumes, which come and go. A cluster has been scaled when it has
/// its voters; what the kubelet thinks of their pods comes up to a second later.
///
/// Each run has a cluster of its own: of one that was scaled before, each newcomer goes once more through all that its log has of
/// members that came and went, the connections to each of them included, and so took longer from run to run.
pub async fn scale_up(scene: &Scene, runs: u32) -> Result<Measured> {
    let floor = async |run: u32| {
        let raw = Raw::new(scene, &format!("raw{run}"), 2);
        moment_of(run).await;
        let took = raw.create_until(Up::Voting).await?;
        raw.delete().await?;
        Ok(took)
    };
    let value = async |run: u32| {
        let db = create(scene, &format!("db{run}")).await?;
        db.settles(3).await?;
        tokio::time::sleep(REST).await;
        moment_of(run).await;
        let started = Instant::now();
        db.scale(5).await?;
        let took = is_up(&db, started, 5, &BTreeSet::new(), Up::Voting).await?;
        db.settles(5).await?;
        delete(&db).await?;
        Ok(took)
    };
    alternately(runs, floor, value).await
}

pub async fn scale_down(scene: &Scene, runs: u32) -> Result<Measured> {
    let db = create(scene, "db").await?;
    db.settles(3).await?;
    let floor = async |run: u32| {
        let raw = Raw::new(scene, &format!("raw{run}"), 2);
        raw.create().await?;
        raw.delete().await
    };
    let value = async |_| {
        db.scale(5).await?;
        db.settles(5).await?;
        tokio::time::sleep(REST).await;
        let started = Instant::now();
        db.scale(3).await?;
        let all = kube::api::ListParams::default().labels(&label(&db));
        let mut members = Members::open((scene, &label(&db)), 3, &BTreeSet::new(), Up::Voting).await?;
        let took = until("two members to be gone", started, async || {
            members.are_up().await?;
            let left = (db.pods().list(&all).await?.items.len(), db.claims().list(&all).await?.items.len());
            ensure!(left == (3, 3), "{left:?} pods and claims are there");
            Ok(())
        })
        .await?;
        db.settles(3).await?;
        Ok(took)
    };
    in_turn(runs, floor, value).await
}

pub async fn memory(scene: &Scene, runs: u32) -> Result<Measured> {
    let db = create(scene, "db").await?;
    db.settles(3).await?;
    let process = Operator::new(scene.client()).leading_process().await?;
    let mut measured = Measured::default();
    for _ in 0..runs {
        tokio::time::sleep(MEMORY_INTERVAL).await;
        measured.value.push(processes::resident_mib(process)?);
    }
    Ok(measured)
}

pub async fn idle_writes(scene: &Scene, runs: u32) -> Result<Measured> {
    let db = create(scene, "db").await?;
    db.settles(3).await?;
    // The last events of its creation are still being written.
    tokio::time::sleep(MEMORY_INTERVAL).await;
    let lab = Lab::from_env().context("the audit log is the local cluster's")?;
    let mut measured = Measured::default();
    for _ in 0..runs {
        let since = Timestamp::now();
        tokio::time::sleep(Duration::from_mins(1)).await;
        let written = operator_writes(lab.audit_log()?.lines(), since).context("failed to read the audit log")?;
        measured.value.push(f64::from(u32::try_from(written.len())?));
    }
    Ok(measured)
}

/// How far apart samples of a thing at rest are.
const MEMORY_INTERVAL: Duration = Duration::from_secs(5);
