//! Whoever takes a backup, or is read for it, is killed in the middle: it is taken again, and what the store then has restores.

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use quorate_crds::{BackupPhase, names};
use quorate_e2e::faults::processes;
use quorate_e2e::scene::{Cluster, Gateway, PATIENCE, Scene, Stage, Wish, play, wait_for};
use rustix::process::Signal;

use crate::archive::{agent, leader, states};
use crate::backup::{grow, half_taken, shows};

/// Who is killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    /// The process in the pod that takes the backup.
    Pod,
    /// The members that may be read for it.
    Followers,
}

impl Victim {
    async fn dies(self, db: &Cluster, backup: &str) -> Result<()> {
        match self {
            Self::Pod => pod_dies(db.scene(), backup).await,
            Self::Followers => followers_die(db).await,
        }
    }
}

/// The process that takes this backup is killed, and is gone.
async fn pod_dies(scene: &Scene, backup: &str) -> Result<()> {
    let own = format!("{}={backup}", names::LABEL_BACKUP);
    let found = scene.api::<Pod>().list(&ListParams::default().labels(&own)).await?.items;
    let [only] = found.as_slice() else { bail!("{} pods take it", found.len()) };
    let uid = only.metadata.uid.as_deref().context("a pod without a UID")?;
    let agents = processes::in_pod(uid, "quorate-agent");
    let [agent] = agents.as_slice() else { bail!("{agents:?} take it") };
    processes::signal(*agent, Signal::KILL)?;
    wait_for("the process to be gone", PATIENCE, async || {
        let left = processes::in_pod(uid, "quorate-agent");
        ensure!(!left.contains(agent), "{left:?} run");
        Ok(())
    })
    .await
}

/// Waits until a try of the Job's has failed: what was killed was needed.
async fn try_fails(scene: &Scene, backup: &str) -> Result<()> {
    wait_for("a try to fail", PATIENCE, async || {
        let job = scene.api::<Job>().get(backup).await?;
        ensure!(job.status.and_then(|status| status.failed) >= Some(1), "none has");
        Ok(())
    })
    .await
}

/// Whoever may be read is killed: a backup is taken from a member that does not lead.
async fn followers_die(db: &Cluster) -> Result<()> {
    let leader = leader(db).await?;
    for member in db.voters_doors().await?.keys().filter(|member| **member != leader) {
        processes::kill_member(db.scene(), member).await?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_backup_whose_pod_or_member_is_killed_in_the_middle_is_taken_again() -> Result<()> {
    play("backup_killed", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        scene.apply(&Gateway::credentials("s3", true)).await?.well()?;
        let db = scene.create(&Wish::new("db", 3)).await?;
        db.settles(3).await?;
        // Enough for much of it to be unread while the store stands still.
        for _ in 0..2 {
            grow(&db).await?;
        }
        for (taken, (name, victim)) in [("first", Victim::Pod), ("second", Victim::Followers)].into_iter().enumerate() {
            half_taken(scene, &gateway, name).await?;
            let killed = victim.dies(&db, name).await;
            gateway.pause(false)?;
            killed?;
            try_fails(scene, name).await?;
            let complete = shows(scene, name, BackupPhase::Complete, "BackupComplete").await?;
            let (lineage, manifest) =
                complete.lineage.zip(complete.manifest).context("the status does not say where")?;
            ensure!(gateway.objects(&manifest)?.len() == 1, "there is no {manifest}");
            let (store, whose) = (gateway.store("s3"), format!("--lineage={lineage}"));
            let proved = agent(scene, &store, &["verify", &whose, "--scratch=/scratch"]).await?;
            ensure!(proved["revision"].as_i64() == complete.revision, "{proved}, and not {:?}", complete.revision);
            // What was begun and not ended is no backup, and does not hide any.
            let listed = agent(scene, &store, &["list", &whose]).await?;
            let count = states(&listed).into_iter().filter(|state| *state == Some("whole")).count();
            ensure!(count == taken + 1, "{victim:?}: {listed}");
        }
        db.settles(3).await.map(drop)
    })
    .await
}
